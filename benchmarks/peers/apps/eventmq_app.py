"""EventMQ."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.client import Client, url
from benchmarks.peers.tasks import TASKS
from eventmq import EventMQ

app = EventMQ("peers", broker=url())
TASK = {task.__name__: app.task(task) for task in TASKS}


class _Client(Client):
    def submit(self, task: str, *arguments: Any) -> None:
        TASK[task].delay(*arguments)

    def submit_many(self, n: int) -> None:
        empty: list[tuple[()]] = [()] * n
        TASK["nothing"].map(empty)

    def call(self, number: int) -> Any:
        return TASK["same"].call(number, timeout=30)

    def close(self) -> None:
        app.close()


def client() -> Client:
    """Return the client that submits jobs."""
    return _Client()
