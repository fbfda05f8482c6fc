"""Queues failed jobs again that a journal knows: ``eventmq spark replay``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eventmq.cli import FAILED, NO_BROKER, Command, show_object, takes_target
from eventmq.errors import StoreError
from eventmq_contrib.spark.command import takes_journal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from eventmq.cli import Target
    from eventmq_contrib.spark.command import JournalOptions
    from eventmq_contrib.spark.replaying import Replay
    from eventmq_contrib.spark.replaying import Target as Broker

__all__ = ["command"]


@click.command(
    "replay",
    cls=Command,
    exits={
        FAILED: "the journal cannot be read, the checkpoint is of another replay, or Spark failed",
        NO_BROKER: "broker not reachable; what was done stays, and the same command goes on",
    },
)
@click.option("--error", metavar="TYPE", help="Only with an error of this type: ValueError.")
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), metavar="N", help="Jobs per second."
)
@click.option("--dry-run", is_flag=True, help="Only show which jobs would be queued again.")
@click.option(
    "--checkpoint", metavar="DIR",
    help="Folder of this replay: made by the first run, taken up by the next one after a kill.",
)  # fmt: skip
@takes_target
@takes_journal
def command(
    shared: JournalOptions, target: Target, error: str | None, rate: float | None,
    checkpoint: str | None, *, dry_run: bool,
) -> None:  # fmt: skip
    """Queue failed jobs again that a journal knows, by queue, task, error and time.

    Each keeps its id and becomes its next attempt, once per replay, also where this command is
    killed and started again: a job that was retried since, by whomever, is left alone. Those that
    the broker has forgotten cannot be had back and are counted.
    """
    filters = {
        "queue": shared.queue, "task": shared.task, "error": error, "since": shared.since,
        "until": shared.until,
    }  # fmt: skip
    if dry_run:
        _show(shared, filters)
        return
    if checkpoint is None:
        raise click.UsageError("name a folder for this replay with --checkpoint, or say --dry-run")
    broker = _broker(target)
    if shared.out is not None:
        raise click.UsageError("--out is for --dry-run")
    counts = _replay(shared, broker, filters, Path(checkpoint), rate)
    show_object(counts, as_json=shared.as_json)


def _show(shared: JournalOptions, filters: dict[str, Any]) -> None:
    from eventmq_contrib.spark.analyses.replay import failed_jobs, summary

    with shared.events(whole=True) as events:
        shared.show(summary(failed_jobs(events, **filters)), empty="no such failed jobs")


def _broker(target: Target) -> Broker:
    """Return the broker, which must answer before anything is written."""
    from eventmq_contrib.spark.replaying import Target as Broker

    with target.asking() as app:
        settings = app.settings
        return Broker(
            ",".join(settings.broker),
            settings.key_file,
            settings.broker_key_file,
            app.ask("ping")["store"],
        )


def _replay(
    shared: JournalOptions,
    broker: Broker,
    filters: dict[str, Any],
    folder: Path,
    rate: float | None,
) -> dict[str, int]:
    from eventmq_contrib.spark.replaying import Replay

    # Not the times, which may be said as "2h ago": the plan has them.
    chosen = {name: filters[name] for name in ("queue", "task", "error")}
    replay = Replay(folder, broker, {"journal": str(Path(shared.journal).absolute()), **chosen})
    if not replay.planned:
        with shared.events(whole=True) as events:
            _plan(replay, events, broker.store, filters, rate)
            return _carry_out(replay, events, rate)
    with shared.spark() as session:
        return _carry_out(replay, session, rate)


def _carry_out(replay: Replay, of: Any, rate: float | None) -> dict[str, int]:
    from eventmq_contrib.spark.source import EventMQDataSource

    session = getattr(of, "sparkSession", of)
    session.dataSource.register(EventMQDataSource)

    def report_progress(n: int) -> None:
        click.echo(f"{n} of {replay.jobs} jobs", err=True)

    return {"jobs": replay.jobs, **replay.carry_out(session, rate, report_progress)}


def _plan(
    replay: Replay, events: DataFrame, store: str, filters: dict[str, Any], rate: float | None
) -> None:
    from eventmq_contrib.spark.analyses.replay import failed_jobs
    from eventmq_contrib.spark.replaying import brokers_of

    brokers = sorted(brokers_of(events))
    if store not in brokers:
        msg = f"the journal is of other brokers ({', '.join(brokers) or 'none'}), not of the one "
        raise StoreError(f"{msg}that answers, {store}: name the right one with --broker")
    replay.plan(failed_jobs(events.where(events.broker_id == store), **filters), rate)
