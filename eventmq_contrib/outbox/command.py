"""The commands ``eventmq outbox``."""

from __future__ import annotations

import signal
from contextlib import closing
from typing import TYPE_CHECKING

import click

from eventmq import cli
from eventmq_contrib.outbox.database import FORGET, connect
from eventmq_contrib.outbox.relay import Relay
from eventmq_contrib.outbox.writing import COLUMNS, DDL, TABLE

if TYPE_CHECKING:
    from eventmq.cli import Target

__all__ = ["outbox"]

_EXITS = {cli.FAILED: "the database cannot be reached, or has no outbox table"}

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
    """Make the tables of the outbox, where there are none."""
    with closing(connect(url, create=True)) as database:
        for statement in DDL[database.vendor]:
            database.execute(statement)
        click.echo(f"{database.name} has the table {TABLE}")


@outbox.command(cls=cli.Command, exits=_EXITS)
@_takes_database
@click.option(
    "--dedupe-window", type=click.FloatRange(0), metavar="SECONDS",
    help="The broker's setting of this name. Default: as in the settings of this process.",
)  # fmt: skip
@click.option(
    "--resend-older", is_flag=True,
    help="Resend also rows that may have been sent longer ago: jobs may run twice.",
)  # fmt: skip
@cli.takes_log_format
@cli.takes_target
def relay(target: Target, url: str, dedupe_window: float | None, *, resend_older: bool) -> None:
    """Submit the rows of an outbox table, until SIGTERM or Ctrl-C.

    A row is deleted after the broker's receipt for its job. While the database or the broker is
    away, the rows wait. A row that cannot be sent is kept, and does not stop the others: "eventmq
    outbox list" shows why. Several relays may share a table. The command prints a line with "ready"
    on stdout.
    """
    with closing(target.serving().app) as app, closing(connect(url)) as database:
        database.execute(FORGET)
        window = app.settings.dedupe_window if dedupe_window is None else dedupe_window
        running = Relay(database, app, window=window, resend_older=resend_older)
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
    cli.show_rows(listed, _LISTED, as_json=as_json, empty="No kept rows.")


@outbox.command(cls=cli.Command, exits={**_EXITS, cli.NOT_FOUND: "a row is not kept"})
@_takes_database
@click.argument("ids", nargs=-1, required=True)
def retry(url: str, ids: tuple[str, ...]) -> int:
    """Have rows that the relay keeps sent as if they were new; "all" stands for all of them.

    If a row was sent before, and longer ago than the dedupe window, its job runs a second time.
    """
    with closing(connect(url)) as database:
        kept = {row[0] for row in database.execute(f"SELECT job_id FROM {TABLE} WHERE error <> ''")}  # noqa: S608
        chosen = kept if ids == ("all",) else set(ids)
        database.execute("BEGIN")
        for job_id in chosen & kept:
            # A new row, which was never sent.
            where = "WHERE job_id = %s AND error <> ''"
            columns = ", ".join(COLUMNS)
            for sql in (
                f"INSERT INTO {TABLE} ({columns}) SELECT {columns} FROM {TABLE} {where}",  # noqa: S608
                f"DELETE FROM {TABLE} {where}",  # noqa: S608
            ):
                database.execute(sql, (job_id,))
        database.execute("COMMIT")
    for job_id in chosen - kept:
        click.echo(f"no row of job {job_id} is kept", err=True)
    click.echo(f"{len(chosen & kept)} rows will be sent")
    return cli.NOT_FOUND if chosen - kept else cli.DONE
