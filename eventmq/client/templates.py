"""Templates of jobs: the part that jobs of one task and one set of options share, encoded once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq.headers import Headers, format_headers
from eventmq.interfaces import Envelope
from eventmq.wire.commands import PROTOCOL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from eventmq.execution.annotations import ResultPlan
    from eventmq.interfaces import Serializer

    KeyMaker = Callable[[Sequence[Any], Mapping[str, Any]], str]

__all__ = ["ACK_AND_REPLY_REQUESTED", "ACK_REQUESTED", "LATE_ACK", "EncodedJob", "Template"]


#: What a REQUEST asks for: the receipt at once; the result as well; the result, and the receipt
#: only if the result takes longer than a second.
ACK_REQUESTED, ACK_AND_REPLY_REQUESTED, LATE_ACK = (
    "ack-requested",
    "ack-requested,reply-requested",
    "late-ack",
)


class EncodedJob(NamedTuple):
    """One job ready to be sent; ``headers`` has no request for a receipt or result."""

    id: str
    queue: str
    headers: str
    body: bytes

    def frames(self, requested: str = ACK_REQUESTED) -> list[bytes]:
        """Return the frames of a REQUEST for this job alone."""
        headers = f"{requested},{self.headers}" if self.headers else requested
        head = [b"", PROTOCOL, b"REQUEST", self.id.encode(), self.queue.encode()]
        return [*head, headers.encode(), self.body]


@dataclass(frozen=True, slots=True)
class Template:
    """The common part of jobs.

    Attributes:
        queue: Name of the queue.
        headers: The headers of every job.
        text: The headers as text.
        encode: Method of the serializer.
        now: Reads Unix time.
        expires_in: Seconds until a job expires, counted from its submission; 0.0 for never.
        key: Makes the unique key of a job from its arguments, None for no key.
        limit_key: Makes the key of its limits from its arguments, None for no key.
        results: Converts results; None leaves them as they were serialised.
    """

    queue: str
    headers: Headers
    text: str
    encode: Callable[[object, Envelope], tuple[bytes, str]]
    now: Callable[[], float]
    expires_in: float = 0.0
    key: KeyMaker | None = None
    limit_key: KeyMaker | None = None
    results: ResultPlan | None = None

    @classmethod
    def make(
        cls,
        queue: str,
        headers: Headers,
        serializer: Serializer,
        now: Callable[[], float],
        expires_in: float = 0.0,
    ) -> Template:
        """Return a template; ``headers`` must name the serializer's content type."""
        return cls(queue, headers, format_headers(headers), serializer.encode, now, expires_in)

    @property
    def keyed(self) -> bool:
        """Whether each job has its own headers."""
        return self.key is not None or self.limit_key is not None

    def write(self, job_id: str, args: Any, kwargs: Mapping[str, Any]) -> EncodedJob:
        """Encode the arguments of one job.

        Raises:
            SerializationError: They cannot be encoded.
            SettingsError: The template of a key cannot be filled in.
        """
        headers = self.headers
        if self.key is not None:
            headers = replace(headers, unique=self.key(args, kwargs))
        if self.limit_key is not None:
            headers = replace(headers, limit_key=self.limit_key(args, kwargs))
        now = self.now()
        expires = now + self.expires_in if self.expires_in else headers.expires
        envelope = Envelope(job_id, headers.content_type, headers.task, self.queue, now, expires)
        body, signature = self.encode([args, kwargs], envelope)
        text = self.text
        if signature:
            # The time of creation travels only in signed jobs: a header text that differs from job
            # to job costs the broker and the worker more than the job itself.
            job_headers = replace(headers, created=now, expires=expires, signature=signature)
            text = format_headers(job_headers)
        elif self.expires_in or self.keyed:
            text = format_headers(replace(headers, expires=expires))
        return EncodedJob(job_id, self.queue, text, body)

    # hot loop: python -m benchmarks enqueue_bulk
    def bodies(
        self, ids: Sequence[str], calls: Sequence[Sequence[Any]], kwargs: Mapping[str, Any]
    ) -> Iterator[tuple[str, str, bytes]]:
        """Encode many jobs: yield id, headers and body of each, as `write` encodes them."""
        encode, queue, text = self.encode, self.queue, self.text
        kind, task, expires = self.headers.content_type, self.headers.task, self.headers.expires
        now = self.now()
        for job_id, args in zip(ids, calls, strict=True):
            if not self.expires_in and not self.keyed:
                envelope = Envelope(job_id, kind, task, queue, now, expires)
                body, signature = encode([args, kwargs], envelope)
                # The common case: all jobs share their headers.
                if not signature:
                    yield job_id, text, body
                    continue
            encoded = self.write(job_id, args, kwargs)
            yield job_id, encoded.headers, encoded.body

    def extended(self, extra: Mapping[str, str]) -> Template:
        """Return the template with more headers, for example from a middleware."""
        headers = replace(self.headers, extra=(*self.headers.extra, *extra.items()))
        return replace(self, headers=headers, text=format_headers(headers))
