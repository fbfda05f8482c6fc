"""Tables of a queue store, declared as data from which each store creates them.

- ``jobs``: unfinished jobs, each in one of the ``subqueues``.
- ``chunks``: leases; one row leases all jobs of a chunk, and the rows of the jobs do not change.
- ``failed``: failed jobs, with headers and body. Operators look for these by queue, task and type
  of the error (its last part), each with the time.
- ``outcomes``: all other outcomes; one table per period of time, so that old ones are dropped with
  their table.
- ``attempts``: failed attempts of jobs that were tried again; with the number 0 the arguments of
  ended jobs (`eventmq.engine.arguments`).
- ``job_logs``: logs of attempts, of tasks that keep them.
- ``bulk_operations``: operations of operators on many jobs, which run in slices.
- ``limiters``: token buckets of rate limits, unless they are full.
- ``suspects``: records of jobs that may have killed a process.
- ``events``: the event log, a row per commit: number of its first event, number of events, and the
  total bytes of all events ever stored before.
- ``graphs``, ``nodes`` and those that follow: see `eventmq.engine.graphs`.

Times are seconds of store time (`eventmq.timekeeping`), except ``expires`` and ``eta``, which are
Unix time. Conditions and derived columns are SQL that SQLite and PostgreSQL both accept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from eventmq.job import HELD, STATE_CODES, JobState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "SCHEDULE_TABLES", "SHORT", "TABLES", "Column", "Index", "Schema", "Table", "period_name",
]  # fmt: skip

#: Maximum bytes of a result that is always read with its row.
SHORT = 4096


class Column(NamedTuple):
    """Column of a table."""

    name: str
    #: ``text``, ``integer`` (64 bits), ``real`` (64 bits) or ``bytes``.
    type: str
    #: Whether the column may be None, which is then its default.
    null: bool = False
    #: Value for rows that are inserted without this column; None if they must have it.
    default: str | float | None = None


class Index(NamedTuple):
    """Index of a table, beside that of its primary key."""

    name: str
    columns: tuple[str, ...]
    unique: bool = False
    #: SQL condition; other rows are not in the index. "" for all rows.
    where: str = ""


class Table(NamedTuple):
    """Table, or template of the tables of periods."""

    name: str
    columns: tuple[Column, ...]
    #: Columns of the primary key.
    key: tuple[str, ...]
    indexes: tuple[Index, ...] = ()
    #: Whether the store assigns the key: one integer, greater for each new row.
    serial: bool = False
    #: Whether the store should keep rows in the order of their key.
    clustered: bool = False
    #: Whether there is one such table per period.
    periodic: bool = False
    #: Read-only column -> its SQL expression.
    derived: Mapping[str, str] = {}
    #: Whether rows are changed and deleted all the time.
    hot: bool = False


_SUCCEEDED, _QUEUED, _DELAYED = (
    STATE_CODES[state] for state in (JobState.SUCCEEDED, JobState.QUEUED, JobState.DELAYED)
)


def _columns(text: str) -> tuple[Column, ...]:
    """Return the columns declared as ``name type =default``; a ``?`` after the type allows None."""
    columns = []
    for declaration in text.split(","):
        name, kind, *default = declaration.split()
        null = kind.endswith("?")
        value = default[0].removeprefix("=") if default else None
        kind = kind.removesuffix("?")
        columns.append(Column(name, kind, null, value if kind == "text" else value and int(value)))
    return tuple(columns)


_JOB = """seq integer, id text, queue integer, rank integer, state integer, attempt integer,
  delivery integer, deaths integer, ready_at real, expires real, created real, eta real =0,
  head_crc integer, crc integer"""

_LONG = f"state = {_SUCCEEDED} AND length(result) > {SHORT}"

#: Derived column that is read in place of the body when the body is not needed.
_NONE = {"no_body": "NULL"}

TABLES: tuple[Table, ...] = (
    Table("names", _columns("id integer, name text"), ("id",),
          (Index("names_name", ("name",), unique=True),)),
    Table("queues", _columns("""id integer, name text, waiting integer =0, delayed integer =0,
          failed integer =0, paused integer =0, blocked integer =0, removed_at real =0"""), ("id",),
          (Index("queues_name", ("name",), unique=True),
           Index("queues_live", ("id",), where="removed_at = 0"),
           Index("queues_removed", ("removed_at",), where="removed_at > 0"))),
    Table("subqueues", _columns("id integer, queue integer, legacy integer, task text, key text"),
          ("id",), (Index("subqueues_of", ("queue", "legacy", "task", "key")),)),
    # Long values come last in a row, so that other columns are read without them.
    Table("jobs", _columns(f"{_JOB}, unique_key text?, subqueue integer =0, headers text, "
          "body bytes"), ("seq",),
          (Index("jobs_id", ("id",), unique=True),
           Index("jobs_ready", ("subqueue", "rank", "seq"), where=f"state = {_QUEUED}"),
           Index("jobs_delayed", ("ready_at", "seq"), where=f"state = {_DELAYED} AND eta = 0"),
           Index("jobs_eta", ("eta",),
                 where=f"state = {_DELAYED} AND eta > 0 AND ready_at < {HELD}"),
           Index("jobs_held", ("unique_key",),
                 where=f"unique_key IS NOT NULL AND state = {_DELAYED} AND ready_at >= {HELD}"),
           Index("jobs_expires", ("expires", "seq"), where="expires > 0"),
           Index("jobs_unique", ("unique_key", "created"), where="unique_key IS NOT NULL")),
          derived={**_NONE, "size": "length(body)"}, hot=True),
    Table("chunks", _columns("session text, number integer, epoch integer, leases bytes, "
          "leased real =0"), ("session", "number"), clustered=True, hot=True),
    Table("failed", _columns(f"""{_JOB}, result_crc integer, at real, content_type text,
          started real, run_time real, worker integer, size integer =0, unique_key text?,
          task text =, error text =, headers text, body bytes, result bytes"""), ("seq",),
          (Index("failed_id", ("id",), unique=True), Index("failed_at", ("at", "seq")),
           Index("failed_queue", ("queue", "at", "seq")),
           Index("failed_task", ("task", "at", "seq")),
           Index("failed_error", ("error", "at", "seq")),
           Index("failed_unique", ("unique_key", "state", "created"),
                 where="unique_key IS NOT NULL")),
          derived=_NONE),
    Table("outcomes", _columns("""id text, state integer, at real, until real, crc integer,
          content_type text, result bytes?, queue integer, task integer, attempt integer,
          delivery integer, created real, started real, run_time real, worker integer,
          unique_key text?"""), ("id",),
          (Index("outcomes_unique", ("unique_key", "state", "created"),
                 where="unique_key IS NOT NULL"),),
          clustered=True, periodic=True,
          derived={
              "short_result": f"CASE WHEN {_LONG} THEN NULL ELSE result END",
              "short_crc": f"CASE WHEN {_LONG} THEN NULL ELSE crc END",
              "long": f"CASE WHEN {_LONG} THEN length(result) ELSE 0 END",
          }),
    Table("attempts", _columns("""id text, attempt integer, delivery integer, at real, started real,
          run_time real, worker integer, content_type text, error bytes, ended real =0,
          crc integer =0"""), ("id", "attempt"),
          (Index("attempts_ended", ("ended",), where="ended > 0"),),
          derived={"size": "length(error)"}),
    Table("job_logs", _columns("id text, attempt integer, at real, ttl real, until real =0, "
          "crc integer, body bytes"), ("id", "attempt"),
          (Index("job_logs_until", ("until",), where="until > 0"),),
          derived={"size": "length(body)"}),
    Table("bulk_operations", _columns("""key integer, id text, operation bytes, at real,
          bound integer, cursor integer, affected integer, done integer"""), ("key",),
          (Index("bulk_operations_id", ("id",), unique=True),), serial=True),
    Table("limiters", _columns("task text, key text, tokens real, updated real, period real"),
          ("task", "key"), clustered=True),
    Table("suspects", _columns("seq integer, record bytes"), ("seq",)),
    Table("events", _columns("first integer, count integer, offset integer, body bytes"),
          ("first",), derived={"size": "length(body)"}),
    Table("graphs", _columns("key integer, size integer, remaining integer, ended real"), ("key",),
          (Index("graphs_ended", ("ended",)),)),
    Table("nodes", _columns("key integer, id text, graph integer, input integer, output integer, "
          "parent integer =0"), ("key",), (Index("nodes_id", ("id",), unique=True),)),
    Table("joins", _columns("key integer, graph integer, remaining integer, first integer, "
          "final integer, last integer"), ("key",), hot=True),
    Table("join_arguments", _columns("join_key integer, tree bytes, crc integer =0"),
          ("join_key",)),
    Table("member_results", _columns("key integer, join_key integer, id text, content_type text, "
          "result bytes, crc integer =0"), ("join_key", "key"), clustered=True,
          derived={"size": "length(result)"}),
    Table("inputs", _columns("job text, join_key integer, first integer, final integer, "
          "size integer"), ("job",), (Index("inputs_join_key", ("join_key",)),), clustered=True),
    Table("pending_work", _columns("key integer, join_key integer, reason text?, cursor integer, "
          "copies integer"), ("key",), (Index("pending_work_join", ("join_key",), unique=True),),
          serial=True),
    Table("releasable_results", _columns("key integer, first integer, final integer"), ("key",),
          serial=True),
    Table("handlers", _columns("key integer, graph integer, first integer, end integer"),
          ("key",), (Index("handlers_graph", ("graph",)),)),
    Table("deadlines", _columns("key integer, graph integer, first integer, end integer, "
          "at real"), ("key",),
          (Index("deadlines_graph", ("graph",)), Index("deadlines_at", ("at",))), serial=True),
)  # fmt: skip

#: Tables of schedules, the only ones in a schedule store. A count without a row is 0.
SCHEDULE_TABLES: tuple[Table, ...] = (
    Table("schedules", _columns("""name text, version integer, revision integer, removed integer,
          source text, last_fire_time real?, remaining integer?, last_job text, definition bytes,
          crc integer"""), ("name",),
          (Index("schedules_revision", ("revision",), unique=True),
           Index("schedules_removed", ("revision",), where="removed = 1")), hot=True),
    Table("schedule_counts", _columns("key text, value integer"), ("key",), clustered=True),
)  # fmt: skip


def period_name(name: str, number: int) -> str:
    """Return the name of the table, or the index, of a period."""
    return f"{name}_{number}"


class Schema:
    """Finds tables and indexes by name, including those of periods.

    Args:
        tables: All tables and templates.
    """

    def __init__(self, tables: Iterable[Table]) -> None:
        self.tables = tuple(tables)
        self._indexes: dict[str, tuple[Table, Index]] = {}
        for table in self.tables:
            self._add(table)

    def _add(self, table: Table) -> None:
        self._indexes[table.name] = table, Index(table.name, table.key, unique=True)
        self._indexes.update((index.name, (table, index)) for index in table.indexes)

    def table(self, name: str) -> Table:
        """Return a table; raises `KeyError` for an unknown name."""
        return self.index(name)[0]

    def index(self, name: str) -> tuple[Table, Index]:
        """Return the table and the index with a name; a table's name means its primary key.

        Raises:
            KeyError: No table or index has that name.
        """
        entry = self._indexes.get(name)
        if entry is None:
            template, _, number = name.rpartition("_")
            table, _ = self._indexes[template]
            if not (table.periodic and number.isdigit()):
                raise KeyError(name)
            self._add(of_period(table, int(number)))
            entry = self._indexes[name]
        return entry


def of_period(table: Table, number: int) -> Table:
    """Return the table of a period, made from its template."""
    return table._replace(
        name=period_name(table.name, number), periodic=False,
        indexes=tuple(
            index._replace(name=period_name(index.name, number)) for index in table.indexes
        ),
    )  # fmt: skip
