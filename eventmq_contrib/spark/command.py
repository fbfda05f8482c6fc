"""The group ``eventmq spark``: its commands, and how they read and show tables.

Modules that need Spark are imported when a command runs, so that help texts need no Spark.
"""

from __future__ import annotations

import contextlib
import functools
import json
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eventmq.cli import (
    DONE,
    FAILED,
    NO_BROKER,
    NOT_FOUND,
    Command,
    Target,
    printable,
    show_object,
    show_rows,
    takes_json,
    takes_target,
    takes_wide,
    to_json,
)
from eventmq.errors import StoreError
from eventmq_contrib.atomic import replacing
from eventmq_contrib.extras import need
from eventmq_contrib.spark.analyses import (
    LISTED,
    MIN_HISTORY,
    PERIODS,
    STUCK_AFTER,
    THRESHOLD,
    TOLERANCE,
)
from eventmq_contrib.spark.choice import FILTERS, Choice, RelativeTimestamp

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from eventmq_contrib.spark.journal import Evidence

__all__ = ["MAX_SHOWN", "JournalOptions", "spark", "takes_journal"]

#: Maximum number of rows that are printed; --out has no limit.
MAX_SHOWN = 10_000


@click.group()
def spark() -> None:
    """Make tables about jobs from a journal, on Spark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalOptions(Choice):
    """Shared options of the commands; those of time, queue and task are those of `Choice`.

    Attributes:
        journal: Folder or address of the journal.
        master: Master of Spark, or None.
        out: Folder for Parquet output, or None.
        as_json: Whether to print JSON instead of a table.
        wide: Whether a table is printed without shortening its texts.
    """

    journal: str
    master: str | None = None
    out: str | None = None
    as_json: bool = False
    wide: bool = False

    @contextlib.contextmanager
    def events(self, *without: str) -> Iterator[DataFrame]:
        """Yield the events, in a session that ends with the command.

        Args:
            *without: Names of `FILTERS` that the command applies itself.

        Raises:
            JournalError: They cannot be read.
            SparkFailed: Spark does not start, or does not finish.
        """
        from eventmq_contrib.spark.journal import read_journal

        filters = {name: getattr(self, name) for name in FILTERS if name not in without}
        with self.spark() as session:
            yield read_journal(session, self.journal, **filters)

    @contextlib.contextmanager
    def evidence(self, sealed: Mapping[str, int] | None = None) -> Iterator[Evidence]:
        """Yield all events with the findings about the files, in a session as for `events`.

        Args:
            sealed: Broker -> the last sealed number as the broker reports it.

        Raises:
            JournalError: There is no journal.
            SparkFailed: Spark does not start, or does not finish.
        """
        from eventmq_contrib.spark.journal import gather

        with self.spark() as session:
            yield gather(session, self.journal, sealed=sealed)

    @contextlib.contextmanager
    def spark(self) -> Iterator[SparkSession]:
        """Yield the session, and print the elapsed time to stderr."""
        from eventmq_contrib.spark.session import using_spark

        begin = time.monotonic()
        click.echo("starting Spark, which takes some seconds", err=True)
        with using_spark(self.master) as session:
            click.echo(f"reading {self.journal}", err=True)
            yield session
            click.echo(f"took {time.monotonic() - begin:.1f} s", err=True)

    def show(self, table: DataFrame, *, empty: str = "No rows.") -> None:
        """Write a table to ``--out``, or else print it.

        Args:
            table: Table, sorted.
            empty: Message on stderr if the table has no rows.

        Raises:
            StoreError: It cannot be written.
        """
        from eventmq_contrib.spark.atomic import write_table

        if self.out is not None:
            write_table(table, self.out)
            click.echo(f"wrote {self.out}", err=True)
            return
        rows = [row.asDict(recursive=True) for row in table.limit(MAX_SHOWN + 1).collect()]
        if len(rows) > MAX_SHOWN:
            click.echo(f"the first {MAX_SHOWN} rows of more: --out writes all of them", err=True)
        show_rows(
            rows[:MAX_SHOWN], table.columns, as_json=self.as_json, wide=self.wide, gives_way=(),
            empty=empty,
        )  # fmt: skip


_OUT = click.option(
    "--out", metavar="DIR",
    help="Write a Parquet table there, atomically, instead of printing it.",
)  # fmt: skip

_OPTIONS = (
    click.option(
        "--journal", metavar="DIR", required=True,
        help='The folder of the journal, as made by "eventmq journal"; or an address that Spark '
        "knows, such as s3a://bucket/journal.",
    ),
    click.option(
        "--since", metavar="WHEN", callback=RelativeTimestamp.read,
        help="Only from then on: 2h ago, or 2026-01-31T12:00.",
    ),
    click.option(
        "--until", metavar="WHEN", callback=RelativeTimestamp.read, help="Only before then."
    ),
    click.option("--queue", metavar="NAME", help="Only of this queue."),
    click.option("--task", metavar="NAME", help="Only of this task."),
    click.option(
        "--master", metavar="URL",
        help="Where Spark runs: local[4], spark://host:7077, yarn, sc://host:15002. Default: as "
        "Spark is configured, or else on all cores of this machine.",
    ),
)  # fmt: skip


def takes_journal(function: Callable[..., Any], out: Callable[..., Any] = _OUT) -> Any:
    """Add the shared options, passed as one argument ``shared``.

    Args:
        function: The command.
        out: The option ``--out``, where it is not the folder of a table.
    """

    def packed(**options: Any) -> Any:
        for library in ("pyspark", "pyarrow.parquet"):
            need(library, user="eventmq spark")
        names = JournalOptions.__dataclass_fields__
        shared = JournalOptions(**{name: options.pop(name) for name in names})
        return function(shared=shared, **options)

    command: Callable[..., Any] = functools.update_wrapper(packed, function)
    for option in (takes_json, takes_wide, out, *reversed(_OPTIONS)):
        command = option(command)
    return command


_POSITIVE = click.FloatRange(0, min_open=True)

_EXITS = {FAILED: "the journal cannot be read"}


def _save(path: Path, text: str) -> None:
    """Write an output file atomically, and print its name on stderr."""
    try:
        with replacing(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}") from error
    click.echo(f"wrote {path}", err=True)


# Tables


@spark.command("stats", cls=Command, exits=_EXITS)
@click.option(
    "--by", "period", type=click.Choice(list(PERIODS)), default="hour", show_default=True,
    help="Length of a row.",
)  # fmt: skip
@takes_journal
def _stats(shared: JournalOptions, period: str) -> None:
    """Show rates, waiting and running times and failures, by task, queue and time.

    Times are in seconds, of attempts that ended in the period, and within 1 % of the exact
    percentiles. failure_share is of the jobs that succeeded or failed.
    """
    from eventmq_contrib.spark.analyses.stats import stats

    with shared.events() as events:
        shared.show(stats(events, period), empty="No events of that time, queue and task.")


@spark.command("slo", cls=Command, exits=_EXITS)
@click.option(
    "--target", type=click.FloatRange(0, 100, min_open=True, max_open=True), default=95.0,
    show_default=True, metavar="PERCENT", help="Share of the jobs that must start in time.",
)  # fmt: skip
@click.option(
    "--within", type=click.FloatRange(min=0), default=2.0, show_default=True, metavar="SECONDS",
    help="Seconds after becoming ready within which a start is in time.",
)  # fmt: skip
@takes_journal
def _slo(shared: JournalOptions, target: float, within: float) -> None:
    """Show whether jobs start in time, by queue.

    attainment is the share that did. budget_left is the unused part of the share that may be late,
    below 0 if more jobs were late. burn_5m and burn_1h are how many times faster than allowed it
    was spent in the five minutes and the hour before --until, or else before the last event.
    waiting is how many jobs wait for a worker at that time, oldest for how many seconds the oldest
    of them has waited. Jobs after whose last event events are missing are not counted.
    """
    from eventmq_contrib.spark.analyses.audit import numbers
    from eventmq_contrib.spark.analyses.slo import Objective, slo

    objective = Objective(share=target / 100, within=within)
    # Numbers of other queues and tasks are not missing.
    with shared.events("queue", "task") as events:
        table = slo(shared.jobs(events), objective, now=shared.until, brokers=numbers(events))
        shared.show(table, empty="No jobs that started.")


@spark.command("failures", cls=Command, exits=_EXITS)
@click.option("--killers", "show_killers", is_flag=True, help="Show tasks that killed workers.")
@takes_journal
def _failures(shared: JournalOptions, show_killers: bool) -> None:  # noqa: FBT001 - click
    """Show the errors of jobs: since when, new in which release, and whether retries help.

    An error is identified by its fingerprint: its type and the place where it was raised. It is new
    if the journal has earlier releases of the task, and none of them has the error. retry_helped is
    the share of the retries whose next attempt succeeded.
    """
    from eventmq_contrib.spark.analyses.failures import failures, killers

    with shared.events() as events:
        if show_killers:
            shared.show(killers(events), empty="No workers that died.")
        else:
            shared.show(failures(events), empty="No failed jobs.")


@spark.command("clocks", cls=Command, exits=_EXITS)
@click.option(
    "--tolerance", type=click.FloatRange(min=0), default=TOLERANCE, show_default=True,
    metavar="SECONDS", help="A clock that differs by no more is right.",
)  # fmt: skip
@takes_journal
def _clocks(shared: JournalOptions, tolerance: float) -> None:
    """Show whether the clocks of the workers' hosts agree with that of the broker.

    A job cannot start before its lease, nor end after its answer arrived. early_s and late_s are
    the largest differences by which the events of a host contradict this: its clock is behind or
    ahead by at least as much, and waiting times of its jobs are wrong by as much. A clock that is
    both behind and ahead was set meanwhile.
    """
    from eventmq_contrib.spark.analyses.clocks import clocks

    with shared.events() as events:
        shared.show(clocks(events, tolerance), empty="No events of a run.")


@spark.command("capacity", cls=Command, exits=_EXITS)
@click.option(
    "--target-p95", type=click.FloatRange(0), default=1.0, show_default=True, metavar="SECONDS",
    help="How long 95 % of the jobs of a queue may wait at most.",
)  # fmt: skip
@click.option(
    "--slots", type=click.IntRange(1, 100_000), multiple=True, metavar="N",
    help="Also simulate this number of slots. Repeatable.",
)  # fmt: skip
@click.option("--workers", is_flag=True, help="Show how busy each worker was instead.")
@takes_journal
def _capacity(
    shared: JournalOptions, target_p95: float, slots: tuple[int, ...], *, workers: bool
) -> None:
    """Show how busy the queues were, and how many slots each needs.

    A slot runs one job at a time: eventmq worker -c 4 has four. The recorded arrivals and run times
    of a queue are simulated with other numbers of slots, first come first served. "needed" is the
    lowest number with which 95 % of the jobs wait no longer than --target-p95; "recorded" is what
    the journal recorded. Queues that share workers need fewer slots together than the sum of their
    needs, since not all of them have jobs at the same time.
    """
    from eventmq_contrib.spark.analyses import capacity as analysis

    with shared.events() as events:
        if workers:
            table = analysis.workers(events)
        else:
            table = analysis.capacity(events, target_p95=target_p95, slots=slots)
        shared.show(table, empty="No jobs that ran.")


@spark.command("anomaly", cls=Command, exits=_EXITS)
@click.option(
    "--threshold", type=_POSITIVE, default=THRESHOLD, show_default=True, metavar="SCORE",
    help="Robust standard deviations from the median above which an hour is anomalous.",
)  # fmt: skip
@click.option(
    "--min-history", type=click.IntRange(2), default=MIN_HISTORY, show_default=True,
    metavar="WEEKS", help="Weeks of history that an hour needs before it can be anomalous.",
)  # fmt: skip
@takes_journal
def _anomaly(shared: JournalOptions, threshold: float, min_history: int) -> None:
    """Find hours that differ from the same hour of earlier weeks, with the reason.

    For each task and hour of the week (UTC), the number of jobs that ended, their median waiting
    time and the share that failed are compared with the median and the MAD of up to 26 weeks
    before. --since and --until choose the hours that are shown; the history before them is always
    read.
    """
    from eventmq_contrib.spark.analyses.anomaly import anomaly, between

    with shared.events("since", "until") as events:
        anomalies = anomaly(events, threshold=threshold, min_history=min_history)
        shared.show(between(anomalies, shared.since, shared.until), empty="No anomalous hours.")


# Audit

#: A number that no event has.
_NO_EVENT = 2**53


@spark.command(
    "audit", cls=Command,
    exits={
        FAILED: "jobs are lost, leased twice or were never admitted; events are missing or "
        "altered, or that cannot be ruled out; or the journal cannot be read",
        NO_BROKER: "the broker of --broker is not reachable",
    },
)  # fmt: skip
@click.option(
    "--stuck-after", type=click.FloatRange(min=0), default=STUCK_AFTER, show_default=True,
    metavar="SECONDS", help="A leased job is stuck if it had no event for so long.",
)  # fmt: skip
@click.option(
    "--list", "listed", type=click.IntRange(min=0), default=LISTED, show_default=True, metavar="N",
    help="Maximum number of ids in a list.",
)  # fmt: skip
@click.option(
    "--broker", "brokers", metavar="URL", multiple=True,
    help="Ask this broker for the last event number that was reported to it as sealed; the journal "
    "must reach it. Needs a key with the role admin where the broker has keys. Repeatable: the "
    "journal is anchored once every broker in it was asked.",
)  # fmt: skip
@takes_journal
def _audit(
    shared: JournalOptions, stuck_after: float, listed: int, brokers: tuple[str, ...]
) -> int:
    """Audit a journal: prove that every accepted job has ended, or show the state that it is in.

    Each job is one of: succeeded, failed, cancelled, expired; waiting; running; stuck, if its
    worker was silent for long; lost, if it has not ended and an event after its first one is
    missing; unknown, if the broker had to drop events after its first one. A missing event that no
    gap event accounts for is damage. No job may be leased twice at once, and a job that was never
    admitted may have no events.

    Every file is compared with its name, its folder, its footer and the seal log, by checksums.
    "damage" lists the problems. Without the seal log of a broker, missing or altered events cannot
    be ruled out, and "unproven" lists that broker. With --broker the journal must reach the event
    that was last reported to the broker as sealed: the journal is anchored. Nothing else reveals
    that files and seal log were cut short together, or restored from an older copy. "unanchored"
    lists the brokers that were not compared.

    "conclusion" is the result in a few words. "clean" is a proof. "complete as far as its own seals
    reach; not anchored" proves the same for the events in the seal logs; the exit code is 0 as
    well.

    --since and --until choose jobs by their first event, --queue and --task by their queue and
    task; missing events are always searched in the whole journal. Hosts whose clocks differ from
    the broker's are named on stderr.
    """
    from eventmq_contrib.spark.analyses.audit import audit
    from eventmq_contrib.spark.analyses.clocks import sentence, wrong_clocks

    sealed: dict[str, int] = {}
    for url in brokers:
        with Target(broker=url).asking() as app:
            answer = app.ask("events.read", {"after": _NO_EVENT, "bytes": 1})
        sealed[answer["store"]] = answer["sealed"]
    with shared.evidence(sealed) as evidence:
        events = evidence.events
        result = audit(
            events, stuck_after=stuck_after, listed=listed, queue=shared.queue, task=shared.task,
            since=shared.since, until=shared.until, evidence=evidence,
        )  # fmt: skip
        values = result.as_dict()
        if shared.out is not None:
            shared.show(events.sparkSession.createDataFrame([values], result.columns()))
        else:
            if not shared.as_json:
                texts = ("damage", "unproven", "unanchored")
                values |= {name: "\n".join(values[name]) for name in texts}
            show_object(values, as_json=shared.as_json)
        for row in wrong_clocks(events).collect():
            warning = sentence(printable(row.host), row.broker_id, row.early_s, row.late_s)
            click.echo(f"warning: {warning}", err=True)
    return DONE if result.complete else FAILED


# Trace

_STEPS = ("task", "queue", "after_s", "waited_s", "ran_s", "share", "job")


@spark.command(
    "trace", cls=Command,
    exits={FAILED: "the journal cannot be read, or a file not be written", NOT_FOUND: ""},
)  # fmt: skip
@click.argument("id")
@click.option(
    "--chrome", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
    help="Write the trace as JSON for chrome://tracing or ui.perfetto.dev.",
)  # fmt: skip
@takes_journal
def _trace(shared: JournalOptions, id: str, chrome: Path | None) -> None:
    """Show the tree of jobs that job ID is part of, and where the time went.

    The tree is built from the roots and parents in the journal. Waiting and run times of a job are
    over all its attempts. Jobs with a * are on the critical path: the jobs that the last end waited
    for.
    """
    if shared.queue is not None or shared.task is not None:
        raise click.UsageError("a trace goes over all queues and tasks: omit --queue and --task")
    from rich.console import Console

    from eventmq_contrib.spark.analyses import trace as analysis

    with shared.events() as events:
        rows = analysis.events_of(events, id)
        by_id = analysis.hops(rows[: analysis.MAX_EVENTS])
        if shared.out is not None:
            shared.show(events.sparkSession.createDataFrame(analysis.hop_rows(by_id)))
    if len(rows) > analysis.MAX_EVENTS:
        click.echo(f"only the first {analysis.MAX_EVENTS} events of the tree are shown", err=True)
    if chrome is not None:
        _save(chrome, json.dumps(analysis.chrome_trace(by_id)))
    summary = analysis.summarize(id, by_id, analysis.critical(by_id))
    if shared.as_json:
        click.echo(to_json(summary, indent=2))
    elif shared.out is None:
        console = Console(highlight=False)
        for line in analysis.tree_lines(summary):
            console.print(line, soft_wrap=True)
        if summary["critical"]:
            click.echo("\nThe critical path")
            show_rows(summary["critical"], _STEPS, as_json=False)


# Report

#: Default path of the page.
PAGE = "report.html"


@spark.command(
    "report", cls=Command,
    exits={FAILED: "the journal cannot be read, the page not be written, or jinja2 is missing"},
)  # fmt: skip
@click.option("--title", default="EventMQ report", show_default=True, help="Title of the page.")
@click.option(
    "--within", type=click.FloatRange(0), default=2.0, show_default=True, metavar="SECONDS",
    help="Service level: seconds within which jobs must start.",
)  # fmt: skip
@click.option(
    "--target", type=click.FloatRange(0, 100, min_open=True, max_open=True), default=95.0,
    show_default=True, metavar="PERCENT",
    help="Service level: share of the jobs that must start in time.",
)  # fmt: skip
@click.option(
    "--target-p95", type=click.FloatRange(0), default=1.0, show_default=True, metavar="SECONDS",
    help="Longest wait of 95 % of a queue's jobs, for the slots that it needs.",
)  # fmt: skip
@functools.partial(
    takes_journal, out=click.option("--out", metavar="FILE", help=f"Default: {PAGE}.")
)
def _report(
    shared: JournalOptions, title: str, within: float, target: float, target_p95: float
) -> None:
    """Make an HTML page about a journal.

    The page shows whether every job is accounted for; throughput, waiting, running, queues and
    slots over time; service levels, tasks, failures, capacity and anomalous hours. It loads nothing
    from the network. With --json the same numbers are printed on stdout, and a page is written only
    with --out.
    """
    need("jinja2", user="eventmq spark report")
    from eventmq_contrib.spark.analyses.report import report
    from eventmq_contrib.spark.analyses.slo import Objective
    from eventmq_contrib.spark.page import page

    with shared.evidence() as evidence:
        result = report(
            evidence.events, evidence=evidence, choice=shared, target_p95=target_p95,
            objective=Objective(share=target / 100, within=within),
            progress=lambda part: click.echo(f"making {part}", err=True),
        )  # fmt: skip
    if shared.as_json:
        click.echo(to_json(result, indent=2))
    if shared.out is not None or not shared.as_json:
        path = Path(shared.out or PAGE)
        if path.is_dir():
            raise StoreError(
                f"{path} is a folder: name a file with --out, as in --out {path / PAGE}"
            )
        _save(path, page(result, title=title, made=time.time()))


# Replay


@spark.command(
    "replay", cls=Command,
    exits={
        FAILED: "the journal cannot be read, the checkpoint is of another replay, or Spark failed",
        NO_BROKER: "broker not reachable; finished jobs stay, and the same command continues",
    },
)  # fmt: skip
@click.option("--error", metavar="TYPE", help="Only with an error of this type: ValueError.")
@click.option("--rate", type=_POSITIVE, metavar="N", help="Jobs per second.")
@click.option("--dry-run", is_flag=True, help="Only show which jobs would be queued again.")
@click.option(
    "--checkpoint", metavar="DIR",
    help="Folder of this replay: made by the first run; a later run continues it.",
)  # fmt: skip
@takes_target
@takes_journal
def _replay(
    shared: JournalOptions, target: Target, error: str | None, rate: float | None,
    checkpoint: str | None, *, dry_run: bool,
) -> None:  # fmt: skip
    """Queue failed jobs of a journal again, chosen by queue, task, error and time.

    Each job keeps its id and gets its next attempt, once per replay, even if this command is killed
    and started again. A job that was retried meanwhile, by any means, is left alone. Jobs that the
    broker has forgotten cannot be queued again; they are counted.
    """
    from eventmq_contrib.spark.analyses.failures import failed_jobs, summary
    from eventmq_contrib.spark.journal import read_journal
    from eventmq_contrib.spark.replaying import Replay, ReplayTarget

    filters = {"error": error, **{name: getattr(shared, name) for name in FILTERS}}
    if dry_run:
        with shared.events(*FILTERS) as events:
            shared.show(summary(failed_jobs(events, **filters)), empty="No such failed jobs.")
        return
    if checkpoint is None:
        raise click.UsageError("name a folder for this replay with --checkpoint, or use --dry-run")
    if shared.out is not None:
        raise click.UsageError("--out is for --dry-run")
    with target.asking() as app:  # it must answer before anything is written
        broker = ReplayTarget.of(app)
    # Without the times, which may be relative, as "2h ago": the plan has them.
    chosen = {name: filters[name] for name in ("queue", "task", "error")}
    journal = str(Path(shared.journal).absolute())
    replay = Replay(Path(checkpoint), broker, {"journal": journal, **chosen})
    with shared.spark() as session:
        if not replay.planned:
            events = replay.own(read_journal(session, shared.journal))
            replay.plan(failed_jobs(events, **filters), rate)
        counts = replay.carry_out(
            session, rate, lambda n: click.echo(f"{n} of {replay.jobs} jobs", err=True)
        )
    show_object({"jobs": replay.jobs, **counts}, as_json=shared.as_json)


# Stream

#: Seconds between two checks for a signal or the end of the query.
_POLL = 1


@spark.command(
    "stream", cls=Command,
    exits={FAILED: "there is no journal, --out is of another stream, or Spark failed"},
)  # fmt: skip
@click.option(
    "--trigger", type=_POSITIVE, default=1.0, show_default=True, metavar="SECONDS",
    help="Time between two updates.",
)  # fmt: skip
@click.option(
    "--watermark", type=_POSITIVE, default=3600.0, show_default=True, metavar="SECONDS",
    help="How far the events of one broker may be behind those of another. Later events are left "
    "out.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="Process the present events and end.")
@click.option(
    "--target", type=_POSITIVE, default=2.0, show_default=True, metavar="SECONDS",
    help="Service level: seconds within which jobs must start.",
)  # fmt: skip
@click.option(
    "--share", type=click.FloatRange(0, 1, min_open=True, max_open=True), default=0.95,
    show_default=True, metavar="SHARE",
    help="Service level: share of the jobs that must start in time.",
)  # fmt: skip
@click.option(
    "--prometheus", metavar="FILE", type=click.Path(path_type=Path),
    help="Write the last minute as a text file, for the textfile collector.",
)  # fmt: skip
@click.option(
    "--at-once", type=click.IntRange(1), default=1_000_000, show_default=True, metavar="N",
    help="Maximum number of events of one update.",
)  # fmt: skip
@functools.partial(
    takes_journal,
    out=click.option(
        "--out", metavar="DIR", required=True, help="The folder of the tables, on this machine."
    ),
)
def _stream(shared: JournalOptions, **options: Any) -> None:
    """Keep the tables stats and slo of a journal up to date, until SIGTERM or Ctrl-C.

    The tables are Parquet files that can be read at any time; each is replaced as a whole. Started
    again on the same folder, even after a kill, the command continues where it ended, and every
    event counts once. It prints a line with "ready" on stdout; with --json an object, followed by
    one for each batch and one with their sums, each on a line of its own.
    """
    from eventmq_contrib.spark.streaming import Stream, naming_files, start_stream

    chosen = {name: getattr(shared, name) for name in FILTERS}
    out = Path(str(shared.out))
    stream = Stream(journal=shared.journal, out=out, **chosen, **options)
    with shared.spark() as session, naming_files():
        query = start_stream(session, stream)
        ready = {"what": "ready", "journal": shared.journal, "out": shared.out}
        line = f"ready journal={shared.journal} out={shared.out}"
        click.echo(to_json(ready) if shared.as_json else line)
        for batch in _batches(query, shared.journal):
            if shared.as_json:
                click.echo(to_json(batch))


def _batches(query: StreamingQuery, journal: str) -> Iterator[dict[str, Any]]:
    """Yield reports of the batches and their total, until the query ends or a signal ends it.

    A batch that is interrupted is repeated by the next start.
    """
    from eventmq_contrib.spark.streaming import BatchReports

    ended: list[int] = []
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda number, _: ended.append(number))
    batches, over = BatchReports(), False
    while not over:
        over = bool(query.awaitTermination(_POLL))
        yield from batches.new(query.recentProgress)
        if ended and not over:
            query.stop()
            break
    yield batches.total()
    if over:
        click.echo(f"processed all events of {journal}", err=True)
