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

#: Seconds that a scrape waits for the broker: Prometheus itself waits ten.
TIMEOUT = 3.0

#: Seconds between two looks whether the command is to end.
LOOK = 0.5


def _address(context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, int]:
    """Read ``HOST:PORT``."""
    try:
        return split(value)
    except SettingsError as error:
        raise click.BadParameter(str(error), context, parameter) from error


@click.command(cls=Command, exits={FAILED: "the address cannot be used, or the library is missing"})
@click.option(
    "--bind", metavar="HOST:PORT", default=DEFAULT_BIND, callback=_address, show_default=True,
    help="Where Prometheus asks; port 0 takes a free one.",
)  # fmt: skip
@click.option("--insecure", is_flag=True, help="Allow addresses that other machines can reach.")
@takes_log_format
@takes_target
def metrics(target: Target, *, bind: tuple[str, int], insecure: bool) -> None:
    """Serve a broker's metrics to Prometheus, until SIGTERM or Ctrl-C.

    The broker is asked when somebody scrapes, at most once a second, so there is nothing to set up
    there. While no broker answers, eventmq_up is 0. A line with "ready" and the real address comes
    on stdout. The page is not encrypted and asks for no password, so an address that is not
    loopback needs --insecure, or the setting of that name.
    """
    with closing(target.serving(submit_timeout=TIMEOUT).app) as app:
        serve(app, bind, insecure=insecure or app.settings.insecure)


def serve(app: EventMQ, bind: tuple[str, int], *, insecure: bool = False) -> None:
    """Answer scrapes until a signal ends it.

    Args:
        app: Client of the broker.
        bind: Host and port.
        insecure: Other machines may reach the address.

    Raises:
        NotAllowed: They can, and ``insecure`` is false.
        PluginError: ``prometheus_client`` is missing.
        BindError: The address cannot be used.
    """
    need("prometheus_client", user="eventmq metrics", extra="prometheus")
    from eventmq.gateway import check_reach
    from eventmq_contrib.prometheus.server import MetricsServer

    ended: SimpleQueue[None] = SimpleQueue()  # an Event can wait for itself in a signal handler
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
            # With a timeout: a signal that another thread was given wakes no wait.
            with suppress(Empty):
                ended.get(timeout=LOOK)
                return
    finally:
        server.close()


def serve_process(read: Callable[[], Mapping[str, Any]], address: str) -> Callable[[], None]:
    """Serve the figures of this process until what is returned is called.

    Args:
        read: Returns the figures; see `eventmq.hookspecs.eventmq_serve_metrics`.
        address: ``HOST:PORT``.

    Raises:
        PluginError: ``prometheus_client`` is missing.
        SettingsError: The address is none.
    """
    need("prometheus_client", user="metrics_bind", extra="prometheus")
    from eventmq_contrib.prometheus.server import MetricsServer

    server = MetricsServer(read, *split(address), of_process=True)
    server.start()
    return server.close
