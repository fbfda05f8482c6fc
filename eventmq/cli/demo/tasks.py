"""The app of the demo, as its workers load it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from eventmq.app import EventMQ
from eventmq.cli.demo.sources import measure

__all__ = ["SETTINGS", "app", "make_app", "measure_file"]

#: Settings of the demo, which override those of the user.
SETTINGS: dict[str, Any] = {
    "serializer": "msgpack",
    "accept_content": ("msgpack",),
    "result_backend": "broker",
    "default_queue": "demo",
    "imports": (),
    "middleware": (),
    "submit_timeout": 10.0,
    "result_timeout": 60.0,
}


def measure_file(path: str) -> dict[str, Any]:
    """Return the figures of a source file, and the start time of this job (Unix time)."""
    started = time.time()
    return {**measure(Path(path).read_bytes()), "started": started}


def make_app(broker: str | None = None) -> EventMQ:
    """Return an app with the task ``measure_file``."""
    app = EventMQ("demo", broker=broker, **SETTINGS)
    app.task(name="measure_file")(measure_file)
    return app


#: The app that workers load.
app = make_app()
