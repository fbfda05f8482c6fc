"""Look after the store of a broker: ``fsck``, ``backup`` and ``store``. No broker need run."""

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
    """Check the store in a data directory or a database, and list what is wrong.

    Checks the file, the checksums of its rows, whether they can be read, the counts, and what a
    broker needs to start and to go on; of a database the rows only. It only reads a snapshot, also
    while a broker runs; the log of the file grows meanwhile. Default of DATA_DIR: the setting, else
    .eventmq.
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
        what = f"{row.table} {row.id}".rstrip() + f" ({row.where}): {row.why}"
        click.echo(f"{paint('lost', 'red')}: {printable(what)}")
    click.echo(f"the new store: {done.path}", err=True)
    if done.left:
        click.echo("the new store is not in order:", err=True)
        _report(done.left, as_json=False)
    return code


#: Copies that ``backup --every`` keeps, unless told.
KEPT_COPIES = 24

#: How the folders of these copies are named: by the time of the copy.
_COPY_NAME = "%Y%m%dT%H%M%SZ"
_COPY_PATTERN = re.compile(r"\d{8}T\d{6}Z")


@click.command(
    cls=Command, exits={FAILED: "there is a backup already, or it cannot be written; nothing is"}
)
@click.argument("dest")
@click.option("--data-dir", metavar="DIR", help="The data directory of the broker; else .eventmq.")
@_STORE
@click.option("--replace", is_flag=True, help="Replace the backup that is in DEST.")
@click.option(
    "--every", type=click.FloatRange(min=1), metavar="SECONDS",
    help="Make a copy now and then one every so many seconds, each in a folder of its own in DEST "
    "that is named by its time, until SIGTERM or Ctrl-C.",
)  # fmt: skip
@click.option(
    "--keep", type=click.IntRange(min=1), metavar="N",
    help="Copies of --every that are kept in DEST; older ones are deleted. Default: "
    f"{KEPT_COPIES}.",
)  # fmt: skip
@takes_json
@takes_app()
def backup(
    target: Target, dest: str, *, data_dir: str | None, store: str | None, replace: bool,
    every: float | None, keep: int | None, as_json: bool,
) -> None:  # fmt: skip
    """Copy the store into the folder DEST, while the broker runs or not.

    The copy is a synced snapshot, and is written as a whole or not at all. A broker that is started
    with --data-dir DEST goes on from the snapshot, as a store of its own. Keys, and results that
    are kept elsewhere, are not in it.

    With --every a copy that fails is said on stderr and tried again at the next time; only the
    first one ends the command. With --json each copy is an object on a line of its own.
    """
    if every is None and keep is not None:
        raise click.UsageError("--keep says how many copies of --every are kept: give both")
    if every is not None and replace:
        raise click.UsageError("--every replaces no backup: leave --replace out")
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


def _show_copy(done: BackedUp, *, as_json: bool, line: bool = False) -> None:
    if not as_json:
        click.echo(f"{done.path}: {done.size} bytes")
    elif line:
        click.echo(to_json(done._asdict()))
    else:
        show_object(done._asdict(), as_json=True)


def ticks(every: float) -> Iterator[None]:
    """Yield every so many seconds from now on; times that were missed are left out."""
    clock, never = SystemClock(), threading.Event()
    due = clock.monotonic()
    while True:
        now = clock.monotonic()
        due += every * max(1, math.ceil((now - due) / every))
        never.wait(due - now)
        yield


class Copies:
    """Copies of a store in a folder, each in a folder named by its time; the newest are kept.

    Args:
        tools: Of the store.
        folder: Where the copies are; it may have other files.
        keep: How many are kept.
    """

    def __init__(self, tools: StoreTools, folder: Path, keep: int) -> None:
        self._tools = tools
        self._folder = folder
        self._keep = keep

    def make(self) -> BackedUp:
        """Make a copy, and delete those that are too old; a copy that failed leaves no folder.

        Raises:
            StoreError: It cannot be written; all others are as they were.
        """
        place = self._folder / self._name()
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            done = self._tools.backup(place, replace=False)
        except OSError as error:
            raise StoreError(f"cannot write backups to {self._folder}: {error}") from error
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise
        self._prune(Path(done.path).name)
        return done

    def _names(self) -> list[str]:
        """Return the names of the folders of copies, the oldest first."""
        if not self._folder.is_dir():
            return []
        return sorted(each.name for each in self._folder.iterdir()
                      if _COPY_PATTERN.fullmatch(each.name))  # fmt: skip

    def _name(self) -> str:
        """Return the name of the next copy: the last one in order, also if the clock was set."""
        now = datetime.fromtimestamp(SystemClock().now(), timezone.utc)
        for last in self._names()[-1:]:
            latest = datetime.strptime(last, _COPY_NAME).replace(tzinfo=timezone.utc)
            now = max(now, latest + timedelta(seconds=1))
        return now.strftime(_COPY_NAME)

    def _prune(self, file: str) -> None:
        """Delete what is older than the copies that are kept; only whole ones count as such.

        A folder with more in it than a copy stays: a broker may have been started there.
        """
        names = self._names()
        whole = [name for name in names if (self._folder / name / file).exists()]
        for name in names[: names.index(whole[-self._keep :][0])]:
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
    epilog="Exit codes: 0 done, 1 something is found, or the store cannot be reached or used, 2 "
    "wrong usage.",
)
def shared_store() -> None:
    """Look after a store that several brokers share.

    All brokers of such a store have some settings alike, which are stored in it: set what sets them
    for brokers here too, as EVENTMQ_DEDUPE_WINDOW does.
    """


def _upkeep(target: Target, store: str | None) -> Upkeep:
    """Return what looks after the store that the settings and the command line name.

    Raises:
        StoreError: It is that of a single broker.
    """
    app = target.app(store=store)
    upkeep = app.store_upkeep()
    if upkeep is None:
        raise StoreError(
            f"the store {app.settings.store!r} is that of one broker, which makes it and keeps no "
            "settings in it; eventmq fsck checks it"
        )
    return upkeep


_UPKEEP_EXITS = {FAILED: "the store cannot be reached or used; nothing was done"}


@shared_store.command(cls=Command, exits=_UPKEEP_EXITS)
@_STORE
@takes_app()
def init(target: Target, store: str | None) -> None:
    """Make the store, or what it lacks of this version.

    The first broker does the same where its user may make tables. The settings of here are stored
    as those of all its brokers.
    """
    _say(_upkeep(target, store).init())


@shared_store.command(
    cls=Command, exits={FAILED: "something is found, or the store cannot be reached or used"}
)
@_STORE
@takes_json
@takes_app()
def check(target: Target, store: str | None, *, as_json: bool) -> int:
    """List what keeps a broker with the settings of here from using the store."""
    return _report(_upkeep(target, store).check(), as_json=as_json)


@shared_store.command(cls=Command, exits=_UPKEEP_EXITS)
@_STORE
@takes_app()
def contract(target: Target, store: str | None) -> None:
    """Remove what only brokers of the release before this one need. End these first."""
    _say(_upkeep(target, store).contract())


@shared_store.command("accept-settings", cls=Command, exits=_UPKEEP_EXITS)
@_STORE
@takes_app()
def accept_settings(target: Target, store: str | None) -> None:
    """Store the settings of here as those of all brokers of the store.

    A broker that has others is refused from then on; one that runs goes on with what it has until
    it is started again.
    """
    _say(_upkeep(target, store).accept_settings())


@shared_store.command("accept-restore", cls=Command, exits=_UPKEEP_EXITS)
@_STORE
@takes_app()
def accept_restore(target: Target, store: str | None) -> None:
    """Let brokers go on with a store that was put back to an earlier time.

    Until then they refuse it. What was done after that time is not known any more, so jobs may run
    again.
    """
    _say(_upkeep(target, store).accept_restore())


def _say(lines: Sequence[str]) -> None:
    for line in lines:
        click.echo(printable(line))


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


COMMANDS = (fsck, backup, shared_store)
