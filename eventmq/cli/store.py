"""Maintain the store of a broker: ``fsck``, ``backup`` and ``store``. No broker needs to run."""

from __future__ import annotations

import math
import re
import shutil
import threading
from collections import Counter
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import click

from eventmq.cli.command import DONE, FAILED, Command, print_error
from eventmq.cli.output import paint, printable, show_object, show_rows, to_json
from eventmq.cli.processes import interrupt_at_signals
from eventmq.cli.target import takes_app, takes_json
from eventmq.clock import SystemClock
from eventmq.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from eventmq.cli.target import Target
    from eventmq.interfaces import StoreTools, Upkeep
    from eventmq.store.reports import BackedUp, Finding, Salvaged

__all__ = ["COMMANDS"]

_COLUMNS = ("check", "where", "found", "means", "help", "repairable")

_STORE = click.option("--store", metavar="URL", help="Store of the broker: a name, or a URL.")


@click.command(
    cls=Command, exits={FAILED: "there are findings or losses, or the store cannot be read"}
)
@click.argument("data_dir", required=False)
@click.option("--data-dir", "named", metavar="DIR", help="The same as DATA_DIR.")
@_STORE
@click.option(
    "--repair", is_flag=True,
    help="Repair what can be repaired without a loss, after copying the files. The broker "
    "must not run.",
)  # fmt: skip
@click.option(
    "--salvage", metavar="DEST",
    help="Copy what is readable of a damaged store into a new one in DEST, an empty folder, and "
    "list what is not. The broker must not run.",
)  # fmt: skip
@takes_json
@takes_app()
def fsck(
    target: Target, data_dir: str | None, *, named: str | None, store: str | None, repair: bool,
    salvage: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Check the store in a data directory or a database, and list what is wrong.

    Checks the file, the checksums and readability of its rows, the counts, and what a broker needs
    to start and to continue; of a database only the rows. It reads a snapshot, also while a broker
    runs; the log of the file grows meanwhile. Default of DATA_DIR: the setting, or .eventmq.
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
            name = paint(printable(f"{finding.check} ({finding.where})"), "red")
            click.echo(f"{name}: {printable(finding.found)}")
            click.echo(f"    {printable(finding.means)}")
            click.echo(f"    remedy: {printable(finding.help)}")
        if not findings:
            click.echo("the store is in order")
    return FAILED if findings else DONE


def _report_salvage(salvaged: Salvaged, *, as_json: bool) -> int:
    """Print the content of the new store, and the losses."""
    code = FAILED if salvaged.lost or salvaged.left else DONE
    if as_json:
        report = salvaged._asdict()
        for key in ("lost", "left"):
            report[key] = [row._asdict() for row in report[key]]
        show_object(report, as_json=True)
        return code
    lost = Counter(row.table for row in salvaged.lost)
    tables = sorted({*salvaged.copied, *lost})
    rows = [
        {"table": table, "copied": salvaged.copied.get(table, 0), "lost": lost[table]}
        for table in tables
    ]
    show_rows(rows, ("table", "copied", "lost"), as_json=False)
    for row in salvaged.lost:
        row_name = f"{row.table} {row.id}".rstrip() + f" ({row.where}): {row.why}"
        click.echo(f"{paint('lost', 'red')}: {printable(row_name)}")
    click.echo(f"the new store: {salvaged.path}", err=True)
    if salvaged.left:
        click.echo("the new store is not in order:", err=True)
        _report(salvaged.left, as_json=False)
    return code


#: Default of ``backup --keep``.
KEPT_COPIES = 24

#: Format of the names of these copies: the time of the copy.
_COPY_NAME = "%Y%m%dT%H%M%SZ"
_COPY_PATTERN = re.compile(r"\d{8}T\d{6}Z")


@click.command(
    cls=Command,
    exits={FAILED: "a backup exists already, or it cannot be written; nothing is written"},
)
@click.argument("dest")
@click.option(
    "--data-dir", metavar="DIR", help="The data directory of the broker; default: .eventmq."
)
@_STORE
@click.option("--replace", is_flag=True, help="Replace the backup in DEST.")
@click.option(
    "--every", type=click.FloatRange(min=1), metavar="SECONDS",
    help="Make a copy now, and another after each such interval, in a folder of its own in DEST, "
    "which is named by its time, until SIGTERM or Ctrl-C.",
)  # fmt: skip
@click.option(
    "--keep", type=click.IntRange(min=1), metavar="N",
    help="Number of copies that --every keeps in DEST; older ones are deleted. Default: "
    f"{KEPT_COPIES}.",
)  # fmt: skip
@takes_json
@takes_app()
def backup(
    target: Target, dest: str, *, data_dir: str | None, store: str | None, replace: bool,
    every: float | None, keep: int | None, as_json: bool,
) -> None:  # fmt: skip
    """Copy the store into the folder DEST, while the broker runs or not.

    The copy is a synced snapshot, written completely or not at all. A broker that is started with
    --data-dir DEST continues from the snapshot, as a store of its own. Keys, and results that are
    kept elsewhere, are not included.

    With --every a failed copy is reported on stderr and tried again at the next time; only the
    failure of the first one ends the command. With --json each copy is an object on its own line.
    """
    if every is None and keep is not None:
        raise click.UsageError("--keep is the number of copies that --every keeps: use both")
    if every is not None and replace:
        raise click.UsageError("--every never replaces a backup: leave --replace out")
    tools = _tools(target, data_dir, store)
    if every is None:
        _show_copy(tools.backup(Path(dest), replace=replace), as_json=as_json)
        return
    interrupt_at_signals()
    with suppress(KeyboardInterrupt):
        copies = Copies(tools, Path(dest), KEPT_COPIES if keep is None else keep)
        _show_copy(copies.make(), as_json=as_json, line=True)
        for _ in ticks(every):
            try:
                _show_copy(copies.make(), as_json=as_json, line=True)
            except StoreError as error:
                print_error(error)


def _show_copy(copy: BackedUp, *, as_json: bool, line: bool = False) -> None:
    if not as_json:
        click.echo(f"{copy.path}: {copy.size} bytes")
    elif line:
        click.echo(to_json(copy._asdict()))
    else:
        show_object(copy._asdict(), as_json=True)


def ticks(every: float) -> Iterator[None]:
    """Yield at fixed intervals from now on; missed times are skipped."""
    clock, stopped = SystemClock(), threading.Event()
    next_time = clock.monotonic()
    while True:
        now = clock.monotonic()
        next_time += every * max(1, math.ceil((now - next_time) / every))
        stopped.wait(next_time - now)
        yield


class Copies:
    """Copies of a store in a folder, each in a folder named by its time; the newest are kept.

    Args:
        tools: Tools of the store.
        folder: Folder of the copies; it may have other files.
        keep: Number of copies to keep.
    """

    def __init__(self, tools: StoreTools, folder: Path, keep: int) -> None:
        self._tools = tools
        self._folder = folder
        self._keep = keep

    def make(self) -> BackedUp:
        """Make a copy, and delete the oldest beyond the limit; a failed copy leaves no folder.

        Raises:
            StoreError: It cannot be written; all others are unchanged.
        """
        destination = self._folder / self._name()
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            copy = self._tools.backup(destination, replace=False)
        except OSError as error:
            raise StoreError(f"cannot write backups to {self._folder}: {error}") from error
        except BaseException:
            shutil.rmtree(destination, ignore_errors=True)
            raise
        self._prune(Path(copy.path).name)
        return copy

    def _names(self) -> list[str]:
        """Return the names of the folders of copies, the oldest first."""
        if not self._folder.is_dir():
            return []
        return sorted(each.name for each in self._folder.iterdir()
                      if _COPY_PATTERN.fullmatch(each.name))  # fmt: skip

    def _name(self) -> str:
        """Return the name of the next copy, which sorts last even if the clock was set back."""
        now = datetime.fromtimestamp(SystemClock().now(), timezone.utc)
        for last in self._names()[-1:]:
            latest = datetime.strptime(last, _COPY_NAME).replace(tzinfo=timezone.utc)
            now = max(now, latest + timedelta(seconds=1))
        return now.strftime(_COPY_NAME)

    def _prune(self, file: str) -> None:
        """Delete the oldest copies beyond the limit, counting only complete ones.

        A folder with other files than a copy has is kept: a broker may have been started there.
        """
        names = self._names()
        complete = [name for name in names if (self._folder / name / file).exists()]
        for name in names[: names.index(complete[-self._keep :][0])]:
            copy = self._folder / name
            if any(
                each.name not in {file, "lock"} and not each.name.startswith(".")
                for each in copy.iterdir()
            ):
                continue
            try:
                shutil.rmtree(copy)
            except OSError as error:
                raise StoreError(f"cannot delete {copy}: {error}") from error


@click.group(
    "store",
    epilog="Exit codes: 0 done, 1 there are findings, or the store cannot be reached or used, 2 "
    "wrong usage.",
)
def shared_store() -> None:
    """Maintain a store that several brokers share.

    All brokers of such a store have some settings in common, which are stored in it. Set them here
    as for the brokers, for example with EVENTMQ_DEDUPE_WINDOW.
    """


def _upkeep(target: Target, store: str | None) -> Upkeep:
    """Return the upkeep of the store that the settings and the command line name.

    Raises:
        StoreError: It is the store of a single broker.
    """
    app = target.app(store=store)
    upkeep = app.store_upkeep()
    if upkeep is None:
        raise StoreError(
            f"the store {app.settings.store!r} belongs to one broker, which makes it and keeps no "
            "settings in it; eventmq fsck checks it"
        )
    return upkeep


_UPKEEP_EXITS = {FAILED: "the store cannot be reached or used; nothing was done"}


@shared_store.command(cls=Command, exits=_UPKEEP_EXITS)
@_STORE
@takes_app()
def init(target: Target, store: str | None) -> None:
    """Create the schema of the store, or upgrade it to this version.

    The first broker does the same if its database user may create tables. The settings of this
    command are stored as those of all brokers of the store.
    """
    _print_lines(_upkeep(target, store).init())


@shared_store.command(
    cls=Command, exits={FAILED: "there are findings, or the store cannot be reached or used"}
)
@_STORE
@takes_json
@takes_app()
def check(target: Target, store: str | None, *, as_json: bool) -> int:
    """List what prevents a broker with these settings from using the store."""
    return _report(_upkeep(target, store).check(), as_json=as_json)


@shared_store.command(cls=Command, exits=_UPKEEP_EXITS)
@_STORE
@takes_app()
def contract(target: Target, store: str | None) -> None:
    """Remove what only brokers of the previous release need. Stop these brokers first."""
    _print_lines(_upkeep(target, store).contract())


@shared_store.command("accept-settings", cls=Command, exits=_UPKEEP_EXITS)
@_STORE
@takes_app()
def accept_settings(target: Target, store: str | None) -> None:
    """Store the settings of this command as those of all brokers of the store.

    A broker with other settings is refused from then on; one that runs continues with its settings
    until it is restarted.
    """
    _print_lines(_upkeep(target, store).accept_settings())


@shared_store.command("accept-restore", cls=Command, exits=_UPKEEP_EXITS)
@_STORE
@takes_app()
def accept_restore(target: Target, store: str | None) -> None:
    """Let brokers use a store that was restored to an earlier time.

    Until then they refuse it. Changes after that time are lost, so jobs may run again.
    """
    _print_lines(_upkeep(target, store).accept_restore())


def _print_lines(lines: Sequence[str]) -> None:
    for line in lines:
        click.echo(printable(line))


def _tools(target: Target, data_dir: str | None, store: str | None) -> StoreTools:
    """Return the tools of the store that the settings and the command line name.

    Raises:
        StoreError: The store has no files.
    """
    app = target.app(data_dir=data_dir, store=store)
    tools = app.store_tools()
    if tools is None:
        raise StoreError(f"the store {app.settings.store!r} has no files")
    return tools


COMMANDS = (fsck, backup, shared_store)
