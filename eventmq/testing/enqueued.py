"""What waits in a broker, with its arguments: for a test to look at and to compare."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eventmq.headers import parse_headers
from eventmq.interfaces import Envelope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq.app import EventMQ

__all__ = ["Enqueued", "Wanted"]


@dataclass(frozen=True, slots=True)
class Enqueued:
    """A job that waits.

    Attributes:
        id: The job's id.
        task: Name of its task, "" for a plain job.
        args: As the task will get them; of a plain job the body.
        kwargs: As the task will get them.
        queue: Name of its queue.
        state: ``queued``, ``delayed`` or ``blocked``.
        due: Seconds until it is due, 0.0 if it is.
        priority: As submitted.
        attempt: 1, or more if it failed before.
        headers: The header text.
    """

    id: str
    task: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    queue: str
    state: str
    due: float
    priority: int
    attempt: int
    headers: str

    def __str__(self) -> str:
        given = [*map(repr, self.args), *(f"{k}={v!r}" for k, v in self.kwargs.items())]
        text = f"{self.task or 'a plain job'}({', '.join(given)}) in queue {self.queue}"
        return f"{text}, due in {self.due:.6g} s" if self.state == "delayed" else text

    @classmethod
    def read(
        cls, app: EventMQ, info: dict[str, Any], submitted: tuple[str, str, bytes]
    ) -> Enqueued:
        """Return one.

        Args:
            app: Knows the serializers.
            info: What the broker says about the job.
            submitted: Queue, header text and body.
        """
        queue, text, body = submitted
        headers = parse_headers(text)
        args: Sequence[Any] = (body,)
        kwargs: dict[str, Any] = {}
        if headers.content_type:
            envelope = Envelope(
                info["id"],
                headers.content_type,
                headers.task,
                queue,
                headers.created,
                headers.expires,
                headers.signature,
            )
            args, kwargs = app.plugins.serializer(headers.content_type).decode(body, envelope)
        return cls(
            info["id"],
            headers.task,
            tuple(args),
            kwargs,
            info["queue"],
            info["state"],
            max(0.0, info["due"] - app.clock.now()) if info["due"] else 0.0,
            headers.priority,
            info["attempt"],
            text,
        )


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a test expects to wait; None is anything.

    Attributes:
        task: Name of the task.
        args: Positional arguments.
        kwargs: Keyword arguments.
        queue: Name of the queue.
    """

    task: str
    args: Sequence[Any] | None = None
    kwargs: dict[str, Any] | None = None
    queue: str | None = None

    def fits(self, job: Enqueued) -> bool:
        """Whether a job is one of them; what travelled as a list may be wanted as a tuple."""
        return (
            job.task == self.task
            and self.queue in {None, job.queue}
            and (self.args is None or _plain(job.args) == _plain(self.args))
            and (self.kwargs is None or _plain(job.kwargs) == _plain(self.kwargs))
        )

    def __str__(self) -> str:
        words = [self.task]
        if self.args is not None:
            words.append(f"args={tuple(self.args)!r}")
        if self.kwargs is not None:
            words.append(f"kwargs={self.kwargs!r}")
        if self.queue is not None:
            words.append(f"queue={self.queue!r}")
        return " ".join(words)


def _plain(value: Any) -> Any:
    """Return a value with lists for tuples, as a serializer may give them back."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value
