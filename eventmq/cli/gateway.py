"""Run a gateway, a server of another protocol: ``gateway``."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import click

from eventmq.cli.command import DONE, FAILED
from eventmq.cli.declared import DeclaredOptions
from eventmq.cli.hangup import at_hangup, rereading_keys
from eventmq.cli.target import options_of, takes_log_format, takes_target
from eventmq.notify import Notifier
from eventmq.registry.names import GATEWAY
from eventmq.text import printable
from eventmq.titles import set_title

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq.cli.target import Target
    from eventmq.interfaces import Gateway

__all__ = ["COMMANDS"]

#: Number of new objects after which the garbage collector runs; requests make no garbage.
COLLECT_AFTER = 100_000

#: Seconds between two checks whether the gateway still serves.
CHECK_INTERVAL = 0.5


@click.command(
    cls=DeclaredOptions,
    kind=GATEWAY,
    exits={FAILED: "an address cannot be used, or the gateway ended by itself"},
)
@click.argument("name")
@click.option("--bind", metavar="URL", help="Address of the gateway; port 0 chooses a free one.")
@click.option("--insecure", is_flag=True, help="Allow addresses that other machines can reach.")
@click.option(
    "--gateway-option", "more", metavar="K=V", multiple=True,
    help="An option of the gateway. Repeatable.",
)  # fmt: skip
@takes_log_format
@takes_target
def gateway(
    target: Target,
    *,
    name: str,
    more: tuple[str, ...],
    bind: str | None,
    insecure: bool,
    declared: dict[str, Any],
) -> int:
    """Serve another protocol, with a gateway from a plugin.

    The gateway is an ordinary client and worker of the broker. It prints a line with "ready" and
    the real addresses on stdout once they are bound. SIGTERM or Ctrl-C stops it. At SIGHUP it reads
    the keys of its peers again.
    """
    app = target.serving().app
    app.load_tasks()
    chosen = {**options_of(more, "--gateway-option"), **declared}
    if bind is not None:
        chosen["bind"] = bind
    if insecure:
        chosen["insecure"] = "true"
    server = app.plugins.make(GATEWAY, name, options=chosen)
    options = app.plugins.command_options(GATEWAY)
    ports = ["bind", *(port for port, (_, owners) in options.items()
                       if name in owners and port.endswith("_bind"))]  # fmt: skip
    ended = threading.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: ended.set())
    notifier = Notifier(os.environ)
    status = f"serves {name}"
    at_hangup(rereading_keys(notifier, lambda: status), ended.set)
    set_title("gateway", printable(name))
    try:
        addresses = server.start()
        gc.freeze()
        gc.set_threshold(COLLECT_AFTER, 50, 100)
        click.echo(_ready_line(name, ports, addresses))
        status = f"serves {name} at {' '.join(addresses)}"
        notifier.ready(status)
        return _serve(server, ended, notifier)
    finally:
        notifier.stopping("ending")
        server.stop(app.settings.shutdown_grace)
        app.close()


def _ready_line(name: str, ports: Sequence[str], addresses: Sequence[str]) -> str:
    fields = [f"{port.replace('_', '-')}={a}" for port, a in zip(ports, addresses, strict=False)]
    return " ".join(["ready", f"gateway={name}", *fields, *addresses[len(ports) :]])


def _serve(server: Gateway, ended: threading.Event, notifier: Notifier) -> int:
    """Wait for a signal or the gateway's end; send keep-alive messages while its loops turn."""
    from eventmq.gateway import Watchable

    turns: Sequence[int] = ()
    while not ended.wait(min(CHECK_INTERVAL, notifier.every)):
        now_turns = server.turns() if isinstance(server, Watchable) else ()
        if not turns or all(new > old for new, old in zip(now_turns, turns, strict=True)):
            notifier.turn(time.monotonic())
            turns = now_turns
        if not server.running():
            click.echo("error: the gateway ended by itself; its log has the reason", err=True)
            return FAILED
    return DONE


COMMANDS = (gateway,)
