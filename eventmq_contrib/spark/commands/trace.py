"""Shows the tree that a job is part of: ``eventmq spark trace ID``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eventmq.cli import DONE, FAILED, NOT_FOUND, Command, show_rows, to_json
from eventmq_contrib.spark.command import save, takes_journal

if TYPE_CHECKING:
    from eventmq_contrib.spark.command import JournalOptions

__all__ = ["command"]

_STEPS = ("task", "queue", "after_s", "waited_s", "ran_s", "share", "job")


@click.command(
    "trace", cls=Command,
    exits={FAILED: "the journal cannot be read, or a file not be written", NOT_FOUND: ""},
)  # fmt: skip
@click.argument("id")
@click.option(
    "--chrome", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
    help="Write the trace as JSON for chrome://tracing or ui.perfetto.dev.",
)  # fmt: skip
@takes_journal
def command(shared: JournalOptions, id: str, chrome: Path | None) -> int:
    """Show the jobs that belong together with job ID, and where the time went.

    The tree is by root and parent, as in the journal. Each job says how long it waited and ran,
    over all its attempts. The critical path is what the last end waited for: jobs with a * are on
    it.
    """
    if shared.queue is not None or shared.task is not None:
        raise click.UsageError("a trace goes over all queues and tasks: leave --queue and --task")
    from eventmq_contrib.spark.analyses.trace import (
        MAX_EVENTS,
        about,
        critical,
        events_of,
        hop_rows,
        hops,
    )

    with shared.events() as events:
        rows = events_of(events, id)
        by_id = hops(rows[:MAX_EVENTS])
        if shared.out is not None:
            shared.show(events.sparkSession.createDataFrame(hop_rows(by_id)))
    if len(rows) > MAX_EVENTS:
        click.echo(f"only the first {MAX_EVENTS} events of the tree are shown", err=True)
    if chrome is not None:
        _write_chrome(chrome, by_id)
    summary = about(id, by_id, critical(by_id))
    if shared.as_json:
        click.echo(to_json(summary, indent=2))
    elif shared.out is None:
        _show(summary)
    return DONE


def _write_chrome(path: Path, by_id: Any) -> None:
    from eventmq_contrib.spark.analyses.chrome import chrome_trace

    save(path, json.dumps(chrome_trace(by_id)))


def _show(summary: dict[str, Any]) -> None:
    from rich.console import Console

    from eventmq_contrib.spark.analyses.trace import drawn

    console = Console(highlight=False)
    for line in drawn(summary):
        console.print(line, soft_wrap=True)
    if summary["critical"]:
        click.echo("\nThe critical path")
        show_rows(summary["critical"], _STEPS, as_json=False)
