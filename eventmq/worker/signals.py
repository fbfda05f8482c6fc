"""What a task raises to say how its job goes on."""

from __future__ import annotations

from eventmq.errors import EventMQError

__all__ = ["Reject", "Retry"]


class Retry(EventMQError):
    """Raised by a task: end this attempt and try again later.

    Every attempt counts against the ``retries`` of the job, whose default is 0. Where none is
    left the job fails: with the error that this one was raised from, or raised while handling,
    else with this one, which then says that the retries are used up::

        @app.task(retries=5)
        def fetch(url):
            try:
                return download(url)
            except TimeoutError as error:
                raise Retry(countdown=30) from error

    Args:
        reason: Why, for people.
        countdown: Seconds until the next attempt; None leaves it to the retry policy.

    Attributes:
        countdown: As given.

    Raises:
        ValueError: ``countdown`` is no number, negative or without end.
    """

    def __init__(self, reason: str = "", *, countdown: float | None = None) -> None:
        known = countdown is None or isinstance(countdown, int | float)
        if not known or not 0.0 <= (countdown or 0.0) < float("inf"):
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
