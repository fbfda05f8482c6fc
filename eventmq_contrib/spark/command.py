"""The group ``eventmq spark``: its commands, and how they read and show tables.

What needs Spark is imported when a command runs, so that help texts need none.
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

__all__ = ["SHOWN", "JournalOptions", "spark", "takes_journal"]

#: Most rows that are shown; --out has no limit.
SHOWN = 10_000


@click.group()
def spark() -> None:
    """Make tables of what happened to jobs, from a journal, on Spark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalOptions(Choice):
    """Shared options of the commands; those of time, queue and task are those of `Choice`.

    Attributes:
        journal: Folder or address of the journal.
        master: Master of Spark, or None.
        out: Folder for Parquet output, or None.
        as_json: Whether to print JSON instead of a table.
        wide: Whether nothing in a table is shortened.
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
            *without: Filters that the command itself applies, of `FILTERS`.

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
            empty: Message on stderr if there are no rows.

        Raises:
            StoreError: It cannot be written.
        """
        from eventmq_contrib.spark.atomic import write_table

        if self.out is not None:
            write_table(table, self.out)
            click.echo(f"wrote {self.out}", err=True)
            return
        rows = [row.asDict(recursive=True) for row in table.limit(SHOWN + 1).collect()]
        if len(rows) > SHOWN:
            click.echo(f"the first {SHOWN} rows of more: --out writes all of them", err=True)
        show_rows(
            rows[:SHOWN], table.columns, as_json=self.as_json, wide=self.wide, gives_way=(),
            empty=empty,
        )  # fmt: skip


_OUT = click.option(
    "--out", metavar="DIR",
    help="Write a Parquet table there instead of printing, whole or not at all.",
)  # fmt: skip

_OPTIONS = (
    click.option(
        "--journal", metavar="DIR", required=True,
        help='The folder of the journal, as made by "eventmq journal"; or an address that Spark '
        "knows, as s3a://bucket/journal.",
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
        help="Where Spark runs: local[4], spark://host:7077, yarn, sc://host:15002; else as Spark "
        "is configured, else on all cores of this machine.",
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

_READ = {FAILED: "the journal cannot be read"}


def _save(path: Path, text: str) -> None:
    """Write an output file atomically, and say so on stderr."""
    try:
        with replacing(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}") from error
    click.echo(f"wrote {path}", err=True)


# Tables


@spark.command("stats", cls=Command, exits=_READ)
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


@spark.command("slo", cls=Command, exits=_READ)
@click.option(
    "--target", type=click.FloatRange(0, 100, min_open=True, max_open=True), default=95.0,
    show_default=True, metavar="PERCENT", help="Share of the jobs that are to start in time.",
)  # fmt: skip
@click.option(
    "--within", type=click.FloatRange(min=0), default=2.0, show_default=True, metavar="SECONDS",
    help="In time: so long after they were ready.",
)  # fmt: skip
@takes_journal
def _slo(shared: JournalOptions, target: float, within: float) -> None:
    """Show whether jobs start in time, by queue.

    attainment is the share that did, budget_left what is left of the share that may be late, below
    0 if more were. burn_5m and burn_1h say how many times faster than allowed it was spent in the
    last five minutes and the last hour before --until, or else before the last event. waiting jobs
    wait for a worker at that time, the oldest of them for so many seconds; jobs that became unknown
    since events after their last one are missing are not among them.
    """
    from eventmq_contrib.spark.analyses.audit import numbers
    from eventmq_contrib.spark.analyses.slo import Objective, slo

    objective = Objective(share=target / 100, within=within)
    # Numbers of other queues and tasks are not missing.
    with shared.events("queue", "task") as events:
        table = slo(shared.jobs(events), objective, now=shared.until, brokers=numbers(events))
        shared.show(table, empty="No jobs that started.")


@spark.command("failures", cls=Command, exits=_READ)
@click.option("--killers", "deadly", is_flag=True, help="What killed workers, instead.")
@takes_journal
def _failures(shared: JournalOptions, deadly: bool) -> None:  # noqa: FBT001 - click
    """Show which errors there are: since when, new in which release, and whether retries help.

    An error is known by its fingerprint: its type and the place where it was raised. It is new if
    no earlier release of the task in the journal has it, and there was one. retry_helped is the
    share of the retries whose next attempt succeeded.
    """
    from eventmq_contrib.spark.analyses.failures import failures, killers

    with shared.events() as events:
        if deadly:
            shared.show(killers(events), empty="No workers that died.")
        else:
            shared.show(failures(events), empty="No failed jobs.")


@spark.command("clocks", cls=Command, exits=_READ)
@click.option(
    "--tolerance", type=click.FloatRange(min=0), default=TOLERANCE, show_default=True,
    metavar="SECONDS", help="A clock that is apart by no more is right.",
)  # fmt: skip
@takes_journal
def _clocks(shared: JournalOptions, tolerance: float) -> None:
    """Show whether the clocks of the workers' hosts agree with that of the broker.

    A job cannot start before its lease nor end after its answer was there. early_s and late_s say
    by how much it looks so at most: then the clock of the host is behind or ahead, by that at
    least, and waiting times of its jobs are wrong by as much. One that is both was set meanwhile.
    """
    from eventmq_contrib.spark.analyses.clocks import clocks

    with shared.events() as events:
        shared.show(clocks(events, tolerance), empty="No events of a run.")


@spark.command("capacity", cls=Command, exits=_READ)
@click.option(
    "--target-p95", type=click.FloatRange(0), default=1.0, show_default=True, metavar="SECONDS",
    help="How long 95 % of the jobs of a queue may wait at most.",
)  # fmt: skip
@click.option(
    "--slots", type=click.IntRange(1, 100_000), multiple=True, metavar="N",
    help="Also say what so many slots would have done. Repeatable.",
)  # fmt: skip
@click.option("--workers", is_flag=True, help="A row per worker instead: how busy each was.")
@takes_journal
def _capacity(
    shared: JournalOptions, target_p95: float, slots: tuple[int, ...], *, workers: bool
) -> None:
    """Show how busy the queues were, and how many slots each needs.

    A slot runs one job at a time: eventmq worker -c 4 has four. The recorded arrivals and run times
    of a queue are played through so many slots, first come first served. "needed" is the least
    number with which 95 % of the jobs wait no longer than --target-p95; "recorded" is how it was.
    A queue that shares its workers with others needs them only while it has jobs: the sum of what
    all queues need is more than what they need together.
    """
    from eventmq_contrib.spark.analyses import capacity as analysis

    with shared.events() as events:
        if workers:
            table = analysis.workers(events)
        else:
            table = analysis.capacity(events, target_p95=target_p95, slots=slots)
        shared.show(table, empty="No jobs that ran.")


@spark.command("anomaly", cls=Command, exits=_READ)
@click.option(
    "--threshold", type=_POSITIVE, default=THRESHOLD, show_default=True, metavar="SCORE",
    help="Robust standard deviations from the median above which an hour is anomalous.",
)  # fmt: skip
@click.option(
    "--min-history", type=click.IntRange(2), default=MIN_HISTORY, show_default=True,
    metavar="WEEKS", help="Weeks that must have gone before an hour can be odd.",
)  # fmt: skip
@takes_journal
def _anomaly(shared: JournalOptions, threshold: float, min_history: int) -> None:
    """Find hours that are not like the same hour of earlier weeks, and say why.

    By task, of each hour of the week (UTC): how many jobs ended, how long half of them waited, and
    the share that failed, against median and MAD of up to 26 weeks before. --since and --until
    choose the hours that are shown; the history before them is always read.
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
    help="Ids in a list at most.",
)  # fmt: skip
@click.option(
    "--broker", "brokers", metavar="URL", multiple=True,
    help="Ask this broker which event number it was last told is sealed; the journal must reach "
    "it. It needs a key with the role admin where the broker has keys. Repeatable: the journal is "
    "anchored once every broker in it was asked.",
)  # fmt: skip
@takes_journal
def _audit(
    shared: JournalOptions, stuck_after: float, listed: int, brokers: tuple[str, ...]
) -> int:
    """Audit a journal: whether every accepted job has ended, or in which state it is.

    Each job is one of: succeeded, failed, cancelled, expired; waiting; running; stuck, if its
    worker was silent for long; lost, if it has not ended and an event after its first one is
    missing; unknown, if the broker had to drop events after its first one. A missing event that no
    gap event accounts for is damage. No job may be leased twice at once, and a job that was never
    admitted may have no events.

    Every file is compared with its name, its folder, its footer and the seal log, by checksums.
    "damage" names what is wrong. Where the seal log of a broker is missing, it is not proven that
    nothing is missing or altered, and "unproven" says so. With --broker the journal must end where
    the broker was told that it ends: the journal is anchored. Nothing else reveals that files and
    seal log were cut short together, or restored from an older copy. Without it "unanchored" says
    so.

    "conclusion" sums it up. "clean" is a proof. "complete as far as its own seals
    reach; not anchored" proves the same for what the seal logs have; the exit code is 0 as well.

    --since and --until choose jobs by their first event, --queue and --task by their queue and
    task; missing events are always looked for in the whole journal. A host whose clock differs
    from the broker's is named on stderr.
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
        shown = result.as_dict()
        if shared.out is not None:
            shared.show(events.sparkSession.createDataFrame([shown], result.columns()))
        else:
            if not shared.as_json:
                texts = ("damage", "unproven", "unanchored")
                shown |= {name: "\n".join(shown[name]) for name in texts}
            show_object(shown, as_json=shared.as_json)
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
    """Show the jobs that belong together with job ID, and where the time went.

    The tree is by root and parent, as in the journal. Each job says how long it waited and ran,
    over all its attempts. The critical path is what the last end waited for: jobs with a * are on
    it.
    """
    if shared.queue is not None or shared.task is not None:
        raise click.UsageError("a trace goes over all queues and tasks: leave --queue and --task")
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
    summary = analysis.about(id, by_id, analysis.critical(by_id))
    if shared.as_json:
        click.echo(to_json(summary, indent=2))
    elif shared.out is None:
        console = Console(highlight=False)
        for line in analysis.drawn(summary):
            console.print(line, soft_wrap=True)
        if summary["critical"]:
            click.echo("\nThe critical path")
            show_rows(summary["critical"], _STEPS, as_json=False)


# Report

#: Where the page goes to if nothing else is said.
PAGE = "report.html"


@spark.command(
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
@functools.partial(
    takes_journal, out=click.option("--out", metavar="FILE", help=f"The page; else {PAGE}.")
)
def _report(
    shared: JournalOptions, title: str, within: float, target: float, target_p95: float
) -> None:
    """Make an HTML page about a journal, for a browser or to send to others.

    Whether every job is accounted for; throughput, waiting, running, queues and slots over time;
    service levels, tasks, failures, capacity and anomalous hours. The page loads nothing from the
    network. With --json the same as numbers on stdout, and a page only with --out.
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
        NO_BROKER: "broker not reachable; what was done stays, and the same command goes on",
    },
)  # fmt: skip
@click.option("--error", metavar="TYPE", help="Only with an error of this type: ValueError.")
@click.option("--rate", type=_POSITIVE, metavar="N", help="Jobs per second.")
@click.option("--dry-run", is_flag=True, help="Only show which jobs would be queued again.")
@click.option(
    "--checkpoint", metavar="DIR",
    help="Folder of this replay: made by the first run, taken up by the next one after a kill.",
)  # fmt: skip
@takes_target
@takes_journal
def _replay(
    shared: JournalOptions, target: Target, error: str | None, rate: float | None,
    checkpoint: str | None, *, dry_run: bool,
) -> None:  # fmt: skip
    """Queue failed jobs again that a journal knows, by queue, task, error and time.

    Each keeps its id and becomes its next attempt, once per replay, also where this command is
    killed and started again: a job that was retried since, by whomever, is left alone. Those that
    the broker has forgotten cannot be had back and are counted.
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
        raise click.UsageError("name a folder for this replay with --checkpoint, or say --dry-run")
    if shared.out is not None:
        raise click.UsageError("--out is for --dry-run")
    with target.asking() as app:  # it must answer before anything is written
        broker = ReplayTarget.of(app)
    # Not the times, which may be said as "2h ago": the plan has them.
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
    help="Between two updates.",
)  # fmt: skip
@click.option(
    "--watermark", type=_POSITIVE, default=3600.0, show_default=True, metavar="SECONDS",
    help="How far the events of one broker may be behind those of another. Later ones are left "
    "out.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="Process the events of now and end.")
@click.option(
    "--target", type=_POSITIVE, default=2.0, show_default=True, metavar="SECONDS",
    help="Within which jobs are to start.",
)  # fmt: skip
@click.option(
    "--share", type=click.FloatRange(0, 1, min_open=True, max_open=True), default=0.95,
    show_default=True, help="Of the jobs that are to start within it.",
)  # fmt: skip
@click.option(
    "--prometheus", metavar="FILE", type=click.Path(path_type=Path),
    help="Write the last minute as a text file, for the textfile collector.",
)  # fmt: skip
@click.option(
    "--at-once", type=click.IntRange(1), default=1_000_000, show_default=True, metavar="N",
    help="Events of one update at most.",
)  # fmt: skip
@functools.partial(
    takes_journal,
    out=click.option(
        "--out", metavar="DIR", required=True, help="The folder of the tables, on this machine."
    ),
)
def _stream(shared: JournalOptions, **options: Any) -> None:
    """Keep the tables stats and slo of a journal up to date, until SIGTERM or Ctrl-C.

    The tables are Parquet files, each replaced as a whole, that can be read at any time. Started
    again on the same folder, also after a kill, it goes on where it was, and every event counts
    once. A line with "ready" comes on stdout; with --json it is an object, and one for each batch
    and one with their sums follow, a line each.
    """
    from eventmq_contrib.spark.streaming import Stream, naming_files, start_stream

    chosen = {name: getattr(shared, name) for name in FILTERS}
    out = Path(str(shared.out))
    stream = Stream(journal=shared.journal, out=out, **chosen, **options)
    with shared.spark() as session, naming_files():
        query = start_stream(session, stream)
        ready = {"what": "ready", "journal": shared.journal, "out": shared.out}
        plain = f"ready journal={shared.journal} out={shared.out}"
        click.echo(to_json(ready) if shared.as_json else plain)
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
        click.echo(f"took all that {journal} has", err=True)
