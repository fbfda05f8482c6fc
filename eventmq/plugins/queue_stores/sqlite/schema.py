"""The tables of the SQLite queue store, and how a file with other tables is refused.

Unfinished jobs are in ``jobs``, each in one of the ``subqueues``; a lease is no write to a job but
one row in ``chunks``. Failed jobs stay whole in ``failed``. Other outcomes go to one table per time
bucket, so that forgetting them is dropping a table. ``attempts`` is the history of jobs that were
tried again, ``bulk_operations`` has what operators do with many jobs, step by step, ``limiters``
the token buckets of rate limits that are not full, ``suspects`` what is known of jobs that may have
killed a process. ``events`` has what happened, a row per commit: the number of its first event,
how many, and how many bytes of events there were ever before.
``graphs``, ``nodes`` and what follows them are in `graphs`. Times are
seconds of store time (`eventmq.timekeeping`), but for ``expires`` and ``eta``, which are Unix time.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from eventmq.errors import ProtocolError, StoreError
from eventmq.plugins.database import add_function, all_rows, definitions_hash, first_row
from eventmq.plugins.queue_stores.sqlite.checksums import FORMULA, FUNCTIONS, as_text
from eventmq.plugins.schedule_stores.table import TABLES as SCHEDULE_TABLES
from eventmq.timekeeping import ClockRecord
from eventmq.wire.batches import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import apsw

__all__ = [
    "JOB_CRC",
    "JOB_HEAD",
    "MIGRATIONS",
    "SCHEMA_HASH",
    "SCHEMA_VERSION",
    "Migration",
    "add_checksums",
    "bucket_ddl",
    "bucket_index",
    "bucket_name",
    "buckets",
    "check_expected",
    "check_schema",
    "identify",
    "is_empty",
    "load_clock",
    "other_schema",
    "outcome_sum",
    "prepare",
    "read_clock",
    "save_clock",
]


#: Stored in ``PRAGMA user_version``.
SCHEMA_VERSION = 1

#: First bytes of the file, for ``file`` and for us: "EVMQ".
APPLICATION_ID = 0x45564D51

_JOB = """id TEXT NOT NULL, queue INTEGER NOT NULL, rank INTEGER NOT NULL,
  state INTEGER NOT NULL, attempt INTEGER NOT NULL, delivery INTEGER NOT NULL,
  deaths INTEGER NOT NULL, ready_at REAL NOT NULL, expires REAL NOT NULL, created REAL NOT NULL,
  eta REAL NOT NULL DEFAULT 0, head_crc INTEGER NOT NULL, crc INTEGER NOT NULL"""

#: What is long comes last in a row, so that nothing else is read over it.
_TABLES = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE names (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE queues (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE,
  waiting INTEGER NOT NULL DEFAULT 0, delayed INTEGER NOT NULL DEFAULT 0,
  failed INTEGER NOT NULL DEFAULT 0, paused INTEGER NOT NULL DEFAULT 0,
  blocked INTEGER NOT NULL DEFAULT 0, removed_at REAL NOT NULL DEFAULT 0);
CREATE INDEX queues_removed ON queues (removed_at) WHERE removed_at > 0;
CREATE TABLE subqueues (id INTEGER PRIMARY KEY, queue INTEGER NOT NULL, task TEXT,
  key TEXT NOT NULL DEFAULT '');
CREATE INDEX subqueues_of ON subqueues (queue, task, key);
CREATE TABLE jobs (seq INTEGER PRIMARY KEY, {_JOB}, unique_key TEXT,
  subqueue INTEGER NOT NULL DEFAULT 0, headers TEXT NOT NULL, body BLOB NOT NULL);
CREATE UNIQUE INDEX jobs_id ON jobs (id);
CREATE INDEX jobs_ready ON jobs (subqueue, rank, seq) WHERE state = 2;
CREATE INDEX jobs_delayed ON jobs (ready_at) WHERE state = 1 AND eta = 0;
CREATE INDEX jobs_eta ON jobs (eta) WHERE state = 1 AND eta > 0;
CREATE INDEX jobs_expires ON jobs (expires) WHERE expires > 0;
CREATE INDEX jobs_unique ON jobs (unique_key, created) WHERE unique_key IS NOT NULL;
CREATE TABLE chunks (session TEXT NOT NULL, number INTEGER NOT NULL, epoch INTEGER NOT NULL,
  leases BLOB NOT NULL, leased REAL NOT NULL DEFAULT 0, PRIMARY KEY (session, number))
  WITHOUT ROWID;
CREATE TABLE failed (seq INTEGER PRIMARY KEY, {_JOB}, result_crc INTEGER NOT NULL,
  at REAL NOT NULL, content_type TEXT NOT NULL, started REAL NOT NULL, run_time REAL NOT NULL,
  worker INTEGER NOT NULL, size INTEGER NOT NULL DEFAULT 0, unique_key TEXT, headers TEXT NOT NULL,
  body BLOB NOT NULL, result BLOB NOT NULL);
CREATE UNIQUE INDEX failed_id ON failed (id);
CREATE INDEX failed_at ON failed (at, seq);
CREATE INDEX failed_unique ON failed (unique_key, created) WHERE unique_key IS NOT NULL;
CREATE TABLE attempts (key INTEGER PRIMARY KEY, id TEXT NOT NULL, attempt INTEGER NOT NULL,
  delivery INTEGER NOT NULL, at REAL NOT NULL, started REAL NOT NULL, run_time REAL NOT NULL,
  worker INTEGER NOT NULL, content_type TEXT NOT NULL, error BLOB NOT NULL,
  ended REAL NOT NULL DEFAULT 0, crc INTEGER NOT NULL DEFAULT 0);
CREATE UNIQUE INDEX attempts_id ON attempts (id, attempt);
CREATE INDEX attempts_ended ON attempts (ended) WHERE ended > 0;
CREATE TABLE bulk_operations (key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE,
  operation BLOB NOT NULL, at REAL NOT NULL, bound INTEGER NOT NULL, cursor INTEGER NOT NULL,
  affected INTEGER NOT NULL, done INTEGER NOT NULL);
CREATE TABLE limiters (task TEXT NOT NULL, key TEXT NOT NULL, tokens REAL NOT NULL,
  updated REAL NOT NULL, period REAL NOT NULL, PRIMARY KEY (task, key)) WITHOUT ROWID;
CREATE TABLE suspects (seq INTEGER PRIMARY KEY, record BLOB NOT NULL);
CREATE TABLE events (first INTEGER PRIMARY KEY, count INTEGER NOT NULL, offset INTEGER NOT NULL,
  body BLOB NOT NULL);
CREATE TABLE graphs (key INTEGER PRIMARY KEY, size INTEGER NOT NULL, remaining INTEGER NOT NULL,
  ended REAL NOT NULL);
CREATE INDEX graphs_ended ON graphs (ended);
CREATE TABLE nodes (key INTEGER PRIMARY KEY, id TEXT NOT NULL, graph INTEGER NOT NULL,
  input INTEGER NOT NULL, output INTEGER NOT NULL, parent INTEGER NOT NULL DEFAULT 0);
CREATE UNIQUE INDEX nodes_id ON nodes (id);
CREATE TABLE joins (key INTEGER PRIMARY KEY, graph INTEGER NOT NULL, remaining INTEGER NOT NULL,
  first INTEGER NOT NULL, final INTEGER NOT NULL, last INTEGER NOT NULL);
CREATE TABLE join_arguments (join_key INTEGER PRIMARY KEY, tree BLOB NOT NULL,
  crc INTEGER NOT NULL DEFAULT 0);
CREATE TABLE member_results (key INTEGER PRIMARY KEY, join_key INTEGER NOT NULL, id TEXT NOT NULL,
  content_type TEXT NOT NULL, result BLOB NOT NULL, crc INTEGER NOT NULL DEFAULT 0);
CREATE TABLE inputs (job TEXT PRIMARY KEY, join_key INTEGER NOT NULL, first INTEGER NOT NULL,
  final INTEGER NOT NULL, size INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX inputs_join_key ON inputs (join_key);
CREATE TABLE pending_work (key INTEGER PRIMARY KEY, join_key INTEGER NOT NULL UNIQUE, reason TEXT,
  cursor INTEGER NOT NULL, copies INTEGER NOT NULL);
CREATE TABLE releasable_results (key INTEGER PRIMARY KEY, first INTEGER NOT NULL,
  final INTEGER NOT NULL);
CREATE TABLE handlers (key INTEGER PRIMARY KEY, graph INTEGER NOT NULL, first INTEGER NOT NULL,
  end INTEGER NOT NULL);
CREATE INDEX handlers_graph ON handlers (graph);
CREATE TABLE deadlines (key INTEGER PRIMARY KEY, graph INTEGER NOT NULL, first INTEGER NOT NULL,
  end INTEGER NOT NULL, at REAL NOT NULL);
CREATE INDEX deadlines_graph ON deadlines (graph);
CREATE INDEX deadlines_at ON deadlines (at);
INSERT INTO meta VALUES ('failed_bytes', 0);
"""

_QUEUE = "(SELECT CAST(name AS BLOB) FROM queues WHERE queues.id = queue)"

#: The checksums of a job, by its table; of an outcome: `outcome_sum`.
JOB_HEAD = f"job_head({_QUEUE}, CAST(headers AS BLOB), CAST({{0}}.id AS BLOB))"

JOB_CRC = f"""job_crc({_QUEUE}, CAST(headers AS BLOB), CAST(body AS BLOB),
  CAST({{0}}.id AS BLOB))"""


def bucket_name(bucket: int) -> str:
    """Return the name of the table of a bucket."""
    return f"outcomes_{bucket}"


def bucket_ddl(bucket: int) -> str:
    """Return the statement that makes the table of a bucket."""
    return f"""CREATE TABLE IF NOT EXISTS {bucket_name(bucket)} (
  id TEXT PRIMARY KEY, state INTEGER NOT NULL, at REAL NOT NULL, until REAL NOT NULL,
  crc INTEGER NOT NULL, content_type TEXT NOT NULL, result BLOB, queue INTEGER NOT NULL,
  task INTEGER NOT NULL, attempt INTEGER NOT NULL, delivery INTEGER NOT NULL, created REAL NOT NULL,
  started REAL NOT NULL, run_time REAL NOT NULL, worker INTEGER NOT NULL, unique_key TEXT)
  WITHOUT ROWID"""


def outcome_sum(table: str) -> str:
    """Return the expression for the checksum of an outcome, by the name of its table."""
    return f"""outcome_crc((SELECT CAST(name AS BLOB) FROM queues WHERE queues.id = queue),
  (SELECT CAST(name AS BLOB) FROM names WHERE names.id = task), state,
  CAST(content_type AS BLOB), CAST(result AS BLOB), CAST({table}.id AS BLOB))"""


def bucket_index(bucket: int) -> str:
    """Return the statement that makes the index of unique keys of a bucket."""
    name = bucket_name(bucket)
    return f"""CREATE INDEX IF NOT EXISTS {name}_unique ON {name} (unique_key, created)
  WHERE unique_key IS NOT NULL"""


def buckets(db: apsw.Connection) -> list[int]:
    """Return the numbers of the buckets that exist, ascending."""
    rows = db.execute("SELECT name FROM sqlite_master WHERE name GLOB 'outcomes_[0-9]*'")
    return sorted(int(name.removeprefix("outcomes_")) for (name,) in rows if name[9:].isdigit())


#: Kept in ``meta``: tells apart stores of development versions, whose version number is the same.
SCHEMA_HASH = definitions_hash(_TABLES, bucket_ddl(0), bucket_index(0), *SCHEDULE_TABLES, FORMULA)


class Migration(NamedTuple):
    """A step that changes the tables of one version to those of the next."""

    #: Hash of the tables that it changes, as `SCHEMA_HASH` was then.
    schema_hash: str
    #: Changes tables and rows; all steps run in one transaction.
    change: Callable[[apsw.Connection], None]


#: Store version -> the step to the next one. The first release has version 1, so there is none yet.
MIGRATIONS: dict[int, Migration] = {}


def _steps_from(version: int, schema_hash: object) -> Sequence[Migration] | None:
    """Return the steps from a version to this one, None where there is no way."""
    steps = [MIGRATIONS[v] for v in range(version, SCHEMA_VERSION) if v in MIGRATIONS]
    if len(steps) != SCHEMA_VERSION - version:
        return None
    return steps if schema_hash == (steps[0].schema_hash if steps else SCHEMA_HASH) else None


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
    add_checksums(db)


def is_empty(db: apsw.Connection) -> bool:
    """Return whether a file has nothing yet, so that a store may be made in it."""
    (version,) = first_row(db, "PRAGMA user_version")
    return version == 0 and not first_row(db, "SELECT 1 FROM sqlite_master")


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
    (version,) = first_row(db, "PRAGMA user_version")
    (application,) = first_row(db, "PRAGMA application_id")
    if application != APPLICATION_ID:
        raise StoreError(f"{path} is not a store of EventMQ: use another data directory")
    made = first_row(db, "SELECT 1 FROM sqlite_master WHERE name = 'meta'")
    row = first_row(db, "SELECT value FROM meta WHERE key = 'schema'") if made else None
    stored_hash = row[0] if row else None
    steps = _steps_from(version, stored_hash)
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


def add_checksums(db: apsw.Connection) -> None:
    """Give a connection the functions of `FUNCTIONS`."""
    add_function(db, "as_text", as_text)
    for name, (count, function) in FUNCTIONS.items():
        add_function(db, name, function, count)


def identify(db: apsw.Connection, now: float) -> tuple[str, int]:
    """Return id and epoch of a store that a broker opens, and write them.

    A backup gets an id of its own each time that a broker opens it anew: what is sent again, and
    the journal, belong to the store that it was copied from. Its epoch is above all that peers
    can have seen, since that store may have gone on.

    Args:
        db: In a transaction.
        now: Unix time.
    """
    meta = dict(db.execute("SELECT key, value FROM meta"))
    store_id, epoch = meta.get("store_id"), meta.get("epoch", 0) + 1
    if "copied" in meta:
        store_id, epoch = None, max(epoch, int(now))
        db.execute("DELETE FROM meta WHERE key = 'copied'")
    store_id = store_id or secrets.token_hex(8)
    for item in (("store_id", store_id), ("epoch", epoch)):
        db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", item)
    return store_id, epoch


def check_expected(db: apsw.Connection, path: str, expected: str) -> None:
    """Refuse a store that has another id than the expected one; "" expects none.

    Args:
        db: A connection that has written nothing yet.
        path: Path of the file, for the error.
        expected: The id.

    Raises:
        StoreError: It has another id, or will get one because it is a backup or was salvaged.
    """
    if not expected:
        return
    made = first_row(db, "SELECT 1 FROM sqlite_master WHERE name = 'meta'")
    meta = dict(all_rows(db, "SELECT key, value FROM meta")) if made else {}
    store_id, restored = meta.get("store_id"), meta.get("copied_from")
    if "copied" in meta:
        of = f" of the store {restored}" if restored else ""
        msg = (
            f"the store {path} is a copy{of}, which gets an id of its own when a broker first "
            f"opens it: start the broker once without expect_store ({expected}), and then expect "
            "the id that its ready line says"
        )
        raise StoreError(msg)
    if store_id != expected:
        actual = f"the id {store_id}" if store_id else "no id"
        of = f" (it was a copy of the store {restored})" if restored else ""
        msg = (
            f"the store {path} has {actual}{of}, and expect_store says {expected}: see that the "
            "right disk is mounted and --data-dir is right, or expect this id"
        )
        raise StoreError(msg)


def save_clock(db: apsw.Connection, record: ClockRecord) -> None:
    """Write what the clocks show."""
    values = list(record)
    row = pack([values, crc32(pack(values))])
    db.execute("INSERT OR REPLACE INTO meta VALUES ('clock', ?)", (row,))


def load_clock(db: apsw.Connection) -> ClockRecord | None:
    """Return what was written last, None in a store that never had it.

    Raises:
        ProtocolError: It is damaged.
    """
    row = first_row(db, "SELECT value FROM meta WHERE key = 'clock'")
    return None if row is None else read_clock(row[0])


def read_clock(packed: Any) -> ClockRecord:
    """Return the record of a row.

    Raises:
        ProtocolError: It is damaged.
    """
    try:
        values, checksum = unpack(packed, "the row of the clocks")
        record = ClockRecord.of(values)
    except (TypeError, ValueError) as error:
        msg = "the row of the clocks cannot be read"
        raise ProtocolError(msg, code="bad-store") from error
    if checksum != crc32(pack(values)):
        raise ProtocolError("the row of the clocks does not fit its checksum", code="bad-store")
    return record
