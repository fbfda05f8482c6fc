"""RQ: a process is forked for each job, as it does by default."""

from __future__ import annotations

import time
from typing import Any

from redis import Redis
from rq import Queue

from benchmarks.peers.client import Client, url
from benchmarks.peers.tasks import TASKS

connection = Redis.from_url(url())
queue = Queue(connection=connection)
TASK = {task.__name__: task for task in TASKS}


class _Client(Client):
    def submit(self, task: str, *arguments: Any) -> None:
        queue.enqueue(TASK[task], *arguments)

    def submit_many(self, n: int) -> None:
        queue.enqueue_many([Queue.prepare_data(TASK["nothing"]) for _ in range(n)])

    def call(self, number: int) -> Any:
        job = queue.enqueue(TASK["same"], number)
        while (result := job.latest_result(timeout=30)) is None:
            time.sleep(0.001)
        return result.return_value


def client() -> Client:
    """Return the client that submits jobs."""
    return _Client()
