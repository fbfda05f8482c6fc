"""Every contract that a plugin can implement, on one page.

A plugin provides factories (`Factory`); the kernel calls a factory once where it wires an app,
keeps the object and calls its bound methods. Unless a contract says otherwise, methods are called
from one thread, must not block and do not raise. All times are seconds as float.

An object needs every method and attribute of its contract, including those for abilities that it
lacks: the kernel refuses an incomplete object when it is made, and names the plugin. An optional
ability is a contract of its own (`KeyedRouting`, `SharedPool`, `Execution`).
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from eventmq.errors import EventMQError
from eventmq.headers import parse_headers
from eventmq.job import id_time
from eventmq.schedule import ScheduleStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from eventmq.clock import Clock
    from eventmq.store import Write
    from eventmq.store.lease import Claimant, LeaseRow
    from eventmq.store.reads import EventLogHead, EventRow, StoreReader
    from eventmq.store.recovery import Recovered
    from eventmq.store.reports import BackedUp, Finding, Repaired, Salvaged

__all__ = [
    "AsyncExecution",
    "CommandOption",
    "Envelope",
    "EventLogReader",
    "Execution",
    "Factory",
    "Failure",
    "Gateway",
    "JobContext",
    "JobsEnded",
    "KeyedRouting",
    "Middleware",
    "Ownership",
    "PartsYielded",
    "PluginContext",
    "PoolEvent",
    "ProgressReported",
    "QueueOrder",
    "QueueStore",
    "ResultBackend",
    "RetryPolicy",
    "RoutingStrategy",
    "Running",
    "ScheduleStore",
    "Serializer",
    "SharedPool",
    "SlotDied",
    "StoreTools",
    "Submission",
    "SubmissionBatch",
    "SubmissionHook",
    "TaskRole",
    "Trigger",
    "Upkeep",
    "WorkerPool",
    "WorkerView",
    "current",
    "current_job",
]


class StoreTools(Protocol):
    """Checks, repairs and copies the files of a store that this process has not opened. May block.

    A store without files raises `StoreError` from what it cannot do, and names the alternative.
    """

    def check(self) -> Sequence[Finding]:
        """Return the findings of one snapshot, also while a broker runs.

        Raises `StoreError` if nothing can be read.
        """

    def repair(self) -> Repaired:
        """Copy the files, then repair what can be repaired without a loss.

        Raises `StoreError`, having done nothing, while a broker has the store open.
        """

    def backup(self, destination: Path, *, replace: bool) -> BackedUp:
        """Write a snapshot of the store into a folder, all of it or nothing, synced to disk.

        A broker may run; one that is started on that folder continues from the snapshot. Raises
        `StoreError` if the folder has a store already, unless ``replace`` is true.
        """

    def salvage(self, destination: Path) -> Salvaged:
        """Copy what is readable of a damaged store into a new one in an empty folder.

        The damaged store is only read. Raises `StoreError`, leaving nothing behind, while a broker
        has it open, or if the folder is not empty or cannot be written.
        """


class EventLogReader(Protocol):
    """Reads the event log of a store that this process has not opened, also while a broker runs.

    Used from one thread. ``store_id`` is the id of the store in its events.
    """

    store_id: str

    def read(self, after: int, max_bytes: int) -> tuple[list[EventRow], EventLogHead]:
        """Return rows of events after a number, and the head of the log; raises `StoreError`.

        At least one row if there is one; none is added once ``max_bytes`` are reached.
        """

    def addresses(self) -> Mapping[str, str]:
        """Return the broker's addresses, or the last known, by port; ``main`` is for clients."""

    def close(self) -> None:
        """Release everything. Idempotent."""


#: Largest number of a progress: larger whole numbers are inexact as floats.
_MAX_PROGRESS = float(1 << 53)


@dataclass(frozen=True, slots=True)
class JobContext:
    """The job that is being executed. Delivery and attempt count from 1; `header` reads headers."""

    id: str
    task: str
    queue: str
    attempt: int
    delivery: int
    headers: str
    #: Tells `check` whether to stop, and receives the numbers of `progress`.
    cancellation: Any = field(default=None, compare=False, repr=False)

    def check(self) -> None:
        """Raise `JobCancelled` if the job is cancelled, or `SoftTimeLimitExceeded` once."""
        if self.cancellation is not None:
            self.cancellation.check()

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Report the progress of the job, which ``job.info()`` shows.

        A call takes microseconds; at most ten values a second are sent, and always the last.

        Args:
            done: Amount of finished work, in any unit.
            total: Total amount, if that is known.
            note: A short text for users, at most 1,000 characters.

        Raises:
            TypeError: ``done`` or ``total`` is not a number, or ``note`` is not text.
            ValueError: A number is not finite.
        """
        for value in (done,) if total is None else (done, total):
            if type(value) not in {int, float}:
                raise TypeError(f"progress takes numbers, not {type(value).__name__}")
            if not -_MAX_PROGRESS <= value <= _MAX_PROGRESS:
                raise ValueError(f"progress is {value!r}; at most {_MAX_PROGRESS:g} is allowed")
        if not isinstance(note, str):
            raise TypeError(f"the note of a progress is a text, not {type(note).__name__}")
        if self.cancellation is not None and self.cancellation.report is not None:
            self.cancellation.report(done, total, note)

    @property
    def created(self) -> float:
        """Unix time at which the client made the job, 0.0 if neither headers nor id have it."""
        return parse_headers(self.headers).created or id_time(self.id) or 0.0

    def header(self, name: str, default: str = "") -> str:
        """Return the value of a header that the caller or a middleware added."""
        return dict(parse_headers(self.headers).extra).get(name, default)

    def lineage(self) -> dict[str, str]:
        """Return the lineage headers of jobs that this job submits.

        ``parent-id`` is this job, ``root-id`` the first job of the tree; ``trace-id`` is inherited.
        """
        headers = {"root-id": self.header("root-id", self.id), "parent-id": self.id}
        trace = self.header("trace-id")
        return {**headers, "trace-id": trace} if trace else headers


#: The running job; has no value outside a job. The executor sets it around the call, in 0.1
#: microseconds; it is inherited by the threads and coroutines of a pool.
current: ContextVar[JobContext] = ContextVar("eventmq_current_job")


def current_job() -> JobContext:
    """Return the job that is being executed here.

    Raises:
        EventMQError: The caller is not inside a task.
    """
    job = current.get(None)
    if job is None:
        msg = "there is no current job: current_job() works only inside a task that a worker runs"
        raise EventMQError(msg)
    return job


@dataclass(frozen=True, slots=True)
class JobsEnded:
    """Pool event: the next ``count`` jobs of a chunk have outcomes, in their order.

    From a `SharedPool` they are the jobs at any ``positions``, and the slot has no meaning.
    """

    slot: int
    chunk: int
    count: int
    #: Total run time of these jobs in seconds.
    run_time: float
    #: The outcomes as `eventmq.wire.batches.encode_outcomes` encodes them.
    outcomes: bytes
    positions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SlotDied:
    """Pool event: a slot died and lost its unanswered jobs; the pool restarts it.

    In a `SharedPool` only the one job that the slot ran is lost.
    """

    slot: int
    #: The chunk and the position of the job that was running, or (0, -1).
    chunk: int
    position: int
    #: Exit status or signal as text.
    reason: str
    #: Number of the signal that ended the process, 0 for none.
    signal: int = 0
    #: Resident memory of the process when last measured, and its peak, in bytes; 0 for unknown.
    rss: int = 0
    peak: int = 0
    #: Jobs started and not answered, the running one included; 0 if the pool does not know.
    started: int = 0
    #: Whether other slots died with it: which job caused that is unknown.
    shared_cause: bool = False


@dataclass(frozen=True, slots=True)
class PartsYielded:
    """Pool event: the running job has yielded parts."""

    slot: int
    chunk: int
    position: int
    #: Index of the first part, and number of parts.
    first: int
    count: int
    #: The parts as `eventmq.wire.streams.encode_parts` encodes them.
    body: bytes


@dataclass(frozen=True, slots=True)
class ProgressReported:
    """Pool event: the running job has reported its progress."""

    slot: int
    chunk: int
    position: int
    #: The progress as `eventmq.wire.streams.encode_progress` encodes it.
    body: bytes


PoolEvent = JobsEnded | SlotDied | PartsYielded | ProgressReported


class Running(NamedTuple):
    """The job that a slot runs."""

    chunk: int
    position: int
    #: Monotonic time of its start.
    since: float


T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class PluginContext:
    """Arguments of a factory: the requested name, its options, the clock and the app.

    ``options`` is ``[eventmq.plugins.NAME]`` of the settings: read it with
    `eventmq.sdk.read_options`. ``app`` is None if the object is made without an app. Copy what you
    need and do not store the context, which would keep the app alive.
    """

    name: str
    options: Mapping[str, Any]
    clock: Clock
    app: Any = None


class Factory(Protocol[T_co]):
    """Makes the object that implements a contract.

    Raises `PluginError` for bad options; the registry adds the names of plugin and distribution,
    and the source of the options.
    """

    def __call__(self, context: PluginContext, /) -> T_co:
        """Return a new object."""


# Options that a gateway or pool declares


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOption:
    """An option on the command line that a gateway or pool declares: ``--virtual-host NAME``.

    The factory gets its value in ``context.options``, by the same name.

    Attributes:
        name: With underscores, such as ``virtual_host``.
        metavar: Placeholder for the value in the help, such as ``NAME``.
        help: A sentence.
        minimum: Minimum of a whole number; None for text.

    Raises:
        ValueError: The name is no lower-case identifier, or another field has the wrong type.
    """

    name: str
    metavar: str
    help: str
    minimum: int | None = None

    def __post_init__(self) -> None:
        name, minimum = str(self.name), self.minimum
        if not name.isidentifier() or not name.islower():
            raise ValueError(f"{self.name!r} is not a name of an option such as virtual_host")
        for field_name in ("name", "metavar", "help"):
            if not isinstance(value := getattr(self, field_name), str) or not value:
                raise ValueError(f"{field_name} of the option {name!r} is {value!r}, and not text")
        if minimum is not None and type(minimum) is not int:
            raise ValueError(f"minimum of the option {name!r} is {minimum!r}, no whole number")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRole:
    """The role that a plugin's option of ``@app.task`` gives to the task.

    Attributes:
        what: Description of the role, such as ``the STOMP queue 'upper'``.
        queue: Queue of the task's jobs, "" for that of the task.
        serves: Second task name in messages, "" for none. No two tasks of an app have the same.
    """

    what: str
    queue: str = ""
    serves: str = ""


# Payloads


@dataclass(frozen=True, slots=True)
class Envelope:
    """Metadata of a payload, which a signing serializer covers. Times are Unix time."""

    job_id: str
    content_type: str
    task: str = ""
    queue: str = ""
    created: float = 0.0
    expires: float = 0.0
    signature: str = ""


class Serializer(Protocol):
    """Turns values into bytes and back. Thread-safe; made before a worker forks its processes.

    ``encode`` returns the payload and the signature, "" if there is none. Both raise
    `SerializationError`, naming the value's type, for what they cannot encode or decode; ``decode``
    raises `SignatureError` if a signature is required and missing or wrong.
    """

    def encode(self, value: object, envelope: Envelope) -> tuple[bytes, str]:
        """Encode ``value``: for a job the list ``[args, kwargs]``, else a result."""

    def decode(self, data: bytes, envelope: Envelope) -> Any:
        """Decode the result of ``encode``."""


class ResultBackend(Protocol):
    """Keeps results. The broker alone keeps the state of jobs.

    The worker calls ``put`` before it replies, and the REPLY carries the reference. Thread-safe,
    may block; raises `ResultUnavailable`. A worker makes the object before it forks its processes:
    open connections at the first use, in each process. The backend removes expired results itself.

    Attributes:
        inline: The bytes travel in the REPLY and the broker keeps them; ``put`` and ``get`` are
            not called.
        local: Only this object can read what it keeps. A worker in a process of its own refuses to
            start with it.
    """

    inline: bool
    local: bool

    def put(self, job_id: str, data: bytes, ttl: float) -> bytes:
        """Store a result for ``ttl`` seconds, above 0. Idempotent by job id.

        Returns the reference, at most 1,024 bytes. Raises `ResultTooLarge` for a result that it
        does not accept; the job then fails. Any other error, or a reference that is not bytes, is
        logged by the worker; the job succeeds without a result.
        """

    def get(self, reference: bytes) -> bytes:
        """Return the bytes of a reference, which came over the wire.

        Raises `ResultUnavailable` for any bytes that do not refer to a stored result.
        """

    def close(self) -> None:
        """Release everything. Idempotent; called when the app closes, not in forked processes."""


# Decisions


class WorkerView(NamedTuple):
    """A worker session as a routing strategy sees it."""

    session: str
    #: Number of further chunks that it accepts now; at least 1 in calls of
    #: `RoutingStrategy.choose`.
    credit: int
    #: Number of chunks that it holds.
    busy: int


class RoutingStrategy(Protocol):
    """Decides which worker gets the next chunks of a queue.

    If it raises, or returns nothing or a session that was not offered, the broker logs the first
    such error and uses ``least-recently-used``, without keys, until its restart.

    Attributes:
        by_key: Whether it is a `KeyedRouting`.
    """

    by_key: bool

    def choose(self, queue: str, workers: Sequence[WorkerView], n: int) -> Sequence[str]:
        """Return the sessions of up to ``n`` chunks, at least one, none more often than its credit.

        Called only if two or more sessions request jobs of the queue. ``workers`` are in the order
        of their requests; ``n`` is at least 1.
        """


class KeyedRouting(RoutingStrategy, Protocol):
    """A routing strategy that also considers the headers of jobs.

    ``by_key`` is true. A job with a key goes only to the session that `prefer` names at that
    time; for jobs without one, `choose` decides.
    """

    def key(self, queue: str, headers: str) -> str:
        """Return the key of the jobs with this header text, "" for none. Pure."""

    def prefer(self, queue: str, key: str, workers: Sequence[WorkerView], now: float) -> str | None:
        """Return the session, with credit, that gets the key's next chunk, or None to wait.

        ``workers`` are all sessions that may get these jobs, including those without credit; there
        is at least one. The broker calls it again soon after None; it must not let a key wait for
        ever while a worker has credit. ``now`` is the broker's store time in seconds, which never
        steps.
        """


class QueueOrder(Protocol):
    """Decides from which of its queues a worker session gets work; one object per session.

    Its state is lost when the broker restarts. If it raises, or returns a queue that was not
    offered, the broker uses ``weighted-fair`` for all sessions, as with a `RoutingStrategy`.
    """

    def choose(self, queues: Sequence[tuple[int, str]]) -> str:
        """Return the name of one of the (weight, name) pairs; all of them have jobs waiting.

        Called only if two or more queues have jobs for the session. Workers of other
        implementations may send a weight of 0 or less.
        """

    def charge(self, queue: str, weight: int, jobs: int) -> None:
        """Record that the session got ``jobs`` jobs of the queue, or handed back ``-jobs``.

        Called for every chunk, also without a call of `choose`. ``jobs`` is below 0 when jobs are
        returned that were not started; if the broker has restarted, another object may have been
        charged for them.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A failed attempt of a job, as a retry policy sees it. ``attempt`` is 1 for the first.

    ``exception`` is the exception of the task, for a `Retry` its ``__cause__``; ``error_type`` is
    the dotted name of its class. ``created`` is the Unix time at which the client made the job, 0.0
    if that is not known.
    """

    attempt: int
    exception: BaseException
    error_type: str
    task: str
    queue: str
    job_id: str
    created: float


class RetryPolicy(Protocol):
    """Decides how long a failed job waits. Thread-safe.

    Called in the process that ran the job, or in the worker's if that was killed at its
    ``timeout``.
    """

    def delay(self, failure: Failure) -> float | None:
        """Return seconds until the next attempt; None if the job has failed for good.

        Called only while the job has retries left, and not if the task raised `Retry` with a
        countdown. It must neither change nor keep the exception, which holds the task's variables.
        """


class Trigger(Protocol):
    """Decides when a schedule fires. A pure value object; fire times are Unix time."""

    def next_after(self, fire_time: float) -> float | None:
        """Return the first fire time later than ``fire_time``, None if there is none.

        ``fire_time`` is the last one of the schedule, or the time of its creation.
        """

    def latest(self, fire_time: float, now: float) -> float | None:
        """Return the last fire time after ``fire_time`` and up to ``now``, None for none."""


# Around jobs


class SubmissionBatch:
    """Jobs that are sent together: by one ``map()``, in one ``app.batch()``, or as one graph.

    ``graph`` is true for a graph; ``state`` is for middlewares, each with its own key.
    """

    __slots__ = ("_callbacks", "graph", "state")

    def __init__(self, *, graph: bool = False) -> None:
        self.graph = graph
        self.state: dict[object, Any] = {}
        self._callbacks: list[Callable[[BaseException | None], object]] = []

    def on_end(self, callback: Callable[[BaseException | None], object]) -> None:
        """Register a callback for the receipts; it gets the exception if they do not arrive.

        It runs in the thread that waits for them or that failed to send the jobs, if one does.
        """
        self._callbacks.append(callback)

    def end(self, error: BaseException | None = None) -> None:
        """Run the callbacks; called by the client."""
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(error)


@dataclass(slots=True)
class Submission:
    """A call before it is sent; a middleware may add to ``headers``.

    ``batch`` is shared by jobs that are sent together, else None. In a graph ``waits_for`` has the
    ids of the jobs that must end first, for an error callback those whose failure it handles.
    """

    task: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    job_id: str
    queue: str
    headers: dict[str, str] = field(default_factory=dict)
    batch: SubmissionBatch | None = None
    waits_for: Sequence[str] = ()


class Middleware(Protocol):
    """Code around jobs. Thread-safe; made before a worker forks its processes.

    It implements `SubmissionHook`, `Execution` or both; else it acts when it is made.
    """


@runtime_checkable
class SubmissionHook(Middleware, Protocol):
    """A middleware around submission."""

    def submit(self, submission: Submission, proceed: Callable[[Submission], Any]) -> Any:
        """Run around a submission in the caller's thread; return what ``proceed`` returns."""


@runtime_checkable
class Execution(Middleware, Protocol):
    """A middleware around execution."""

    def execute(self, job: JobContext, proceed: Callable[[], Any]) -> Any:
        """Run around a task in its thread or process; return what ``proceed`` returns."""


@runtime_checkable
class AsyncExecution(Execution, Protocol):
    """A middleware around execution that also supports pools which run coroutines in one thread."""

    async def aexecute(self, job: JobContext, proceed: Callable[[], Any]) -> Any:
        """Run around a coroutine of a task; return what ``await proceed()`` returns."""


class Gateway(Protocol):
    """Serves a foreign protocol as an ordinary client and worker of the broker.

    A message of a peer may at most cost that peer its connection, never stop the gateway. Making a
    gateway opens nothing; it is not started again after ``stop``.
    """

    def start(self) -> Sequence[str]:
        """Bind, and serve in its own threads; return the real addresses, port 0 resolved.

        Raises `BindError` for an address that cannot be bound, and `NotAllowed` for an unencrypted
        address that other machines can reach, unless the option ``insecure`` is set.
        """

    def stop(self, grace: float) -> None:
        """Stop within ``grace`` seconds, or little longer. Idempotent, also before ``start``."""

    def running(self) -> bool:
        """Return whether it serves: not before ``start``, after ``stop`` or after a failure."""


# Execution


class WorkerPool(Protocol):
    """Runs jobs in slots; a slot runs its chunks in the order of ``assign``.

    All methods are called from the job manager's thread; only ``start`` and ``stop`` may block.

    Attributes:
        slots: Number of jobs that run at once.
        interrupts: It can interrupt blocking code, so ``soft_timeout`` works for any task.
        shared: Whether it is a `SharedPool`.
    """

    slots: int
    interrupts: bool
    shared: bool

    @property
    def abandoned(self) -> int:
        """Number of threads or coroutines that ``kill`` abandoned and that still run."""

    def start(self) -> None:
        """Start the slots. Raises if a slot cannot be started."""

    def filenos(self) -> Sequence[int]:
        """Return descriptors that are readable when ``poll`` has events."""

    def assign(self, slot: int, chunk: int, body: bytes, count: int) -> None:
        """Assign a chunk of ``count`` jobs to a slot, with the body from the broker."""

    def take_back(self, slot: int) -> int:
        """Withdraw the jobs that have not started; return their number, counted from the last."""

    def running(self, slot: int) -> Running | None:
        """Return the job that runs in the slot, None if none does."""

    def interrupt(self, slot: int, chunk: int, position: int) -> None:
        """Ask a cancelled job to end; does nothing unless the slot runs that job.

        Coroutines get CancelledError, blocking code `JobCancelled`: at once, or at its next check.
        """

    def credit(self, slot: int, chunk: int, position: int, taken: int) -> None:
        """Pass the credit of its readers to a job that streams; does nothing if it does not run.

        The job may be `eventmq.wire.streams.WINDOW` parts and ``WINDOW_BYTES`` ahead of the credit;
        once ``taken`` is ``NO_READER`` it sends nothing more.
        """

    def scale(self, slots: int) -> None:
        """Run processes for the first ``slots`` slots only; the others stay idle."""

    def kill(self, slot: int) -> None:
        """End the job of the slot at once, or abandon it if it cannot be ended.

        `SlotDied` follows, also for an idle slot, and after it no outcome of what was assigned.
        """

    def poll(self) -> list[PoolEvent]:
        """Return the events since the last call, in order per slot."""

    def stop(self, grace: float) -> None:
        """Let running jobs finish within ``grace`` seconds, then kill. Idempotent."""


class SharedPool(WorkerPool, Protocol):
    """A pool whose slots share their chunks: any free slot takes the next job.

    ``shared`` is true; ``assign`` and ``take_back`` are called for slot 0 and mean all slots. Jobs
    start in the order of their assignment and end in any.
    """

    def slot_of(self, chunk: int, position: int) -> int | None:
        """Return the slot that has started a job, None if none has, or it has ended."""


# Storage


class Ownership(Protocol):
    """Decides which of several brokers owns the store that they share; the others are standbys.

    The callers find out which broker is alive, by `look` and their own clocks. The store guarantees
    one thing, the *fence*: after a successful `claim`, nothing is stored under an earlier claim; a
    broker that still writes under one gets `Fenced`.

    All calls come from the thread of the store and may block for a limited time whatever the
    network does: `look` and `release` 2 s; `claim`, `renew` and a batch, which then ends with
    `Unknown`, 5 s. To its peers a broker is dead after 15 s of silence.
    """

    def look(self) -> LeaseRow:
        """Read the lease, and commit a row that is not read.

        The commit shows whether a standby can commit: while it cannot, a lease that is not renewed
        does not prove that the owner is dead. A standby calls this each second; it connects.

        Raises:
            StoreError: The store cannot be reached or used; the message has the reason.
        """

    def claim(self, seen: LeaseRow, me: Claimant) -> int:
        """Take the store over from the owner in the given lease, which may be this broker.

        It ends the connection that the lease records, if that is still the same: an unfinished
        batch is rolled back. Then it raises the epoch, provided it is unchanged, and waits at most
        1 s for a lock on the row. If a store may be restored to an earlier time, the epoch is at
        least the Unix time in seconds, so that none is used twice. `QueueStore.open` comes next: it
        reads everything again, and advances store time by `LeaseRow.passed` of that lease at most.

        Returns:
            The new epoch; 0 if the epoch had changed, or the row stayed locked.

        Raises:
            StoreError: The store cannot be reached.
            Unknown: The connection was lost: the claim may have succeeded.
        """

    def renew(self) -> None:
        """Increase the beat, in a commit on the connection of the batches, with the same fence.

        The owner calls it each second between two batches; `QueueStore.open` does it itself.

        Raises:
            Fenced: Another broker has claimed the store.
            Unknown: The connection was lost, or the beat is not the last one of this broker.
        """

    def release(self) -> None:
        """Name no owner in the lease, so that a standby need not wait. Everything is committed.

        Idempotent; does nothing if this broker does not own the store, and never raises.
        """

    def fileno(self) -> int | None:
        """Return a descriptor that is readable when `freed` may be true, or None.

        It may be another one at each call.
        """

    def freed(self) -> bool:
        """Return whether the owner's connection may have ended since the last call. Does not block.

        A standby then calls `look` at once; `LeaseRow.connected` decides.
        """


class Upkeep(Protocol):
    """Maintains a store that several brokers share, for ``eventmq store``. May block.

    Such a store keeps the settings that its brokers must share, which its factory reads from
    ``context.app.settings``, and refuses a broker with others. It also refuses every broker once
    it notices that it was restored to an earlier time. Each method is called in a process of its
    own, and raises `StoreError`, having done nothing, if the store cannot be reached or used.
    """

    def init(self) -> Sequence[str]:
        """Create the schema or upgrade it; return sentences about the changes."""

    def check(self) -> Sequence[Finding]:
        """Return the findings of a check, also while brokers run."""

    def contract(self) -> Sequence[str]:
        """Remove what only the previous release needed; return sentences about the changes."""

    def accept_settings(self) -> Sequence[str]:
        """Store the settings of this process; return those that were different."""

    def accept_restore(self) -> Sequence[str]:
        """Accept that the store was restored; return sentences about the consequences."""


class QueueStore(Protocol):
    """Keeps jobs, leases and outcomes, and what brokers that share it must agree on.

    A batch is one transaction: all of it or nothing, and on disk before its results are returned.
    Several batches may be in flight; results come in the order of submission. One thread.
    It keeps a time of its own (`eventmq.timekeeping`): ``Recovered.keeper`` continues from the
    stored time; each commit advances it, and stores it if it was not stored for a second.
    """

    @property
    def ownership(self) -> Ownership | None:
        """Decides which of several brokers owns it; None for a store of one process.

        With it, `open` follows each successful `Ownership.claim` and reads in its epoch; `finished`
        may return `Fenced` and `Unknown`, after which nothing is submitted before the next `open`.
        Read before ``open``.
        """

    @property
    def tools(self) -> StoreTools | None:
        """Checks and copies its files, None if there are none. Read before ``open``."""

    @property
    def upkeep(self) -> Upkeep | None:
        """Maintains a shared store, None for a store of one process. Read before ``open``."""

    def event_log(self) -> EventLogReader | None:
        """Return a reader of events, also of a closed store, or None; raises `StoreError`."""

    def open(self) -> Recovered:
        """Open or create the store. Raises `StoreError` with the remedy."""

    def reader(self) -> Callable[[], StoreReader] | None:
        """Return what opens a reader in the thread that will use it; None if only commits read."""

    def submit(self, batch: Sequence[Write]) -> None:
        """Start a commit. Never raises: `finished` returns a failure."""

    def finished(self) -> list[Sequence[Any] | Exception]:
        """Return, per batch that ended since the last call, one result per write.

        `eventmq.store.writes.PartlyStored` if writes of peers were left out because the store
        cannot keep their values. An exception means that nothing of the batch was stored:
        `QueueFull` if the store has no space and remains usable; any other ends the broker. A store
        with an `ownership` has two more: `Fenced`, and `Unknown`, if it may have been stored. A
        batch is never submitted again.
        """

    def verify(self) -> None:
        """Raise `StoreError` if the store is no longer where it was opened.

        Files may have been deleted, moved or replaced, or their disk unmounted. The broker calls
        this about once a second, also while it commits nothing, and ends if it raises. Cheap.
        """

    def gauges(self) -> Mapping[str, float]:
        """Return the measurements of the store, by names such as ``dead_rows``.

        A monitoring system gets them as ``eventmq_store_NAME``, in seconds and bytes. ``standbys``
        is the number of brokers that stand by to own the store, if the store can know it. Neither
        blocks nor raises: expensive values are measured now and then, beside a commit. Empty before
        `open`.
        """

    def fileno(self) -> int | None:
        """Return a descriptor that is readable when ``finished`` has results, or None."""

    def close(self) -> None:
        """Release everything. Idempotent."""
