"""The Celery application of the row about Celery, on the broker that ``BENCH_URL`` names."""

from __future__ import annotations

import os

from celery import Celery

import eventmq_contrib.kombu  # noqa: F401 - for the scheme
from benchmarks.delays import append_delay

__all__ = ["app", "nothing", "record"]

_URL = os.environ["BENCH_URL"]

app = Celery("bench", broker=_URL, backend="rpc://" if _URL.startswith("amqp") else _URL)
app.conf.update(
    task_acks_late=True, worker_prefetch_multiplier=16, worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)  # fmt: skip
if _URL.startswith("amqp"):  # delay() returns when the message is on disk, as with the others
    app.conf.broker_transport_options = {"confirm_publish": True}


@app.task(ignore_result=True)  # type: ignore[untyped-decorator]
def record(sent: float) -> None:
    """Record how long the message took."""
    append_delay(sent)


@app.task  # type: ignore[untyped-decorator]
def nothing() -> None:
    """Do nothing; the result is kept."""
