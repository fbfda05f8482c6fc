"""Connected peers: a `Peer` per connection, a `Session` per run of a worker, its `Lease`s.

A routing id changes at every reconnect, so leases belong to sessions. A session gets its new
connection when its peer informs with the same session id.
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

#: If several queues have jobs for a session, a chunk has at most this many times the jobs, relative
#: to the weight of its queue, of the smallest last chunk of the other queues: 2 lets chunks grow.
MAX_SHARE = 2

#: Prefix of session ids that the broker makes for legacy peers.
LEGACY_PREFIX = "plain."


class Key(NamedTuple):
    """A connection: the name of the port and the routing id."""

    port: str
    identity: bytes

    def __str__(self) -> str:
        """Return the connection as printable ASCII, for logs."""
        return f"{repr(self.identity)[2:-1]} on port {self.port}"


@dataclass(slots=True, eq=False)
class Peer:
    """The peer of one connection.

    Attributes:
        key: Port and routing id of the connection.
        role: ``worker``, ``scheduler`` or ``client`` as in its INFORM, "" before.
        features: Its FEATURES; None for a legacy peer and before its INFORM.
        last_seen: Time of its last message.
        sent: Time of the last message to it.
        session: Its session, if it is a worker.
        calls: Its unfinished ``get`` calls: message id -> ids of the unanswered jobs.
        topics: Its unfinished ``subscribe`` calls: message id -> topic prefixes.
        streams: Its ``stream`` calls: message id -> job.
        waiting: Number of ids in ``calls``.
        owed: Number of jobs for which it requested a REPLY that it has not got yet.
        leaving: Either side has sent KBAI; a legacy worker then only finishes its jobs.
        warned: Whether a bad message of the peer was logged.
        sent_schedules: Schedule -> content last sent to the peer, a legacy scheduler.
        grant: The rights of the peer, None for all.
        admitted: The rights of the key of the connection. They differ from ``grant`` if a standby
            relays messages of a peer over the connection.
        tokens: Messages that the peer may send at once, if there is a rate limit.
        filled: Time at which ``tokens`` was last updated.
        muted: The peer acts as registered but never informed; it is sent nothing until it does.
        dismissed: The peer was sent a DISCONNECT, so that it informs again.
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
        """Who counts as the maker of queues that it creates: the owner of its key, else `key`."""
        return self.key if self.grant is None else self.grant.owner

    @property
    def may_be_silent(self) -> bool:
        """Whether its silence does not show that it is dead.

        That is so for a legacy client that waits for a REPLY: legacy clients send no HEARTBEATs.
        """
        silent = self.features is None and self.role in {"", "client"} and not self.muted
        return self.owed > 0 and silent

    @property
    def reads_rows(self) -> bool:
        """Whether a REPLY that it requested has a row, as for ``get``, instead of a result."""
        return self.features is not None and "ended" in self.features.extensions

    @property
    def reads_errors(self) -> bool:
        """Whether it may be sent an ERROR: it has not informed, or has the extension ``error``."""
        return not self.role or (self.features is not None and "error" in self.features.extensions)


@dataclass(slots=True, eq=False)
class Lease:
    """One chunk that a session holds.

    Attributes:
        number: Number of the chunk, ascending per session.
        queue: Name of the queue.
        jobs: Jobs by position; None once answered, withdrawn or ended before a restart.
        deliveries: Deliveries by position.
        message_id: Message id of the REQUEST.
        sent: Time of the last REQUEST, 0.0 before; the chunk is sent again if the worker does not
            list it in time.
        leased: Time of the first lease, perhaps in an earlier epoch, for events; 0.0 if not known.
        until: Time at which the lease of a legacy session expires.
        remaining: Number of jobs without answer.
        transient: The jobs are transient, and the chunk is not stored.
        resent: The chunk was sent more than once.
        asks: The chunk has a suspect: the worker must CALL ``begin`` before it starts the job.
        started: The worker has called ``begin``.
        recorded: Time of the last event about the lease, 0.0 if there was none.
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
    #: Whether the session accepts legacy jobs.
    legacy: bool

    def admits(self, task: str | None) -> bool:
        """Return whether the session may run jobs of a task; None stands for legacy jobs."""
        if task is None:
            return self.legacy
        return self.tasks is None or task in self.tasks


#: The eligibility of a session before its INFORM.
NOTHING = Eligibility(frozenset(), legacy=False)

#: The eligibility of a session that accepts legacy jobs only.
LEGACY_ONLY = Eligibility(frozenset(), legacy=True)


@dataclass(slots=True, eq=False)
class Session:
    """One run of a worker.

    Attributes:
        id: Id in its INFORM, or one made by the broker for a legacy peer.
        order: Chooses the next queue.
        peer: Its connection, None while it has none.
        about: FEATURES of its last INFORM, None for a legacy peer.
        name: Name for people.
        queues: (weight, name) pairs.
        weights: Weights by name.
        tasks: Names of the tasks that it knows; empty means any.
        callables: Whether it accepts legacy jobs, which name a callable by its dotted path.
        inputs: Whether it can read the inputs of a job in pages.
        legacy: It has no FEATURES: one job per message, one READY per slot.
        eligibility: The jobs that it may get, by ``tasks``, ``callables`` and ``legacy``.
        max_chunks: Number of chunks that it wants to hold, from its STATUS; 0 for a legacy one.
        jobs: Number of jobs that it wants to hold, 0 if it counts only chunks.
        rss: Resident memory of its processes in bytes, from its STATUS; 0 if it is not known.
        notified_at: Time at which it was last sent the number of waiting jobs.
        received: Highest chunk number in its STATUS.
        next_number: Number of the next chunk.
        assigned: Number of jobs assigned to it since the broker started.
        chunk_shares: Queue -> jobs of its last chunk from there, divided by the queue's weight.
        max_share: Largest such share for the next chunk, so that no other queue with jobs for the
            session waits long.
        leases: Number -> open chunk.
        orphaned_chunks: Number of a held chunk without an open lease -> time since then.
        running_orphans: Number of these chunks that are old enough to be certainly running.
        full: A chunk could not be sent. The session gets the next one after its next READY or
            STATUS, or when sessions are next checked.
        disconnected_at: Time at which its connection was lost, 0.0 while it has one.
        reconnect_timeout: Seconds for which it may be disconnected, 0.0 for the usual grace.
        closing: It has sent KBAI, and gets no more chunks.
        blocked: Queue -> its version when it last had no job for this session.
        dedicated_to: Id of a suspect (`eventmq.broker.suspects`), "" for none. The session gets
            this job next, and nothing more while it holds a chunk.
        dedicated_queue: Queue of that job.
        dedicated_since: Time since which the session is dedicated to it.
        free: Legacy sessions: number of slots that are offered and not used.
        slots: Legacy sessions: number of slots, from the READYs after INFORM.
        informed_at: Legacy sessions: time of INFORM.
        idle_since: Legacy sessions: time since which all slots are free while leases are open.
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
    rss: int = 0
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
        """Number of chunks that it accepts now."""
        if self.peer is None or self.closing or self.full or (self.dedicated_to and self.leases):
            return 0
        if self.legacy:
            return self.free
        chunks = self.max_chunks - len(self.leases) - self.running_orphans
        jobs = self.jobs - self.unanswered - self.running_orphans
        return min(chunks, jobs) if self.jobs and chunks > 0 else chunks

    @property
    def unanswered(self) -> int:
        """Number of jobs that it has not answered."""
        return sum([lease.remaining for lease in self.leases.values()])

    def choose(self, queues: list[tuple[int, str]]) -> str:
        """Return the queue of the next chunk, and set ``max_share``."""
        self.max_share = inf
        if len(queues) == 1:
            return queues[0][1]
        chosen = self.order.choose(queues)
        shares = [self.chunk_shares.get(name, inf) for _, name in queues if name != chosen]
        self.max_share = MAX_SHARE * min(shares)
        return chosen

    def charge(self, queue: str, jobs: int, handed_back: int = 0) -> None:
        """Record that it got a chunk of a queue, or has handed back jobs of one."""
        weight = self.weights.get(queue, 1)
        self.order.charge(queue, weight, -handed_back or jobs)
        self.chunk_shares[queue] = (jobs - handed_back) / max(weight, 1)

    def dedicate(self, job: JobRecord, now: float) -> None:
        """Dedicate the session to a suspect: it gets no other job."""
        self.dedicated_to, self.dedicated_queue, self.dedicated_since = job.id, job.queue, now

    def share(self, queue: str, waiting: int, competitors: int) -> int:
        """Return how many of the waiting jobs of a queue it should get in one chunk.

        A session that counts chunks gets ``waiting / credit`` jobs, to fill all its chunks. One
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
