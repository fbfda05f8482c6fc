"""Schema of the SQLite queue store: creates and migrates its tables, and refuses other files.

The tables are those of `eventmq.engine.tables`, and ``meta`` for single values.
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
    "prepare",
    "schema_error",
]

#: Stored in ``PRAGMA user_version``.
SCHEMA_VERSION = 1

#: Stored in ``PRAGMA application_id``, marks the file as ours: "EVMQ".
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
    """Return the statement that creates the table of a bucket."""
    return definitions(_SCHEMA.table(bucket_name(bucket)))[0]


def bucket_index(bucket: int) -> str:
    """Return the statement that creates the index of unique keys of a bucket."""
    return definitions(_SCHEMA.table(bucket_name(bucket)))[1]


def buckets(db: apsw.Connection) -> list[int]:
    """Return the numbers of the buckets that have a table, ascending."""
    rows = db.execute("SELECT name FROM sqlite_master WHERE name GLOB 'outcomes_[0-9]*'")
    return sorted(int(name.removeprefix("outcomes_")) for (name,) in rows if name[9:].isdigit())


#: Formula of the checksums of jobs. As a part of the hash, another one is another schema.
FORMULA = "crc32(queue, headers, body) ^ crc32(id)"

#: Stored in ``meta``: distinguishes development versions, which share a version number.
SCHEMA_HASH = definitions_hash(_TABLES, bucket_ddl(0), bucket_index(0), FORMULA)


class Migration(NamedTuple):
    """A step that migrates the tables of one version to those of the next."""

    #: The `SCHEMA_HASH` of the version that it migrates from.
    schema_hash: str
    #: Changes tables and rows. All steps run in one transaction.
    change: Callable[[apsw.Connection], None]


#: Store version -> the step to the next one. The first release has version 1, so there is none yet.
MIGRATIONS: dict[int, Migration] = {}


def prepare(db: apsw.Connection, path: str) -> None:
    """Create the tables in an empty file, or migrate those of an earlier version, atomically.

    Raises:
        StoreError: The file has another version, or is not a store of EventMQ.
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
    """Return whether a file is empty, so that a store may be created in it."""
    return db.pragma("user_version") == 0 and not first_row(db, "SELECT 1 FROM sqlite_master")


def check_schema(
    db: apsw.Connection, path: Path | str, *, migrates: bool = False
) -> Sequence[Migration]:
    """Refuse a file whose tables are not those of this version; never write to it.

    Args:
        db: A connection to the file, which may be read-only.
        path: Path of the file, for the error.
        migrates: Accept an earlier version from which `MIGRATIONS` has steps, as a broker does.

    Returns:
        The steps to this version, in order.

    Raises:
        StoreError: The file has another version, or is not a store of EventMQ.
    """
    version = db.pragma("user_version")
    if db.pragma("application_id") != APPLICATION_ID:
        raise StoreError(f"{path} is not a store of EventMQ: use another data directory")
    has_meta = first_row(db, "SELECT 1 FROM sqlite_master WHERE name = 'meta'")
    sql = "SELECT value FROM meta WHERE key = 'schema'"
    stored_hash = first_value(db, sql) if has_meta else None
    needed = SCHEMA_VERSION, SCHEMA_HASH
    steps = steps_between(MIGRATIONS, (version, stored_hash), needed, lambda step: step.schema_hash)
    if steps is None:
        raise schema_error(path, version, stored_hash)
    if steps and not migrates:
        raise StoreError(
            f"{path} was made by an earlier EventMQ and has store version {version}: start a "
            f"broker on it once, which changes it to version {SCHEMA_VERSION}"
        )
    return steps


def schema_error(path: Path | str, version: int, stored_hash: object) -> StoreError:
    """Return the error for a store of another version; ``stored_hash`` is the hash in it."""
    tables = f"table definitions {stored_hash}" if stored_hash else "no hash of its tables"
    return StoreError(
        f"{path} was made by another development version of EventMQ: it has store version "
        f"{version} with {tables}, "
        f"this EventMQ needs version {SCHEMA_VERSION} with table definitions {SCHEMA_HASH}; work "
        "off its jobs with the EventMQ that made it, or use another data directory (--data-dir)"
    )
