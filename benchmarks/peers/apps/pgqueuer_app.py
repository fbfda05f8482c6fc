"""PgQueuer with PostgreSQL: asyncpg, one connection for a worker and a pool for the client.

Its documentation recommends batches larger than the default of ten for short jobs, and to apply its
autovacuum settings after the installation. Its command needs an older typer than the current one.
"""

from __future__ import annotations

import asyncio
import json
import signal
from typing import TYPE_CHECKING, Any

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.queries import Queries

from benchmarks.peers.client import Client, url
from benchmarks.peers.tasks import TASKS, hold

if TYPE_CHECKING:
    from pgqueuer.models import Job

#: Jobs of one bulk call, and jobs that a worker takes at once.
_PART, _BATCH = 1000, 500


def _entrypoint(task: Any) -> Any:
    async def run(job: Job) -> None:
        arguments = json.loads(job.payload or b"[]")
        if task is hold:  # as it recommends for blocking tasks
            await asyncio.to_thread(hold, *arguments)
        else:
            task(*arguments)

    return run


async def prepare() -> None:
    """Create the tables."""
    connection = await asyncpg.connect(url())
    queries = Queries(AsyncpgDriver(connection))
    await queries.install()
    await queries.optimize_autovacuum()
    await connection.close()


async def work() -> None:
    """Run jobs until SIGTERM."""
    queuer = PgQueuer(AsyncpgDriver(await asyncpg.connect(url())))
    for task in TASKS:
        queuer.entrypoint(task.__name__)(_entrypoint(task))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, queuer.shutdown.set)
    await queuer.run(batch_size=_BATCH)


class _Client(Client):
    async def open(self) -> None:
        self.pool = await asyncpg.create_pool(url(), min_size=1, max_size=4)
        self.queries = Queries(AsyncpgPoolDriver(self.pool))

    async def close(self) -> None:
        await self.pool.close()

    async def submit(self, task: str, *arguments: Any) -> None:
        await self.queries.enqueue(task, json.dumps(arguments).encode())

    async def submit_many(self, n: int) -> None:
        for start in range(0, n, _PART):
            part = min(_PART, n - start)
            await self.queries.enqueue(["nothing"] * part, [None] * part, [0] * part)

    def call(self, number: int) -> Any:
        raise NotImplementedError("this library keeps no results")


def client() -> Client:
    """Return the client that submits jobs."""
    return _Client()


if __name__ == "__main__":
    asyncio.run(work())
