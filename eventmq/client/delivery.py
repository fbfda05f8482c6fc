"""The state of one bulk submission: which part goes out next, how each one ended.

The submitter sends the parts, several at a time, and waits; nothing here does I/O.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from eventmq.client.refusals import refusal
from eventmq.errors import BatchError, BrokerUnavailable, MessageTooLarge

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventmq.client.handle import Job
    from eventmq.client.parts import Part, Source

__all__ = ["IN_FLIGHT", "Delivery"]

#: Messages that wait for their receipt at a time: enough to keep the broker busy.
IN_FLIGHT = 4


class Delivery:
    """One bulk submission.

    Args:
        source: Where the parts come from.
        new_id: Makes ids of messages.
        deadline: Says when a message that is sent now is to be given up.
    """

    def __init__(
        self, source: Source, *, new_id: Callable[[], str], deadline: Callable[[], float]
    ) -> None:
        self._source = source
        self._new_id = new_id
        self._deadline = deadline
        self._again: deque[Part] = deque()
        self._sent = 0
        #: (place of the first job, number of jobs) of parts with a receipt.
        self._receipts: list[tuple[int, int]] = []
        #: Places of jobs that were not confirmed.
        self._failed: dict[int, tuple[str, Exception | None]] = {}
        self._stopped: Exception | None = None

    def next(self) -> Part | None:
        """Return the next part with its message, or None if there is nothing to send.

        Raises:
            SerializationError: A job of the first part cannot be encoded; nothing was sent.
        """
        if self._stopped is not None:
            return None
        try:
            part = self._again.popleft() if self._again else self._source.part()
        except Exception as error:
            if not self._sent:
                raise
            self._stopped = error
            return None
        if part is not None:
            self._sent += 1
            part.pack(self._new_id(), self._deadline())
        return part

    def settled(self, part: Part) -> None:
        """Take note of how the message of a part ended."""
        parcel, rows = part.parcel, part.rows
        error = parcel.error
        if isinstance(error, MessageTooLarge) and len(rows) > 1:
            self._again.extend(part.halves())
            return
        if error is None:
            self._receipts.append((part.first, len(rows)))
            for origin in part.origins:
                origin.broker, origin.store, origin.sent = parcel.broker, parcel.store, True
        elif isinstance(error, BrokerUnavailable):
            self._stopped = self._stopped or error
        if error is not None or parcel.refused:
            self._note(part)

    def _note(self, part: Part) -> None:
        error, refused = part.parcel.error, part.parcel.refused
        maybe = isinstance(error, BrokerUnavailable) and error.maybe_accepted
        for position, (job_id, *_) in enumerate(part.rows):
            if error is not None:
                status = "unknown" if maybe else "refused"
                self._failed[part.first + position] = (status, error)
            elif position in refused:
                why = refusal(*refused[position], job_id)
                self._failed[part.first + position] = ("refused", why)

    def result(self) -> list[Job[Any]]:
        """Return the handles of all jobs, in order.

        Raises:
            BatchError: Some were not confirmed; it says which, and why.
        """
        if self._stopped is None and not self._failed:
            return self._source.jobs
        self._source.rest()
        ends = dict.fromkeys(range(len(self._source.jobs)), ("refused", self._stopped))
        for first, count in self._receipts:
            ends.update(dict.fromkeys(range(first, first + count), ("confirmed", None)))
        ends.update(self._failed)
        jobs = [(job, *ends[place]) for place, job in enumerate(self._source.jobs)]
        lost = [entry for entry in jobs if entry[1] != "confirmed"]
        msg = f"{len(lost)} of {len(jobs)} jobs were not confirmed; the first: {lost[0][2]}"
        raise BatchError(msg, jobs=jobs) from lost[0][2]
