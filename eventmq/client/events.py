"""One job from its submission to its end, by a call back: without a thread or a coroutine for it.

For programs that have very many open jobs and a loop of their own, as gateways are.
`eventmq.client.submit.Submitter.follow` begins it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from eventmq.errors import EventMQError, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventmq.client.handle import Job, Results
    from eventmq.client.requests import Parcel, Question

__all__ = ["Followed"]

logger = logging.getLogger(__name__)


class Followed:
    """A parcel, then the question for the job's end. All but `begin` in the client's thread.

    Args:
        job: Its handle; ``row`` is set at the end.
        parcel: Its submission.
        results: Of the client.
        on_receipt: Called with job and parcel when the broker has it.
        on_end: Called once with the job, and the error for which it was not submitted, or its end
            is not known; it must not block.
    """

    __slots__ = (
        "_ended",
        "_job",
        "_on_end",
        "_on_receipt",
        "_parcel",
        "_question",
        "_results",
    )

    def __init__(
        self,
        job: Job[Any],
        parcel: Parcel,
        results: Results,
        *,
        on_receipt: Callable[[Job[Any], Parcel], None],
        on_end: Callable[[Job[Any], Exception | None], None],
    ) -> None:
        self._job = job
        self._parcel = parcel
        self._results = results
        self._on_receipt = on_receipt
        self._on_end = on_end
        self._question: Question | None = None
        self._ended = False

    def begin(self) -> None:
        """Submit the job; any thread.

        Raises:
            BrokerUnavailable: The client was closed.
        """
        self._parcel.wake = self._receipt
        self._results.runner.begin(self._parcel)

    def _receipt(self) -> None:
        parcel = self._parcel
        if not parcel.over or self._question is not None:
            return
        if parcel.error is not None:
            self._end(parcel.error)
            return
        self._on_receipt(self._job, parcel)
        try:
            self._question = question = self._results.end_of(self._job)
            question.wake = self._answer
            self._results.runner.begin(question)
        except EventMQError as error:
            self._end(error)

    def _answer(self) -> None:
        question = self._question
        if question is None:
            return
        if question.answers:
            try:
                self._results.note(self._job, question.answers.popleft())
            except EventMQError as error:
                self._end(error)
            else:
                self._end(None)
        elif question.over:
            self._end(question.error or ProtocolError("the broker answered get with nothing"))

    def _end(self, error: Exception | None) -> None:
        if self._ended:
            return
        self._ended = True
        try:
            self._on_end(self._job, error)
        except Exception:
            logger.exception("what followed job %s failed", self._job.id)
