"""Huey, with Redis or with a file of SQLite."""

from __future__ import annotations

from typing import Any

from huey import RedisHuey, SqliteHuey

from benchmarks.peers.client import Client, url
from benchmarks.peers.tasks import TASKS

huey: Any
if url().startswith("redis"):
    huey = RedisHuey("peers", url=url())
else:
    # Its default keeps that of SQLite: each commit is synced.
    huey = SqliteHuey("peers", filename=url())
TASK = {task.__name__: huey.task()(task) for task in TASKS}


class _Client(Client):
    def submit(self, task: str, *arguments: Any) -> None:
        TASK[task](*arguments)

    def submit_many(self, n: int) -> None:
        TASK["nothing"].map([()] * n)

    def call(self, number: int) -> Any:
        return TASK["same"](number).get(blocking=True, timeout=30, backoff=1.0, max_delay=0.001)

    def close(self) -> None:
        huey.storage.close()


def client() -> Client:
    """Return the client that submits jobs."""
    return _Client()
