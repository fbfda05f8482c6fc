"""Job events by callback: one job from its submission to its end, without a thread for it.

For programs that have very many open jobs and a loop of their own, such as gateways.
`eventmq.client.submit.Submitter.track` begins it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from eventmq.errors import EventMQError, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventmq.client.handle import Job, ResultClient
    from eventmq.client.requests import PendingCall, PendingSubmit

__all__ = ["TrackedJob"]

logger = logging.getLogger(__name__)


class TrackedJob:
    """Submits one job, then calls for its end. All but `begin` runs in the client's thread.

    Args:
        job: Its handle; ``row`` is set at the end.
        pending: Its submission.
        results: Makes the call for its end.
        on_receipt: Called with job and submission when the broker has it.
        on_end: Called once with the job, and the error for which it was not submitted or its end
            is not known; it must not block.
    """

    __slots__ = (
        "_call",
        "_ended",
        "_job",
        "_on_end",
        "_on_receipt",
        "_pending",
        "_results",
    )

    def __init__(
        self,
        job: Job[Any],
        pending: PendingSubmit,
        results: ResultClient,
        *,
        on_receipt: Callable[[Job[Any], PendingSubmit], None],
        on_end: Callable[[Job[Any], Exception | None], None],
    ) -> None:
        self._job = job
        self._pending = pending
        self._results = results
        self._on_receipt = on_receipt
        self._on_end = on_end
        self._call: PendingCall | None = None
        self._ended = False

    def begin(self) -> None:
        """Submit the job; any thread.

        Raises:
            BrokerUnavailable: The client was closed.
        """
        self._pending.notify = self._receipt
        self._results.runner.begin(self._pending)

    def _receipt(self) -> None:
        pending = self._pending
        if not pending.done or self._call is not None:
            return
        if pending.error is not None:
            self._end(pending.error)
            return
        self._on_receipt(self._job, pending)
        try:
            self._call = call = self._results.end_of(self._job)
            call.notify = self._answer
            self._results.runner.begin(call)
        except EventMQError as error:
            self._end(error)

    def _answer(self) -> None:
        call = self._call
        if call is None:
            return
        if call.answers:
            try:
                self._results.record(self._job, call.answers.popleft())
            except EventMQError as error:
                self._end(error)
            else:
                self._end(None)
        elif call.done:
            self._end(call.error or ProtocolError("the broker answered get with nothing"))

    def _end(self, error: Exception | None) -> None:
        if self._ended:
            return
        self._ended = True
        try:
            self._on_end(self._job, error)
        except Exception:
            logger.exception("the callback of job %s failed", self._job.id)
