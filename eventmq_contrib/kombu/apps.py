"""The EventMQ apps of a process: one for each broker and its options."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from eventmq import EventMQ

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["DEFAULT_PORT", "app_of"]

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


def app_of(urls: Iterable[Mapping[str, Any]], options: Mapping[str, Any]) -> EventMQ:
    """Return the app for brokers; it is made at the first call and lasts as long as the process.

    Args:
        urls: What `kombu.utils.url.parse_url` returns, of one broker or several: the app uses that
            which owns their store, or else the first that answers.
        options: Transport options; one that is not known is logged once.

    Raises:
        ValueError: A URL has a user, a password or a virtual host, which have no meaning.
    """
    for name in options.keys() - SETTINGS - OTHERS - _warned:
        _warned.add(name)
        logger.warning("the transport option %r has no effect with EventMQ", name)
    settings = {name: options[name] for name in sorted(options.keys() & SETTINGS)}
    brokers = tuple(dict.fromkeys(map(_address, urls)))
    key = (brokers, *settings.items())
    with _lock:
        if key not in _apps:
            _apps[key] = EventMQ("celery", broker=brokers, **settings)
        return _apps[key]


def _address(url: Mapping[str, Any]) -> str:
    if url["userid"] or url["password"]:
        raise ValueError("an eventmq:// URL has no user and no password: use the option key_file")
    if (path := url["virtual_host"] or "/") != "/":
        raise ValueError(f"an eventmq:// URL has no virtual host, as {path!r}: run another broker")
    host, port = url["hostname"] or "127.0.0.1", url["port"] or DEFAULT_PORT
    return f"tcp://[{host.strip('[]')}]:{port}" if ":" in host else f"tcp://{host}:{port}"
