"""Connected peers: a `Peer` per connection, a `Session` per run of a worker, its `Lease`s.

A routing id changes at every reconnect, so leases belong to sessions; a session finds its
connection again when its peer informs with the same session id.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from eventmq.broker.grants import Grant
    from eventmq.interfaces import QueueOrder
    from eventmq.job import JobRecord
    from eventmq.wire.features import Features

__all__ = ["LEGACY_ONLY", "LEGACY_PREFIX", "Eligibility", "Key", "Lease", "Peer", "Session"]

#: Where several queues have jobs for a session, a chunk has at most so many times the jobs, by
#: weight, of the last chunks of the others: once, and as much again, so that chunks can grow.
MAX_SHARE = 2

#: Prefix of session ids that the broker makes for legacy peers.
LEGACY_PREFIX = "plain."


class Key(NamedTuple):
    """A connection: the port's name and the routing id."""

    port: str
    identity: bytes

    def __str__(self) -> str:
        """Return it for logs, in printable ASCII."""
        return f"{repr(self.identity)[2:-1]} on port {self.port}"


@dataclass(slots=True, eq=False)
class Peer:
    """One connection.

    Attributes:
        key: Its port and routing id.
        role: ``worker``, ``scheduler`` or ``client`` as informed, else "".
        features: Its FEATURES, None for a legacy peer or one that did not inform.
        last_seen: When a message last came from it.
        sent: When a message was last sent to it.
        session: Its session, if it is a worker.
        calls: Its unfinished ``get`` calls: message id -> ids of jobs still to be answered.
        topics: Its unfinished ``subscribe`` calls: message id -> topic prefixes.
        streams: Its ``stream`` calls: message id -> job.
        waiting: Number of ids in ``calls``.
        owed: Number of jobs whose REPLY it asked for and did not get yet.
        leaving: A KBAI was said by either side; a legacy worker then only finishes what it has.
        warned: Whether a bad message of it was logged.
        sent_schedules: Of a legacy scheduler: schedule -> what was last sent to it.
        grant: What it may do, None for everything.
        admitted: What the key of its connection allows: ``grant``, unless that is of a peer for
            which a standby passes messages on.
        tokens: Messages that it may send at once, where there is a limit.
        filled: When ``tokens`` was counted last.
        muted: It acts as registered but never informed; it is sent nothing until it does.
        dismissed: It was sent a DISCONNECT, so that it informs again.
    """

    key: Key
    last_seen: float
    role: str = ""
    features: Features | None = None
    sent: float = 0.0
    session: Session | None = None
    calls: dict[str, set[str]] = field(default_factory=dict)
    topics: dict[str, tuple[str, ...]] = field(default_factory=dict)
    streams: dict[str, str] = field(default_factory=dict)
    waiting: int = 0
    owed: int = 0
    leaving: bool = False
    warned: bool = False
    sent_schedules: dict[str, tuple[str, ...]] = field(default_factory=dict)
    grant: Grant | None = None
    admitted: Grant | None = None
    tokens: float = 0.0
    filled: float = 0.0
    muted: bool = False
    dismissed: bool = False

    @property
    def maker(self) -> object:
        """Whom queues that it names first count against: its key's owner, else the connection."""
        return self.key if self.grant is None else self.grant.owner

    @property
    def may_be_silent(self) -> bool:
        """Whether its silence proves nothing: a legacy client that still waits for a REPLY.

        Legacy clients send no HEARTBEATs.
        """
        silent = self.features is None and self.role in {"", "client"} and not self.muted
        return self.owed > 0 and silent

    @property
    def reads_rows(self) -> bool:
        """Whether it reads a row, as for ``get``, in the REPLY to its ``reply-requested``."""
        return self.features is not None and "ended" in self.features.extensions

    @property
    def reads_errors(self) -> bool:
        """Whether it can be sent an ERROR: it has not informed, or has the extension ``error``."""
        return not self.role or (self.features is not None and "error" in self.features.extensions)


@dataclass(slots=True, eq=False)
class Lease:
    """One chunk that a session holds.

    Attributes:
        number: Of the chunk, ascending per session.
        queue: Name.
        jobs: By position; None once answered, withdrawn or ended before a restart.
        deliveries: By position.
        message_id: Of the REQUEST.
        sent: When it was last sent, 0.0 before; sent again if the worker does not list it in time.
        leased: When it was first leased, perhaps in an earlier epoch; for events. 0.0 if that is
            not known.
        until: For legacy peers, when the lease expires.
        remaining: Number of jobs not answered yet.
        transient: Its jobs are transient, and the chunk is not stored.
        resent: It was sent more than once.
        recorded: When the last event about this lease was written, 0.0 for never.
        asks: It holds a suspect: the worker must CALL ``begin`` before it starts the job.
        started: The worker has called ``begin``.
    """

    number: int
    queue: str
    jobs: list[JobRecord | None]
    deliveries: list[int]
    message_id: str
    sent: float = 0.0
    leased: float = 0.0
    until: float = 0.0
    remaining: int = 0
    transient: bool = False
    resent: bool = False
    asks: bool = False
    started: bool = False
    recorded: float = 0.0


class Eligibility(NamedTuple):
    """The jobs that a session may be offered."""

    #: Names of tasks; None means any.
    tasks: frozenset[str] | None
    #: Whether it takes legacy jobs.
    legacy: bool

    def admits(self, task: str | None) -> bool:
        """Return whether it may run jobs of a task; None stands for legacy jobs."""
        if task is None:
            return self.legacy
        return self.tasks is None or task in self.tasks


#: The eligibility of a session that has not informed yet what it knows.
NOTHING = Eligibility(frozenset(), legacy=False)

#: The eligibility of a session that takes legacy jobs only.
LEGACY_ONLY = Eligibility(frozenset(), legacy=True)


@dataclass(slots=True, eq=False)
class Session:
    """One run of a worker.

    Attributes:
        id: Its own, or one made by the broker for a legacy peer.
        order: Chooses the queue that comes next.
        about: What it announced last, None of a legacy peer.
        peer: Its connection, None while it has none.
        queues: (weight, name) pairs.
        weights: The same by name.
        tasks: Names of the tasks it knows; empty means any.
        eligibility: The jobs that it may get, by ``tasks``, ``callables`` and ``legacy``.
        callables: Whether it takes legacy jobs, which name a callable by its dotted path.
        inputs: Whether it can read a job's inputs page by page.
        legacy: It has no FEATURES: one job per message, one READY per slot.
        max_chunks: How many chunks it wants to hold, as its STATUS says; 0 for a legacy one.
        jobs: How many jobs it wants to hold, 0 where it counts chunks only.
        notified_at: When it was last sent the number of waiting jobs.
        received: Highest chunk number that it says it received.
        next_number: Of the next chunk.
        assigned: How many jobs were assigned to it since the broker started.
        chunk_shares: Queue -> jobs of its last chunk from there, divided by the queue's weight.
        max_share: The most of this that the next chunk may have, so that no queue that has jobs
            for it now is passed over for long.
        leases: Number -> open chunk.
        orphaned_chunks: Held chunks without an open lease: number -> since when.
        running_orphans: How many of these are so old that their jobs must be running.
        full: A chunk could not be sent; it gets the next one after its next READY or STATUS, or
            when sessions are next checked.
        disconnected_at: When its connection was lost, 0.0 while it has one.
        reconnect_timeout: Seconds that it may be disconnected, 0.0 for the usual grace.
        closing: It said KBAI: it gets nothing more.
        blocked: Queue -> its version when it last had no job for this session.
        dedicated_to: Id of a suspect (`eventmq.broker.suspects`), "" for none. The session gets
            this job next, and nothing more while it holds a chunk.
        dedicated_queue: The queue of that job.
        dedicated_since: Since when.
        free: Legacy peers: slots offered and not used.
        slots: Legacy peers: how many there are, as the READYs after INFORM said.
        informed_at: Legacy peers: when it informed.
        idle_since: Legacy peers: since when all slots are free while leases are open.
    """

    id: str
    order: QueueOrder
    peer: Peer | None = None
    about: Features | None = None
    name: str = ""
    queues: tuple[tuple[int, str], ...] = ()
    weights: dict[str, int] = field(default_factory=dict)
    tasks: frozenset[str] = frozenset()
    callables: bool = False
    inputs: bool = False
    legacy: bool = False
    eligibility: Eligibility = NOTHING
    max_chunks: int = 0
    jobs: int = 0
    notified_at: float = 0.0
    received: int = 0
    next_number: int = 1
    assigned: int = 0
    chunk_shares: dict[str, float] = field(default_factory=dict)
    max_share: float = inf
    leases: dict[int, Lease] = field(default_factory=dict)
    orphaned_chunks: dict[int, float] = field(default_factory=dict)
    running_orphans: int = 0
    full: bool = False
    disconnected_at: float = 0.0
    reconnect_timeout: float = 0.0
    closing: bool = False
    blocked: dict[str, int] = field(default_factory=dict)
    dedicated_to: str = ""
    dedicated_queue: str = ""
    dedicated_since: float = 0.0
    free: int = 0
    slots: int = 0
    informed_at: float = 0.0
    idle_since: float = 0.0

    @property
    def credit(self) -> int:
        """How many more chunks it takes now."""
        if self.peer is None or self.closing or self.full or (self.dedicated_to and self.leases):
            return 0
        if self.legacy:
            return self.free
        chunks = self.max_chunks - len(self.leases) - self.running_orphans
        rest = self.jobs - self.unanswered - self.running_orphans
        return min(chunks, rest) if self.jobs and chunks > 0 else chunks

    @property
    def unanswered(self) -> int:
        """How many jobs it has not answered."""
        return sum([lease.remaining for lease in self.leases.values()])

    def choose(self, queues: list[tuple[int, str]]) -> str:
        """Return the queue from which it gets the next chunk, and set ``max_share``."""
        self.max_share = inf
        if len(queues) == 1:
            return queues[0][1]
        chosen = self.order.choose(queues)
        shares = [self.chunk_shares.get(name, inf) for _, name in queues if name != chosen]
        self.max_share = MAX_SHARE * min(shares)
        return chosen

    def charge(self, queue: str, jobs: int, handed_back: int = 0) -> None:
        """Record that it got a chunk of the queue; or that it has handed back jobs of one."""
        weight = self.weights.get(queue, 1)
        self.order.charge(queue, weight, -handed_back or jobs)
        self.chunk_shares[queue] = (jobs - handed_back) / max(weight, 1)

    def dedicate(self, job: JobRecord, now: float) -> None:
        """Dedicate the worker to a suspect: it gets no other job."""
        self.dedicated_to, self.dedicated_queue, self.dedicated_since = job.id, job.queue, now

    def share(self, queue: str, waiting: int, competitors: int) -> int:
        """Return how many of the jobs that wait in a queue it should get in one chunk.

        One that counts chunks gets ``waiting / credit`` jobs, to fill all its chunks; one
        that counts jobs gets ``waiting / competitors``.
        """
        if self.legacy:
            return 1
        if self.jobs:
            jobs = min(self.credit, -(-waiting // max(1, competitors)))
        else:
            jobs = -(-waiting // max(1, self.credit))
        if self.max_share < inf:
            jobs = min(jobs, int(self.max_share * self.weights.get(queue, 1)))
        return max(1, jobs)
