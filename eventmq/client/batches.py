"""``with app.batch():`` collects what is submitted inside and sends it together at the exit."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from eventmq.client.parts import WrittenSource

if TYPE_CHECKING:
    from contextvars import Token
    from types import TracebackType

    from typing_extensions import Self

    from eventmq.client.handle import Job
    from eventmq.client.submitter import Submitter
    from eventmq.client.templates import Written

__all__ = ["Batch", "open_batch"]

_innermost: ContextVar[Batch | None] = ContextVar("eventmq_batch", default=None)


def open_batch(submitter: Submitter) -> Batch | None:
    """Return the innermost open batch of a submitter in this thread or coroutine."""
    batch = _innermost.get()
    while batch is not None and (batch.submitter is not submitter or batch.closed):
        batch = batch.outer
    return batch


class Batch:
    """A context manager, for ``with`` and ``async with``; made by ``app.batch()``.

    Handles of jobs inside can be used after the exit. An exception inside sends nothing. A batch
    within a batch of the same app joins it, and is sent with it.

    Raises at the exit:
        BatchError: Some jobs were not confirmed.
    """

    def __init__(self, submitter: Submitter) -> None:
        self.submitter = submitter
        self.outer: Batch | None = None
        self.closed = False
        self._entries: list[tuple[Job[Any], Written]] = []
        self._token: Token[Batch | None] | None = None

    def add(self, job: Job[Any], written: Written) -> None:
        """Keep a job until the exit."""
        self._entries.append((job, written))

    def __len__(self) -> int:
        return len(self._entries)

    def __enter__(self) -> Self:
        if self._token is not None:
            raise RuntimeError("a batch is entered once; make another with app.batch()")
        self.outer = _innermost.get()
        self._token = _innermost.set(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        entries = self._leave(failed=kind is not None)
        if entries:
            self.submitter.deliver(WrittenSource(entries))

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        entries = self._leave(failed=kind is not None)
        if entries:
            await self.submitter.adeliver(WrittenSource(entries))

    def _leave(self, *, failed: bool) -> list[tuple[Job[Any], Written]]:
        """Close the batch and return what is to be sent now."""
        self.closed = True
        if self._token is not None:
            _innermost.reset(self._token)
        entries, self._entries = self._entries, []
        if failed:
            return []
        outer = open_batch(self.submitter)
        if outer is None:
            return entries
        for job, written in entries:
            outer.add(job, written)
        return []
