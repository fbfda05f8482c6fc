"""Jobs: their states and transitions, the stored record, and the outcome of a delivery.

Not here: how a job travels (`eventmq.wire`) and how the broker treats it (`eventmq.broker`).
"""

from __future__ import annotations

import enum
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from eventmq.errors import IllegalTransition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq.clock import Clock

__all__ = [
    "HELD",
    "STATE_CODES",
    "TERMINAL",
    "TRANSITIONS",
    "IdFactory",
    "JobRecord",
    "JobState",
    "OutcomeKind",
    "id_time",
    "transition",
]


class JobState(str, enum.Enum):
    """The state of a job."""

    BLOCKED = "blocked"
    DELAYED = "delayed"
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    __str__ = str.__str__
    __hash__ = str.__hash__  # Enum's is a Python function, four times slower


_S = JobState

#: State -> the states that may follow. An operator may queue a failed job again.
TRANSITIONS: Mapping[JobState, frozenset[JobState]] = {
    _S.BLOCKED: frozenset({_S.DELAYED, _S.QUEUED, _S.CANCELLED, _S.EXPIRED, _S.FAILED}),
    _S.DELAYED: frozenset({_S.QUEUED, _S.CANCELLED, _S.EXPIRED, _S.FAILED}),
    _S.QUEUED: frozenset({_S.RUNNING, _S.CANCELLED, _S.EXPIRED, _S.FAILED}),
    _S.RUNNING: frozenset(
        {_S.SUCCEEDED, _S.FAILED, _S.CANCELLED, _S.EXPIRED, _S.QUEUED, _S.DELAYED}
    ),
    _S.SUCCEEDED: frozenset(),
    _S.FAILED: frozenset({_S.QUEUED}),
    _S.CANCELLED: frozenset(),
    _S.EXPIRED: frozenset(),
}

#: Added to ``ready_at`` of a delayed job that waits for the end of another job with its unique
#: key; more than any time on the wire.
HELD = 1e12

#: States that end a job.
TERMINAL = frozenset({_S.SUCCEEDED, _S.FAILED, _S.CANCELLED, _S.EXPIRED})

#: Codes of the states in stores and on the wire, in the order of the enum.
STATE_CODES: Mapping[JobState, int] = {state: code for code, state in enumerate(JobState)}


def transition(state: JobState, to: JobState) -> JobState:
    """Return ``to`` if the table allows the transition from ``state``.

    Raises:
        IllegalTransition: The table does not have it.
    """
    if to not in TRANSITIONS[state]:
        allowed = ", ".join(sorted(TRANSITIONS[state])) or "nothing, it is final"
        raise IllegalTransition(
            f"a job cannot go from {state} to {to}; from {state} may follow: {allowed}"
        )
    return to


class OutcomeKind(enum.IntEnum):
    """The kind of outcome that a worker reports for one delivery of a job."""

    SUCCEEDED = 0
    FAILED = 1
    #: The attempt failed; the next attempt follows after ``countdown`` seconds.
    RETRY = 2
    #: The job never started; costs a delivery, never an attempt.
    HANDED_BACK = 3
    #: ``expires`` had passed before the job started.
    EXPIRED = 4
    #: The process died while it was running this job.
    DIED = 5
    #: The worker does not know the task, or may not run this body.
    UNKNOWN_TASK = 6
    CANCELLED = 7
    #: The job was started and may have ended, but its process died before the answer; which of
    #: several jobs killed the process is not known. Not counted as a death; costs a delivery.
    LOST = 8
    #: The job was started and may have ended, but because of another job its process died or was
    #: killed before the answer. Not counted as a death; costs a delivery.
    UNANSWERED = 9


@dataclass(slots=True, eq=False)
class JobRecord:
    """The stored record of a job.

    Attributes:
        id: The client's id, unique in the broker within its dedupe window.
        queue: Name of the queue.
        headers: The eMQP header text of the client, with the owner that the broker added.
        body: The payload, never decoded by the broker.
        seq: The broker's number of the job, in the order of admission.
        rank: Orders the queue, smallest first: microseconds of (ready time - priority x A).
        state: `JobState`; a leased job stays QUEUED, and is shown as RUNNING because of its lease.
        attempt: 1 for the first; grows when the job failed and is tried again.
        delivery: 0 before the first dispatch; grows at every dispatch.
        ready_at: Store time (`eventmq.timekeeping`) at which a delayed job becomes ready, else 0.0.
        expires: Unix time after which it must not start, 0.0 for never.
        created: Store time of admission.
        deaths: Number of counted deaths of processes that were running it.
        id_crc: CRC-32 of the id's bytes, 0 where it has not been computed.
        damaged: The record was altered in the store: the job must not run.
        eta: Unix time at which a delayed job becomes ready, if its client gave one, else 0.0;
            ``ready_at`` is the same in store time, as of the admission.
    """

    id: str
    queue: str
    headers: str
    body: bytes
    seq: int = 0
    rank: int = 0
    state: JobState = JobState.QUEUED
    attempt: int = 1
    delivery: int = 0
    ready_at: float = 0.0
    expires: float = 0.0
    created: float = 0.0
    deaths: int = 0
    id_crc: int = 0
    damaged: bool = False
    eta: float = 0.0

    @property
    def waiting_since(self) -> float:
        """The time at which it became or becomes ready, from which its waiting time counts."""
        return self.ready_at % HELD or self.created


@dataclass(slots=True)
class IdFactory:
    """Makes job ids: 32 hex digits in the layout of UUID version 7 (RFC 9562, section 5.7).

    Ids of one factory ascend: within a millisecond a 12-bit counter, then 62 random bits. Time
    order keeps the broker's indexes append-only, which measured 6 times faster than random ids.
    Not thread-safe beyond the guarantees of the GIL: two threads may get ids out of order, never
    equal ones.
    """

    clock: Clock
    _last: int = field(default=0, init=False)

    def new(self) -> str:
        """Return a new id."""
        self._last = t = max(int(self.clock.now() * 1000) << 12, self._last + 1)
        return f"{t >> 12:012x}7{t & 0xFFF:03x}{0x8000000000000000 | secrets.randbits(62):016x}"

    def new_many(self, n: int) -> list[str]:
        """Return ``n`` new ids in ascending order, of 60 random bits each."""
        first = max(int(self.clock.now() * 1000) << 12, self._last + 1)
        self._last = first + n - 1
        # One call for all of them; each tail is then a slice.
        tails = secrets.token_hex(8 * n)
        return [
            f"{t >> 12:012x}7{t & 0xFFF:03x}8{tails[at : at + 15]}"
            for t, at in zip(range(first, first + n), range(0, 16 * n, 16), strict=True)
        ]


def id_time(job_id: str) -> float | None:
    """Return the Unix time in seconds that a version 7 id carries, or None for any other id."""
    if len(job_id) == 32 and job_id[12] == "7":  # noqa: PLR2004 - the layout of the id
        try:
            return int(job_id[:12], 16) / 1000
        except ValueError:
            return None
    return None
