"""Awa with PostgreSQL: its own storage, filled by COPY for many jobs."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import asdict, dataclass
from typing import Any

import awa

from benchmarks.peers.client import Client, url
from benchmarks.peers.tasks import TASKS, hold

#: Jobs of one bulk call, and jobs that a process runs at once: the best values of its own
#: benchmarks.
_PART, _WORKERS = 1000, 256


@dataclass
class Nothing:
    """See `benchmarks.peers.tasks`, as the others."""


@dataclass
class Same:
    number: int


@dataclass
class Stamp:
    due: float


@dataclass
class Hold:
    seconds: float


KINDS = {"nothing": Nothing, "same": Same, "stamp": Stamp, "hold": Hold}


async def prepare() -> None:
    """Create the tables."""
    await awa.migrate(url())
    client = awa.AsyncClient(url())
    await client.install_queue_storage()
    await client.close()


def _handler(task: Any) -> Any:
    async def run(job: Any) -> None:
        if task is hold:
            await asyncio.to_thread(hold, job.args.seconds)
        else:
            task(**asdict(job.args))

    return run


async def work() -> None:
    """Run jobs until SIGTERM."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    worker = awa.AsyncClient(url())
    for task in TASKS:
        worker.task(KINDS[task.__name__], queue="default")(_handler(task))
    await worker.start([("default", _WORKERS)])
    await ended.wait()
    await worker.shutdown()


class _Client(Client):
    async def open(self) -> None:
        self.awa = awa.AsyncClient(url())

    async def close(self) -> None:
        await self.awa.close()

    async def submit(self, task: str, *arguments: Any) -> None:
        await self.awa.insert(KINDS[task](*arguments))

    async def submit_many(self, n: int) -> None:
        for start in range(0, n, _PART):
            await self.awa.enqueue_many_copy([Nothing()] * min(_PART, n - start))

    def call(self, number: int) -> Any:
        raise NotImplementedError("this library keeps no results")


def client() -> Client:
    """Return the client that submits jobs."""
    return _Client()


if __name__ == "__main__":
    asyncio.run(work())
