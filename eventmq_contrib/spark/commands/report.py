"""Makes one page of HTML that says how it went: ``eventmq spark report``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from eventmq.cli import DONE, FAILED, Command, to_json
from eventmq.errors import StoreError
from eventmq_contrib.extras import need
from eventmq_contrib.spark.command import save, takes_journal

if TYPE_CHECKING:
    from eventmq_contrib.spark.command import JournalOptions

__all__ = ["command"]

#: Where the page goes to if nothing else is said.
PAGE = "report.html"


@click.command(
    "report", cls=Command,
    exits={FAILED: "the journal cannot be read, the page not be written, or jinja2 is missing"},
)  # fmt: skip
@click.option("--title", default="EventMQ report", show_default=True, help="On top of the page.")
@click.option(
    "--within", type=click.FloatRange(0), default=2.0, show_default=True, metavar="SECONDS",
    help="Service level: within this time jobs are to start.",
)  # fmt: skip
@click.option(
    "--target", type=click.FloatRange(0, 100, min_open=True, max_open=True), default=95.0,
    show_default=True, metavar="PERCENT", help="Service level: how many of the jobs are to.",
)  # fmt: skip
@click.option(
    "--target-p95", type=click.FloatRange(0), default=1.0, show_default=True, metavar="SECONDS",
    help="For the slots that a queue needs: how long 95 % of its jobs may wait.",
)  # fmt: skip
@takes_journal
def command(
    shared: JournalOptions, title: str, within: float, target: float, target_p95: float
) -> int:
    """Make an HTML page about a journal, for a browser or to send to others.

    Whether every job is accounted for; throughput, waiting, running, queues and slots over time;
    service levels, tasks, failures, capacity and anomalous hours. The page loads nothing from the
    network. With --json the same as numbers on stdout, and a page only with --out.
    """
    from eventmq_contrib.spark.analyses.report import Choice, report
    from eventmq_contrib.spark.analyses.slo import Objective
    from eventmq_contrib.spark.page.html import page

    need("jinja2", user="eventmq spark report")
    choice = Choice(since=shared.since, until=shared.until, queue=shared.queue, task=shared.task)
    with shared.evidence() as evidence:
        result = report(
            evidence.events, evidence=evidence, choice=choice, target_p95=target_p95,
            objective=Objective(share=target / 100, within=within),
            progress=lambda part: click.echo(f"making {part}", err=True),
        )  # fmt: skip
    if shared.as_json:
        click.echo(to_json(result, indent=2))
    if shared.out is not None or not shared.as_json:
        _write(Path(shared.out or PAGE), page(result, title=title, made=time.time()))
    return DONE


def _write(path: Path, text: str) -> None:
    """Write the page, whole or not at all."""
    if path.is_dir():
        msg = f"{path} is a folder: name a file with --out, as in --out {path / PAGE}"
        raise StoreError(msg)
    save(path, text)


for _option in command.params:
    if _option.name == "out" and isinstance(_option, click.Option):
        _option.metavar, _option.help = "FILE", f"The page; else {PAGE}."
