"""The Celery application of the row about Celery, on the broker that ``CELERY_URL`` names."""

from __future__ import annotations

import os
import struct
import time

from celery import Celery

import eventmq_contrib.kombu  # noqa: F401 - for the scheme

__all__ = ["app", "nothing", "record"]

_URL = os.environ["CELERY_URL"]

app = Celery("bench", broker=_URL, backend="rpc://" if _URL.startswith("amqp") else _URL)
app.conf.update(
    task_acks_late=True, worker_prefetch_multiplier=16, worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)  # fmt: skip
if _URL.startswith("amqp"):  # delay() returns when the message is on disk, as with the others
    app.conf.broker_transport_options = {"confirm_publish": True}


@app.task(ignore_result=True)  # type: ignore[untyped-decorator]
def record(sent: float) -> None:
    """Append the seconds since ``sent`` to the file of the row."""
    data = struct.pack("d", time.time() - sent)
    file = os.open(os.environ["CELERY_RECORD"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, data)
    os.close(file)


@app.task  # type: ignore[untyped-decorator]
def nothing() -> None:
    """Do nothing; the result is kept."""
