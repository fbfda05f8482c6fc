"""Procrastinate with PostgreSQL."""

from __future__ import annotations

from typing import Any

from procrastinate import App, PsycopgConnector

from benchmarks.peers.client import Client, url
from benchmarks.peers.tasks import TASKS

app = App(connector=PsycopgConnector(conninfo=url()))
TASK = {task.__name__: app.task(task, name=task.__name__) for task in TASKS}
NAMES = {"nothing": (), "stamp": ("due",), "hold": ("seconds",)}


def prepare() -> None:
    """Create the tables."""
    with app.open():
        app.schema_manager.apply_schema()


class _Client(Client):
    def open(self) -> None:
        app.open()

    def close(self) -> None:
        app.close()

    def submit(self, task: str, *arguments: Any) -> None:
        TASK[task].defer(**dict(zip(NAMES[task], arguments, strict=True)))

    def submit_many(self, n: int) -> None:
        for _ in range(0, n, 100):
            TASK["nothing"].batch_defer(*([{}] * 100))

    def call(self, number: int) -> Any:
        raise NotImplementedError("this library keeps no results")


def client() -> Client:
    """Return the client that submits jobs."""
    return _Client()
