"""The command ``demo``."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from eventmq.cli.command import DONE, FAILED, Command
from eventmq.cli.output import to_json
from eventmq.cli.processes import interrupt_at_signals
from eventmq.cli.target import takes_json
from eventmq.errors import EventMQError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

__all__ = ["COMMANDS"]


@click.command(cls=Command, exits={FAILED: "a job failed, or the totals differ"})
@click.option(
    "--workers", type=click.IntRange(1, 64), default=2, show_default=True, metavar="N",
    help="Number of worker processes.",
)  # fmt: skip
@click.option("--keep", is_flag=True, help="Keep the data and the logs, and print where.")
@takes_json
def demo(workers: int, keep: bool, as_json: bool) -> int:
    """See everything at work.

    A broker, workers and a client on real input: one job for each source file of your Python's
    standard library, which it parses and measures. The report compares the totals with those
    counted in this process, to show that no job was lost. It takes less than half a minute, uses
    free ports and a temporary directory, and cleans up after itself.
    """
    from eventmq.cli.demo.report import show_report

    interrupt_at_signals()
    report = _run(workers, keep=keep, quiet=as_json)
    if as_json:
        click.echo(to_json(report, indent=2))
    else:
        show_report(report)
    for error in report["errors"]:
        click.echo(f"error: a job failed: {error}", err=True)
    return DONE if report["match"] and not report["failed"] else FAILED


def _run(workers: int, *, keep: bool, quiet: bool) -> dict[str, Any]:
    from eventmq.cli.demo.report import make_report
    from eventmq.cli.demo.run import DemoProcesses
    from eventmq.cli.demo.sources import find_sources

    paths = find_sources()
    if not paths:
        raise EventMQError("this Python has no source files of its library, so there is no input")
    echo = _silent if quiet else click.echo
    echo(f"starting a broker and {workers} worker processes for {len(paths)} jobs")
    with DemoProcesses(workers, keep=keep) as processes:
        with _progress("jobs", len(paths), quiet=quiet) as step:
            result = processes.run(paths, step)
        if keep:
            echo(f"data and logs stay in {processes.folder}")
    report = make_report(paths, result, _measure_here(paths, quiet=quiet), workers=workers)
    return {**report, "data_dir": str(processes.folder / "data")} if keep else report


def _silent(_: str) -> None:
    """Print nothing."""


def _measure_here(paths: Sequence[Path], *, quiet: bool) -> list[dict[str, Any]]:
    """Return the figures of all files, computed without any job."""
    from eventmq.cli.demo.sources import measure

    figures = []
    with _progress("counting here", len(paths), quiet=quiet) as step:
        for path in paths:
            figures.append(measure(path.read_bytes()))
            step()
    return figures


@contextmanager
def _progress(title: str, total: int, *, quiet: bool) -> Iterator[Callable[[], None]]:
    """Show a progress bar, if stderr is a terminal; yield a function that advances it by one."""
    if quiet or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description:14}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task(title, total=total)
        yield lambda: progress.advance(task)


COMMANDS = (demo,)
