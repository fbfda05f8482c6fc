"""Suspects: jobs that may have killed a process or a worker, without a proof so far.

A death is *proven* against a job that was running, or was the only one that had started, or the
only one that its worker had. It is counted in the job (`JobRecord.deaths`). If several jobs had
started, any of them may be the cause: each gets a *loss*, which is recorded here. A job with a
death or a loss is sent in a chunk of its own. With two of them it is *isolated*: it goes only to a
worker without other jobs, which gets no other job for a while, so that the next death is a proof.

A job that had ended but was not answered when another job killed its process is sent alone too,
since it may have left the cause behind. It gets no loss.

A silent worker may be alive behind a broken network. Its jobs are sent alone from then on; only
repeated silence counts as a death.

Deaths and losses are stored in the commit that requeues the job, and survive restarts. If the
worker comes back, even to another run of the broker, those that were counted for its loss are taken
back.
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

#: Largest number of suspects; beyond it the oldest one is dropped, with its losses.
MAX_SUSPECTS = 100_000

#: Number of lost deliveries without a proof after which each further one counts as a proven death.
#: This ends a job that always dies beside others, since its workers are never idle, or that makes
#: its workers silent.
MAX_UNPROVEN = 10

#: Number of chunks lost with a connection before the worker started the job, after which each
#: further one counts as a proven death. Either the network broke this often while the job was in
#: transit, or the job kills every worker before that can report the start.
MAX_UNREACHED = 50

#: Number of last deliveries of a job whose loss can be taken back.
REMEMBERED = 8

#: Number of deaths and losses from which a job is isolated.
ISOLATE = 2

#: Seconds for which an isolated job waits for the worker dedicated to it, and for which this worker
#: then gets no other job. A job that kills its worker usually does so at once.
ISOLATION_TIMEOUT = 5.0


class Death(enum.IntEnum):
    """How an unanswered delivery ended, as far as the broker knows. The numbers are stored."""

    #: A process or worker died, and only this job can have been the cause.
    ALONE = 1
    #: A process or worker died, and this job or another one was the cause.
    SHARED = 2
    #: The worker was silent for too long.
    SILENT = 3
    #: The worker was lost, and had not started the job.
    UNREACHED = 4
    #: A process died, probably because of a later job: this one had ended, and only its answer is
    #: missing. It may still have left the cause behind.
    BESIDE = 5


@dataclass(slots=True, eq=False)
class Suspect:
    """A job that may have killed a process or a worker.

    Attributes:
        queue: Queue of the job.
        id: Id of the job.
        seq: Number of the job in the store.
        losses: Number of deaths that it may have caused.
        unproven: Number of losses, silent workers that had it, and deaths of kind `Death.BESIDE`.
        unreached: Number of workers that were lost before they had started it.
        owed: Number of deaths to subtract from the job, taken back while it was not in memory.
        stored: Whether the store has its row.
        session: Session that is dedicated to it, or None.
        since: Time since which it waits for that session, 0.0 before.
        ends: Delivery -> how it ended, for the last lost deliveries.
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

    @property
    def row(self) -> SuspectRow | None:
        """Row to store, None if the row of the job is enough."""
        counts = (self.losses, self.unproven, self.unreached, self.owed)
        if not any(counts) and not self.ends:
            return None
        return SuspectRow(self.seq, *counts, list(self.ends.values()))


class Suspects:
    """The suspects of a broker, by queue."""

    def __init__(self) -> None:
        #: Queue -> id of the job -> suspect.
        self.by_queue: dict[str, dict[str, Suspect]] = {}
        #: Id of the job -> suspect.
        self.by_id: dict[str, Suspect] = {}
        #: Suspects to write in the next commit: number of the job -> id.
        self.changed: dict[int, str] = {}
        #: Jobs whose deaths were taken back, by number.
        self.cleared: dict[int, JobRecord] = {}
        #: Chunks that an earlier run of the broker counted as lost: (session id, number of the
        #: chunk) -> jobs and deliveries.
        self._lost_chunks: dict[tuple[str, int], list[tuple[str, int]]] = {}

    def __len__(self) -> int:
        return len(self.by_id)

    def add(self, job: JobRecord) -> Suspect:
        """Make a job in memory a suspect, which is sent alone from now on."""
        suspect = self.by_id.get(job.id)
        if suspect is not None and suspect.seq != job.seq:  # of an earlier job with this id
            self._drop(suspect)
            suspect = None
        if suspect is None:
            if len(self.by_id) >= MAX_SUSPECTS:
                self._drop(next(iter(self.by_id.values())))
            suspect = self._put(Suspect(job.queue, job.id, job.seq))
        if suspect.owed:
            self._clear(job, suspect.owed)
            suspect.owed = 0
            self.changed[suspect.seq] = suspect.id
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
            self.changed[suspect.seq] = suspect.id

    def _clear(self, job: JobRecord, deaths: int) -> None:
        """Take back deaths that are counted in a job."""
        job.deaths = max(0, job.deaths - deaths)
        self.cleared[job.seq] = job

    def get(self, job: JobRecord) -> Suspect | None:
        """Return the suspect of a job, None if the job is not suspected."""
        return self.by_id.get(job.id)

    def forget(self, job: JobRecord) -> None:
        """Forget a job that has ended, or has run without a death."""
        suspect = self.by_id.get(job.id)
        if suspect is not None:
            self._drop(suspect)

    # Storage

    def recover(self, rows: Iterable[SuspectRow]) -> None:
        """Load the stored suspects; call this before `add`."""
        for row in rows:
            suspect = self._put(Suspect(
                row.queue, row.id, row.seq, row.losses, row.unproven, row.unreached, row.owed,
                stored=True,
            ))  # fmt: skip
            for end in row.ends:
                suspect.record(end)
                self._lost_chunks.setdefault((end.session, end.chunk), []).append(
                    (row.id, end.delivery)
                )

    def returned(self, session: Session, held: Iterable[int]) -> list[tuple[str, int]]:
        """Return the jobs of held chunks that an earlier run of the broker counted as lost, once.

        Args:
            session: Session that has come back.
            held: Numbers of its held chunks.

        Returns:
            Ids of the jobs, with their deliveries.
        """
        if not self._lost_chunks:
            return []
        return [
            entry
            for number in held
            if number not in session.leases
            for entry in self._lost_chunks.pop((session.id, number), ())
        ]

    def take_changes(self) -> tuple[SaveSuspects, Callable[[], None]]:
        """Return the write for the next commit, and a function to call if the commit fails."""
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
        """Return a copy of the suspect of a job, for `restore`."""
        suspect = self.by_id.get(job.id)
        return None if suspect is None else replace(suspect, ends=dict(suspect.ends))

    def restore(self, job: JobRecord, old: Suspect | None) -> None:
        """Restore a suspect as `copy_of` returned it: the commit that changed it has failed."""
        self.forget(job)
        if old is not None:
            self.changed[old.seq] = old.id
            self._put(old)

    # Deaths

    def losses(self, job: JobRecord) -> int:
        """Return how many deaths a job may have caused, beside those counted in it."""
        suspect = self.get(job)
        return 0 if suspect is None else suspect.losses

    def proves(self, job: JobRecord, death: Death) -> bool:
        """Return whether a death counts as proven against the job."""
        if death is Death.ALONE:
            return True
        suspect = self.get(job)
        if suspect is None:
            return False
        if death is Death.UNREACHED:
            return suspect.unreached >= MAX_UNREACHED
        return suspect.unproven >= MAX_UNPROVEN

    def lost(self, job: JobRecord, death: Death, chunk_id: tuple[str, int] | None = None) -> None:
        """Record how the last delivery of a job ended, if no death is counted in the job.

        Args:
            job: The job.
            death: How the delivery ended.
            chunk_id: Session id and number of the chunk if the session may come back with it, that
                is, if it did not itself report the job as lost.
        """
        suspect = self.add(job)
        if chunk_id is not None:
            suspect.record(SuspectEnd(job.delivery, death, *chunk_id))
        self.changed[suspect.seq] = suspect.id
        if death is Death.UNREACHED:
            suspect.unreached += 1
        else:
            suspect.unproven += 1
        suspect.losses += death is Death.SHARED
        suspect.session, suspect.since = None, 0.0

    def blame(self, job: JobRecord, chunk_id: tuple[str, int]) -> None:
        """Record that a death was counted for the lost worker of the last delivery.

        Args:
            job: The job in which it was counted.
            chunk_id: Session id and number of the chunk.
        """
        suspect = self.add(job)
        suspect.record(SuspectEnd(job.delivery, Death.ALONE, *chunk_id))
        self.changed[suspect.seq] = suspect.id

    def absolve(self, job_id: str, delivery: int, job: JobRecord | None) -> bool:
        """Take back the death or loss of a delivery whose worker has come back.

        Args:
            job_id: Id of a job that the worker still has.
            delivery: Its delivery there.
            job: The job, None if it is not in memory.

        Returns:
            Whether a death or loss was counted.
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
        self.changed[suspect.seq] = suspect.id
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
            queue: The queue.
            known: Jobs in memory, by id.
            running: Ids of the leased jobs.
            suits: Returns whether the worker may run a job.
        """
        return any(
            job_id in known
            and job_id not in running
            and job_id not in queue.unroutable
            and suits(known[job_id])
            for job_id in self.by_queue.get(queue.name, ())
        )

    def overdue(self, now: float) -> list[str]:
        """Return the queues with a suspect that has waited too long for a dedicated worker."""
        return [
            name
            for name, queue in self.by_queue.items()
            if any(s.since and now - s.since > ISOLATION_TIMEOUT for s in queue.values())
        ]

    def may_go(self, job: JobRecord, session: Session, now: float) -> bool:
        """Return whether a session may get a suspect, which is then sent alone.

        The first session that is asked about an isolated job is dedicated to it.
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
        dedicated = suspect.session
        if (
            dedicated is None or dedicated.peer is None or dedicated.dedicated_to != job.id
        ) and not session.dedicated_to:
            suspect.session = session
            session.dedicate(job, now)
        return False

    def leased(self, job: JobRecord, session: Session, now: float) -> None:
        """Record that a session got a suspect; dedicate the session to it if it is isolated."""
        suspect = self.get(job)
        if suspect is None:
            return
        suspect.session, suspect.since = None, 0.0
        if not session.legacy and job.deaths + suspect.losses >= ISOLATE and not session.leases:
            session.dedicate(job, now)
