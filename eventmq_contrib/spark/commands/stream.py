"""The command ``eventmq spark stream``: keeps tables up to date while a journal grows."""

from __future__ import annotations

import contextlib
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import click

from eventmq.cli import FAILED, Command, to_json
from eventmq.errors import StoreError
from eventmq_contrib.spark.command import takes_journal
from eventmq_contrib.spark.streaming import BatchReports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql.streaming.query import StreamingQuery

    from eventmq_contrib.spark.command import JournalOptions
    from eventmq_contrib.spark.streaming import Stream

__all__ = ["command"]

#: The address of a file in an error of Spark that could not read it.
_FILE = re.compile(r"reading file (\w+:/+\S+?\.parquet)")

#: The error about a file that is too new for this EventMQ; see `eventmq_contrib.spark.streaming`.
_NEWER = re.compile(r"(\w+:/+\S+?\.parquet is of a newer EventMQ: update this one)")

_POSITIVE = click.FloatRange(0, min_open=True)

#: Seconds between two checks for a signal or the end of the query.
_POLL = 1


@click.command(
    "stream",
    cls=Command,
    exits={FAILED: "there is no journal, --out is of another stream, or Spark failed"},
)
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
    "--prometheus", metavar="FILE",
    help="Write the last minute as a text file, for the textfile collector.",
)  # fmt: skip
@click.option(
    "--at-once", type=click.IntRange(1), default=1_000_000, show_default=True, metavar="N",
    help="Events of one update at most.",
)  # fmt: skip
@takes_journal
def command(shared: JournalOptions, prometheus: str | None, **options: Any) -> None:
    """Keep the tables stats and slo of a journal up to date, until SIGTERM or Ctrl-C.

    The tables are Parquet files, each replaced as a whole, that can be read at any time. Started
    again on the same folder, also after a kill, it goes on where it was, and every event counts
    once. A line with "ready" comes on stdout; with --json it is an object, and one for each batch
    and one with their sums follow, a line each.
    """
    from eventmq_contrib.spark.streaming import Stream, start_stream

    assert shared.out is not None  # noqa: S101 - the option is required
    chosen = {name: getattr(shared, name) for name in ("queue", "task", "since", "until")}
    text = Path(prometheus) if prometheus else None
    out = Path(shared.out)
    stream = Stream(journal=shared.journal, out=out, prometheus=text, **chosen, **options)
    with shared.spark() as session, _naming_files():
        query = start_stream(session, stream)
        show = _print_batch if shared.as_json else _quiet
        if shared.as_json:
            _print_batch({"what": "ready", "journal": shared.journal, "out": shared.out})
        else:
            click.echo(f"ready journal={shared.journal} out={shared.out}")
        _watch(query, stream, show)


@contextlib.contextmanager
def _naming_files() -> Iterator[None]:
    """Turn an error of Spark about a file into one that names the file.

    Raises:
        StoreError: A file of the journal is torn, foreign, or of a newer EventMQ.
    """
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        newer, file = _NEWER.search(str(error)), _FILE.search(str(error))
        if newer is not None:
            raise StoreError(unquote(newer[1])) from error
        if file is None:
            raise
        msg = f"{unquote(file[1])} is torn, or no file of a journal: move it away, the others are "
        raise StoreError(f"{msg}unharmed") from error


def _print_batch(batch: dict[str, Any]) -> None:
    click.echo(to_json(batch))


def _quiet(_: dict[str, Any]) -> None:
    """Print nothing about batches."""


def _watch(query: StreamingQuery, stream: Stream, show: Callable[[dict[str, Any]], None]) -> None:
    """Wait until the query ends or a signal ends it; an interrupted batch is repeated later."""
    ended: list[int] = []
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda number, _: ended.append(number))
    batches, over = BatchReports(), False
    while not over:
        over = bool(query.awaitTermination(_POLL))
        for batch in batches.new(query.recentProgress):
            show(batch)
        if ended and not over:
            query.stop()
            break
    show(batches.total())
    if over:
        click.echo(f"took all that {stream.journal} has", err=True)


for _option in command.params:
    if _option.name == "out" and isinstance(_option, click.Option):
        _option.required, _option.help = True, "The folder of the tables, on this machine."
