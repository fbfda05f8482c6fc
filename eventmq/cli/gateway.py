"""Run a gateway, a server of another protocol: ``gateway``."""

from __future__ import annotations

import gc
import signal
import threading
from typing import TYPE_CHECKING

import click

from eventmq.cli.command import DONE, FAILED, Command
from eventmq.cli.target import options_of, takes_target
from eventmq.registry.names import GATEWAY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq.cli.target import Target
    from eventmq.interfaces import Gateway

__all__ = ["COMMANDS"]

#: New objects after which the garbage collector runs; requests leave none.
COLLECT_AFTER = 100_000

#: Seconds between two checks that the gateway still serves.
CHECK_INTERVAL = 0.5

#: Names of the addresses in the line with "ready", in their order.
_FIELDS = ("bind", "worker-bind")


@click.command(
    cls=Command, exits={FAILED: "an address cannot be used, or the gateway ended by itself"}
)
@click.argument("name")
@click.option("--bind", metavar="URL", help="Its address; port 0 takes a free one.")
@click.option("--worker-bind", metavar="URL", help="Its second port, where it has one: majordomo.")
@click.option("--tls-cert", metavar="FILE", help="Certificate of the server, in PEM: emp.")
@click.option("--tls-key", metavar="FILE", help="Its key; else it is in the file of --tls-cert.")
@click.option("--tls-ca", metavar="FILE", help="Ask clients for certificates of this authority.")
@click.option("--keys-dir", metavar="DIR", help="Its CURVE keys and its peers': mc0, majordomo.")
@click.option("--insecure", is_flag=True, help="Allow addresses that other machines can reach.")
@click.option(
    "--gateway-option", "more", metavar="K=V", multiple=True,
    help="An option of the gateway. Repeatable.",
)  # fmt: skip
@takes_target
def gateway(
    target: Target, name: str, more: tuple[str, ...], insecure: bool, **options: str | None
) -> int:
    """Serve another protocol: emp, majordomo, mc0, or what a plugin provides.

    The gateway is an ordinary client and worker of the broker. It prints a line with "ready" and
    the real addresses on stdout once they are bound. SIGTERM or Ctrl-C stops it.
    """
    app = target.serving().app
    app.load_tasks()
    chosen = {key: value for key, value in options.items() if value is not None}
    if insecure:
        chosen["insecure"] = "true"
    chosen = {**options_of(more, "--gateway-option"), **chosen}
    made = app.plugins.make(GATEWAY, name, options=chosen)
    ended = threading.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: ended.set())
    try:
        addresses = made.start()
        gc.freeze()
        gc.set_threshold(COLLECT_AFTER, 50, 100)
        click.echo(_ready_line(name, addresses))
        return _serve(made, ended)
    finally:
        made.stop(app.settings.shutdown_grace)
        app.close()


def _ready_line(name: str, addresses: Sequence[str]) -> str:
    fields = [f"{field}={address}" for field, address in zip(_FIELDS, addresses, strict=False)]
    return " ".join(["ready", f"gateway={name}", *fields, *addresses[len(_FIELDS) :]])


def _serve(made: Gateway, ended: threading.Event) -> int:
    """Wait for a signal, or for the gateway's end."""
    while not ended.wait(CHECK_INTERVAL):
        if not made.running():
            click.echo("error: the gateway ended by itself; its log has the reason", err=True)
            return FAILED
    return DONE


COMMANDS = (gateway,)
