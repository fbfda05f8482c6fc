"""Suspects: jobs that may have killed a process or a worker, though no death proves it yet.

A death is *proven* against a job that was running, or was the only one that had started, or the
only one that its worker had. It is counted in the job (`JobRecord.deaths`). Where several jobs had
started, any of them may be the cause: each gets a *loss*, which is recorded here. A job with either
travels alone from then on: no other job is in its chunk. With two of them it also goes to a worker
only that has nothing else, which gets nothing else for a while, so that the next death is a proof.

A job that had ended, and whose answer was not sent when another one killed its process, travels
alone as well, in case that it left the cause behind; no loss is counted for it.

A worker that fell silent may live, behind a network that is cut. Its jobs travel alone from then
on, and it counts only if it happens again and again.

All of it is stored, in the commit that puts the job back: what is charged, counted or taken back
stands after a restart as it stood before. A worker that comes back to another run of the broker
takes back as well what was noted when it was lost.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from eventmq.store.writes import SaveSuspects, SuspectEnd, SuspectRow

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping

    from eventmq.broker.peers import Session
    from eventmq.broker.queues import Queue
    from eventmq.job import JobRecord

__all__ = ["ISOLATION_TIMEOUT", "Death", "Suspect", "Suspects"]

#: Suspects that are known at a time; of the oldest the losses are forgotten.
MAX_SUSPECTS = 100_000

#: Deliveries that may be lost without a proof, after which each further one counts as a proven
#: death: a job that is always lost in the company of others, because its workers are never idle, or
#: that silences them, comes to an end too.
MAX_UNPROVEN = 10

#: Chunks that did not reach a worker before its connection broke, after which each further one
#: counts as a proven death. It takes a network that breaks this often with one job on its way, or a
#: job that ends every worker before that can say so.
MAX_UNREACHED = 50

#: Deliveries of a job whose loss can be taken back, the last ones.
REMEMBERED = 8

#: Deaths and losses from which on a job waits for a worker that has nothing else.
ISOLATE = 2

#: Seconds that such a job waits for the worker that is being kept free for it, and then that the
#: worker gets nothing else. What kills its worker mostly does so at once.
ISOLATION_TIMEOUT = 5.0


class Death(enum.IntEnum):
    """How a delivery ended that was not answered, as far as is known. The numbers are stored."""

    #: Something died, and nothing but this job can have been the cause.
    ALONE = 1
    #: Something died, and this job or another one was the cause.
    SHARED = 2
    #: The worker was silent for too long.
    SILENT = 3
    #: The worker was lost, and had not started the job.
    UNREACHED = 4
    #: Something died, and another job was the cause, as far as is known: this one had ended before
    #: that began, and only its answer is missing. What it has left behind may be the cause.
    BESIDE = 5


@dataclass(slots=True, eq=False)
class Suspect:
    """One job.

    Attributes:
        queue: Its queue.
        id: Its id.
        seq: Its number in the store.
        losses: Deaths of which it may have been the cause.
        unproven: The same, workers that fell silent while they had it, and deaths beside it.
        unreached: Workers that were lost before they had started it.
        owed: Deaths that are counted in the job and were taken back while it was not in memory.
        stored: The store has a row of it.
        session: Of the worker that is kept free for it, None for none.
        since: When it began to wait for that, 0.0 before.
        ends: How the last deliveries that were lost have ended.
    """

    queue: str
    id: str
    seq: int
    losses: int = 0
    unproven: int = 0
    unreached: int = 0
    owed: int = 0
    stored: bool = False
    session: Session | None = None
    since: float = 0.0
    ends: dict[int, SuspectEnd] = field(default_factory=dict)

    def record(self, end: SuspectEnd) -> None:
        """Record how a delivery has ended."""
        self.ends[end.delivery] = end
        while len(self.ends) > REMEMBERED:
            del self.ends[next(iter(self.ends))]

    def copy(self) -> Suspect:
        """Return a copy of the suspect as it is now."""
        return replace(self, ends=dict(self.ends))

    @property
    def row(self) -> SuspectRow | None:
        """The row to store, None where the row of the job says all."""
        counts = (self.losses, self.unproven, self.unreached, self.owed)
        if not any(counts) and not self.ends:
            return None
        return SuspectRow(self.seq, *counts, list(self.ends.values()))


class Suspects:
    """The suspects of a broker, by queue."""

    def __init__(self) -> None:
        #: Queue -> id of the job -> suspect.
        self.by_queue: dict[str, dict[str, Suspect]] = {}
        #: The same by the ids of the jobs.
        self.by_id: dict[str, Suspect] = {}
        #: What is to be written: number of the job -> id.
        self.changed: dict[int, str] = {}
        #: Jobs whose deaths were taken back, by number.
        self.cleared: dict[int, JobRecord] = {}
        #: What workers had that an earlier run of the broker gave up: (session id, number of the
        #: chunk) -> jobs and deliveries.
        self._away: dict[tuple[str, int], list[tuple[str, int]]] = {}

    def __len__(self) -> int:
        return len(self.by_id)

    def add(self, job: JobRecord) -> Suspect:
        """Make a job in memory a suspect: it travels alone from now on."""
        suspect = self.by_id.get(job.id)
        if suspect is not None and suspect.seq != job.seq:  # of another life of the job
            self._drop(suspect)
            suspect = None
        if suspect is None:
            if len(self.by_id) >= MAX_SUSPECTS:
                self._drop(next(iter(self.by_id.values())))
            suspect = self._put(Suspect(job.queue, job.id, job.seq))
        if suspect.owed:
            self._clear(job, suspect.owed)
            suspect.owed = 0
            self._record_change(suspect)
        return suspect

    def _put(self, suspect: Suspect) -> Suspect:
        self.by_id[suspect.id] = suspect
        self.by_queue.setdefault(suspect.queue, {})[suspect.id] = suspect
        return suspect

    def _drop(self, suspect: Suspect) -> None:
        if self.by_id.pop(suspect.id, None) is None:
            return
        queue = self.by_queue[suspect.queue]
        del queue[suspect.id]
        if not queue:
            del self.by_queue[suspect.queue]
        if suspect.stored or suspect.seq in self.changed:
            self._record_change(suspect)

    def _record_change(self, suspect: Suspect) -> None:
        self.changed[suspect.seq] = suspect.id

    def _clear(self, job: JobRecord, deaths: int) -> None:
        """Take back deaths that are counted in a job."""
        job.deaths = max(0, job.deaths - deaths)
        self.cleared[job.seq] = job

    def get(self, job: JobRecord) -> Suspect | None:
        """Return what is known of a job, None where it is no suspect."""
        return self.by_id.get(job.id)

    def forget(self, job: JobRecord) -> None:
        """Forget a job that has ended, or that ran without harm."""
        suspect = self.by_id.get(job.id)
        if suspect is not None:
            self._drop(suspect)

    # What is stored

    def recover(self, rows: Iterable[SuspectRow]) -> None:
        """Load the stored suspects, before any other one is added."""
        for row in rows:
            suspect = self._put(Suspect(
                row.queue, row.id, row.seq, row.losses, row.unproven, row.unreached, row.owed,
                stored=True,
            ))  # fmt: skip
            for end in row.ends:
                suspect.record(end)
                self._away.setdefault((end.session, end.chunk), []).append((row.id, end.delivery))

    def returned(self, session: Session, held: Iterable[int]) -> list[tuple[str, int]]:
        """Return what a session still holds that an earlier run of the broker gave up, once.

        Args:
            session: Which is there again.
            held: Numbers of its chunks.

        Returns:
            Ids of jobs, and the deliveries under which it has them.
        """
        if not self._away:
            return []
        return [
            entry
            for number in held
            if number not in session.leases
            for entry in self._away.pop((session.id, number), ())
        ]

    def take_changes(self) -> tuple[SaveSuspects, Callable[[], None]]:
        """Return what to write with the next commit, and what to call if that fails."""
        changed, cleared = self.changed, self.cleared
        self.changed, self.cleared = {}, {}
        rows, removed = [], []
        for seq, job_id in changed.items():
            suspect = self.by_id.get(job_id)
            row = None if suspect is None or suspect.seq != seq else suspect.row
            if row is None:
                removed.append(seq)
            else:
                rows.append(row)
            if suspect is not None and suspect.seq == seq:
                suspect.stored = row is not None

        def undo() -> None:
            self.changed = {**changed, **self.changed}
            self.cleared = {**cleared, **self.cleared}

        deaths = [(seq, job.deaths) for seq, job in cleared.items()]
        return SaveSuspects(rows, removed, deaths), undo

    def copy_of(self, job: JobRecord) -> Suspect | None:
        """Return what is known of a job now, for `restore`."""
        suspect = self.by_id.get(job.id)
        return None if suspect is None else suspect.copy()

    def restore(self, job: JobRecord, was: Suspect | None) -> None:
        """Restore a suspect as `copy_of` returned it: the commit that changed it has failed."""
        self.forget(job)
        if was is not None:
            self._record_change(self._put(was))

    # What deaths count

    def losses(self, job: JobRecord) -> int:
        """Return how many deaths a job may have caused beside those that are counted in it."""
        suspect = self.get(job)
        return 0 if suspect is None else suspect.losses

    def proves(self, job: JobRecord, death: Death) -> bool:
        """Return whether a death is to be counted in the job."""
        if death is Death.ALONE:
            return True
        suspect = self.get(job)
        if suspect is None:
            return False
        if death is Death.UNREACHED:
            return suspect.unreached >= MAX_UNREACHED
        return suspect.unproven >= MAX_UNPROVEN

    def lost(self, job: JobRecord, death: Death, chunk_id: tuple[str, int] | None = None) -> None:
        """Record how the last delivery of a job ended, where that is not counted in the job.

        Args:
            job: Which.
            death: What is known of it.
            chunk_id: Session id and number of the chunk, where the session may come back with it:
                it did not say itself that the job was lost.
        """
        suspect = self.add(job)
        if chunk_id is not None:
            suspect.record(SuspectEnd(job.delivery, death, *chunk_id))
        self._record_change(suspect)
        if death is Death.UNREACHED:
            suspect.unreached += 1
        else:
            suspect.unproven += 1
        suspect.losses += death is Death.SHARED
        suspect.session, suspect.since = None, 0.0

    def blame(self, job: JobRecord, chunk_id: tuple[str, int]) -> None:
        """Record that a death was counted because the worker of the last delivery was lost.

        Args:
            job: In which it was counted.
            chunk_id: Session id and number of the chunk.
        """
        suspect = self.add(job)
        suspect.record(SuspectEnd(job.delivery, Death.ALONE, *chunk_id))
        self._record_change(suspect)

    def absolve(self, job_id: str, delivery: int, job: JobRecord | None) -> bool:
        """Take back what was counted when a worker was lost: it is there again.

        Args:
            job_id: Of the job that this worker still has.
            delivery: Under which it has it.
            job: The same, None where it is not in memory.

        Returns:
            Whether there was one.
        """
        suspect = self.by_id.get(job_id)
        end = None if suspect is None else suspect.ends.pop(delivery, None)
        if suspect is None or end is None:
            return False
        if end.death == Death.ALONE:
            if job is None:
                suspect.owed += 1
            else:
                self._clear(job, 1)
        elif end.death == Death.UNREACHED:
            suspect.unreached -= 1
        else:
            suspect.unproven -= 1
            suspect.losses -= end.death == Death.SHARED
        self._record_change(suspect)
        if job is not None and not job.deaths and not suspect.unproven:
            self.forget(job)
        return True

    # Dispatch

    def wait(
        self,
        queue: Queue,
        known: Mapping[str, JobRecord],
        running: Container[str],
        suits: Callable[[JobRecord], bool],
    ) -> bool:
        """Return whether a suspect of a queue can be leased.

        Args:
            queue: Which.
            known: The jobs in memory, by id.
            running: Ids of those that are leased.
            suits: Whether the worker that is asked for may run a job.
        """
        return any(
            job_id in known
            and job_id not in running
            and job_id not in queue.unroutable
            and suits(known[job_id])
            for job_id in self.by_queue.get(queue.name, ())
        )

    def overdue(self, now: float) -> list[str]:
        """Return the queues with a suspect that has waited too long for a worker of its own."""
        return [
            name
            for name, queue in self.by_queue.items()
            if any(s.since and now - s.since > ISOLATION_TIMEOUT for s in queue.values())
        ]

    def may_go(self, job: JobRecord, session: Session, now: float) -> bool:
        """Return whether a session may get a job, which then travels alone.

        Where the job needs a worker that has nothing else, the first one that is asked is kept free
        for it.
        """
        suspect = self.get(job)
        if suspect is None:
            return False
        if session.legacy or job.deaths + suspect.losses < ISOLATE or not session.leases:
            return True
        if not suspect.since:
            suspect.since = now
        elif now - suspect.since > ISOLATION_TIMEOUT:
            return True
        kept = suspect.session
        if (
            kept is None or kept.peer is None or kept.reserved_for != job.id
        ) and not session.reserved_for:
            suspect.session = session
            session.reserve(job, now)
        return False

    def leased(self, job: JobRecord, session: Session, now: float) -> None:
        """Record that a session got a suspect; an isolated one is all that the session gets."""
        suspect = self.get(job)
        if suspect is None:
            return
        suspect.session, suspect.since = None, 0.0
        if not session.legacy and job.deaths + suspect.losses >= ISOLATE and not session.leases:
            session.reserve(job, now)
