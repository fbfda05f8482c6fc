"""Check and back up the store of a broker: ``fsck`` and ``backup``. No broker need run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from eventmq.cli.command import DONE, FAILED, Command
from eventmq.cli.output import paint, printable, show_object, show_rows
from eventmq.cli.target import takes_app, takes_json
from eventmq.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq.cli.target import Target
    from eventmq.interfaces import Finding, Salvaged, StoreTools

__all__ = ["COMMANDS"]

_COLUMNS = ("check", "where", "found", "means", "help", "repairable")

_STORE = click.option("--store", metavar="URL", help="As for the broker: a name, or a URL.")


@click.command(
    cls=Command, exits={FAILED: "something is found or lost, or the store cannot be read"}
)
@click.argument("data_dir", required=False)
@click.option("--data-dir", "named", metavar="DIR", help="The same as DATA_DIR.")
@_STORE
@click.option(
    "--repair", is_flag=True,
    help="Put right what can be put right without a loss, after copying the files. The broker "
    "must have ended.",
)  # fmt: skip
@click.option(
    "--salvage", metavar="DEST",
    help="Copy what can be read of a damaged store into a new one in DEST, an empty folder, and "
    "list what cannot. The broker must have ended.",
)  # fmt: skip
@takes_json
@takes_app()
def fsck(
    target: Target, data_dir: str | None, *, named: str | None, store: str | None, repair: bool,
    salvage: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Check the store in a data directory, and list what is wrong.

    Checks the file, the checksums of its rows, whether they can be read, the counts, and what a
    broker needs to start and to go on. It only reads a snapshot, also while a broker runs; the log
    of the file grows meanwhile. Default of DATA_DIR: the setting, else .eventmq.
    """
    if data_dir and named:
        raise click.UsageError("name the data directory once, as DATA_DIR or with --data-dir")
    if repair and salvage:
        raise click.UsageError("--repair changes the store, --salvage copies it: use one of them")
    tools = _tools(target, data_dir or named, store)
    if salvage:
        return _report_salvage(tools.salvage(Path(salvage)), as_json=as_json)
    if not repair:
        return _report(tools.check(), as_json=as_json)
    repaired = tools.repair()
    for line in repaired.done:
        click.echo(f"repaired: {printable(line)}", err=True)
    if repaired.kept:
        click.echo(f"the files as they were: {repaired.kept}", err=True)
    return _report(repaired.left, as_json=as_json)


def _report(findings: Sequence[Finding], *, as_json: bool) -> int:
    if as_json:
        rows = [finding._asdict() for finding in findings]
        show_rows(rows, _COLUMNS, as_json=True)
    else:
        for finding in findings:
            name = paint(f"{finding.check} ({finding.where})", "red")
            click.echo(f"{name}: {printable(finding.found)}")
            click.echo(f"    {printable(finding.means)}")
            click.echo(f"    what helps: {printable(finding.help)}")
        if not findings:
            click.echo("the store is in order")
    return FAILED if findings else DONE


def _report_salvage(done: Salvaged, *, as_json: bool) -> int:
    """Print what the new store has, and what was lost."""
    code = FAILED if done.lost or done.left else DONE
    if as_json:
        made = done._asdict()
        for key in ("lost", "left"):
            made[key] = [row._asdict() for row in made[key]]
        show_object(made, as_json=True)
        return code
    lost = Counter(row.table for row in done.lost)
    tables = sorted({*done.copied, *lost})
    rows = [
        {"table": table, "copied": done.copied.get(table, 0), "lost": lost[table]}
        for table in tables
    ]
    show_rows(rows, ("table", "copied", "lost"), as_json=False)
    for row in done.lost:
        name = f" {printable(row.id)}" if row.id else ""
        click.echo(f"{paint('lost', 'red')}: {row.table}{name} ({row.where}): {printable(row.why)}")
    click.echo(f"the new store: {done.path}", err=True)
    if done.left:
        click.echo("the new store is not in order:", err=True)
        _report(done.left, as_json=False)
    return code


@click.command(
    cls=Command, exits={FAILED: "there is a backup already, or it cannot be written; nothing is"}
)
@click.argument("dest")
@click.option("--data-dir", metavar="DIR", help="The data directory of the broker; else .eventmq.")
@_STORE
@click.option("--replace", is_flag=True, help="Replace the backup that is in DEST.")
@takes_json
@takes_app()
def backup(
    target: Target, dest: str, *, data_dir: str | None, store: str | None, replace: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Copy the store into the folder DEST, while the broker runs or not.

    The copy is a synced snapshot, and is written as a whole or not at all. A broker that is started
    with --data-dir DEST goes on from the snapshot, as a store of its own. Keys, and results that
    are kept elsewhere, are not in it.
    """
    done = _tools(target, data_dir, store).backup(Path(dest), replace=replace)
    if as_json:
        show_object(done._asdict(), as_json=True)
    else:
        click.echo(f"{done.path}: {done.size} bytes")


def _tools(target: Target, data_dir: str | None, store: str | None) -> StoreTools:
    """Return the tools of the store that the settings and the command line name.

    Raises:
        StoreError: It has no files.
    """
    app = target.app(data_dir=data_dir, store=store)
    tools = app.store_tools()
    if tools is None:
        raise StoreError(f"the store {app.settings.store!r} has no files")
    return tools


COMMANDS = (fsck, backup)
