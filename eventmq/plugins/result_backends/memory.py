"""Result backend ``memory``: keeps results in the process that ran the job.

It is for ``memory://`` apps and the pool ``threads``, where client and worker are one process. The
total size is bounded: the oldest results are dropped first.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eventmq.errors import ResultTooLarge, ResultUnavailable
from eventmq.sdk import hookimpl, option, read_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq.clock import Clock
    from eventmq.sdk import Factory, PluginContext, ResultBackend

__all__ = ["MemoryResults", "eventmq_result_backends"]

#: Default of ``max_bytes``.
MAX_BYTES = 64 * 1024 * 1024


class MemoryResults:
    """A `ResultBackend` in a dict.

    Args:
        clock: Reads time.
        max_bytes: Maximum bytes of all results; above it the oldest are dropped.
    """

    inline = False
    local = True

    def __init__(self, clock: Clock, max_bytes: int = MAX_BYTES) -> None:
        self._monotonic = clock.monotonic
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._results: dict[bytes, tuple[bytes, float]] = {}
        self._bytes = 0

    def put(self, job_id: str, data: bytes, ttl: float) -> bytes:
        """Keep a result for ``ttl`` seconds; return its reference, made of the job's id."""
        reference = job_id.encode()
        if len(data) > self._max_bytes:
            raise ResultTooLarge(
                f"the result has {len(data)} bytes; the result backend 'memory' keeps "
                f"{self._max_bytes} at most: its option max_bytes"
            )
        with self._lock:
            self._drop(reference)
            self._results[reference] = (data, self._monotonic() + ttl)
            self._bytes += len(data)
            while self._bytes > self._max_bytes:
                self._drop(next(iter(self._results)))
        return reference

    def get(self, reference: bytes) -> bytes:
        """Return a result that is still kept."""
        with self._lock:
            data, until = self._results.get(reference, (b"", 0.0))
            if reference in self._results and until > self._monotonic():
                return data
            self._drop(reference)
        job_id = reference.decode(errors="replace")
        raise ResultUnavailable(
            f"the result of job {job_id!r} is not in this process, or has expired: the result "
            "backend 'memory' keeps results in the process that ran the job, for their ttl"
        )

    def close(self) -> None:
        """Do nothing, since other apps may use the same object."""

    def _drop(self, reference: bytes) -> None:
        data, _ = self._results.pop(reference, (b"", 0.0))
        self._bytes -= len(data)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the backend. ``max_bytes``: maximum bytes of all results."""

    max_bytes: int = option(MAX_BYTES, ge=1)


def make_backend(context: PluginContext) -> ResultBackend:
    """Return a backend; raises `PluginError` for a wrong option."""
    return MemoryResults(context.clock, read_options(context, Options).max_bytes)


@hookimpl
def eventmq_result_backends() -> Mapping[str, Factory[ResultBackend]]:
    """Provide ``memory``."""
    return {"memory": make_backend}
