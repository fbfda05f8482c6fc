"""The command ``eventmq top``: its options, and the clients of its brokers."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from eventmq.cli import FAILED, Command, takes_app
from eventmq_contrib.brokers import takes_brokers, targets_of
from eventmq_contrib.extras import need

if TYPE_CHECKING:
    from eventmq.cli import Target

__all__ = ["TIMEOUT", "top"]

#: Seconds that a call waits for a broker before the broker is shown as missing.
TIMEOUT = 2.0


@click.command(cls=Command, exits={FAILED: "the library is missing"})
@takes_brokers
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
    targets = targets_of(target, brokers)
    need("textual", user="eventmq top", extra="top")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError('a page needs a terminal; "eventmq status" prints such figures once')
    from eventmq_contrib.top.page import Broker, Top

    with ExitStack() as stack:
        shown: list[Broker] = []
        for name, each in targets.items():
            # No log lines: they would appear in the middle of the page.
            quiet = replace(each, verbosity=0)
            app = stack.enter_context(quiet.asking(TIMEOUT, level="critical"))
            shown.append(Broker(name or ",".join(app.settings.broker), app))
        Top(shown, read_only=read_only).run()
