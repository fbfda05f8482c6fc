"""taskiq with Redis: a list, its fastest broker, and results in Redis."""

from __future__ import annotations

from typing import Any

from taskiq_redis import ListQueueBroker, RedisAsyncResultBackend

from benchmarks.peers.client import Client, url
from benchmarks.peers.tasks import TASKS

broker = ListQueueBroker(url()).with_result_backend(RedisAsyncResultBackend(url()))
TASK = {task.__name__: broker.task(task_name=task.__name__)(task) for task in TASKS}


class _Client(Client):
    async def open(self) -> None:
        await broker.startup()

    async def close(self) -> None:
        await broker.shutdown()

    async def submit(self, task: str, *arguments: Any) -> None:
        await TASK[task].kiq(*arguments)

    async def submit_many(self, n: int) -> None:
        kiq = TASK["nothing"].kiq
        for _ in range(n):
            await kiq()

    async def call(self, number: int) -> Any:
        job = await TASK["same"].kiq(number)
        return (await job.wait_result(check_interval=0.001, timeout=30)).return_value


def client() -> Client:
    """Return the client that submits jobs."""
    return _Client()
