"""Checks of the file itself: is every page what it should be, is all of the log read.

`check_quickly` is the look at a store before a broker serves it.
"""

from __future__ import annotations

import logging
import re
import time
from typing import TYPE_CHECKING

from eventmq.errors import StoreError
from eventmq.plugins.database import INTERRUPTED, UNREADABLE, bad_pages, explain, first_row
from eventmq.plugins.queue_stores.sqlite.tools.rules import RESTORE, first_of
from eventmq.plugins.queue_stores.sqlite.wal import inspect_log
from eventmq.sdk import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import apsw

__all__ = ["SECONDS", "check_log", "check_page_sums", "check_pages", "check_quickly", "read_answer"]

logger = logging.getLogger("eventmq.store")

#: Damage that SQLite is to name at most.
_MOST = 1000

#: What SQLite says in the place of all that it would have found.
_GIVEN_UP = ("database disk image is malformed",)

#: What SQLite says of an index that does not agree with its table.
_OF_INDEX = re.compile(r"(?:row \d+ missing from|wrong # of entries in) index (\S+)")

_TREE = re.compile(r"[Tt]ree (?:page )?(\d+)")

#: Seconds that it may take: a broker that was killed with a million waiting jobs serves again
#: within two.
SECONDS = 1.0

#: What is looked at last: it is large, and nothing waits for it.
_LAST = ("jobs", "member_results", "failed", "attempts", "job_logs", "outcomes", "events")

#: Steps of SQLite's machine between two looks at the clock.
_STEPS = 10_000


def check_log(path: Path, *, durable: bool) -> Iterator[Finding]:
    """Yield what is wrong with the log. No broker may have the store open."""
    end = inspect_log(path)
    if not end.damaged or not durable:
        return
    commits = f"{end.beyond} commits stand" if end.header else "commits may stand"
    yield Finding(
        "log", f"{path.name}-wal",
        f"the log is damaged after {end.frames} pages, and {commits} behind that",
        "what these commits did is lost, receipts that were given included",
        "restore a backup; or go on without them: eventmq fsck --repair keeps a copy",
        repairable=True,
    )  # fmt: skip


def check_page_sums(path: Path) -> Iterator[Finding]:
    """Yield what the checksums of pages say. No broker may have the store open."""
    bad = bad_pages(path)
    if bad:
        sample = first_of(map(str, bad))[0]
        yield Finding(
            "page-checksums", path.name, f"{len(bad)} pages are not what was written: {sample}",
            "a broker ends when it reads one of them", RESTORE, repairable=False,
        )  # fmt: skip


def read_answer(db: apsw.Connection, sql: str) -> tuple[list[str], list[str]]:
    """Return what SQLite finds wrong, as sentences, and which indexes do not agree.

    What was found before a progress handler ended the statement counts. SQLite looks at the pages
    of a table first and at its rows after that, and tells of the pages once it has seen all.

    Args:
        db: Open.
        sql: ``PRAGMA integrity_check`` with an argument.
    """
    says: list[str] = []
    try:
        says.extend(row[0] for row in db.execute(sql))
    except INTERRUPTED:
        pass
    except UNREADABLE as error:
        says.insert(0, explain(error))
    lines = [line for text in says if text != "ok" for line in text.splitlines()]
    indexes = sorted({match[1] for line in lines if (match := _OF_INDEX.match(line))})
    messages = [line for line in lines if not _OF_INDEX.match(line) and not line.startswith("***")]
    return [f"{line}{_named(db, line)}" for line in messages], indexes


def check_pages(db: apsw.Connection) -> Iterator[Finding]:
    """Yield what SQLite finds wrong with the file."""
    messages, indexes = read_answer(db, f"PRAGMA integrity_check({_MOST})")
    if any(
        line in _GIVEN_UP for line in messages
    ):  # it met what it cannot go on from: where is that?
        tables = [
            (name, *read_answer(db, f"PRAGMA integrity_check({name})")) for name in _tables(db)
        ]
        named = [f"{line} (table {name})" for name, lines, _ in tables for line in lines]
        messages = named or messages
        indexes = sorted({index for _, _, table_indexes in tables for index in table_indexes})
    if messages:
        sample, n = first_of(messages)
        yield Finding(
            "pages", "file", f"{n} places are damaged: {sample}",
            "rows there cannot be read, or are not what was written", RESTORE, repairable=False,
        )  # fmt: skip
    if indexes:
        names = first_of(indexes)[0]
        yield Finding(
            "indexes", "file", f"these indexes do not agree with their tables: {names}",
            "jobs are not found, or not handed out", "eventmq fsck --repair makes them anew",
            repairable=not messages,
        )  # fmt: skip


def _tables(db: apsw.Connection) -> list[str]:
    try:
        return [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type='table'")]
    except UNREADABLE:
        return []


def _named(db: apsw.Connection, line: str) -> str:
    """Return which table or index a line of SQLite is about, "" if it does not say."""
    match = _TREE.search(line)
    if match is None:
        return ""
    try:
        row = first_row(
            db, "SELECT type || ' ' || name FROM sqlite_master WHERE rootpage = ?", (int(match[1]),)
        )
    except UNREADABLE:
        return ""
    return f" ({row[0]})" if row else ""


# Before a broker serves a store


def check_quickly(db: apsw.Connection, path: Path, seconds: float = SECONDS) -> None:
    """Refuse a store that is damaged, before a broker serves it and says ``ready``.

    Each table is read with its indexes, page by page, those first that every store needs. It takes
    0.8 s for a million waiting jobs of 300 bytes that are in the system's memory; where the disk
    is slow it ends after `SECONDS`, and says what it has not looked at.

    Args:
        db: Open; it has no transaction.
        path: Of its file.
        seconds: That this may take.

    Raises:
        StoreError: A page of it cannot be used, or an index does not agree with its table.
    """
    end = time.monotonic() + seconds
    timed_out = False

    def is_late() -> bool:
        nonlocal timed_out
        timed_out = time.monotonic() > end
        return timed_out

    tables = _quick_first(db)
    db.set_progress_handler(is_late, _STEPS)
    try:
        for index, table in enumerate(tables):
            damaged, indexes = read_answer(db, f"PRAGMA integrity_check({table})")
            if damaged or indexes:
                raise StoreError(_sentence(path, table, damaged, indexes))
            if timed_out:
                message = "the check of the store %s ended after %g s, before %s: run eventmq fsck"
                logger.info(message, path, seconds, ", ".join(tables[index:]))
                return
    finally:
        db.set_progress_handler(None, 0)


def _quick_first(db: apsw.Connection) -> list[str]:
    """Return the names of all tables, the small ones first, of outcomes the newest first."""
    rows = db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name DESC")
    names = [name for (name,) in rows if not name.startswith("sqlite_")]
    return sorted(
        names, key=lambda name: _LAST.index(kind) if (kind := _kind(name)) in _LAST else -1
    )


def _kind(table: str) -> str:
    return table.partition("_")[0] if table.startswith("outcomes_") else table


def _sentence(path: Path, table: str, damaged: list[str], indexes: list[str]) -> str:
    if damaged:
        return (
            f"the store {path} is damaged in its table {table}: {damaged[0]}; copy what can be "
            "read into a new store with eventmq fsck --salvage DEST, or restore a backup"
        )
    return (
        f"the store {path} is damaged: the index {indexes[0]} does not agree with its table; "
        "eventmq fsck --repair makes it anew"
    )
