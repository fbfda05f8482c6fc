"""The tables of the SQLite queue store, and how a file with other tables is refused.

Unfinished jobs are in ``jobs``, each in one of the ``subqueues``; a lease is no write to a job but
one row in ``chunks``. Failed jobs stay whole in ``failed``. Other outcomes go to one table per time
bucket, so that forgetting them is dropping a table. ``attempts`` is the history of jobs that were
tried again, ``job_logs`` what tasks logged, ``bulk_operations`` has what operators do with many
jobs, step by step, ``limiters`` the token buckets of rate limits that are not full, ``suspects``
what is known of jobs that may have killed a process. ``events`` has what happened, a row per
commit: the number of its first event, how many, and how many bytes of events there were ever
before. ``graphs``, ``nodes`` and what follows them are in `graphs`. Times are seconds of store time
(`eventmq.timekeeping`), but for ``expires`` and ``eta``, which are Unix time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from eventmq.engine import SCHEDULE_TABLES, TABLES, Schema, steps_between
from eventmq.errors import StoreError
from eventmq.plugins.database import (
    definitions,
    definitions_hash,
    first_row,
    first_value,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import apsw

__all__ = [
    "MIGRATIONS",
    "SCHEMA_HASH",
    "SCHEMA_VERSION",
    "Migration",
    "bucket_ddl",
    "bucket_index",
    "bucket_name",
    "buckets",
    "check_schema",
    "is_empty",
    "other_schema",
    "prepare",
]


#: Stored in ``PRAGMA user_version``.
SCHEMA_VERSION = 1

#: First bytes of the file, for ``file`` and for us: "EVMQ".
APPLICATION_ID = 0x45564D51

_SCHEMA = Schema(TABLES)

_TABLES = ";\n".join([
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID",
    *(text for table in (*TABLES, *SCHEDULE_TABLES) if not table.periodic
      for text in definitions(table)),
    "INSERT INTO meta VALUES ('failed_bytes', 0)",
    "INSERT INTO schedule_counts VALUES ('live', 0), ('removed', 0), ('forgotten', 0)",
])  # fmt: skip


def bucket_name(bucket: int) -> str:
    """Return the name of the table of a bucket."""
    return f"outcomes_{bucket}"


def bucket_ddl(bucket: int) -> str:
    """Return the statement that makes the table of a bucket."""
    return definitions(_SCHEMA.table(bucket_name(bucket)))[0]


def bucket_index(bucket: int) -> str:
    """Return the statement that makes the index of unique keys of a bucket."""
    return definitions(_SCHEMA.table(bucket_name(bucket)))[1]


def buckets(db: apsw.Connection) -> list[int]:
    """Return the numbers of the buckets that exist, ascending."""
    rows = db.execute("SELECT name FROM sqlite_master WHERE name GLOB 'outcomes_[0-9]*'")
    return sorted(int(name.removeprefix("outcomes_")) for (name,) in rows if name[9:].isdigit())


#: How checksums are made, for the hash of the tables: a store with others is another version.
FORMULA = "crc32(queue, headers, body) ^ crc32(id)"

#: Kept in ``meta``: tells apart stores of development versions, whose version number is the same.
SCHEMA_HASH = definitions_hash(_TABLES, bucket_ddl(0), bucket_index(0), FORMULA)


class Migration(NamedTuple):
    """A step that changes the tables of one version to those of the next."""

    #: Hash of the tables that it changes, as `SCHEMA_HASH` was then.
    schema_hash: str
    #: Changes tables and rows; all steps run in one transaction.
    change: Callable[[apsw.Connection], None]


#: Store version -> the step to the next one. The first release has version 1, so there is none yet.
MIGRATIONS: dict[int, Migration] = {}


def prepare(db: apsw.Connection, path: str) -> None:
    """Make the tables in an empty file, or of those of an earlier version; all or none.

    Raises:
        StoreError: The file is of another version, or is no store of EventMQ.
    """
    if not is_empty(db):
        steps = check_schema(db, path, migrates=True)
        if steps:
            with db:
                for step in steps:
                    step.change(db)
                db.execute("UPDATE meta SET value = ? WHERE key = 'schema'", (SCHEMA_HASH,))
                db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    else:
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        db.execute("BEGIN IMMEDIATE")
        db.execute(_TABLES)
        db.execute("INSERT INTO meta VALUES ('schema', ?)", (SCHEMA_HASH,))
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        db.execute("COMMIT")


def is_empty(db: apsw.Connection) -> bool:
    """Return whether a file has nothing yet, so that a store may be made in it."""
    return db.pragma("user_version") == 0 and not first_row(db, "SELECT 1 FROM sqlite_master")


def check_schema(
    db: apsw.Connection, path: Path | str, *, migrates: bool = False
) -> Sequence[Migration]:
    """Refuse a file whose tables are not those of this version; nothing is written to it.

    Args:
        db: Of the file; it may be unable to write.
        path: Path of the file, for the error.
        migrates: Accept an earlier version that `MIGRATIONS` leads on from, as a broker does.

    Returns:
        The steps to this version, in order.

    Raises:
        StoreError: It is a store of another version, or none.
    """
    version = db.pragma("user_version")
    if db.pragma("application_id") != APPLICATION_ID:
        raise StoreError(f"{path} is not a store of EventMQ: use another data directory")
    made = first_row(db, "SELECT 1 FROM sqlite_master WHERE name = 'meta'")
    stored_hash = first_value(db, "SELECT value FROM meta WHERE key = 'schema'") if made else None
    needed = SCHEMA_VERSION, SCHEMA_HASH
    steps = steps_between(MIGRATIONS, (version, stored_hash), needed, lambda step: step.schema_hash)
    if steps is None:
        raise other_schema(path, version, stored_hash)
    if steps and not migrates:
        raise StoreError(
            f"{path} was made by an earlier EventMQ and has store version {version}: start a "
            f"broker on it once, which changes it to version {SCHEMA_VERSION}"
        )
    return steps


def other_schema(path: Path | str, version: int, stored_hash: object) -> StoreError:
    """Return the error about a store of another version; ``stored_hash`` is its own hash."""
    tables = f"table definitions {stored_hash}" if stored_hash else "no hash of its tables"
    return StoreError(
        f"{path} was made by another development version of EventMQ: it has store version "
        f"{version} with {tables}, "
        f"this EventMQ needs version {SCHEMA_VERSION} with table definitions {SCHEMA_HASH}; work "
        "off its jobs with the EventMQ that made it, or use another data directory (--data-dir)"
    )
