"""The commands ``eventmq outbox``."""

from __future__ import annotations

import signal
from contextlib import closing
from typing import TYPE_CHECKING

import click

from eventmq import cli
from eventmq_contrib.outbox.database import DDL, NEW, TABLE, among, connect
from eventmq_contrib.outbox.relay import Relay

if TYPE_CHECKING:
    from eventmq.cli import Target

__all__ = ["outbox"]

_EXITS = {cli.FAILED: "the database cannot be reached, or has no outbox table"}

#: The last time, in Unix time, that can be shown.
_MAX_CREATED = 2.5e11

_LISTED: tuple[str, ...] = ("id", "queue", "created", "error")

_takes_database = click.option(
    "--database", "url", metavar="URL", required=True,
    help="The application's database: postgresql://..., mysql://... or sqlite:///PATH.",
)  # fmt: skip


@click.group()
def outbox() -> None:
    """Submit jobs that an application wrote into its database."""


@outbox.command(cls=cli.Command, exits=_EXITS)
@_takes_database
def init(url: str) -> None:
    """Make the table of the outbox, where there is none."""
    with closing(connect(url, create=True)) as database:
        for statement in DDL[database.vendor]:
            database.execute(statement)
        click.echo(f"{database.name} has the table {TABLE}")


@outbox.command(cls=cli.Command, exits=_EXITS)
@_takes_database
@cli.takes_log_format
@cli.takes_target
def relay(target: Target, url: str) -> None:
    """Submit the rows of an outbox table, until SIGTERM or Ctrl-C.

    A row is deleted after the broker's receipt for its job. While the database or the broker is
    away, the rows wait. A row that cannot be sent is kept, and does not stop the others: "eventmq
    outbox list" shows why. Several relays may share a table. The command prints a line with "ready"
    on stdout.
    """
    with closing(target.serving().app) as app, closing(connect(url)) as database:
        database.check()
        running = Relay(database, app, window=app.settings.dedupe_window)
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, running.stop)
        cli.at_hangup(lambda: None, running.stop)
        click.echo(f"ready database={database.name}")
        running.run()


@outbox.command("list", cls=cli.Command, exits=_EXITS)
@_takes_database
@cli.takes_json
def list_kept(url: str, *, as_json: bool) -> None:
    """List the rows that the relay keeps, with the reasons."""
    with closing(connect(url)) as database:
        rows = database.execute(
            f"SELECT job_id, queue, created, error FROM {TABLE} WHERE error <> '' ORDER BY seq"  # noqa: S608
        )
    listed = [dict(zip(_LISTED, row, strict=True)) for row in rows]
    for row in listed:
        if not (isinstance(row["created"], float) and 0 < row["created"] < _MAX_CREATED):
            row["created"] = None  # such as milliseconds, from a writer of another language
    cli.show_rows(listed, _LISTED, as_json=as_json, empty="No kept rows.")


@outbox.command(cls=cli.Command, exits={**_EXITS, cli.NOT_FOUND: "a row is not kept"})
@_takes_database
@click.argument("ids", nargs=-1, required=True)
def retry(url: str, ids: tuple[str, ...]) -> int:
    """Have rows that the relay keeps sent as if they were new; "all" stands for all of them.

    If a row was sent before, and longer ago than the dedupe window, its job runs a second time.
    """
    with closing(connect(url)) as database:
        rows = database.execute(f"SELECT seq, job_id FROM {TABLE} WHERE error <> ''")  # noqa: S608
        chosen = [row for row in rows if "all" in ids or row[1] in ids]
        if chosen:
            seqs = among([row[0] for row in chosen])
            database.execute(f"UPDATE {TABLE} SET {NEW}, error = '' WHERE {seqs}")  # noqa: S608
    missing = {*ids} - {"all"} - {row[1] for row in chosen}
    for job_id in missing:
        click.echo(f"no row of job {job_id} is kept", err=True)
    click.echo(f"{len(chosen)} rows will be sent")
    return cli.NOT_FOUND if missing else cli.DONE
