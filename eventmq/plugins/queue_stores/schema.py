"""The tables of the SQLite queue store, and how an older file becomes a current one.

Unfinished jobs are in ``jobs``, each in one of the ``lanes``; a lease is no write to a job but one
row in ``chunks``. Failed jobs stay whole in ``failed``. Other outcomes go to one table per time
bucket, so that forgetting them is dropping a table. ``attempts`` is the history of jobs that were
tried again, ``sweeps`` has what operators do with many jobs, step by step, ``limiters`` the token
buckets of rate limits that are not full. ``events`` has what happened, a row per commit: the number
of its first event, how many, and how many bytes of events there were ever before. ``graphs``,
``nodes`` and what follows them are in `eventmq.plugins.queue_stores.graphs`. Times are
seconds of store time (`eventmq.timekeeping`), but for ``expires`` and ``eta``, which are Unix time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.entries import lane_of
from eventmq.errors import StoreError
from eventmq.plugins.database import add_function, first_row
from eventmq.plugins.queue_stores.checksums import FUNCTIONS, as_text

if TYPE_CHECKING:
    import apsw

__all__ = [
    "JOB_CRC",
    "JOB_HEAD",
    "SCHEMA_VERSION",
    "add_checksums",
    "bucket_ddl",
    "bucket_index",
    "bucket_name",
    "buckets",
    "outcome_sum",
    "prepare",
]

#: Stored in ``PRAGMA user_version``.
SCHEMA_VERSION = 12

#: First bytes of the file, for ``file`` and for us: "EVMQ".
APPLICATION_ID = 0x45564D51

_JOB = """id TEXT NOT NULL, queue INTEGER NOT NULL, rank INTEGER NOT NULL,
  state INTEGER NOT NULL, attempt INTEGER NOT NULL, delivery INTEGER NOT NULL,
  deaths INTEGER NOT NULL, due REAL NOT NULL, expires REAL NOT NULL, created REAL NOT NULL,
  headers TEXT NOT NULL, body BLOB NOT NULL"""


def _names(columns: str) -> str:
    """Return the names of columns that are declared."""
    return ", ".join(column.split()[0] for column in columns.split(","))


_TABLES = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE names (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE queues (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE,
  waiting INTEGER NOT NULL DEFAULT 0, delayed INTEGER NOT NULL DEFAULT 0,
  failed INTEGER NOT NULL DEFAULT 0);
CREATE TABLE jobs (seq INTEGER PRIMARY KEY, {_JOB});
CREATE UNIQUE INDEX jobs_id ON jobs (id);
CREATE INDEX jobs_ready ON jobs (queue, rank, seq) WHERE state = 2;
CREATE INDEX jobs_due ON jobs (due) WHERE state = 1;
CREATE TABLE chunks (session TEXT NOT NULL, number INTEGER NOT NULL, epoch INTEGER NOT NULL,
  leases BLOB NOT NULL, PRIMARY KEY (session, number)) WITHOUT ROWID;
CREATE TABLE failed (seq INTEGER PRIMARY KEY, {_JOB}, at REAL NOT NULL, content_type TEXT NOT NULL,
  result BLOB NOT NULL, started REAL NOT NULL, ran REAL NOT NULL, worker INTEGER NOT NULL);
CREATE UNIQUE INDEX failed_id ON failed (id);
"""

_QUEUE = "(SELECT CAST(name AS BLOB) FROM queues WHERE queues.id = queue)"

#: The checksums of a job, by its table; of an outcome: `outcome_sum`.
JOB_HEAD = f"job_head({_QUEUE}, CAST(headers AS BLOB), CAST({{0}}.id AS BLOB))"
JOB_CRC = f"""job_crc({_QUEUE}, CAST(headers AS BLOB), CAST(body AS BLOB),
  CAST({{0}}.id AS BLOB))"""

_CRCS = "head_crc INTEGER NOT NULL, crc INTEGER NOT NULL"

#: Of a job since version 10: what is long comes last, so that nothing else is read over it.
_CHECKED = f"""{_JOB.partition("headers")[0]}eta REAL NOT NULL DEFAULT 0, {_CRCS}"""
_COPIED = _names(_JOB)

#: What takes a file from the version of that place, counted from 1, to the next.
_STEPS = (
    """
ALTER TABLE queues ADD COLUMN paused INTEGER NOT NULL DEFAULT 0;
ALTER TABLE failed ADD COLUMN size INTEGER NOT NULL DEFAULT 0;
UPDATE failed SET size = length(CAST(headers AS BLOB)) + length(body) + length(result);
INSERT INTO meta SELECT 'failed_bytes', coalesce(sum(size), 0) FROM failed;
CREATE INDEX failed_at ON failed (at, seq);
CREATE TABLE attempts (key INTEGER PRIMARY KEY, id TEXT NOT NULL, attempt INTEGER NOT NULL,
  delivery INTEGER NOT NULL, at REAL NOT NULL, started REAL NOT NULL, ran REAL NOT NULL,
  worker INTEGER NOT NULL, content_type TEXT NOT NULL, error BLOB NOT NULL,
  ended REAL NOT NULL DEFAULT 0);
CREATE UNIQUE INDEX attempts_id ON attempts (id, attempt);
CREATE INDEX attempts_ended ON attempts (ended) WHERE ended > 0;
CREATE TABLE sweeps (key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, operation BLOB NOT NULL,
  at REAL NOT NULL, bound INTEGER NOT NULL, cursor INTEGER NOT NULL, touched INTEGER NOT NULL,
  done INTEGER NOT NULL);
""",
    """
ALTER TABLE jobs ADD COLUMN unique_key TEXT;
ALTER TABLE failed ADD COLUMN unique_key TEXT;
CREATE INDEX jobs_unique ON jobs (unique_key, created) WHERE unique_key IS NOT NULL;
CREATE INDEX failed_unique ON failed (unique_key, created) WHERE unique_key IS NOT NULL;
""",
    """
CREATE TABLE lanes (id INTEGER PRIMARY KEY, queue INTEGER NOT NULL, task TEXT,
  key TEXT NOT NULL DEFAULT '');
CREATE INDEX lanes_of ON lanes (queue, task, key);
ALTER TABLE jobs ADD COLUMN lane INTEGER NOT NULL DEFAULT 0;
INSERT INTO lanes (queue, task) SELECT DISTINCT queue, task_of(headers) FROM jobs;
UPDATE jobs SET lane = (SELECT id FROM lanes WHERE lanes.queue = jobs.queue
  AND lanes.task IS task_of(jobs.headers));
DROP INDEX jobs_ready;
CREATE INDEX jobs_ready ON jobs (lane, rank, seq) WHERE state = 2;
CREATE TABLE limiters (task TEXT NOT NULL, key TEXT NOT NULL, tokens REAL NOT NULL,
  updated REAL NOT NULL, period REAL NOT NULL, PRIMARY KEY (task, key)) WITHOUT ROWID;
""",
    """
CREATE TABLE events (first INTEGER PRIMARY KEY, count INTEGER NOT NULL, offset INTEGER NOT NULL,
  body BLOB NOT NULL);
CREATE INDEX jobs_expires ON jobs (expires) WHERE expires > 0;
""",
    """
ALTER TABLE queues ADD COLUMN blocked INTEGER NOT NULL DEFAULT 0;
CREATE TABLE graphs (key INTEGER PRIMARY KEY, size INTEGER NOT NULL, left INTEGER NOT NULL,
  ended REAL NOT NULL);
CREATE INDEX graphs_ended ON graphs (ended);
CREATE TABLE nodes (key INTEGER PRIMARY KEY, id TEXT NOT NULL, graph INTEGER NOT NULL,
  input INTEGER NOT NULL, output INTEGER NOT NULL);
CREATE UNIQUE INDEX nodes_id ON nodes (id);
CREATE TABLE barriers (key INTEGER PRIMARY KEY, graph INTEGER NOT NULL, left INTEGER NOT NULL,
  first INTEGER NOT NULL, final INTEGER NOT NULL, last INTEGER NOT NULL);
CREATE TABLE trees (barrier INTEGER PRIMARY KEY, tree BLOB NOT NULL);
CREATE TABLE held (key INTEGER PRIMARY KEY, barrier INTEGER NOT NULL, id TEXT NOT NULL,
  content_type TEXT NOT NULL, result BLOB NOT NULL);
CREATE TABLE handlers (key INTEGER PRIMARY KEY, graph INTEGER NOT NULL, first INTEGER NOT NULL,
  end INTEGER NOT NULL);
CREATE INDEX handlers_graph ON handlers (graph);
CREATE TABLE deadlines (key INTEGER PRIMARY KEY, graph INTEGER NOT NULL, first INTEGER NOT NULL,
  end INTEGER NOT NULL, due REAL NOT NULL);
CREATE INDEX deadlines_graph ON deadlines (graph);
CREATE INDEX deadlines_due ON deadlines (due);
""",
    """
CREATE TABLE inputs (job TEXT PRIMARY KEY, barrier INTEGER NOT NULL, first INTEGER NOT NULL,
  final INTEGER NOT NULL, size INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX inputs_barrier ON inputs (barrier);
""",
    """
ALTER TABLE nodes ADD COLUMN parent INTEGER NOT NULL DEFAULT 0;
UPDATE nodes SET parent = coalesce((SELECT first FROM barriers WHERE key = input), 0)
  WHERE input > 0;
""",
    """
CREATE TABLE works (key INTEGER PRIMARY KEY, barrier INTEGER NOT NULL UNIQUE, reason TEXT,
  cursor INTEGER NOT NULL, copies INTEGER NOT NULL);
CREATE TABLE spent (key INTEGER PRIMARY KEY, first INTEGER NOT NULL, final INTEGER NOT NULL);
""",
    """
ALTER TABLE chunks ADD COLUMN leased REAL NOT NULL DEFAULT 0;
""",
    f"""
CREATE TABLE jobs_now (seq INTEGER PRIMARY KEY, {_CHECKED}, unique_key TEXT,
  lane INTEGER NOT NULL DEFAULT 0, headers TEXT NOT NULL, body BLOB NOT NULL);
INSERT INTO jobs_now (seq, {_COPIED}, unique_key, lane, head_crc, crc)
  SELECT seq, {_COPIED}, unique_key, lane, {JOB_HEAD.format("jobs")}, {JOB_CRC.format("jobs")}
  FROM jobs;
DROP TABLE jobs;
ALTER TABLE jobs_now RENAME TO jobs;
CREATE UNIQUE INDEX jobs_id ON jobs (id);
CREATE INDEX jobs_ready ON jobs (lane, rank, seq) WHERE state = 2;
CREATE INDEX jobs_due ON jobs (due) WHERE state = 1 AND eta = 0;
CREATE INDEX jobs_eta ON jobs (eta) WHERE state = 1 AND eta > 0;
CREATE INDEX jobs_expires ON jobs (expires) WHERE expires > 0;
CREATE INDEX jobs_unique ON jobs (unique_key, created) WHERE unique_key IS NOT NULL;
CREATE TABLE failed_now (seq INTEGER PRIMARY KEY, {_CHECKED}, result_crc INTEGER NOT NULL,
  at REAL NOT NULL, content_type TEXT NOT NULL, started REAL NOT NULL, ran REAL NOT NULL,
  worker INTEGER NOT NULL, size INTEGER NOT NULL DEFAULT 0, unique_key TEXT, headers TEXT NOT NULL,
  body BLOB NOT NULL, result BLOB NOT NULL);
INSERT INTO failed_now (seq, {_COPIED}, unique_key, at, content_type, result, started, ran, worker,
  size, head_crc, crc, result_crc)
  SELECT *, data_crc(head, content_type, result) FROM (SELECT seq, {_COPIED},
  unique_key, at, content_type, result, started, ran, worker, size,
  {JOB_HEAD.format("failed")} AS head, {JOB_CRC.format("failed")} FROM failed);
DROP TABLE failed;
ALTER TABLE failed_now RENAME TO failed;
CREATE UNIQUE INDEX failed_id ON failed (id);
CREATE INDEX failed_at ON failed (at, seq);
CREATE INDEX failed_unique ON failed (unique_key, created) WHERE unique_key IS NOT NULL;
ALTER TABLE attempts ADD COLUMN crc INTEGER NOT NULL DEFAULT 0;
UPDATE attempts SET crc = data_crc(id_crc(id), content_type, error);
ALTER TABLE held ADD COLUMN crc INTEGER NOT NULL DEFAULT 0;
UPDATE held SET crc = data_crc(id_crc(id), content_type, result);
ALTER TABLE trees ADD COLUMN crc INTEGER NOT NULL DEFAULT 0;
UPDATE trees SET crc = data_crc(barrier, '', tree);
""",
    """
ALTER TABLE queues ADD COLUMN gone REAL NOT NULL DEFAULT 0;
CREATE INDEX queues_gone ON queues (gone) WHERE gone > 0;
""",
)


def bucket_name(bucket: int) -> str:
    """Return the name of the table of a bucket."""
    return f"outcomes_{bucket}"


def bucket_ddl(bucket: int) -> str:
    """Return the statement that makes the table of a bucket."""
    return f"""CREATE TABLE IF NOT EXISTS {bucket_name(bucket)} (
  id TEXT PRIMARY KEY, state INTEGER NOT NULL, at REAL NOT NULL, until REAL NOT NULL,
  crc INTEGER NOT NULL, content_type TEXT NOT NULL, result BLOB, queue INTEGER NOT NULL,
  task INTEGER NOT NULL, attempt INTEGER NOT NULL, delivery INTEGER NOT NULL, created REAL NOT NULL,
  started REAL NOT NULL, ran REAL NOT NULL, worker INTEGER NOT NULL, unique_key TEXT)
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


def prepare(db: apsw.Connection, where: str) -> None:
    """Make the tables in an empty file, or check those of an existing one.

    What an older file lacks is added in one transaction.

    Raises:
        StoreError: The file is of a newer version, or is no store of EventMQ.
    """
    (version,) = first_row(db, "PRAGMA user_version")
    (application,) = first_row(db, "PRAGMA application_id")
    if version > SCHEMA_VERSION and application == APPLICATION_ID:
        msg = (
            f"{where} has store version {version}, this EventMQ knows up to {SCHEMA_VERSION}: "
            "use the newer EventMQ that wrote it, or another data directory"
        )
        raise StoreError(msg)
    steps: list[str] = []
    if version == 0 and not first_row(db, "SELECT 1 FROM sqlite_master"):
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        steps = [_TABLES, f"PRAGMA application_id = {APPLICATION_ID}"]
        version, application = 1, APPLICATION_ID
    if application != APPLICATION_ID:
        msg = f"{where} is not a store of EventMQ: use another data directory"
        raise StoreError(msg)
    add_function(db, "task_of", lambda text: lane_of(text).task)
    add_checksums(db)
    _run(db, *steps, *_STEPS[version - 1 :])


def add_checksums(db: apsw.Connection) -> None:
    """Give a connection the functions of `FUNCTIONS`."""
    add_function(db, "as_text", as_text)
    for name, (count, function) in FUNCTIONS.items():
        add_function(db, name, function, count)


def _run(db: apsw.Connection, *scripts: str) -> None:
    """Take the file to this version, all the way or not at all."""
    statements = [text for text in ";".join(scripts).split(";") if text.strip()]
    if not statements:
        return
    db.execute("BEGIN IMMEDIATE")
    for statement in statements:
        db.execute(statement)
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    db.execute("COMMIT")
