"""Celery: results in Redis or over RPC; none for jobs whose results are not read, as advised."""

from __future__ import annotations

from typing import Any

from celery import Celery, group

from benchmarks.peers.client import Client, url
from benchmarks.peers.tasks import TASKS

app = Celery("peers", broker=url(), backend=url() if url().startswith("redis") else "rpc://")
app.conf.worker_hijack_root_logger = False
TASK = {task.__name__: app.task(task, ignore_result=task.__name__ != "same") for task in TASKS}


class _Client(Client):
    def submit(self, task: str, *arguments: Any) -> None:
        TASK[task].delay(*arguments)

    def submit_many(self, n: int) -> None:
        # There is no bulk call: a group sends jobs one by one over one connection.
        group(TASK["nothing"].si() for _ in range(n)).apply_async()

    def call(self, number: int) -> Any:
        return TASK["same"].delay(number).get(timeout=30)

    def close(self) -> None:
        app.close()


def client() -> Client:
    """Return the client that submits jobs."""
    return _Client()
