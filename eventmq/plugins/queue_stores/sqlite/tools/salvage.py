"""Salvage: copies the readable rows of a damaged store into a new store, and lists the lost ones.

The damaged store is only read. Rows are read page by page (`btree`); those with wrong checksums are
left out. The indexes, counts and id of the new store are created again. Leases are dropped, so jobs
that were running are queued again. Jobs that waited for the result of a lost job are cancelled when
a broker starts on the new store.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import shutil
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq.engine import refs_of
from eventmq.errors import EventMQError, StoreError
from eventmq.plugins.database import (
    DAMAGED,
    DISK_FULL,
    UNREADABLE,
    all_rows,
    change,
    checkpoint,
    connect,
    first_row,
    first_value,
)
from eventmq.plugins.private_files import make_private_file, make_private_folder
from eventmq.plugins.queue_stores.sqlite.checksums import FUNCTIONS
from eventmq.plugins.queue_stores.sqlite.disk import DataDirectory
from eventmq.plugins.queue_stores.sqlite.schema import (
    APPLICATION_ID,
    SCHEMA_HASH,
    SCHEMA_VERSION,
    bucket_ddl,
    bucket_index,
    prepare,
    schema_error,
)
from eventmq.plugins.queue_stores.sqlite.tools.btree import BadPage, File
from eventmq.plugins.queue_stores.sqlite.tools.copy import sync
from eventmq.plugins.queue_stores.sqlite.wal import inspect_log
from eventmq.sdk import Lost, Salvaged, unpack
from eventmq.sdk.events import unpack_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import apsw

    from eventmq.sdk import Finding

    Repair = Callable[[apsw.Connection], Sequence[Finding]]

__all__ = ["salvage"]

#: Seconds to wait for locks; no other process uses these files.
_BUSY_TIMEOUT = 5.0

#: Bytes at the beginning of a file that are the same in all our files.
_CONSTANT_BYTES = 24

#: Positions of ``user_version`` and ``application_id`` in the header.
_VERSION, _APPLICATION = slice(60, 64), slice(68, 72)

#: A version that is not below this means that the header is damaged.
_VERSION_LIMIT = 10_000

#: Keys of single values that are not copied, since they identify the damaged store.
_NOT_COPIED = (
    "store_id", "schema", "addresses", "journal", "journal_sealed", "journal_told", "copied",
)  # fmt: skip

#: Tables that are read first, since checksums of others cover their names.
_NAMES = ("names", "queues")

#: Tables that are created again, or copied separately.
_SEPARATE = {"chunks", "events", "schedule_counts"}

#: Table -> its index with the ids and numbers of all rows.
_ID_INDEXES = {"jobs": "jobs_id", "failed": "failed_id", "nodes": "nodes_id"}

#: Declared type -> types of its values.
_KINDS: Mapping[str, tuple[type, ...]] = {
    "TEXT": (str,), "INTEGER": (int,), "REAL": (float, int), "BLOB": (bytes,),
}  # fmt: skip

#: Name of the table of all tables and their root pages, in reports.
_SCHEMA = "sqlite_schema"

#: Marks the definition of a table whose rows have no rowids and are in inner pages as well.
_WITHOUT_ROWID = "WITHOUT ROWID"

#: Reason for cancelling the jobs behind a join.
_LOST = "dependency: {} was lost with a damaged store"


class _Column(NamedTuple):
    """A column of a table."""

    name: str
    kind: str
    required: bool
    default: Any
    #: Whether it is the rowid.
    is_rowid: bool


def salvage(
    path: Path, folder: Path, repair: Repair, *, durable: bool, page_checksums: bool
) -> Salvaged:
    """Copy the readable rows into a new store in a folder that is empty or does not exist.

    Args:
        path: Path of the damaged database.
        folder: Folder of the new store.
        repair: Repairs rows of a store, and returns the remaining findings.
        durable: Whether each commit was synced before the next one was written.
        page_checksums: Whether the new store gets page checksums.

    Raises:
        StoreError: A broker has the store open; the folder is not empty or cannot be written; the
            store has another version.
    """
    is_new = not folder.exists()
    if not is_new and (not folder.is_dir() or any(folder.iterdir())):
        raise StoreError(f"{folder} is not empty: name another folder for what can be read")
    directory = DataDirectory(path.parent, 0)
    if os.access(path.parent, os.W_OK):
        directory.open()  # lock brokers out; none can run in a read-only directory
    try:
        make_private_folder(folder)
        return _Salvage(path, folder, page_checksums=page_checksums).run(repair, durable=durable)
    except BaseException as error:
        for file_path in folder.glob("*"):
            file_path.unlink()
        if is_new:
            with contextlib.suppress(OSError):
                folder.rmdir()
        if isinstance(error, (OSError, *UNREADABLE)):
            raise StoreError(f"cannot write to {folder}: {error}; nothing was written") from error
        raise
    finally:
        directory.close()


class _Salvage:
    """One salvage of a store."""

    def __init__(self, path: Path, folder: Path, *, page_checksums: bool) -> None:
        self.path = path
        self._page_checksums = page_checksums
        self.copy = folder / "source"
        self.target = folder / path.name
        self.lost: list[Lost] = []
        self.copied: Counter[str] = Counter()
        #: Table with an id index -> numbers of its copied rows.
        self.numbers: dict[str, set[int]] = {table: set() for table in _ID_INDEXES}
        #: Id of the damaged store, "" if it cannot be read.
        self._source_id = ""
        #: Join that lost a result or its order -> why its jobs are cancelled.
        self.broken: dict[int, str] = {}
        #: Table or index -> its root page; and the tables whose rows have no rowids.
        self._roots: dict[str, int] = {}
        self._unnumbered: set[str] = set()

    def run(self, repair: Repair, *, durable: bool) -> Salvaged:
        """Run the salvage; return its report."""
        self._read_log(durable=durable)
        self._copy_files()
        with (
            self.copy.open("rb") as source,
            mmap.mmap(source.fileno(), 0, prot=mmap.PROT_READ) as data,
            contextlib.closing(self._new_store()) as db,
        ):
            version = int.from_bytes(data[_VERSION], "big")
            is_eventmq = int.from_bytes(data[_APPLICATION], "big") == APPLICATION_ID
            if version != SCHEMA_VERSION and is_eventmq and 0 < version < _VERSION_LIMIT:
                raise schema_error(self.path, version, None)
            db.execute("BEGIN")
            self._fill(File(data), db)
            db.execute("COMMIT")
            remaining = self._finish(db, repair)
        self.copy.unlink()
        sync(self.target)
        sync(self.target.parent)
        return Salvaged(str(self.target), dict(self.copied), self.lost, remaining)

    # Files

    def _read_log(self, *, durable: bool) -> None:
        try:
            end = inspect_log(self.path)
        except UNREADABLE as error:
            self._record_loss("log", self.path.name, f"the log cannot be read: {error}")
            return
        if end.damaged and durable:
            commits = f"{end.beyond} commits" if end.header else "all commits"
            self._record_loss(
                "log", f"after {end.frames} pages", f"{commits} in it, even those with receipts"
            )

    def _copy_files(self) -> None:
        """Copy the database and move its log into the copy, from which everything else is read."""
        log = self.path.with_name(f"{self.path.name}-wal")
        log_copy = self.copy.with_name(f"{self.copy.name}-wal")
        make_private_file(self.copy)
        shutil.copyfile(self.path, self.copy)
        if log.exists() and log.stat().st_size:
            make_private_file(log_copy)
            shutil.copyfile(log, log_copy)
            try:
                self._move_log()
            except DISK_FULL:  # this is no damage: a salvage to another disk can succeed
                raise
            except UNREADABLE as error:
                self._record_loss("log", log.name, f"all commits in it: {error}")
        for end in ("-wal", "-shm", "-journal"):
            self.copy.with_name(self.copy.name + end).unlink(missing_ok=True)

    def _move_log(self) -> None:
        try:
            self._checkpoint()
        except DAMAGED:  # the first bytes of the header are known, so replace them
            self._write_header()
            self._checkpoint()

    def _checkpoint(self) -> None:
        with contextlib.closing(connect(self.copy, busy=_BUSY_TIMEOUT, page_checksums=False)) as db:
            first_row(db, "PRAGMA user_version")  # the first read opens the log
            checkpoint(db, "TRUNCATE")

    def _write_header(self) -> None:
        with contextlib.closing(connect(":memory:", busy=_BUSY_TIMEOUT)) as db:
            db.execute("CREATE TABLE t (a)")
            header = bytearray(db.serialize("main")[:_CONSTANT_BYTES])
        header[18:20] = b"\2\2"  # write-ahead log mode
        with self.copy.open("r+b") as file:
            file.write(header)

    def _new_store(self) -> apsw.Connection:
        make_private_file(self.target)
        db = connect(self.target, busy=_BUSY_TIMEOUT, page_checksums=self._page_checksums or None)
        db.execute("PRAGMA synchronous = OFF")  # the whole file is synced at the end
        prepare(db, str(self.target))
        return db

    # Rows

    def _fill(self, file: File, db: apsw.Connection) -> None:
        self._roots, declared = self._schema(file, db)
        created = all_rows(db, "SELECT name, sql FROM sqlite_master WHERE type = 'table'")
        self._refuse_other(file, db, declared)
        tables = [name for name, _ in created]
        self._unnumbered = {
            name for name, sql in (*created, *declared.items()) if _WITHOUT_ROWID in sql
        }
        for name in declared:
            if name.startswith("outcomes_") and name[9:].isdigit():
                db.execute(bucket_ddl(int(name[9:])))
                db.execute(bucket_index(int(name[9:])))
                tables.append(name)
        copied_tables = [
            name for name in sorted(tables)
            if name not in _NAMES and name not in _SEPARATE and not name.startswith("sqlite_")
        ]  # fmt: skip
        for table in (*_NAMES, *copied_tables):
            self._table(file, db, table, declared.get(table, ""))
        self._leases(file, db)
        self._events(file, db)
        self._lost_rows(file, db)

    def _refuse_other(self, file: File, db: apsw.Connection, declared: Mapping[str, str]) -> None:
        """Refuse a store of another version: both its hash and a table definition differ."""
        root = self._roots.get("meta")
        rows = file.rows(root, lambda _: None) if root else ()
        hashes = [values[1] for _, values in rows if values[:1] == ["schema"] and len(values) > 1]
        created = dict(all_rows(db, "SELECT name, sql FROM sqlite_master"))
        same_tables = all(
            created.get(name) == sql for name, sql in declared.items()
            if sql and not name.startswith(("outcomes_", "sqlite_"))
        )  # fmt: skip
        if hashes and hashes[0] != SCHEMA_HASH and not same_tables:
            raise schema_error(self.path, SCHEMA_VERSION, hashes[0])

    def _record_loss(self, table: str, location: str, why: str, job_id: str = "") -> None:
        self.lost.append(Lost(table, location, job_id, why))

    def _schema(self, file: File, db: apsw.Connection) -> tuple[dict[str, int], dict[str, str]]:
        """Return the root page and the definition of each table and index.

        A root page that cannot be read is assumed to be that of the new store, since tables are
        always created in the same order.
        """
        roots: dict[str, int] = {}
        declared: dict[str, str] = {}
        for row in file.rows(1, self._damage(_SCHEMA)):
            if len(row.values) == 5 and isinstance(row.values[1], str):  # noqa: PLR2004 - its columns
                _, name, _, root, sql = row.values
                if type(root) is int and root:
                    roots[name], declared[name] = root, sql if isinstance(sql, str) else ""
        all_roots, known_roots = file.roots(), set(roots.values())
        for name, root in db.execute("SELECT name, rootpage FROM sqlite_master"):
            if name not in roots and root in all_roots - known_roots:
                roots[name] = root
        return roots, declared

    def _damage(self, table: str, *, numbered: bool = True) -> Callable[[BadPage], None]:
        def record(page: BadPage) -> None:
            if page.inner and numbered:
                return  # the page had no rows, and the pages below it are read anyway
            between = ""
            if page.after is not None or page.before is not None:
                between = f", rows {page.after or 0} to {page.before or 'the last'}"
            self._record_loss(table, f"page {page.page}{between}", page.why)

        return record

    def _rows(self, file: File, table: str) -> Iterator[tuple[int, list[Any]]]:
        root = self._roots.get(table)
        if root is None:
            # If the list of tables was read in full, the store never had this one.
            if any(row.table == _SCHEMA for row in self.lost):
                self._record_loss(table, "the whole table", "its root page is not known")
            return
        numbered = table not in self._unnumbered
        yield from file.rows(root, self._damage(table, numbered=numbered))

    def _table(self, file: File, db: apsw.Connection, table: str, sql: str) -> None:
        columns = _columns(db, table)
        order = _order(sql) or [column.name for column in columns]
        known = {column.name for column in columns}
        names = [name for name in order if name in known]
        verb = "REPLACE" if table == "meta" else "IGNORE"
        insert = (
            f"INSERT OR {verb} INTO {table} ({', '.join(names)}) "
            f"VALUES ({', '.join('?' * len(names))})"
        )
        checker = _RowChecker(db, table)
        for number, values in self._rows(file, table):
            if len(values) > len(order):
                self._record_loss(table, f"row {number}", "it has too many values")
                continue
            row = dict(zip(order, values, strict=False))
            for column in columns:
                if column.is_rowid:
                    row[column.name] = number
                else:
                    row.setdefault(column.name, column.default)
            why = _type_error(row, columns) or checker.check(row)
            if why:
                self._record_loss(table, f"row {number}" if number else "a row", why, _id_of(row))
                self._record_broken(table, row)
                if not checker.is_kept:
                    continue
            if table == "meta" and self._is_of_source(row):
                continue
            if change(db, insert, [row[name] for name in names]):
                self.copied[table] += 1
                if table in self.numbers:
                    self.numbers[table].add(number)
            else:
                self._record_loss(
                    table, f"row {number}", "another one has the same id", _id_of(row)
                )
        if table in _NAMES:
            self._read_names(file, db, table)

    def _is_of_source(self, row: Mapping[str, Any]) -> bool:
        """Return whether a row of ``meta`` must not be copied; keep the id of the store."""
        if row["key"] == "store_id":
            self._source_id = str(row["value"])
        return row["key"] in _NOT_COPIED

    def _record_broken(self, table: str, row: Mapping[str, Any]) -> None:
        """Record the join that lost a result or the order of its results."""
        if table in {"member_results", "join_arguments"} and type(row.get("join_key")) is int:
            missing = "the order of results"
            if table == "member_results":
                missing = f"the result of job {_id_of(row)}"
            self.broken[row["join_key"]] = _LOST.format(missing)

    def _read_names(self, file: File, db: apsw.Connection, table: str) -> None:
        """Copy names from the index of their table, if rows of the table were lost."""
        root = self._roots.get(f"{table}_name")
        if root is None:
            return
        sql = f"INSERT OR IGNORE INTO {table} (name, id) VALUES (?, ?)"
        for _, values in file.rows(root, lambda _: None):
            if [type(value) for value in values] == [str, int]:
                self.copied[table] += change(db, sql, values)

    # Tables that are copied separately

    def _leases(self, file: File, db: apsw.Connection) -> None:
        """Queue leased jobs again, counting the delivery of their lease."""
        sql = "UPDATE jobs SET delivery = ? WHERE seq = ? AND id = ? AND delivery < ?"
        for _, values in self._rows(file, "chunks"):
            try:
                leases = unpack(values[3], "a lease")
                for seq, delivery, job_id in leases:
                    db.execute(sql, (delivery, seq, job_id, delivery))
            except (EventMQError, ValueError, TypeError, IndexError):
                self._record_loss("chunks", "a lease", "the deliveries of its jobs are not counted")

    def _events(self, file: File, db: apsw.Connection) -> None:
        """Copy events under new numbers without gaps; for journals this is another store."""
        blocks: dict[int, tuple[int, bytes]] = {}
        for number, values in self._rows(file, "events"):
            count, body = (values[1], values[-1]) if len(values) > 3 else (0, b"")  # noqa: PLR2004 - its columns
            try:
                valid = sum(len(block.ids) for block in unpack_blocks(body)) == count
            except (EventMQError, TypeError, ValueError):
                valid = False
            if valid:
                blocks[number] = count, body
            else:
                self._record_loss("events", f"row {number}", "it cannot be read")
        insert = "INSERT INTO events (first, count, offset, body) VALUES (?, ?, ?, ?)"
        expected = first = 1
        position = 0
        for number, (count, body) in sorted(blocks.items()):
            if number > expected > 1:
                self._record_loss(
                    "events", f"events {expected} to {number - 1}", "their rows are missing"
                )
            expected = number + count
            db.execute(insert, (first, count, position, body))
            first, position = first + count, position + len(body)
            self.copied["events"] += 1

    def _lost_rows(self, file: File, db: apsw.Connection) -> None:
        """Report rows that an index has and that were not copied; break joins that need them."""
        positions = {(row.table, row.where): position for position, row in enumerate(self.lost)}
        for table, index in _ID_INDEXES.items():
            root = self._roots.get(index)
            for _, values in file.rows(root, lambda _: None) if root else ():
                if [type(value) for value in values] != [str, int]:
                    continue
                job_id, number = values
                if number in self.numbers[table]:
                    continue
                position = positions.get((table, f"row {number}"))
                if position is None:
                    self._record_loss(table, f"row {number}", "its page cannot be read", job_id)
                else:  # the id in the row may be damaged, so use that of the index
                    self.lost[position] = self.lost[position]._replace(id=job_id)
                if table == "jobs":
                    self._break_after(db, number, f"job {job_id}")
        for row in [row for row in self.lost if row.table == "jobs" and row.where[:4] == "row "]:
            number = int(row.where[4:]) if row.where[4:].isdigit() else 0
            self._break_after(db, number, f"job {row.id}")
        self._break_incomplete(db)
        sql = """INSERT OR IGNORE INTO pending_work (join_key, reason, cursor, copies)
                 VALUES (?, ?, 0, 0)"""
        keys = {key for (key,) in all_rows(db, "SELECT key FROM joins")}
        db.executemany(sql, [item for item in self.broken.items() if item[0] in keys])

    def _break_after(self, db: apsw.Connection, number: int, missing: str) -> None:
        """Break the join that waits for a lost job."""
        node = first_row(db, "SELECT output FROM nodes WHERE key = ?", (number,))
        if node is not None and node[0] > 0:
            self.broken.setdefault(node[0], _LOST.format(missing))

    def _break_incomplete(self, db: apsw.Connection) -> None:
        """Break joins that lost the order of their results, or a result."""
        sql = """SELECT joins.key, joins.graph, tree FROM joins
                 LEFT JOIN join_arguments ON join_arguments.join_key = joins.key"""
        results_lost = any(row.table == "member_results" for row in self.lost)
        exists = """SELECT 1 FROM jobs WHERE seq = ?
                   UNION ALL SELECT 1 FROM member_results WHERE join_key = ? AND key = ?"""
        for key, graph, tree in all_rows(db, sql):
            try:
                nodes = refs_of(unpack(tree, "a tree"))
            except (EventMQError, TypeError):
                self.broken.setdefault(key, _LOST.format("the order of results"))
                continue
            seqs = [graph + node for node in nodes] if results_lost else []
            if any(first_row(db, exists, (seq, key, seq)) is None for seq in seqs):
                self.broken.setdefault(key, _LOST.format("a result"))

    # Finishing

    def _finish(self, db: apsw.Connection, repair: Repair) -> Sequence[Finding]:
        """Set the id and epoch of the new store, and repair it; return the remaining findings."""
        db.execute("BEGIN")
        entries = [("store_id", secrets.token_hex(8)), ("copied", time.time())]
        entries += [("copied_from", self._source_id)] if self._source_id else []
        db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", entries)
        db.execute("INSERT OR IGNORE INTO meta VALUES ('epoch', ?)", (int(time.time()),))
        # The nodes have all that the row of a graph needs; the repair counts its jobs.
        db.execute("""INSERT OR IGNORE INTO graphs (key, size, remaining, ended)
                      SELECT graph, max(key) - graph + 1, 0, 0 FROM nodes GROUP BY graph""")
        # Jobs behind a join that lost one of its members are cancelled.
        sql = """INSERT OR IGNORE INTO pending_work (join_key, reason, cursor, copies)
                 SELECT key, ?, 0, 0 FROM joins WHERE remaining <> (SELECT count(*) FROM nodes
                 JOIN jobs ON jobs.seq = nodes.key WHERE nodes.graph = joins.graph
                 AND nodes.key BETWEEN joins.first AND joins.final
                 AND nodes.output = joins.key)"""
        if self.lost:
            db.execute(sql, (_LOST.format("a job"),))
        remaining = repair(db)
        db.execute("COMMIT")
        return remaining


class _RowChecker:
    """Checks the checksums of the rows of a table."""

    def __init__(self, db: apsw.Connection, table: str) -> None:
        self._queues: dict[int, str] = dict(all_rows(db, "SELECT id, name FROM queues"))
        self._names: dict[int, str] = dict(all_rows(db, "SELECT id, name FROM names"))
        self._table = "outcomes" if table.startswith("outcomes_") else table
        #: Whether the last checked row is copied although it is damaged.
        self.is_kept = False

    def check(self, row: Mapping[str, Any]) -> str:
        """Return what is wrong with a row, "" for nothing."""
        self.is_kept = False
        if "queue" in row and row["queue"] not in self._queues and self._table != "subqueues":
            return "the name of its queue is lost"
        if self._sum(row) != row.get("crc"):
            return "its checksum is wrong"
        if self._table == "failed":
            error = _call("data_crc", row["head_crc"], row["content_type"], row["result"])
            self.is_kept = error != row["result_crc"]
        return "the checksum of its error is wrong" if self.is_kept else ""

    def _sum(self, row: Mapping[str, Any]) -> Any:
        """Return the right checksum of a row; its own if rows of the table have no checksum."""
        match self._table:
            case "jobs" | "failed":
                values = self._queues[row["queue"]], row["headers"], row["body"], row["id"]
                return _call("job_crc", *values)
            case "outcomes":
                label = self._names.get(row["task"])
                values = row["state"], row["content_type"], row["result"], row["id"]
                return _call("outcome_crc", self._queues[row["queue"]], label, *values)
            case "attempts":
                return _of_id(row, "error")
            case "job_logs":
                number = str(row["attempt"]).encode()
                return _call("data_crc", _call("id_crc", row["id"]), number, row["body"])
            case "member_results":
                return _of_id(row, "result")
            case "join_arguments":
                return _call("data_crc", row["join_key"], b"", row["tree"])
            case "schedules" if not row["removed"]:
                return _call("data_crc", _call("id_crc", row["name"]), b"", row["definition"])
            case _:
                return row.get("crc")


def _call(name: str, *values: Any) -> int:
    return FUNCTIONS[name][1](*values)


def _of_id(row: Mapping[str, Any], data: str) -> int:
    return _call("data_crc", _call("id_crc", row["id"]), row["content_type"], row[data])


def _columns(db: apsw.Connection, table: str) -> list[_Column]:
    rows = all_rows(db, f"PRAGMA table_info({table})")
    sql = "SELECT sql FROM sqlite_master WHERE name = ?"
    numbered = (
        _WITHOUT_ROWID not in first_value(db, sql, (table,))
        and sum(row[5] > 0 for row in rows) == 1
    )
    return [
        _Column(
            name, kind, bool(required),
            None if default is None else first_value(db, f"SELECT {default}"),
            numbered and bool(key) and kind == "INTEGER",
        )
        for _, name, kind, required, default, key in rows
    ]  # fmt: skip


def _order(sql: str) -> list[str]:
    """Return the names of the columns in a definition of a table, in order."""
    if not sql:
        return []
    with contextlib.closing(connect(":memory:", busy=_BUSY_TIMEOUT)) as db:
        try:
            db.execute(sql)
            name = first_value(db, "SELECT name FROM sqlite_master")
            return [column.name for column in _columns(db, name)]
        except UNREADABLE:
            return []


def _type_error(row: Mapping[str, Any], columns: list[_Column]) -> str:
    """Return what is wrong with the types of the values of a row, "" for nothing."""
    for name, kind, required, _, _ in columns:
        value = row[name]
        if value is None:
            if required:
                return f"it has no {name}"
        elif kind and not isinstance(value, _KINDS.get(kind, object)):
            return f"its {name} has a wrong type"
    return ""


def _id_of(row: Mapping[str, Any]) -> str:
    """Return the id or name in a row, as far as it can be read."""
    value = row.get("id", row.get("name", row.get("job", "")))
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
