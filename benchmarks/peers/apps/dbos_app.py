"""DBOS with PostgreSQL: a job is a workflow on a queue."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import sqlalchemy
from dbos import DBOS, DBOSClient, EnqueueOptions

from benchmarks.peers.client import Client, url
from benchmarks.peers.tasks import TASKS

_QUEUE = "peers"

#: Jobs of one bulk transaction.
_PART = 100

#: Seconds between two polls of a worker; the default, a second, is too long here.
_POLL = 0.2


def prepare() -> None:
    """Create the tables."""
    DBOS.migrate(url())


def work() -> None:
    """Run jobs until SIGTERM."""
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    # Each process needs an id of its own.
    DBOS(config={
        "name": "peers", "system_database_url": url(), "executor_id": f"peers-{os.getpid()}",
        "log_level": "WARNING", "run_migrations": False, "application_version": "1",
    })  # fmt: skip
    for task in TASKS:
        DBOS.workflow(name=task.__name__)(task)
    DBOS.launch()
    DBOS.register_queue(_QUEUE, polling_interval_sec=_POLL)
    ended.wait()
    DBOS.destroy()


def _options(task: str) -> EnqueueOptions:
    return {"queue_name": _QUEUE, "workflow_name": task}


class _Client(Client):
    def open(self) -> None:
        self.dbos = DBOSClient(system_database_url=url(), application_name="peers")
        self.engine = sqlalchemy.create_engine(
            sqlalchemy.make_url(url()).set(drivername="postgresql+psycopg")
        )

    def close(self) -> None:
        self.dbos.destroy()
        self.engine.dispose()

    def submit(self, task: str, *arguments: Any) -> None:
        self.dbos.enqueue(_options(task), *arguments)

    def submit_many(self, n: int) -> None:
        # There is no bulk call; jobs may share a transaction of the caller.
        for start in range(0, n, _PART):
            with self.engine.begin() as connection:
                for _ in range(min(_PART, n - start)):
                    self.dbos.enqueue_in_transaction(connection, _options("nothing"))

    def call(self, number: int) -> Any:
        job: Any = self.dbos.enqueue(_options("same"), number)
        return job.get_result(polling_interval_sec=0.001)


def client() -> Client:
    """Return the client that submits jobs."""
    return _Client()


if __name__ == "__main__":
    work()
