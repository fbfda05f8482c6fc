"""Every contract that a plugin can implement, on one page.

A plugin hands over factories (`Factory`); the kernel calls a factory once where it wires an app,
keeps the object and calls its bound methods. Unless a contract says otherwise, methods are called
from one thread, may not block and do not raise. All times are seconds as float.

An object needs every method and attribute of its contract, also those that say what it cannot do:
one without is refused where it is made, with a sentence that names the plugin. What only some can
do is a contract of its own (`KeyedRouting`, `SharedPool`, `Execution`).
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
    from eventmq.store.reads import EventLogHead, EventRow
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
    """Checks, repairs and copies the files of a store that is not opened here. May block.

    Where there are no files, what cannot be done raises `StoreError`, with what to use instead.
    """

    def check(self) -> Sequence[Finding]:
        """Return what is not as it should be, in one snapshot, also while a broker runs.

        Raises `StoreError` where there is nothing that can be read.
        """

    def repair(self) -> Repaired:
        """Put right what can be put right without a loss, after copying the files.

        Raises `StoreError`, having done nothing, while a broker has the store open.
        """

    def backup(self, destination: Path, *, replace: bool) -> BackedUp:
        """Write a snapshot of the store into a folder, all of it or nothing, synced.

        A broker may run; one that is started on that folder goes on from there. Raises `StoreError`
        where a store is in the folder already, unless ``replace`` is said.
        """

    def salvage(self, destination: Path) -> Salvaged:
        """Copy what can be read of a damaged store into a new one, in a folder that is empty.

        The store is only read. Raises `StoreError`, leaving nothing behind, while a broker has it
        open, or where the folder has something in it or cannot be written.
        """


class EventLogReader(Protocol):
    """Reads the event log of a store that is not opened here, also while a broker runs. One thread.

    ``store_id`` is the id of the store in its events.
    """

    store_id: str

    def read(self, after: int, max_bytes: int) -> tuple[list[EventRow], EventLogHead]:
        """Return rows of events after a number, and what the store has; raises `StoreError`.

        At least one row if there is one, no more after ``max_bytes``; one may begin before that.
        """

    def addresses(self) -> Mapping[str, str]:
        """Return where the broker is, or was, by port: ``main`` is for clients."""

    def close(self) -> None:
        """Release everything. Idempotent."""


#: The largest number of a progress: what is larger has no exact place in a float.
_MOST = float(1 << 53)


@dataclass(frozen=True, slots=True)
class JobContext:
    """The job that is being executed. ``delivery`` and ``attempt`` count from 1.

    ``headers`` is the header text; `header` reads it.
    """

    id: str
    task: str
    queue: str
    attempt: int
    delivery: int
    headers: str
    #: What `check` asks and `progress` tells.
    cancellation: Any = field(default=None, compare=False, repr=False)

    def check(self) -> None:
        """Raise `JobCancelled`, or once `SoftTimeLimitExceeded`, where the job is to stop."""
        if self.cancellation is not None:
            self.cancellation.check()

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Tell those who ask ``job.info()`` how far the job is.

        The last value counts. Call it as often as you like: it costs microseconds, and at most ten
        values a second are sent.

        Args:
            done: How much is done, in any unit.
            total: How much there is, if that is known.
            note: A few words for people, at most 1,000 characters.

        Raises:
            TypeError: A number is none, or the note is no text.
            ValueError: A number is not finite.
        """
        for value in (done,) if total is None else (done, total):
            if type(value) not in {int, float}:
                raise TypeError(f"progress is told in numbers, not {type(value).__name__}")
            if not -_MOST <= value <= _MOST:
                raise ValueError(f"progress is {value!r}; allowed is a number up to {_MOST:g}")
        if not isinstance(note, str):
            raise TypeError(f"the note of a progress is a text, not {type(note).__name__}")
        if self.cancellation is not None and self.cancellation.report is not None:
            self.cancellation.report(done, total, note)

    @property
    def created(self) -> float:
        """Unix time at which the client made the job, 0.0 if neither headers nor id say so."""
        return parse_headers(self.headers).created or id_time(self.id) or 0.0

    def header(self, name: str, default: str = "") -> str:
        """Return the value of a header that the caller or a middleware added."""
        return dict(parse_headers(self.headers).extra).get(name, default)

    def lineage(self) -> dict[str, str]:
        """Return the headers by which jobs that are submitted in here say whose they are.

        ``parent-id`` is this job, ``root-id`` the first job of the tree, ``trace-id`` goes on.
        """
        said = {"root-id": self.header("root-id", self.id), "parent-id": self.id}
        trace = self.header("trace-id")
        return {**said, "trace-id": trace} if trace else said


#: The running job; has no value outside a job. The executor sets it around the call, in 0.1
#: microseconds; it follows the job through the threads and the coroutines of a pool.
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

    From a `SharedPool` it is jobs of any ``positions``; the slot means nothing.
    """

    slot: int
    chunk: int
    count: int
    #: Seconds that these jobs ran together.
    run_time: float
    #: `eventmq.wire.batches.encode_outcomes` of them.
    outcomes: bytes
    positions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SlotDied:
    """Pool event: a slot died and lost its unanswered jobs; it starts anew.

    In a `SharedPool` that is the one job that it ran.
    """

    slot: int
    #: The chunk and the position of the job that was running, or (0, -1).
    chunk: int
    position: int
    #: For people: exit status or signal.
    reason: str
    #: Number of the signal that ended the process, 0 for none.
    signal: int = 0
    #: Bytes of memory of the process when last measured, and its peak; 0 for unknown.
    rss: int = 0
    peak: int = 0
    #: Jobs started and not answered, with the running one; 0 also where the pool does not know.
    started: int = 0
    #: Other slots died at the same moment of the same cause: which job it was is not known.
    shared_cause: bool = False


@dataclass(frozen=True, slots=True)
class PartsYielded:
    """Pool event: the running job has yielded parts."""

    slot: int
    chunk: int
    position: int
    #: Index of the first, and how many.
    first: int
    count: int
    #: `eventmq.wire.streams.encode_parts` of them.
    body: bytes


@dataclass(frozen=True, slots=True)
class ProgressReported:
    """Pool event: the running job has reported its progress."""

    slot: int
    chunk: int
    position: int
    #: `eventmq.wire.streams.encode_progress` of it.
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
    """What a factory gets: the name that it is asked for, its options, the clock and the app.

    ``options`` is ``[eventmq.plugins.NAME]`` of the settings: read it with
    `eventmq.sdk.read_options`. ``app`` is None where a plugin is made without one. Take what you
    need and do not keep the context: an object that keeps it keeps the app alive.
    """

    name: str
    options: Mapping[str, Any]
    clock: Clock
    app: Any = None


class Factory(Protocol[T_co]):
    """Makes the object that implements a contract.

    Raises `PluginError` for bad options; the registry adds the names of plugin and distribution,
    and where the options stand.
    """

    def __call__(self, context: PluginContext, /) -> T_co:
        """Return a new object."""


# Options that a gateway or pool declares


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOption:
    """An option on the command line that a gateway or pool declares: ``--virtual-host NAME``.

    The factory finds its value in ``context.options``, by the same name.

    Attributes:
        name: With underscores, such as ``virtual_host``.
        metavar: What stands for the value in the help, such as ``NAME``.
        help: A sentence.
        minimum: Of a whole number; None for text.

    Raises:
        ValueError: The name is no small identifier, others no text, or the minimum no whole number.
    """

    name: str
    metavar: str
    help: str
    minimum: int | None = None

    def __post_init__(self) -> None:
        name, minimum = str(self.name), self.minimum
        if not name.isidentifier() or not name.islower():
            raise ValueError(f"{self.name!r} is no name of an option, such as virtual_host")
        for field_name in ("name", "metavar", "help"):
            if not isinstance(value := getattr(self, field_name), str) or not value:
                raise ValueError(f"{field_name} of the option {name!r} is {value!r}, and not text")
        if minimum is not None and type(minimum) is not int:
            raise ValueError(f"minimum of the option {name!r} is {minimum!r}, no whole number")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRole:
    """What an option of ``@app.task`` that a plugin declares makes of the task.

    Attributes:
        what: The role, for people, such as ``the STOMP queue 'upper'``.
        queue: Queue of the task's jobs, "" for that of the task.
        serves: Name in messages of jobs that the task runs beside its own, "" for none. Two tasks
            of an app cannot serve one.
    """

    what: str
    queue: str = ""
    serves: str = ""


# Payloads


@dataclass(frozen=True, slots=True)
class Envelope:
    """What surrounds a payload: a signing serializer covers it. Times are Unix time."""

    job_id: str
    content_type: str
    task: str = ""
    queue: str = ""
    created: float = 0.0
    expires: float = 0.0
    signature: str = ""


class Serializer(Protocol):
    """Turns values into bytes and back. Thread-safe; made before a worker forks its processes.

    ``encode`` returns the payload and the signature, "" where there is none. Both raise
    `SerializationError` for what cannot be encoded or decoded, naming the value's type;
    ``decode`` raises `SignatureError` where a signature is needed and not right.
    """

    def encode(self, value: object, envelope: Envelope) -> tuple[bytes, str]:
        """Encode ``value``: for a job the list ``[args, kwargs]``, else a result."""

    def decode(self, data: bytes, envelope: Envelope) -> Any:
        """Decode what ``encode`` made."""


class ResultBackend(Protocol):
    """Keeps results. The state of a job is always the broker's.

    The worker calls ``put`` before it replies, and the REPLY carries the reference. Thread-safe,
    may block; raises `ResultUnavailable`. A worker makes the object before it forks its processes:
    open connections at the first use, in each. The backend removes what is over by itself.

    Attributes:
        inline: The bytes travel in the REPLY and the broker keeps them; ``put`` and ``get`` are
            not called.
        local: Only this object can read what it keeps. A worker that is a process of its own
            refuses to start with it.
    """

    inline: bool
    local: bool

    def put(self, job_id: str, data: bytes, ttl: float) -> bytes:
        """Store a result for ``ttl`` seconds, above 0. Idempotent by job id.

        Returns the reference, 1,024 bytes at most. Raises `ResultTooLarge` for what it does not
        take: the job fails with it. Any other error, or a reference that is not bytes, is logged
        by the worker and costs the result, not the job.
        """

    def get(self, reference: bytes) -> bytes:
        """Return the bytes of a reference, which came over the wire.

        Raises `ResultUnavailable` for any bytes that are no reference to a result that is kept.
        """

    def close(self) -> None:
        """Release everything. Idempotent; called when the app is closed, in no forked process."""


# Decisions


class WorkerView(NamedTuple):
    """What a routing strategy sees of a worker session."""

    session: str
    #: How many more chunks it takes now; at least 1 in calls of `RoutingStrategy.choose`.
    credit: int
    #: How many chunks it holds.
    busy: int


class RoutingStrategy(Protocol):
    """Decides which worker gets the next chunks of a queue.

    In place of one that raises, or returns nothing or what it was not offered, the broker uses
    ``least-recently-used``, without keys, until it is restarted; it logs the first such error.

    Attributes:
        by_key: It is a `KeyedRouting`.
    """

    by_key: bool

    def choose(self, queue: str, workers: Sequence[WorkerView], n: int) -> Sequence[str]:
        """Return the sessions of up to ``n`` chunks, at least one, none more often than its credit.

        Asked only where two or more sessions want jobs of the queue. ``workers`` stand in the order
        in which they informed; ``n`` is at least 1.
        """


class KeyedRouting(RoutingStrategy, Protocol):
    """A routing strategy that looks at jobs too, by what their headers say.

    ``by_key`` is true. A job with a key goes only to the session that `prefer` names at that
    time; jobs without one go as `choose` says.
    """

    def key(self, queue: str, headers: str) -> str:
        """Return the key of the jobs with this header text, "" for none. Pure."""

    def prefer(self, queue: str, key: str, workers: Sequence[WorkerView], now: float) -> str | None:
        """Return the session, with credit, that gets the key's next chunk, or None to wait.

        ``workers`` are all that may be given these jobs, also those whose credit is 0; at least
        one. It is asked again within moments, and must not let a key wait for ever while a
        worker has credit. ``now`` is the broker's store time in seconds, which never steps.
        """


class QueueOrder(Protocol):
    """Decides from which of its queues a worker session gets work; one object per session.

    It begins anew with the broker. In place of one that raises, or returns what it was not offered,
    the broker uses ``weighted-fair`` for all sessions, as with a `RoutingStrategy`.
    """

    def choose(self, queues: Sequence[tuple[int, str]]) -> str:
        """Return one of the (weight, name) pairs' names; all of them have jobs waiting.

        Asked only where two or more queues have jobs for the session. A weight may be 0 or less,
        from workers of other makes.
        """

    def charge(self, queue: str, weight: int, jobs: int) -> None:
        """Record that the session got ``jobs`` jobs of the queue, or handed back ``-jobs``.

        Called for every chunk, also where `choose` was not asked. ``jobs`` is below 0 where jobs
        come back that were not started; another object may have been charged for them, before the
        broker was restarted.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A failed attempt of a job, as a retry policy sees it. ``attempt`` is 1 for the first.

    ``exception`` is what the task raised, for a `Retry` what that was raised from; ``error_type``
    is the dotted name of its class. ``created`` is the Unix time at which the client made the job,
    0.0 if that is not known.
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

    Asked in the process that ran the job, or the worker's where that was killed at its ``timeout``.
    """

    def delay(self, failure: Failure) -> float | None:
        """Return seconds until the next attempt; None means: the job has failed for good.

        Asked only while the job has retries left, and not where the task raised `Retry` with a
        countdown. It must neither change nor keep the exception, which holds the task's variables.
        """


class Trigger(Protocol):
    """Decides when a schedule fires. Pure, a value object; fire times are Unix time."""

    def next_after(self, fire_time: float) -> float | None:
        """Return the first fire time later than ``fire_time``, None if there is none.

        ``fire_time`` is the last one of the schedule, or the time at which it was made.
        """

    def latest(self, fire_time: float, now: float) -> float | None:
        """Return the last fire time after ``fire_time`` and up to ``now``, None for none."""


# Around jobs


class SubmissionBatch:
    """Jobs that are sent together: by one ``map()``, in one ``app.batch()``, or as one graph.

    ``graph`` says that they are one; ``state`` is for middlewares, each with a key of its own.
    """

    __slots__ = ("_callbacks", "graph", "state")

    def __init__(self, *, graph: bool = False) -> None:
        self.graph = graph
        self.state: dict[object, Any] = {}
        self._callbacks: list[Callable[[BaseException | None], object]] = []

    def on_end(self, callback: Callable[[BaseException | None], object]) -> None:
        """Call back once the receipts are there, with the exception if they are not.

        In the thread that waits for the receipts, or that could send nothing; never without either.
        """
        self._callbacks.append(callback)

    def end(self, error: BaseException | None = None) -> None:
        """Call back; the client does this."""
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(error)


@dataclass(slots=True)
class Submission:
    """A call on its way out; a middleware may add to ``headers``.

    ``batch`` is shared by jobs that are sent together, None for a job that is sent alone. In a
    graph ``waits_for`` has the ids of the jobs whose ends this one waits for; a failure handler
    has those whose failure it handles.
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

    What it wraps it says by keeping `SubmissionHook`, `Execution` or both; one that keeps neither
    works where it is made, as ``log-context`` does.
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
    """A middleware around execution in pools that run coroutines in one thread as well."""

    async def aexecute(self, job: JobContext, proceed: Callable[[], Any]) -> Any:
        """Run around a coroutine of a task; return what ``await proceed()`` returns."""


class Gateway(Protocol):
    """Serves a foreign protocol as an ordinary client and worker of the broker.

    What a peer sends costs that peer its connection at most, never the gateway. Making one opens
    nothing; after ``stop`` it is not started again.
    """

    def start(self) -> Sequence[str]:
        """Bind and serve in threads of its own; return the real addresses, port 0 resolved.

        Raises `BindError` for an address that cannot be bound; `NotAllowed` where nothing is
        encrypted, for one that other machines can reach, without the option ``insecure``.
        """

    def stop(self, grace: float) -> None:
        """End within ``grace`` seconds. Idempotent, also before ``start``. Blocks little longer."""

    def running(self) -> bool:
        """Return whether it serves: not before ``start``, not after ``stop``, not when it broke."""


# Execution


class WorkerPool(Protocol):
    """Runs jobs in slots; a slot runs its chunks in the order of ``assign``.

    All methods are called from the job manager's thread; only ``start`` and ``stop`` may block.

    Attributes:
        slots: How many jobs run at once.
        interrupts: Blocking code can be interrupted, so ``soft_timeout`` is kept for any task.
        shared: It is a `SharedPool`.
    """

    slots: int
    interrupts: bool
    shared: bool

    @property
    def abandoned(self) -> int:
        """How many threads or coroutines were abandoned by ``kill`` and still run."""

    def start(self) -> None:
        """Start the slots. Raises if a slot cannot be started."""

    def filenos(self) -> Sequence[int]:
        """Return descriptors that are readable when ``poll`` has something."""

    def assign(self, slot: int, chunk: int, body: bytes, count: int) -> None:
        """Assign a chunk of ``count`` jobs to a slot, with the body that the broker sent."""

    def take_back(self, slot: int) -> int:
        """Withdraw the jobs that have not started; return how many, counted from the last one."""

    def running(self, slot: int) -> Running | None:
        """Return the job that runs in the slot, None if none does."""

    def interrupt(self, slot: int, chunk: int, position: int) -> None:
        """Ask a cancelled job to end; nothing if the slot does not run it (any more).

        Coroutines get CancelledError, blocking code `JobCancelled`: where it checks, or at once.
        """

    def credit(self, slot: int, chunk: int, position: int, taken: int) -> None:
        """Pass the credit of its readers to a job that streams; nothing if it does not run.

        It may be `eventmq.wire.streams.WINDOW` parts and ``WINDOW_BYTES`` ahead of that; once
        ``taken`` is ``NO_READER``, nothing is to be sent any more.
        """

    def scale(self, slots: int) -> None:
        """Run processes for the first ``slots`` slots only; the others stay idle."""

    def kill(self, slot: int) -> None:
        """End the job of the slot at once, or abandon it where it cannot be ended.

        `SlotDied` follows, also for an idle slot, and after it no answer to what was assigned.
        """

    def poll(self) -> list[PoolEvent]:
        """Return what happened since the last call, per slot in order."""

    def stop(self, grace: float) -> None:
        """Let running jobs finish within ``grace`` seconds, then kill. Idempotent."""


class SharedPool(WorkerPool, Protocol):
    """A pool whose slots share their chunks: any free slot takes the next job.

    ``shared`` is true; ``assign`` and ``take_back`` are called for slot 0 and mean all slots. Jobs
    start in the order in which they were assigned, and end in any order.
    """

    def slot_of(self, chunk: int, position: int) -> int | None:
        """Return the slot that has started a job, None if none has, or it has ended."""


# Storage


class Ownership(Protocol):
    """Decides which of several brokers owns the store that they share; the others are standbys.

    Who is alive the callers find out, by looking and by their own clocks. The store keeps one
    promise, the *fence*: from a successful `claim` on, nothing is stored by a claim before it,
    whatever that broker still sends: it gets `Fenced`.

    All calls come from the thread of the store and may block, each for a time that it limits
    itself, whatever the network does: `look` and `release` 2 s; `claim`, `renew` and a batch, which
    gives up with `Unknown`, 5 s. Peers take a broker for dead that is silent for 15 s.
    """

    def look(self) -> LeaseRow:
        """Read the lease, and commit something of its own beside it, which no one reads.

        The commit shows a standby whether it can commit: while it cannot, a lease that is not
        renewed says nothing about its owner. A standby calls this about once a second; it connects.

        Raises:
            StoreError: The store cannot be reached, or not used: the message says why.
        """

    def claim(self, seen: LeaseRow, me: Claimant) -> int:
        """Take the store over from the owner of the row that was seen, which may be this broker.

        It ends the connection that the row records, if that is still the same: a batch in its
        middle is rolled back. Then it raises the epoch where it is as seen, waiting at most 1 s
        for a lock on the row. Where a store may be put back to an earlier time the epoch is at
        least the Unix time in seconds, so that none is given twice. `QueueStore.open` comes next:
        it reads all anew, and lets store time go on by `LeaseRow.passed` of that row at most.

        Returns:
            The new epoch; 0 where the epoch is another by now, or the row stayed locked.

        Raises:
            StoreError: The store cannot be reached.
            Unknown: The connection was lost: the claim may have succeeded.
        """

    def renew(self) -> None:
        """Raise the beat, in a commit on the connection of the batches, with the same fence.

        The owner calls it each second between two batches; `QueueStore.open` does it by itself.

        Raises:
            Fenced: Another broker has claimed the store.
            Unknown: The connection was lost, or the beat is not the one that this broker has left.
        """

    def release(self) -> None:
        """Give the store up: name no owner, so that a standby need not wait. All is committed.

        Idempotent, nothing where this broker does not own the store, and it raises nothing.
        """

    def fileno(self) -> int | None:
        """Return a descriptor, any call a new one, readable when `freed` may be true, or None."""

    def freed(self) -> bool:
        """Return whether the owner's connection may have ended since the last call. Does not block.

        A standby then looks at once; what counts is `LeaseRow.connected`.
        """


class Upkeep(Protocol):
    """Looks after a store that several brokers share, for ``eventmq store``. May block.

    Such a store keeps the settings that its brokers must have alike, which its factory reads of
    ``context.app.settings``, and refuses a broker with others; and every broker once it notices
    that it was put back to an earlier time. Each method is called in a process of its own, and
    raises `StoreError`, having done nothing, where the store cannot be reached or used.
    """

    def init(self) -> Sequence[str]:
        """Make what is missing, of an earlier version too; return what was done, in sentences."""

    def check(self) -> Sequence[Finding]:
        """Return what is not as it should be, also while brokers run."""

    def contract(self) -> Sequence[str]:
        """Remove what only the release before this one needed; return what was done."""

    def accept_settings(self) -> Sequence[str]:
        """Store the settings of this process; return each that was another one."""

    def accept_restore(self) -> Sequence[str]:
        """Let brokers go on after the store was put back; return what that means, in sentences."""


class QueueStore(Protocol):
    """Keeps jobs, leases and outcomes, and decides what brokers sharing it must agree on.

    A batch is one transaction: all of it or nothing, and on disk before its results are given.
    Several batches may be in flight; results come in the order of submission. One thread.
    It keeps a time of its own (`eventmq.timekeeping`): ``Recovered.keeper`` goes on from what was
    stored; each commit advances it, and stores it where it was not for a second.
    """

    @property
    def ownership(self) -> Ownership | None:
        """What decides which of several brokers owns it; None where one process has it for itself.

        With it, `open` follows each successful `Ownership.claim` and reads in its epoch; `finished`
        may return `Fenced` and `Unknown`, after which nothing more is submitted before that. Asked
        before ``open``.
        """

    @property
    def tools(self) -> StoreTools | None:
        """What looks after its files, None where it has none. Asked before ``open``."""

    @property
    def upkeep(self) -> Upkeep | None:
        """What looks after a shared store, None for one of a single process. As `tools`."""

    def event_log(self) -> EventLogReader | None:
        """Return a reader of stored events, of a store that need not be open; raises `StoreError`.

        None where only the broker has one.
        """

    def open(self) -> Recovered:
        """Open or create. Raises `StoreError` with what to do about it."""

    def submit(self, batch: Sequence[Write]) -> None:
        """Start a commit. Raises nothing: a failure is among what `finished` returns."""

    def finished(self) -> list[Sequence[Any] | Exception]:
        """Return, per batch that ended since the last call, one result per write.

        `eventmq.store.writes.PartlyStored` where writes of peers were left out, as they have values
        that the store cannot keep. An exception means that nothing of the batch was stored:
        `QueueFull` where the store has no space and lives on, any other is the end of the broker. A
        store with an `ownership` has two more: `Fenced`, and `Unknown`, if it may have been stored.
        A batch is never submitted again.
        """

    def verify(self) -> None:
        """Raise `StoreError` if the store is not where it was opened any more, None if it is.

        Files may have been deleted, moved or replaced, or their disk unmounted. The broker asks
        about once a second, also while it commits nothing, and ends if this raises. Cheap.
        """

    def gauges(self) -> Mapping[str, float]:
        """Return what it measures of itself for monitors, by names such as ``dead_rows``.

        A monitor has them as ``eventmq_store_NAME``, in seconds and bytes. Neither blocks nor
        raises: what takes longer is measured now and then, beside a commit. Empty before `open`.
        """

    def fileno(self) -> int | None:
        """Return a descriptor that is readable when ``finished`` has something, or None."""

    def close(self) -> None:
        """Release everything. Idempotent."""
