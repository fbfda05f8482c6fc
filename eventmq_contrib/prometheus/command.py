"""The command ``eventmq metrics``, and the page of one process (``metrics_bind``)."""

from __future__ import annotations

import signal
from contextlib import closing, suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

import click

from eventmq.cli import FAILED, Command, at_hangup, takes_log_format, takes_target
from eventmq.errors import SettingsError
from eventmq_contrib.extras import need
from eventmq_contrib.prometheus.address import DEFAULT_BIND, shown, split

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from eventmq import EventMQ
    from eventmq.cli import Target

__all__ = ["metrics", "serve", "serve_process"]

#: Seconds that a scrape waits for the broker; Prometheus itself waits ten.
TIMEOUT = 3.0

#: Seconds between two checks for the end of the command.
POLL = 0.5


def _address(context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, int]:
    """Read ``HOST:PORT``."""
    try:
        return split(value)
    except SettingsError as error:
        raise click.BadParameter(str(error), context, parameter) from error


@click.command(cls=Command, exits={FAILED: "the address cannot be used, or the library is missing"})
@click.option(
    "--bind", metavar="HOST:PORT", default=DEFAULT_BIND, callback=_address, show_default=True,
    help="Address for Prometheus; port 0 takes a free one.",
)  # fmt: skip
@click.option("--insecure", is_flag=True, help="Allow addresses that other machines can reach.")
@takes_log_format
@takes_target
def metrics(target: Target, *, bind: tuple[str, int], insecure: bool) -> None:
    """Serve a broker's metrics to Prometheus, until SIGTERM or Ctrl-C.

    The command requests the figures from the broker at each scrape, at most once a second; the
    broker needs no configuration. While no broker answers, eventmq_up is 0. The command prints a
    line with "ready" and the bound address on stdout. The page is not encrypted and needs no
    password, so an address that is not loopback needs --insecure, or the setting of that name.
    """
    with closing(target.serving(submit_timeout=TIMEOUT).app) as app:
        serve(app, bind, insecure=insecure or app.settings.insecure)


def serve(app: EventMQ, bind: tuple[str, int], *, insecure: bool = False) -> None:
    """Answer scrapes until a signal ends it.

    Args:
        app: Client of the broker.
        bind: Host and port.
        insecure: Whether other machines may reach the address.

    Raises:
        NotAllowed: Other machines can reach the address, and ``insecure`` is false.
        PluginError: ``prometheus_client`` is missing.
        BindError: The address cannot be used.
    """
    need("prometheus_client", user="eventmq metrics", extra="prometheus")
    from eventmq.gateway import check_reach
    from eventmq_contrib.prometheus.server import MetricsServer

    ended: SimpleQueue[None] = SimpleQueue()  # an Event could deadlock in a signal handler
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: ended.put(None))
    at_hangup(lambda: None, lambda: ended.put(None))
    check_reach(f"tcp://{shown(*bind)}", insecure=insecure)
    server = MetricsServer(lambda: app.ask("metrics"), *bind)
    server.bind()
    server.start()
    click.echo(f"ready bind={server.url}")
    try:
        while True:
            # With a timeout: a signal delivered to another thread does not end the wait.
            with suppress(Empty):
                ended.get(timeout=POLL)
                return
    finally:
        server.close()


def serve_process(read: Callable[[], Mapping[str, Any]], address: str) -> Callable[[], None]:
    """Serve the figures of this process; return a function that ends it.

    Args:
        read: Returns the figures; see `eventmq.hookspecs.eventmq_serve_metrics`.
        address: ``HOST:PORT``.

    Raises:
        PluginError: ``prometheus_client`` is missing.
        SettingsError: The address is invalid.
    """
    need("prometheus_client", user="metrics_bind", extra="prometheus")
    from eventmq_contrib.prometheus.server import MetricsServer

    server = MetricsServer(read, *split(address), of_process=True)
    server.start()
    return server.close
