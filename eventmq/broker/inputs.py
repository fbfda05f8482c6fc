"""What workers ask before they start a job: what is too much for a REQUEST, page by page.

And, of a suspect (`eventmq.broker.suspects`), whether they may begin. Only the session that holds
the lease may ask, and only a worker that names the extension ``inputs`` is given a job with pages.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from eventmq.broker.arguments import number, text
from eventmq.entries import Finish, ReadInputs
from eventmq.errors import ProtocolError
from eventmq.graph import PAGED, flags_of
from eventmq.job import JobState
from eventmq.wire.bulk import pack
from eventmq.wire.results import ERROR_TYPE, RemoteError, encode_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from eventmq.broker.outcomes import Outcomes
    from eventmq.broker.peers import Lease, Peer, Session
    from eventmq.broker.queues import Queue
    from eventmq.broker.state import State
    from eventmq.entries import InputsPage
    from eventmq.job import Job

__all__ = ["PAGE", "Inputs", "is_paged"]

logger = logging.getLogger("eventmq.broker")

#: Bytes of the results of a page, unless the first one is longer.
PAGE = 1024 * 1024


def is_paged(job: Job) -> bool:
    """Say whether the body of a job has ids for what it takes."""
    return PAGED in flags_of(job.headers)


class Inputs:
    """Serves pages, and fails jobs that no worker of their queue can read."""

    def __init__(self, state: State, outcomes: Outcomes) -> None:
        self.state = state
        self.outcomes = outcomes
        #: CALL -> what answers it.
        self.handlers = {"inputs": self.read, "begin": self.begin}

    # Pages

    def read(self, peer: Peer, call: str, arguments: Mapping[str, Any]) -> None:
        """Answer the CALL ``inputs``."""
        job_id, delivery = text(arguments, "id"), number(arguments, "delivery")
        self._check(peer.session, job_id, delivery)
        most = min(PAGE, self.state.limits.max_frame // 2)

        def settle(page: InputsPage | None) -> None:
            if page is None:
                what = f"no results are kept for job {job_id!r}"
                self.state.error(peer, call, "inputs-gone", what)
            else:
                self.state.reply(peer, pack({"rows": page.rows, "next": page.next}), call)

        self.state.write(ReadInputs(job_id, number(arguments, "cursor"), most), settle)

    def begin(self, peer: Peer, call: str, arguments: Mapping[str, Any]) -> None:
        """Answer the CALL ``begin``: the worker has a suspect, and is about to start it."""
        job_id, delivery = text(arguments, "id"), number(arguments, "delivery")
        self._check(peer.session, job_id, delivery).begun = True
        self.state.reply(peer, pack(None), call)

    def _check(self, session: Session | None, job_id: str, delivery: int) -> Lease:
        """Return the chunk of a delivery; raise `ProtocolError` if the session does not hold it."""
        held = self.state.running.get(job_id)
        if session is not None and held is not None:
            owner, lease, place = held
            if owner is session and lease.deliveries[place] == delivery:
                return lease
        what = f"this peer does not hold delivery {delivery} of job {job_id[:255]!r}"
        raise ProtocolError(what, code="not-held")

    # Workers that cannot

    def blind(self, session: Session) -> bool:
        """Say whether a session is given jobs with ids and cannot read pages."""
        return not session.inputs and not session.plain

    def refuses(self, queue: Queue) -> bool:
        """Say whether such a session leaves these jobs of a queue to another that can."""
        return any(
            session.inputs and any(name == queue.name for _, name in session.queues)
            for session in self.state.sessions.values()
        )

    def fail(self, jobs: Sequence[Job], undo: Callable[[], None]) -> None:
        """End jobs that only workers serve which cannot read what they take."""
        what = "the results that it takes are longer than max_frame, and no worker of the queue "
        what += "knows the extension 'inputs' to read them in pages: use EventMQ 1.0 or later"
        error = encode_error(RemoteError("eventmq.errors.ResultTooLarge", what))
        rows = [self.outcomes.row(job, JobState.FAILED, ERROR_TYPE, error) for job in jobs]
        logger.error("%d jobs of the queue %r failed for good: %s", len(jobs), jobs[0].queue, what)
        self.state.write(Finish(rows), lambda verdict: self.outcomes.finished(rows, verdict), undo)
