"""The command ``eventmq metrics``: serves the metrics of a broker."""

from __future__ import annotations

import re
import signal
import threading
from typing import TYPE_CHECKING

import click

from eventmq.cli import FAILED, Command, takes_target
from eventmq.errors import BindError
from eventmq_contrib.extras import need

if TYPE_CHECKING:
    from eventmq import EventMQ
    from eventmq.cli import Target

__all__ = ["DEFAULT_BIND", "metrics", "serve"]

DEFAULT_BIND = "127.0.0.1:9472"

#: Seconds that a scrape waits for the broker: Prometheus itself waits ten.
TIMEOUT = 3.0


def _address(context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, int]:
    """Read ``HOST:PORT``."""
    found = re.fullmatch(r"(?:\[([0-9a-fA-F:]+)\]|([^:]+)):(\d{1,5})", value)
    if found is None or int(found[3]) > 65535:  # noqa: PLR2004 - the last port
        msg = f"{value!r} is not HOST:PORT, as in {DEFAULT_BIND}"
        raise click.BadParameter(msg, context, parameter)
    return found[1] or found[2], int(found[3])


@click.command(cls=Command, exits={FAILED: "the address cannot be used, or the library is missing"})
@click.option(
    "--bind", metavar="HOST:PORT", default=DEFAULT_BIND, callback=_address, show_default=True,
    help="Where Prometheus asks; port 0 takes a free one.",
)  # fmt: skip
@takes_target
def metrics(target: Target, bind: tuple[str, int]) -> None:
    """Serve a broker's metrics to Prometheus, until SIGTERM or Ctrl-C.

    Each scrape asks the broker, so there is nothing to set up there. While no broker answers,
    eventmq_up is 0. A line with "ready" and the real address comes on stdout.
    """
    with target.asking(TIMEOUT) as app:
        serve(app, bind)


def serve(app: EventMQ, bind: tuple[str, int]) -> None:
    """Answer scrapes until a signal ends it.

    Args:
        app: Client of the broker.
        bind: Host and port.

    Raises:
        PluginError: ``prometheus_client`` is missing.
        BindError: The address cannot be used.
    """
    need("prometheus_client", user="eventmq metrics", extra="prometheus")
    from prometheus_client import CollectorRegistry, start_http_server

    from eventmq_contrib.prometheus.collector import BrokerCollector

    registry = CollectorRegistry()
    registry.register(BrokerCollector(app))
    ended = threading.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: ended.set())
    host, port = bind
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        msg = f"cannot bind {host}:{port}: {error.strerror or error}; name another with --bind"
        raise BindError(msg) from error
    shown = f"[{host}]" if ":" in host else host
    click.echo(f"ready bind=http://{shown}:{server.server_port}/metrics")
    try:
        ended.wait()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
