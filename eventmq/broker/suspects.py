"""Jobs that may have killed a process or a worker, though no death proves it yet.

A death is *proven* against a job that was running, or was the only one that had begun, or the only
one that its worker had. It is counted in the job (`Job.deaths`). Where several jobs had begun, any
of them may be the cause: each gets a *loss*, which is noted here. Whoever has either travels alone
from then on: no other job is in its chunk. With two of them together it also goes only to a worker
that has nothing else, which gets nothing else for a while, so that the next death is a proof.

A worker that fell silent may live, behind a network that is cut. Its jobs travel alone from then
on, and it counts only if it happens again and again.

Losses are memory of one run of the broker; proven deaths are stored.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    from eventmq.broker.peers import Session
    from eventmq.broker.queues import Queue
    from eventmq.job import Job

__all__ = ["PATIENCE", "Death", "Suspects"]

#: Suspects that are known at a time; of the oldest the losses are forgotten.
MOST = 100_000

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
PATIENCE = 5.0


class Death(enum.Enum):
    """What is known of the end of a delivery that was not answered."""

    #: Something died, and nothing but this job can have been the cause.
    ALONE = enum.auto()
    #: Something died, and this job or another one was the cause.
    SHARED = enum.auto()
    #: The worker was silent for too long.
    SILENT = enum.auto()
    #: The worker was lost, and had not begun the job.
    UNREACHED = enum.auto()


@dataclass(slots=True, eq=False)
class _Suspect:
    """One job.

    Attributes:
        losses: Deaths of which it may have been the cause.
        unproven: The same, and workers that fell silent while they had it.
        unreached: Workers that were lost before they had begun it.
        session: Of the worker that is kept free for it, None for none.
        since: When it began to wait for that, 0.0 before.
        ends: How the last deliveries that were lost have ended.
    """

    losses: int = 0
    unproven: int = 0
    unreached: int = 0
    session: Session | None = None
    since: float = 0.0
    ends: dict[int, Death] = field(default_factory=dict)

    def note(self, delivery: int, death: Death) -> None:
        """Remember how a delivery has ended."""
        self.ends[delivery] = death
        while len(self.ends) > REMEMBERED:
            del self.ends[next(iter(self.ends))]


class Suspects:
    """The suspects of a broker, by queue."""

    def __init__(self) -> None:
        self._of: dict[str, dict[str, _Suspect]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, job: Job) -> _Suspect:
        """Let a job travel alone from now on."""
        queue = self._of.setdefault(job.queue, {})
        suspect = queue.get(job.id)
        if suspect is None:
            if self._count >= MOST:
                self._drop_oldest()
                queue = self._of.setdefault(job.queue, {})
            suspect = queue[job.id] = _Suspect()
            self._count += 1
        return suspect

    def _drop_oldest(self) -> None:
        name, queue = next(iter(self._of.items()))
        del queue[next(iter(queue))]
        self._count -= 1
        if not queue:
            del self._of[name]

    def get(self, job: Job) -> _Suspect | None:
        """Return what is known of a job, None where it is no suspect."""
        return self._of.get(job.queue, {}).get(job.id)

    def forget(self, job: Job) -> None:
        """Forget a job that has ended, or that ran without harm."""
        queue = self._of.get(job.queue)
        if queue is not None and queue.pop(job.id, None) is not None:
            self._count -= 1
            if not queue:
                del self._of[job.queue]

    # What deaths count

    def losses(self, job: Job) -> int:
        """Return how many deaths a job may have caused beside those that are counted in it."""
        suspect = self.get(job)
        return 0 if suspect is None else suspect.losses

    def proves(self, job: Job, death: Death) -> bool:
        """Return whether a death is to be counted in the job."""
        if death is Death.ALONE:
            return True
        suspect = self.get(job)
        if suspect is None:
            return False
        if death is Death.UNREACHED:
            return suspect.unreached >= MAX_UNREACHED
        return suspect.unproven >= MAX_UNPROVEN

    def lost(self, job: Job, death: Death) -> None:
        """Note the end of the last delivery of a job, which is not counted in the job."""
        suspect = self.add(job)
        suspect.note(job.delivery, death)
        if death is Death.UNREACHED:
            suspect.unreached += 1
        else:
            suspect.unproven += 1
        suspect.losses += death is Death.SHARED
        suspect.session, suspect.since = None, 0.0

    def blame(self, job: Job) -> None:
        """Note that a death was counted because the worker of the last delivery was lost."""
        self.add(job).note(job.delivery, Death.ALONE)

    def absolve(self, job: Job, delivery: int) -> bool:
        """Take back what was noted or counted when a worker was lost which is there again.

        Args:
            job: Which that worker still has.
            delivery: Under which it has it.

        Returns:
            Whether there was one.
        """
        suspect = self.get(job)
        death = None if suspect is None else suspect.ends.pop(delivery, None)
        if suspect is None or death is None:
            return False
        if death is Death.ALONE:
            job.deaths = max(0, job.deaths - 1)
        elif death is Death.UNREACHED:
            suspect.unreached -= 1
        else:
            suspect.unproven -= 1
            suspect.losses -= death is Death.SHARED
        if not job.deaths and not suspect.unproven:
            self.forget(job)
        return True

    # Dispatch

    def are_in(self, queue: Queue) -> bool:
        """Return whether a queue has suspects."""
        return queue.name in self._of

    def wait(
        self,
        queue: Queue,
        known: Mapping[str, Job],
        running: Container[str],
        suits: Callable[[Job], bool],
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
            and job_id not in queue.aside
            and suits(known[job_id])
            for job_id in self._of.get(queue.name, ())
        )

    def overdue(self, now: float) -> list[str]:
        """Return the queues with a suspect that has waited too long for a worker of its own."""
        return [
            name
            for name, queue in self._of.items()
            if any(s.since and now - s.since > PATIENCE for s in queue.values())
        ]

    def may_go(self, job: Job, session: Session, now: float) -> bool:
        """Return whether a session may get a job, which then travels alone.

        Where the job needs a worker that has nothing else, the first one that is asked is kept free
        for it.
        """
        suspect = self.get(job)
        if suspect is None:
            return False
        if session.plain or job.deaths + suspect.losses < ISOLATE or not session.leases:
            return True
        if not suspect.since:
            suspect.since = now
        elif now - suspect.since > PATIENCE:
            return True
        kept = suspect.session
        if (kept is None or kept.peer is None or kept.kept_for != job.id) and not session.kept_for:
            suspect.session = session
            session.keep(job, now)
        return False

    def leased(self, job: Job, session: Session, now: float) -> None:
        """Note that a session got a suspect: where it needs that, the session gets nothing else."""
        suspect = self.get(job)
        if suspect is None:
            return
        suspect.session, suspect.since = None, 0.0
        if not session.plain and job.deaths + suspect.losses >= ISOLATE and not session.leases:
            session.keep(job, now)
