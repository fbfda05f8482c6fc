"""The group ``eventmq spark``: its options, and how its commands read and show tables."""

from __future__ import annotations

import contextlib
import functools
import importlib
import pkgutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from eventmq.cli import show_rows, takes_json
from eventmq.errors import StoreError
from eventmq_contrib.atomic import replacing
from eventmq_contrib.spark import commands, timestamps
from eventmq_contrib.spark.atomic import write_table
from eventmq_contrib.spark.session import using_spark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from eventmq_contrib.spark.evidence import Evidence

__all__ = ["SHOWN", "JournalOptions", "save", "spark", "takes_journal"]

#: Most rows that are shown; --out has no limit.
SHOWN = 10_000


class _Commands(click.Group):
    """Imports the module of a command when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the modules."""
        return sorted(module.name for module in pkgutil.iter_modules(commands.__path__))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command; see `click.Group`."""
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"{commands.__name__}.{cmd_name}")
        command: click.Command = module.command
        return command


def save(path: Path, text: str) -> None:
    """Write an output file atomically, and say so on stderr."""
    try:
        with replacing(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}") from error
    click.echo(f"wrote {path}", err=True)


@click.group(cls=_Commands)
def spark() -> None:
    """Make tables of what happened to jobs, from a journal, on Spark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalOptions:
    """Shared options of the commands.

    Attributes:
        journal: Folder or address of the journal.
        since: Unix time in seconds, or None.
        until: Unix time in seconds, or None.
        queue: Only jobs of this queue, or None.
        task: Only jobs of this task, or None.
        master: Master of Spark, or None.
        out: Folder for Parquet output, or None.
        as_json: Whether to print JSON instead of a table.
    """

    journal: str
    since: float | None = None
    until: float | None = None
    queue: str | None = None
    task: str | None = None
    master: str | None = None
    out: str | None = None
    as_json: bool = False

    @contextlib.contextmanager
    def events(self, *, whole: bool = False) -> Iterator[DataFrame]:
        """Yield the events, in a session that ends with the command.

        Args:
            whole: All events; the command itself filters by time, queue and task.

        Raises:
            JournalError: They cannot be read.
            SparkFailed: Spark does not start, or does not finish.
        """
        from eventmq_contrib.spark.journal import read_journal

        with self.spark() as session:
            if whole:
                yield read_journal(session, self.journal)
            else:
                yield read_journal(
                    session, self.journal, since=self.since, until=self.until, queue=self.queue,
                    task=self.task,
                )  # fmt: skip

    @contextlib.contextmanager
    def evidence(self, sealed: Mapping[str, int] | None = None) -> Iterator[Evidence]:
        """Yield all events with the findings about the files, in a session as for `events`.

        Args:
            sealed: Broker -> the last sealed number as the broker reports it.

        Raises:
            JournalError: There is no journal.
            SparkFailed: Spark does not start, or does not finish.
        """
        from eventmq_contrib.spark.evidence import gather

        with self.spark() as session:
            yield gather(session, self.journal, sealed=sealed)

    @contextlib.contextmanager
    def spark(self) -> Iterator[SparkSession]:
        """Yield the session, and print the elapsed time to stderr."""
        begin = time.monotonic()
        click.echo("starting Spark, which takes some seconds", err=True)
        with using_spark(self.master) as session:
            click.echo(f"reading {self.journal}", err=True)
            yield session
            click.echo(f"took {time.monotonic() - begin:.1f} s", err=True)

    def show(self, table: DataFrame, *, empty: str = "there is nothing to show") -> None:
        """Write a table to ``--out``, or else print it.

        Args:
            table: Table, sorted.
            empty: Message on stderr if there are no rows.

        Raises:
            StoreError: It cannot be written.
        """
        if self.out is not None:
            write_table(table, self.out)
            click.echo(f"wrote {self.out}", err=True)
            return
        rows = [row.asDict(recursive=True) for row in table.limit(SHOWN + 1).collect()]
        if len(rows) > SHOWN:
            click.echo(f"the first {SHOWN} rows of more: --out writes all of them", err=True)
        show_rows(rows[:SHOWN], table.columns, as_json=self.as_json, empty=empty)


_OPTIONS = (
    click.option(
        "--journal", metavar="DIR", required=True,
        help='The folder of the journal, as made by "eventmq journal"; or an address that Spark '
        "knows, as s3a://bucket/journal.",
    ),
    click.option(
        "--since", metavar="WHEN", callback=timestamps.read,
        help="Only from then on: 2h ago, or 2026-01-31T12:00.",
    ),
    click.option("--until", metavar="WHEN", callback=timestamps.read, help="Only before then."),
    click.option("--queue", metavar="NAME", help="Only of this queue."),
    click.option("--task", metavar="NAME", help="Only of this task."),
    click.option(
        "--master", metavar="URL",
        help="Where Spark runs: local[4], spark://host:7077, yarn, sc://host:15002; else as Spark "
        "is configured, else on all cores of this machine.",
    ),
    click.option(
        "--out", metavar="DIR",
        help="Write a Parquet table there instead of printing, whole or not at all.",
    ),
    takes_json,
)  # fmt: skip


def takes_journal(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the shared options, passed as one argument ``shared``."""

    def packed(**options: Any) -> Any:
        names = JournalOptions.__dataclass_fields__
        shared = JournalOptions(**{name: options.pop(name) for name in names})
        return function(shared=shared, **options)

    command: Callable[..., Any] = functools.update_wrapper(packed, function)
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
