"""Broker and worker together, for developing: ``dev``."""

from __future__ import annotations

from contextlib import ExitStack
from queue import SimpleQueue
from typing import TYPE_CHECKING

import click

from eventmq.cli.children import Child, ChildFailed, interrupt_at_signals, ready_fields
from eventmq.cli.command import Command
from eventmq.cli.exits import DONE, FAILED
from eventmq.cli.output import paint
from eventmq.cli.target import takes_app

if TYPE_CHECKING:
    from eventmq.cli.target import Target

__all__ = ["COMMANDS"]

#: Seconds within which each of them must be ready: a worker imports the whole app.
START_TIMEOUT = 90.0

#: Seconds that the broker gets to end, and the worker beside its grace.
STOP_TIMEOUT = 5.0

_COLOURS = {"broker": "cyan", "worker": "magenta"}


@click.command(cls=Command, exits={FAILED: "one of them cannot start, or ended by itself"})
@click.option("-Q", "--queues", metavar="NAME:WEIGHT,...", help="Queues of the worker.")
@click.option("-c", "--concurrency", type=click.IntRange(1), metavar="N", help="Jobs at once.")
@click.option("--pool", metavar="NAME", help="What runs jobs: prefork or threads.")
@click.option("--bind", metavar="URL", help="Address of the broker; else the app's broker.")
@click.option("--data-dir", metavar="DIR", help="What the broker keeps; else .eventmq.")
@takes_app(required=True)
def dev(
    target: Target,
    bind: str | None,
    data_dir: str | None,
    **options: str | int | None,
) -> int:
    """Run a broker and a worker together.

    Their log lines come on stderr, each with the name of who says it; Ctrl-C ends both. A line with
    "ready" comes on stdout when both are. There is no scheduler yet: nothing is run by the clock.
    """
    settings = target.serving().app.settings
    if bind is None and settings.source("broker") != "default":
        bind = settings.broker[0]
    loud = ["-v"] * target.louder + ["-q"] * -target.louder
    app = ["-A", target.app_name or "", *(f"-I{name}" for name in target.imports)]
    broker = [*loud, "broker", *app, *_arguments(bind=bind, data_dir=data_dir)]
    worker = [*loud, "worker", *app, *_arguments(**options)]
    interrupt_at_signals()
    try:
        _run(broker, worker, settings.grace)
    except KeyboardInterrupt:
        click.echo("stopped", err=True)
    return DONE


def _arguments(**options: str | int | None) -> list[str]:
    """Return options as they are written on a command line."""
    given = {name.replace("_", "-"): value for name, value in options.items() if value is not None}
    return [text for name, value in given.items() for text in (f"--{name}", str(value))]


def _run(broker: list[str], worker: list[str], grace: float) -> None:
    """Run both until one ends, which is an error; leave none behind."""
    ended: SimpleQueue[Child] = SimpleQueue()
    with ExitStack() as stack:

        def start(name: str, arguments: list[str], patience: float) -> str:
            child = Child(name, arguments, on_line=_Prefixed(name), on_end=ended.put)
            stack.callback(child.stop, patience)
            return child.wait_ready(START_TIMEOUT)

        ready = start("broker", broker, STOP_TIMEOUT)
        start("worker", [*worker, "--broker", ready_fields(ready)["main"]], grace + STOP_TIMEOUT)
        click.echo(ready)
        raise ChildFailed(ended.get().obituary())


class _Prefixed:
    """Writes lines to stderr with the name of who says them."""

    def __init__(self, name: str) -> None:
        self._prefix = paint(f"{name} |", _COLOURS[name], err=True)

    def __call__(self, line: str) -> None:
        click.echo(f"{self._prefix} {line}", err=True, nl=False)


COMMANDS = (dev,)
