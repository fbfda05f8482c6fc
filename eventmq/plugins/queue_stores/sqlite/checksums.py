"""Checksums of rows as SQL functions and expressions, to check a whole store in SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from zlib import crc32

from eventmq.engine import WRONG_CHECKSUM
from eventmq.plugins.database import add_function, as_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import apsw

__all__ = ["FUNCTIONS", "JOB_CRC", "JOB_HEAD", "add_checksums", "outcome_sum"]

_QUEUE = "(SELECT CAST(name AS BLOB) FROM queues WHERE queues.id = queue)"

#: The checksums of a job, formatted with its table. That of an outcome is `outcome_sum`.
JOB_HEAD = f"job_head({_QUEUE}, CAST(headers AS BLOB), CAST({{0}}.id AS BLOB))"

JOB_CRC = f"""job_crc({_QUEUE}, CAST(headers AS BLOB), CAST(body AS BLOB),
  CAST({{0}}.id AS BLOB))"""


def outcome_sum(table: str) -> str:
    """Return the SQL expression for the checksum of an outcome in a table."""
    return f"""outcome_crc((SELECT CAST(name AS BLOB) FROM queues WHERE queues.id = queue),
  (SELECT CAST(name AS BLOB) FROM names WHERE names.id = task), state,
  CAST(content_type AS BLOB), CAST(result AS BLOB), CAST({table}.id AS BLOB))"""


def _head(queue: bytes, text: bytes, job_id: bytes) -> int:
    return crc32(b"%b\0%b\0" % (queue, text)) ^ crc32(job_id)


def _outcome(*values: Any) -> int:
    """Return the checksum over queue, label, state, content type, result and id."""
    prefix, result = crc32(b"%b\0%b\0%d\0%b\0" % values[:4]), values[4]
    return crc32(values[5]) ^ (prefix ^ 1 if result is None else crc32(result, prefix))


def _job(queue: bytes, text: bytes, body: bytes, job_id: bytes) -> int:
    return crc32(body, crc32(b"%b\0%b\0" % (queue, text))) ^ crc32(job_id)


def _for_sql(function: Callable[..., int]) -> Callable[..., int]:
    """Return the function for SQL: it also takes text; wrong types give `WRONG_CHECKSUM`."""

    def wrapped(*values: Any) -> int:
        try:
            return function(*(v.encode() if isinstance(v, str) else v for v in values))
        except (TypeError, OverflowError):
            return WRONG_CHECKSUM

    return wrapped


#: SQL function -> its number of arguments, and the function. Text is passed as a BLOB where it may
#: be damaged.
FUNCTIONS: Mapping[str, tuple[int, Callable[..., int]]] = {
    "job_head": (3, _for_sql(_head)),
    "job_crc": (4, _for_sql(_job)),
    "outcome_crc": (6, _for_sql(_outcome)),
    "data_crc": (3, _for_sql(lambda head, kind, data: crc32(data, crc32(kind, head)))),
    "id_crc": (1, _for_sql(crc32)),
}


def add_checksums(db: apsw.Connection) -> None:
    """Add the functions of `FUNCTIONS` to a connection."""
    add_function(db, "as_text", as_text)
    for name, (count, function) in FUNCTIONS.items():
        add_function(db, name, function, count)
