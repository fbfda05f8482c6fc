"""Checksums of rows: what was altered on the disk is an error that names its job.

A damaged page that still looks like one would else hand another job, or other arguments, to a
worker. The checksum of a job is the exclusive or of two CRC-32: one over its queue, headers and
body, which many jobs have in common, so that it is computed once for them, and one over its id,
which is computed once for a job and its outcome. Another checksum, of the *head*, leaves the body
out, for those who do not read it. An outcome has its label, state, content type and result in the
place of headers and body. The name of the queue is in it, not only its number, so a name that is
altered is found as well. What changes while a job waits, such as its attempt, is not in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "FORMULA",
    "FUNCTIONS",
    "NEVER",
    "DamagedRow",
    "as_text",
    "data_crc",
    "is_sound",
    "job_prefix",
    "outcome_crc",
    "outcome_prefix",
]  # fmt: skip

#: How checksums are made, for the hash of the tables: a store with others is another version.
FORMULA = "crc32(queue, headers, body) ^ crc32(id)"

#: In the place of a checksum, which is never negative: of a row that is known to be damaged.
NEVER = -1


class DamagedRow(Exception):
    """A row that others depend on is not what was written."""


def as_text(data: bytes | None) -> str | bytes | None:
    """Return a text, or its bytes if it is none any more."""
    try:
        return data if data is None else data.decode()
    except UnicodeDecodeError:
        return data


def job_prefix(queue: str, text: str) -> int:
    """Return the CRC-32 that a queue's rows with these headers, or this label, have in common."""
    return crc32(f"{queue}\0{text}\0".encode())


def outcome_prefix(prefix: int, state: int, kind: str) -> int:
    """Return the CRC-32 that outcomes of a state and content type have in common.

    Args:
        prefix: What `job_prefix` returned for their queue and label.
        state: Its code.
        kind: The content type.
    """
    return crc32(f"{state}\0{kind}\0".encode(), prefix)


def outcome_crc(prefix: int, job_id: str, result: bytes | None) -> int:
    """Return the checksum of an outcome.

    Args:
        prefix: What `outcome_prefix` returned for it.
        job_id: Of the job.
        result: None was not kept, which is not the same as an empty one.
    """
    return crc32(job_id.encode()) ^ (prefix ^ 1 if result is None else crc32(result, prefix))


def data_crc(head: int, kind: str, data: bytes) -> int:
    """Return the checksum of an error, or of a result that a join holds."""
    return crc32(data, crc32(kind.encode(), head))


def is_sound(crc: int, job_id: str, kind: str, data: bytes) -> bool:
    """Return whether an error or a result that belongs to a job by its id is what was written."""
    try:
        return crc == data_crc(crc32(job_id.encode()), kind, data)
    except (TypeError, AttributeError):  # values of another kind
        return False


def _head(queue: bytes, text: bytes, job_id: bytes) -> int:
    return crc32(b"%b\0%b\0" % (queue, text)) ^ crc32(job_id)


def _outcome(*values: Any) -> int:
    """Return the checksum of queue, label, state, content type, result and id."""
    prefix, result = crc32(b"%b\0%b\0%d\0%b\0" % values[:4]), values[4]
    return crc32(values[5]) ^ (prefix ^ 1 if result is None else crc32(result, prefix))


def _whole(queue: bytes, text: bytes, body: bytes, job_id: bytes) -> int:
    return crc32(body, crc32(b"%b\0%b\0" % (queue, text))) ^ crc32(job_id)


def _never(function: Callable[..., int]) -> Callable[..., int]:
    """Let a function take text too, and return `NEVER` for values of a kind that is damage."""

    def tried(*values: Any) -> int:
        try:
            return function(*(v.encode() if isinstance(v, str) else v for v in values))
        except (TypeError, OverflowError):
            return NEVER

    return tried


#: SQL function -> how many arguments it has, and what it does, to check a whole store. Text is
#: given as a BLOB where it may be none any more.
FUNCTIONS: Mapping[str, tuple[int, Callable[..., int]]] = {
    "job_head": (3, _never(_head)),
    "job_crc": (4, _never(_whole)),
    "outcome_crc": (6, _never(_outcome)),
    "data_crc": (3, _never(lambda head, kind, data: crc32(data, crc32(kind, head)))),
    "id_crc": (1, _never(crc32)),
}
