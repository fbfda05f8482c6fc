"""SAQ with Redis."""

from __future__ import annotations

from typing import Any

from saq import Queue

from benchmarks.peers.client import Client, url
from benchmarks.peers.tasks import hold as _hold
from benchmarks.peers.tasks import nothing as _nothing
from benchmarks.peers.tasks import same as _same
from benchmarks.peers.tasks import stamp as _stamp

queue = Queue.from_url(url())


async def nothing(_: Any) -> None:
    """See `benchmarks.peers.tasks`."""
    _nothing()


async def same(_: Any, *, number: int) -> int:
    """See `benchmarks.peers.tasks`."""
    return _same(number)


async def stamp(_: Any, *, due: float) -> None:
    """See `benchmarks.peers.tasks`."""
    _stamp(due)


async def hold(_: Any, *, seconds: float) -> None:
    """See `benchmarks.peers.tasks`; it occupies the whole process."""
    _hold(seconds)


NAMES = {"nothing": (), "same": ("number",), "stamp": ("due",), "hold": ("seconds",)}
settings = {"queue": queue, "functions": [nothing, same, stamp, hold], "concurrency": 10}


class _Client(Client):
    async def open(self) -> None:
        await queue.connect()

    async def close(self) -> None:
        await queue.disconnect()

    async def submit(self, task: str, *arguments: Any) -> None:
        await queue.enqueue(task, **dict(zip(NAMES[task], arguments, strict=True)))

    async def submit_many(self, n: int) -> None:
        for _ in range(n):
            await queue.enqueue("nothing")

    async def call(self, number: int) -> Any:
        return await queue.apply("same", number=number)


def client() -> Client:
    """Return the client that submits jobs."""
    return _Client()
