"""Run a broker: ``broker``."""

from __future__ import annotations

import gc
import logging
import os
import signal
from typing import TYPE_CHECKING

import click

from eventmq.cli.command import FAILED, NO_BROKER, Command, CommandGroup
from eventmq.cli.hangup import at_hangup, rereading_keys
from eventmq.cli.output import show_object
from eventmq.cli.target import (
    options_of,
    takes_app,
    takes_json,
    takes_log_format,
    takes_metrics_bind,
    takes_target,
)
from eventmq.notify import Notifier
from eventmq.titles import set_title

try:
    import resource
except ImportError:  # pragma: no cover - Windows
    resource = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from eventmq.broker.runner import BrokerRunner
    from eventmq.cli.target import Target

__all__ = ["COMMANDS", "raise_descriptor_limit"]

logger = logging.getLogger("eventmq.cli")


@click.group(
    cls=CommandGroup,
    invoke_without_command=True,
    exits={FAILED: "an address or the store cannot be used, or the disk failed"},
)
@click.option(
    "--bind", metavar="URL",
    help="Main address, for every role; port 0 chooses a free port. With it, the other addresses "
    "open only if they are given too.",
)  # fmt: skip
@click.option("--worker-bind", metavar="URL", help="Additional address for workers.")
@click.option("--admin-bind", metavar="URL", help="Address for administration.")
@click.option("--publish-bind", metavar="URL", help="Address for publishers.")
@click.option("--subscribe-bind", metavar="URL", help="Address for subscribers.")
@click.option("--data-dir", metavar="DIR", help="Data directory. Default: .eventmq.")
@click.option("--store", metavar="URL", help="Store of the jobs: a name, or a URL.")
@click.option(
    "--expect-store", metavar="ID",
    help="Refuse to start if the store is missing or has another id. The ready line shows the id.",
)  # fmt: skip
@click.option(
    "--advertise", metavar="URL",
    help="Address of this broker that peers get while it owns a shared store; required if --bind "
    "names all interfaces.",
)  # fmt: skip
@click.option(
    "--durability", type=click.Choice(["durable", "replicated", "relaxed", "memory"]),
    help="When jobs are on disk: before the receipt, also on a replica's, soon after it, never.",
)  # fmt: skip
@click.option(
    "--keys-dir",
    metavar="DIR",
    help="Directory of CURVE keys; turns CURVE on. Default: keys in the data directory, if there "
    "are any.",
)
@takes_metrics_bind
@click.option("--insecure", is_flag=True, help="Allow addresses that other machines can reach.")
@click.option(
    "--store-option", "store_options", metavar="K=V", multiple=True,
    help="An option of the store. Repeatable.",
)  # fmt: skip
@takes_log_format
@takes_app()
def broker(
    target: Target, store_options: tuple[str, ...], insecure: bool, **settings: str | None
) -> None:
    """Run the broker.

    It prints a line with "ready" and the real addresses on stdout, once all of them are bound and
    the store is recovered. Without options it listens on loopback only and keeps its data in the
    folder .eventmq. SIGTERM or Ctrl-C stops it. At SIGHUP it reads the keys of its peers again.

    Of several brokers on one database, one owns the store and the others are standbys; the ready
    line has the role, and the durability of receipts.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    options = options_of(store_options, "--store-option")
    app = target.serving(insecure=insecure or None, **settings).app
    raise_descriptor_limit(app.settings.max_peers)
    runner = app.make_broker(store_options=options)

    def stop(*_: object) -> None:
        runner.stop()

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, stop)
    runner.notifier = Notifier(os.environ)
    at_hangup(rereading_keys(runner.notifier, lambda: runner.role), runner.stop)
    set_title("broker")
    _calm_collector()
    runner.bind()
    end_metrics = app.serve_metrics(runner.metrics, app.settings.metrics_bind)
    click.echo(_ready_line(runner))
    runner.notifier.ready(runner.role)
    _freeze_objects()
    try:
        runner.run()
    finally:
        end_metrics()
    if runner.store.ownership is None:
        logger.info("the broker has stopped; clients and workers wait until one is started")
    else:
        logger.info("the broker has stopped; peers continue with another one that shares its store")


def _calm_collector() -> None:
    """Run the cyclic garbage collector rarely: jobs create no cycles, and it took 10 % of the CPU.

    ``python -m benchmarks drain``: 8.9 us of CPU per job with this, 10.0 without. Call it before
    the store is read: 100,000 subqueues make a million objects, none of which is garbage.
    """
    gc.set_threshold(100_000, 50, 100)


def _freeze_objects() -> None:
    """Exclude the objects that exist at the broker's start from later garbage collections."""
    gc.collect()
    gc.freeze()


def _ready_line(runner: BrokerRunner) -> str:
    state = runner.core.state
    addresses = [f"{port}={address}" for port, address in runner.addresses.items()]
    shared = []
    if state.owner is not None:
        shared = [f"role={state.owner.role}", f"durability={state.durability}"]
    return " ".join(
        ["ready", *addresses, f"store={state.store_id}", f"epoch={state.epoch}", *shared]
    )


#: Seconds to wait for another owner; after 5 s the broker answers that there is none.
HANDOVER_TIMEOUT = 12.0


@broker.command(
    cls=Command, exits={FAILED: "no other broker has taken the store over", NO_BROKER: ""}
)
@takes_json
@takes_target
def handover(target: Target, as_json: bool) -> None:
    """Let another broker take over the store that the owner shares with it.

    Returns when a broker has taken it: its address and its epoch. The previous owner continues as a
    standby. If no broker takes the store within 5 s, the previous owner owns it again.
    """
    with target.asking(HANDOVER_TIMEOUT) as app:
        show_object(app.ask("handover"), as_json=as_json)


#: Descriptors for everything except peers: sockets, files, logs, and a reserve.
OWN_DESCRIPTORS = 100


def raise_descriptor_limit(peers: int) -> int:
    """Raise the limit of open files for a number of peers, and warn if it is still too low.

    Each connection takes a descriptor. Many systems allow a process 1,024, and more on request.

    Args:
        peers: Maximum number of simultaneous connections.

    Returns:
        The limit now, 0 if the system has none.
    """
    if resource is None:  # pragma: no cover - Windows
        return 0
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    target_limit = (
        peers + OWN_DESCRIPTORS if hard == unlimited else min(peers + OWN_DESCRIPTORS, hard)
    )
    if soft != unlimited and soft < target_limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target_limit, hard))
        soft = target_limit
    if soft != unlimited and soft < peers + OWN_DESCRIPTORS:
        logger.warning(
            "only %d descriptors are allowed, but %d peers may connect: more peers have to wait "
            "until others disconnect; raise the limit with ulimit -n", soft, peers,
        )  # fmt: skip
    return soft


COMMANDS = (broker,)
