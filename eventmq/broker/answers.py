"""What one REPLY of a worker does, gathered before it is written; nothing is decided here."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eventmq.broker.peers import Lease, Session
    from eventmq.broker.suspects import Death, Suspect
    from eventmq.entries import Attempt, Cause, Finished
    from eventmq.job import Job, JobState

__all__ = ["Answers"]


class Answers:
    """What becomes of the jobs of a chunk that were answered, or that are lost."""

    __slots__ = (
        "again", "attempts", "before", "blamed", "causes", "ends", "given_up", "lease", "lost",
        "ready", "session", "suspects", "taken", "unstarted",
    )  # fmt: skip

    def __init__(self, session: Session, lease: Lease) -> None:
        self.session = session
        self.lease = lease
        self.ends: list[Finished] = []
        #: Jobs that go back, and why each does.
        self.again: list[Job] = []
        self.causes: list[Cause] = []
        #: Attempts that failed, and when the job of each had become ready for it.
        self.attempts: list[Attempt] = []
        self.ready: list[float] = []
        self.taken: list[tuple[int, Job]] = []
        #: Ids of jobs that go back and were not started.
        self.unstarted: set[str] = set()
        #: Jobs that go back and may have killed their process, by their ids; ids of those to which
        #: the death is counted because their worker was lost.
        self.lost: dict[str, Death] = {}
        #: The session does not have the chunk any more, as far as is known: it did not answer.
        self.given_up = False
        self.blamed: set[str] = set()
        #: What was known before of jobs as suspects.
        self.suspects: list[tuple[Job, Suspect | None]] = []
        #: What jobs that go back were like before.
        self.before: list[tuple[Job, tuple[int, int, float, int, JobState, float]]] = []
