"""Follows one job by callback, from its submission to its end; no thread waits for it.

For programs that have very many open jobs and a loop of their own, such as gateways.
`eventmq.client.submit.Submitter.track` begins it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from eventmq.client.requests import take_answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventmq.client.handle import Job, ResultClient
    from eventmq.client.requests import PendingCall

__all__ = ["TrackedJob"]

logger = logging.getLogger(__name__)


class TrackedJob:
    """Submits one job and reports its end.

    All but `begin` runs in whichever thread drives the client's I/O loop.

    Args:
        job: Its handle; its ``row`` is set when the job has ended.
        call: The call for its end, with its submission.
        results: The result client of the handle.
        on_end: Called once, with the job and the error that kept it from being submitted or its
            end from being known, else None; must not block.
    """

    __slots__ = ("_call", "_ended", "_job", "_on_end", "_results")

    def __init__(
        self,
        job: Job[Any],
        call: PendingCall,
        results: ResultClient,
        *,
        on_end: Callable[[Job[Any], Exception | None], None],
    ) -> None:
        self._job = job
        self._call = call
        self._results = results
        self._on_end = on_end
        self._ended = False

    def begin(self) -> None:
        """Submit the job; any thread.

        Raises:
            BrokerUnavailable: The client was closed.
        """
        self._call.notify = self._on_answer
        self._results.runner.begin(self._call)

    def _on_answer(self) -> None:
        call = self._call
        if not call.done:
            return
        self._results.record_broker(self._job, call)
        error: Exception | None = None
        try:
            self._results.record(self._job, take_answer(call))
        except Exception as failure:  # noqa: BLE001 - the callback gets it
            error = failure
        self._end(error)

    def _end(self, error: Exception | None) -> None:
        if self._ended:
            return
        self._ended = True
        try:
            self._on_end(self._job, error)
        except Exception:
            logger.exception("the callback of job %s failed", self._job.id)
