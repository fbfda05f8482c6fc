"""The EventMQ apps of a process: one for each broker and its options."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from eventmq import EventMQ

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["DEFAULT_PORT", "app_of", "check_address"]

logger = logging.getLogger(__name__)

DEFAULT_PORT = 47291

#: Transport options that are settings of EventMQ.
SETTINGS = frozenset({
    "broker_key_file", "heartbeat_interval", "heartbeat_timeout", "key_file", "max_frame",
    "submit_timeout",
})  # fmt: skip

#: Other transport options, which kombu, Celery or this package read.
OTHERS = frozenset({
    "client_properties", "errback", "eta_in_broker", "global_keyprefix", "interval_max",
    "interval_start", "interval_step", "max_retries", "result_queue",
})  # fmt: skip

_apps: dict[object, EventMQ] = {}
_lock = threading.Lock()
_warned: set[str] = set()


def check_address(user: str | None, password: str | None, virtual_host: str | None) -> None:
    """Refuse the parts of a URL that have no meaning.

    Raises:
        ValueError: There is one; the message names it.
    """
    if user or password:
        raise ValueError(
            "an eventmq:// URL has no user and no password; use keys: the transport options "
            "key_file and broker_key_file"
        )
    if (virtual_host or "/") != "/":
        raise ValueError(
            f"an eventmq:// URL has no virtual host, so {virtual_host!r} cannot be used; a broker "
            "of its own keeps an application apart"
        )


def app_of(host: str | None, port: int | None, options: Mapping[str, Any]) -> EventMQ:
    """Return the app for a broker; it is made at the first call and lasts as long as the process.

    Args:
        host: Host of the broker, None for this machine.
        port: Port, None for the default.
        options: Transport options; one that is not known is logged once.
    """
    for name in options.keys() - SETTINGS - OTHERS - _warned:
        _warned.add(name)
        logger.warning("the transport option %r has no effect with EventMQ", name)
    host = host or "127.0.0.1"
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    settings = {name: options[name] for name in sorted(options.keys() & SETTINGS)}
    key = (host, port, *settings.items())
    with _lock:
        app = _apps.get(key)
        if app is None:
            address = f"tcp://{host}:{port or DEFAULT_PORT}"
            app = _apps[key] = EventMQ("celery", broker=address, **settings)
        return app
