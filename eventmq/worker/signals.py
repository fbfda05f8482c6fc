"""What a task raises to say how its job goes on."""

from __future__ import annotations

from eventmq.errors import EventMQError

__all__ = ["Reject", "Retry"]


class Retry(EventMQError):
    """Raised by a task: end this attempt and try again later.

    A job that was given ``retries`` is tried again at most that often; one that was given none
    is tried again as often as its task asks.

    Attributes:
        countdown: Seconds until the next attempt; None leaves it to the retry policy.
    """

    def __init__(self, reason: str = "", *, countdown: float | None = None) -> None:
        if countdown is not None and not 0.0 <= countdown < float("inf"):
            msg = f"countdown is {countdown!r}; allowed are seconds from 0"
            raise ValueError(msg)
        super().__init__(reason or "the task asked for another attempt")
        self.countdown = countdown


class Reject(EventMQError):
    """Raised by a task: the job has failed for good, whatever its retries.

    Attributes:
        reason: Why, for people.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "the task rejected the job")
        self.reason = reason
