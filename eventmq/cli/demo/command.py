"""The command ``demo``: its processes, its jobs, and a report that shows whether one was lost."""

from __future__ import annotations

import os
import sys
import sysconfig
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from eventmq.cli.command import DONE, FAILED, Command, print_error
from eventmq.cli.demo.sources import COUNTS, find_sources, measure
from eventmq.cli.output import paint, show_object, show_rows, to_json
from eventmq.cli.processes import (
    Child,
    delayed_signals,
    ignored_signals,
    interrupt_at_signals,
    ready_fields,
)
from eventmq.cli.target import takes_json
from eventmq.errors import EventMQError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from eventmq.app import EventMQ

__all__ = ["COMMANDS", "DemoRun", "make_report"]

#: Seconds within which a process must be ready, and within which it must end.
START_TIMEOUT = 30.0
STOP_TIMEOUT = 5.0

#: Seconds for running jobs at the end; there are none unless the demo is interrupted.
GRACE = 1.0

#: Maximum seconds for the jobs; far more than they take.
JOBS_TIMEOUT = 300.0

_APP = "eventmq.cli.demo.tasks:app"
_LOOPBACK = "tcp://127.0.0.1:0"

#: Rows of each table.
TOP = 5


class DemoRun(NamedTuple):
    """Results of a run.

    Attributes:
        results: Result of each file, in order; None where the job failed.
        errors: One sentence per failed job.
        receipt: Seconds until all jobs were on disk.
        seconds: Seconds from the submission to the last result.
        delays: Seconds from the submission to the start, of each job that succeeded.
    """

    results: Sequence[dict[str, Any] | None]
    errors: Sequence[str]
    receipt: float
    seconds: float
    delays: Sequence[float]


@click.command(cls=Command, exits={FAILED: "a job failed, or the totals differ"})
@click.option(
    "--workers", type=click.IntRange(1, 64), default=2, show_default=True, metavar="N",
    help="Number of worker processes.",
)  # fmt: skip
@click.option("--keep", is_flag=True, help="Keep the data and the logs, and print where.")
@click.option(
    "--store", metavar="URL",
    help="Store of the broker; a database is not cleaned up. Default: a file, which is.",
)  # fmt: skip
@takes_json
def demo(workers: int, keep: bool, store: str | None, as_json: bool) -> int:
    """See everything at work.

    A broker, workers and a client on real input: one job for each source file of your Python's
    standard library, which it parses and measures. The report compares the totals with those
    counted in this process, to show that no job was lost. It takes less than half a minute, uses
    free ports and a temporary directory, and cleans up after itself.
    """
    interrupt_at_signals()
    report = _run(workers, store, keep=keep, quiet=as_json)
    if as_json:
        click.echo(to_json(report, indent=2))
    else:
        _show_report(report)
    for error in report["errors"]:
        print_error(EventMQError(f"a job failed: {error}"))
    return DONE if report["match"] and not report["failed"] else FAILED


def _run(workers: int, store: str | None, *, keep: bool, quiet: bool) -> dict[str, Any]:
    """Run the demo, with a progress bar if stderr is a terminal; return the report."""
    if not quiet:
        click.echo(
            f"starting a broker and {workers} worker processes in a temporary folder; each job "
            "parses one source file of Python's library, so the work is CPU-bound"
        )
    import shutil
    import tempfile

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description:14}"), BarColumn(), MofNCompleteColumn()
    console, hidden = Console(stderr=True), quiet or not sys.stderr.isatty()
    with _uninterrupted_end() as stack:
        with delayed_signals():  # a signal before the callback would leak the folder
            folder = Path(tempfile.mkdtemp(prefix="eventmq-demo-"))
            if not keep:
                stack.callback(shutil.rmtree, folder, ignore_errors=True)
        with Progress(*columns, TimeElapsedColumn(), console=console, disable=hidden) as progress:
            bar = progress.add_task("starting", total=None)
            paths = find_sources()
            if not paths:
                msg = "this Python has no source files of its library, so there is no input"
                raise EventMQError(msg)
            app = _start(stack, folder, workers, store)
            progress.update(bar, description="jobs", total=len(paths))
            result = _run_jobs(app, paths, lambda: progress.advance(bar))
            counted = progress.track(paths, description="counting here")
            direct = [measure(path.read_bytes()) for path in counted]
    if keep and not quiet:
        click.echo(f"data and logs stay in {folder}")
    report = make_report(paths, result, direct, workers=workers)
    return {**report, "data_dir": str(folder / "data")} if keep else report


@contextmanager
def _uninterrupted_end() -> Iterator[ExitStack]:
    """Yield a stack whose callbacks are not interrupted by signals."""
    stack = ExitStack()
    try:
        yield stack
    finally:
        with ignored_signals():
            stack.close()


def _start(stack: ExitStack, folder: Path, workers: int, store: str | None) -> EventMQ:
    """Start the broker and the worker; return a client. The stack ends all of them."""
    from eventmq.cli.demo.tasks import make_app

    def start(*arguments: str) -> str:
        log = stack.enter_context((folder / f"{arguments[0]}.log").open("w"))
        env = {key: text for key, text in os.environ.items() if not key.startswith("EVENTMQ_")}
        child = Child(arguments[0], arguments, on_line=log.write, cwd=folder, env=env)
        stack.callback(child.stop, STOP_TIMEOUT)
        return child.wait_ready(START_TIMEOUT)

    store_options = ["--store", store] if store else []
    ready = start("broker", "--bind", _LOOPBACK, "--data-dir", str(folder / "data"), *store_options)
    address = ready_fields(ready)["main"]
    start(
        "worker", "-A", _APP, "--broker", address, "-c", str(workers), "-Q", "demo",
        "--grace", str(GRACE),
    )  # fmt: skip
    app = make_app(address)
    stack.callback(app.close)
    return app


def _run_jobs(app: EventMQ, paths: Sequence[Path], on_done: Callable[[], None]) -> DemoRun:
    """Submit one job per file, and wait for all.

    Args:
        app: The client.
        paths: The files.
        on_done: Called after each job.
    """
    submitted, start = time.time(), time.perf_counter()
    jobs = app.tasks["measure_file"].map([(str(path),) for path in paths])
    receipt = time.perf_counter() - start
    for _ in app.as_completed(jobs, timeout=JOBS_TIMEOUT):
        on_done()
    seconds = time.perf_counter() - start
    results: list[dict[str, Any] | None] = []
    errors = []
    for job in jobs:
        try:
            results.append(job.get(timeout=STOP_TIMEOUT))
        except EventMQError as error:
            results.append(None)
            errors.append(str(error))
    delays = [r["started"] - submitted for r in results if r is not None]
    return DemoRun(results, errors, receipt, seconds, delays)


# The report


def make_report(
    paths: Sequence[Path], result: DemoRun, direct: Sequence[Mapping[str, Any]], *, workers: int
) -> dict[str, Any]:
    """Return the report as one object.

    Args:
        paths: The files.
        result: Results of the jobs.
        direct: Figures of each file, computed in this process.
        workers: Number of worker processes.
    """
    results = [
        (path, figures) for path, figures in zip(paths, result.results, strict=True) if figures
    ]
    pairs = zip(result.results, direct, strict=True)
    jobs = len(paths)
    return {
        "jobs": jobs,
        "succeeded": len(results),
        "failed": jobs - len(results),
        "workers": workers,
        "seconds": round(result.seconds, 3),
        "jobs_per_second": round(jobs / result.seconds, 1),
        "submit_seconds": round(result.receipt, 4),
        "start_delay_p50": _percentile(result.delays, 50),
        "start_delay_p99": _percentile(result.delays, 99),
        "totals": _totals([figures for _, figures in results]),
        "direct": _totals(direct),
        "match": all(
            figures and figures.items() >= expected.items() for figures, expected in pairs
        ),
        "largest": _largest(results),
        "most_complex": _functions(results, "complex", "branches"),
        "longest": _functions(results, "longest", "lines"),
        "errors": list(result.errors[:TOP]),
    }


def _percentile(values: Sequence[float], percent: int) -> float | None:
    """Return the smallest value that is not exceeded by that percentage of the values."""
    if not values:
        return None
    index = -(-len(values) * percent // 100) - 1
    return round(sorted(values)[index], 4)


def _totals(figures: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    return {name: sum(row[name] for row in figures) for name in COUNTS}


def _largest(results: Sequence[tuple[Path, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    first = sorted(results, key=lambda item: (-item[1]["lines"], item[0]))[:TOP]
    return [
        {"module": _short(path), **{name: figures[name] for name in COUNTS}}
        for path, figures in first
    ]


def _functions(
    results: Sequence[tuple[Path, Mapping[str, Any]]], figure: str, by: str
) -> list[dict[str, Any]]:
    """Return the functions with the highest figure, at most one of each file."""
    rows = [
        {"function": function["name"], "where": f"{_short(path)}:{function['line']}",
         "lines": function["lines"], "branches": function["branches"]}
        for path, figures in results if (function := figures[figure])
    ]  # fmt: skip
    return sorted(rows, key=lambda row: (-row[by], row["where"]))[:TOP]


def _short(path: Path) -> str:
    """Return the path relative to the standard library."""
    library = Path(sysconfig.get_path("stdlib"))
    return str(path.relative_to(library) if path.is_relative_to(library) else path)


def _show_report(report: Mapping[str, Any]) -> None:
    """Print a report as text."""
    for title, key in (
        ("The largest modules", "largest"),
        ("The most complex functions", "most_complex"),
        ("The longest functions", "longest"),
    ):
        click.echo(f"\n{title}")
        rows = report[key]
        show_rows(rows, tuple(rows[0]) if rows else (), as_json=False)
    click.echo("\nThe run")
    show_object(_rows(report), as_json=False)
    lost_none = "Nothing was lost: the totals agree, file by file.", "green"
    click.echo("\n" + paint(*(lost_none if report["match"] else ("The totals differ.", "red"))))


def _rows(report: Mapping[str, Any]) -> dict[str, str]:
    return {
        "jobs": f"{report['jobs']}, {report['failed']} failed, {report['workers']} processes",
        "on disk after": f"{report['submit_seconds'] * 1000:.0f} ms, all of them",
        "all done after": f"{report['seconds']:.2f} s, {report['jobs_per_second']:.0f} jobs/s: "
        "parsing keeps the CPU busy, not the queue",
        "start delay": f"p50 {_seconds(report['start_delay_p50'])}, "
        f"p99 {_seconds(report['start_delay_p99'])} (all were submitted at once)",
        "total by jobs": _counts(report["totals"]),
        "counted here": _counts(report["direct"]),
    }


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f} s"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


COMMANDS = (demo,)
