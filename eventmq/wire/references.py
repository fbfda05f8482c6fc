"""Results that are kept outside the broker: what an outcome says instead of them, and back.

The content type of such an outcome is ``reference:NAME;`` before that of the result, where NAME is
the result backend, and its bytes are the backend's reference. So a client that has another backend
sees at once that it cannot read the result, and results from before a change of the setting stay
readable. Worker and client call it; the broker passes references on like results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.errors import EventMQError, ResultTooLarge, ResultUnavailable

if TYPE_CHECKING:
    from eventmq.interfaces import ResultBackend

__all__ = ["ResultHome", "is_reference", "too_large"]

_PREFIX = "reference:"

#: Longest result in bytes, unless told: what the broker's default frame limit lets through.
MAX_RESULT = 16 * 1024 * 1024 - 64 * 1024

#: Seconds that a result of a job that does not say is kept, unless told.
RESULT_TTL = 86400.0


def is_reference(content_type: str) -> bool:
    """Say whether the bytes of an outcome are a reference to its result."""
    return content_type.startswith(_PREFIX)


def too_large(size: int, limit: int) -> str:
    """Return why a result cannot be handed to the broker, and what would take it."""
    return (
        f"the result has {size} bytes; the limit is {limit}, from the setting max_frame; a result "
        "backend such as 'sqlite' (setting result_backend) takes larger ones"
    )


class ResultHome:
    """Where an app keeps its results: a backend, with its name and its limits. Thread-safe.

    Args:
        backend: Keeps results; None or an inline one leaves them to the broker.
        name: Of the backend, as the setting has it.
        max_result: Longest result in bytes that is left to the broker.
        ttl: Seconds that a result is kept whose job does not say.
    """

    __slots__ = ("_backend", "_name", "_ttl", "inline", "max_result")

    def __init__(
        self,
        backend: ResultBackend | None = None,
        name: str = "",
        *,
        max_result: int = MAX_RESULT,
        ttl: float = RESULT_TTL,
    ) -> None:
        self._backend = None if backend is None or backend.inline else backend
        self._name = name or "broker"
        self.max_result = max_result
        self._ttl = ttl
        #: Whether results travel in the REPLY; else `put` and `get` may block.
        self.inline = self._backend is None

    def check(self, result: bytes) -> None:
        """Raise `ResultTooLarge` for a result that the broker would not take."""
        if len(result) > self.max_result:
            raise ResultTooLarge(too_large(len(result), self.max_result))

    def put(
        self,
        job_id: str,
        content_type: str,
        result: bytes,
        ttl: float | None,
        *,
        fed: bool = False,
    ) -> tuple[str, bytes]:
        """Keep a result.

        Args:
            job_id: Of its job.
            content_type: Of the result.
            result: The bytes.
            ttl: Seconds that the job wants it kept, None if it does not say.
            fed: Other jobs take it, at a time that nobody knows: it is kept as long as that of a
                job that does not say, at least.

        Returns:
            Content type and bytes for the outcome.

        Raises:
            ResultTooLarge: It is too long for the broker, or for the backend.
        """
        if self._backend is None:
            self.check(result)
            return content_type, result
        seconds = self._ttl if ttl is None else max(ttl, self._ttl) if fed else ttl
        if seconds <= 0:
            return "", b""
        reference = self._backend.put(job_id, result, seconds)
        return f"{_PREFIX}{self._name};{content_type}", reference

    def get(self, job_id: str, content_type: str, data: bytes) -> tuple[str, bytes]:
        """Return content type and bytes of the result of an outcome.

        Raises:
            ResultUnavailable: Another backend keeps it, or this one does not any more.
        """
        if not is_reference(content_type):
            return content_type, data
        name, _, content_type = content_type.removeprefix(_PREFIX).partition(";")
        if self._backend is None or name != self._name:
            msg = f"the result of job {job_id} is kept by the result backend {name!r}, and this "
            msg += f"program has {self._name!r}: give it the same setting result_backend"
            raise ResultUnavailable(msg)
        try:
            return content_type, self._backend.get(data)
        except EventMQError:
            raise
        except Exception as error:
            msg = f"the result of job {job_id}: the result backend {name!r} failed: "
            raise ResultUnavailable(f"{msg}{type(error).__name__}: {error}") from error
