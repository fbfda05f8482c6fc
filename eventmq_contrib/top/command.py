"""The command ``eventmq top``: its options, and the clients of its brokers."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from eventmq.cli import FAILED, Command, takes_app
from eventmq_contrib.extras import need

if TYPE_CHECKING:
    from eventmq.cli import Target

__all__ = ["TIMEOUT", "top"]

#: Seconds that a call waits for a broker before the broker is shown as missing.
TIMEOUT = 2.0


def _brokers(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    """Read ``[NAME=]URL`` values: name -> address; an address without a name is its own."""
    brokers: dict[str, str] = {}
    for value in values:
        name, equals, url = value.partition("=")
        if not equals or "://" in name:
            name, url = value, value
        if not name or not url:
            msg = f"{value!r} is not written as NAME=URL, such as shop=tcp://127.0.0.1:47291"
            raise click.BadParameter(msg, context, parameter)
        if name in brokers:
            msg = f"two brokers have the name {name!r}; write a name of its own for each: NAME=URL"
            raise click.BadParameter(msg, context, parameter)
        brokers[name] = url
    return brokers


@click.command(cls=Command, exits={FAILED: "the library is missing"})
@click.option(
    "--broker", "brokers", metavar="[NAME=]URL", multiple=True, callback=_brokers,
    help="A broker, or, separated by commas, those that share a store; default: the app's, or "
    "EVENTMQ_BROKER, or tcp://127.0.0.1:47291. Repeatable: each is shown under its name.",
)  # fmt: skip
@click.option("--read-only", is_flag=True, help="Offer nothing that changes a queue or job.")
@takes_app()
def top(target: Target, *, brokers: dict[str, str], read_only: bool) -> None:
    """Show brokers on a page in the terminal, and act on their queues and jobs.

    The page has an overview, the queues, the workers, the running and the newest jobs, and the
    failed jobs, and is updated once a second. Keys pause and resume a queue, and retry, drop or
    cancel a job, each after a question. A broker that does not answer is shown as missing until it
    does. Where the broker has keys, the page needs the key of an admin, or one with the role viewer
    to look only. It ends with "q".
    """
    if target.app_name and len(brokers) > 1:
        raise click.UsageError("-A names the app of one broker; name several without -A")
    need("textual", user="eventmq top", extra="top")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError('a page needs a terminal; "eventmq status" prints such figures once')
    from eventmq_contrib.top.page import Broker, Top

    with ExitStack() as stack:
        shown: list[Broker] = []
        for name, url in (brokers or {"": ""}).items():
            # No log lines: they would appear in the middle of the page.
            each = replace(target, broker=url or None, verbosity=0)
            app = stack.enter_context(each.asking(TIMEOUT, level="critical"))
            shown.append(Broker(name or ",".join(app.settings.broker), app))
        Top(shown, read_only=read_only).run()
