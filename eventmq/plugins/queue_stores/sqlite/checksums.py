"""The checksums of rows as functions and expressions of SQL, to check a whole store at once."""

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

#: The checksums of a job, by its table; of an outcome: `outcome_sum`.
JOB_HEAD = f"job_head({_QUEUE}, CAST(headers AS BLOB), CAST({{0}}.id AS BLOB))"

JOB_CRC = f"""job_crc({_QUEUE}, CAST(headers AS BLOB), CAST(body AS BLOB),
  CAST({{0}}.id AS BLOB))"""


def outcome_sum(table: str) -> str:
    """Return the expression for the checksum of an outcome, by the name of its table."""
    return f"""outcome_crc((SELECT CAST(name AS BLOB) FROM queues WHERE queues.id = queue),
  (SELECT CAST(name AS BLOB) FROM names WHERE names.id = task), state,
  CAST(content_type AS BLOB), CAST(result AS BLOB), CAST({table}.id AS BLOB))"""


def _head(queue: bytes, text: bytes, job_id: bytes) -> int:
    return crc32(b"%b\0%b\0" % (queue, text)) ^ crc32(job_id)


def _outcome(*values: Any) -> int:
    """Return the checksum of queue, label, state, content type, result and id."""
    prefix, result = crc32(b"%b\0%b\0%d\0%b\0" % values[:4]), values[4]
    return crc32(values[5]) ^ (prefix ^ 1 if result is None else crc32(result, prefix))


def _job(queue: bytes, text: bytes, body: bytes, job_id: bytes) -> int:
    return crc32(body, crc32(b"%b\0%b\0" % (queue, text))) ^ crc32(job_id)


def _never(function: Callable[..., int]) -> Callable[..., int]:
    """Let a function take text too, and return `WRONG_CHECKSUM` for values of a wrong kind."""

    def tried(*values: Any) -> int:
        try:
            return function(*(v.encode() if isinstance(v, str) else v for v in values))
        except (TypeError, OverflowError):
            return WRONG_CHECKSUM

    return tried


#: SQL function -> how many arguments it has, and what it does, to check a whole store. Text is
#: given as a BLOB where it may be none any more.
FUNCTIONS: Mapping[str, tuple[int, Callable[..., int]]] = {
    "job_head": (3, _never(_head)),
    "job_crc": (4, _never(_job)),
    "outcome_crc": (6, _never(_outcome)),
    "data_crc": (3, _never(lambda head, kind, data: crc32(data, crc32(kind, head)))),
    "id_crc": (1, _never(crc32)),
}


def add_checksums(db: apsw.Connection) -> None:
    """Give a connection the functions of `FUNCTIONS`."""
    add_function(db, "as_text", as_text)
    for name, (count, function) in FUNCTIONS.items():
        add_function(db, name, function, count)
