"""The connection of one Spark task, or of the planner, to a broker."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from eventmq.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eventmq import EventMQ
    from eventmq_contrib.spark.source.options import Connection

__all__ = ["connected"]


@contextlib.contextmanager
def connected(options: Connection) -> Iterator[EventMQ]:
    """Give an app that talks to the broker of the options, and close it at the end.

    What the options leave out, the settings of the machine say.

    Raises:
        SettingsError: A value is not allowed, or a key file cannot be read.
    """
    from eventmq import EventMQ

    said: dict[str, Any] = {
        "broker": options.broker.split(",") if options.broker else None,
        "key_file": options.key,
        "broker_key_file": options.broker_key,
        "submit_timeout": options.timeout,
    }
    app = EventMQ("spark", **{name: value for name, value in said.items() if value is not None})
    try:
        if "memory://" in app.settings.broker:
            msg = "the broker memory:// lives inside one process, and Spark's are others; name one "
            raise SettingsError(msg + 'that they reach: option("broker", "tcp://127.0.0.1:47291")')
        yield app
    finally:
        app.close()
