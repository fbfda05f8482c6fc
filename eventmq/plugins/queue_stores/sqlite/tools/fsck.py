"""Store tools: checks, repairs, backs up and salvages an SQLite store."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from eventmq.errors import StoreError
from eventmq.plugins.database import UNREADABLE, checkpoint, connect, open_to_read
from eventmq.plugins.queue_stores.sqlite.disk import DataDirectory
from eventmq.plugins.queue_stores.sqlite.schema import check_schema
from eventmq.plugins.queue_stores.sqlite.tools.copy import back_up, copy_files
from eventmq.plugins.queue_stores.sqlite.tools.files import check_log, check_page_sums, check_pages
from eventmq.plugins.queue_stores.sqlite.tools.rules import RESTORE, RULES, add_functions, check
from eventmq.plugins.queue_stores.sqlite.tools.salvage import salvage
from eventmq.plugins.queue_stores.sqlite.wal import BUSY_TIMEOUT
from eventmq.sdk import Finding, Repaired

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import apsw

    from eventmq.sdk import BackedUp, Salvaged

__all__ = ["SqliteTools", "check_rows", "repair_rows"]

#: Number of repair passes, since one pass may reveal what the next one repairs.
_PASSES = 4


class SqliteTools:
    """Checks, repairs and copies the file in a data directory; see `eventmq.interfaces.StoreTools`.

    Args:
        path: Path of the file.
        durable: Whether each commit was synced before the next one was written.
        page_checksums: Whether a salvaged store gets page checksums.
    """

    def __init__(self, path: Path, *, durable: bool, page_checksums: bool = False) -> None:
        self.path = path
        self._durable = durable
        self._page_checksums = page_checksums

    # Checking

    def check(self) -> list[Finding]:
        """See `StoreTools.check`."""
        self._must_exist()
        directory = DataDirectory(self.path.parent, 0)
        # If a broker runs, or the directory cannot be written, the log is not checked.
        with contextlib.suppress(StoreError):
            directory.open()
        try:
            findings = self._log() if directory.locked else []
        finally:
            directory.close()
        return [*findings, *self._findings()]

    def _must_exist(self) -> None:
        if not self.path.is_file():
            raise StoreError(
                f"there is no store in {self.path.parent}: name the data directory of a broker"
            )

    @contextlib.contextmanager
    def _reading(self) -> Iterator[apsw.Connection]:
        try:
            with contextlib.closing(open_to_read(self.path)) as db:
                yield db
        except UNREADABLE as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> StoreError:
        return StoreError(f"cannot read the store {self.path}: {error}; {RESTORE}")

    def _log(self) -> list[Finding]:
        """Check the log and page checksums; this process must not have a connection yet."""
        try:
            findings = list(check_page_sums(self.path))
            return [*findings, *check_log(self.path, durable=self._durable)]
        except UNREADABLE as error:
            raise self._unreadable(error) from error

    def _findings(self) -> Iterator[Finding]:
        """Yield the findings about pages and rows."""
        with self._reading() as db:
            with contextlib.suppress(*UNREADABLE):  # the checks below report damage
                check_schema(db, self.path)
            db.execute("BEGIN")
            yield from check_pages(db)
            yield from check_rows(db)

    # Repairing

    def repair(self) -> Repaired:
        """See `StoreTools.repair`."""
        self._must_exist()
        directory = DataDirectory(self.path.parent, 0)
        directory.open()
        try:
            findings = [*self._log(), *self._findings()]
            damaged = any(finding.check in {"pages", "page-checksums"} for finding in findings)
            if damaged or not any(finding.repairable for finding in findings):
                return Repaired("", [], findings)
            copy = copy_files(self.path, f"before-repair-{time.strftime('%Y%m%dT%H%M%S')}")
            return Repaired(str(copy), self._repair(findings), [*self._log(), *self._findings()])
        except UNREADABLE as error:
            raise StoreError(
                f"the store {self.path} cannot be repaired: {error}; {RESTORE}"
            ) from error
        finally:
            directory.close()

    def _repair(self, findings: list[Finding]) -> list[str]:
        with contextlib.closing(connect(self.path, busy=BUSY_TIMEOUT, create=False)) as db:
            db.execute("PRAGMA synchronous = FULL")
            done = [
                f"indexes: {f.found}" for f in findings if f.check == "indexes" and f.repairable
            ]
            db.execute("BEGIN IMMEDIATE")
            if done:
                db.execute("REINDEX")
            if any(f.check == "log" for f in findings):
                done.append("log: the part after the damage was dropped")
            for _ in range(_PASSES):
                done += repair_rows(db)
            db.execute("COMMIT")
            checkpoint(db, "TRUNCATE")
        return list(dict.fromkeys(done))

    # Copying

    def backup(self, destination: Path, *, replace: bool) -> BackedUp:
        """See `StoreTools.backup`."""
        self._must_exist()
        with self._reading() as db:
            check_schema(db, self.path)
            return back_up(db, self.path, destination, replace=replace)

    def salvage(self, destination: Path) -> Salvaged:
        """See `StoreTools.salvage`."""
        self._must_exist()
        return salvage(
            self.path, destination, _repair_all, durable=self._durable,
            page_checksums=self._page_checksums,
        )  # fmt: skip


def check_rows(db: apsw.Connection) -> Iterator[Finding]:
    """Yield the findings about rows in a database of the current version."""
    add_functions(db)
    yield from check(RULES, db)


def repair_rows(db: apsw.Connection) -> list[str]:
    """Repair rows where nothing is lost by that; return what was repaired."""
    add_functions(db)
    done = []
    for rule in RULES:
        if rule.repair and (finding := rule.check(db)) and finding.repairable:
            db.execute(rule.repair)
            done.append(f"{rule.name}: {finding.found}")
    return done


def _repair_all(db: apsw.Connection) -> list[Finding]:
    """Repair a store in the current transaction; return the remaining findings."""
    for _ in range(_PASSES):
        repair_rows(db)
    return list(check_rows(db))
