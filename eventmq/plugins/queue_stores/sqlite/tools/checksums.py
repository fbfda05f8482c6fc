"""Rules of the checksums: is what stands in a row what was written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.plugins.database import first_row
from eventmq.plugins.queue_stores.sqlite.schema import (
    JOB_CRC,
    JOB_HEAD,
    bucket_name,
    buckets,
    outcome_sum,
)
from eventmq.plugins.queue_stores.sqlite.tools.rule import Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    import apsw

__all__ = ["RULES"]

#: Rows that a finding names.
_NAMED = 1000

_ID = "as_text(CAST(id AS BLOB))"
_QUEUE = "(SELECT CAST(name AS BLOB) FROM queues WHERE queues.id = queue)"
_WRONG = f"head_crc IS NOT {JOB_HEAD} OR crc IS NOT {JOB_CRC}"
_DATA = "data_crc({}, CAST(content_type AS BLOB), CAST({} AS BLOB))"
_OF_ID = "id_crc(CAST(id AS BLOB))"


def _jobs(table: str, more: str = "") -> str:
    condition = f"{_WRONG.format(table)}{more}"
    shown = f"coalesce(as_text({_QUEUE}), 'that is not known')"
    return f"SELECT {_ID} || ' of the queue ' || {shown} FROM {table} WHERE {condition}"


def _outcomes(db: apsw.Connection) -> Iterator[str]:
    for bucket in buckets(db):
        name = bucket_name(bucket)
        sql = f"SELECT {_ID} FROM {name} WHERE crc IS NOT {outcome_sum(name)}"
        yield from (str(shown) for (shown,) in db.execute(sql))


def _schedules(db: apsw.Connection) -> Iterator[str]:
    if first_row(db, "SELECT 1 FROM sqlite_master WHERE name = 'schedules'") is None:
        return
    sql = """SELECT as_text(CAST(name AS BLOB)) FROM schedules WHERE removed = 0
             AND crc IS NOT data_crc(id_crc(CAST(name AS BLOB)), x'', CAST(definition AS BLOB))"""
    yield from (str(name) for (name,) in db.execute(sql))


_FAILS = "the broker does not run them: it fails them, with an error, when it meets them"
_AGAIN = "submit them again; eventmq fsck --salvage leaves them out"

RULES = (
    Rule(
        "checksums", "jobs", "{n} waiting jobs are not what was written: {some}", _jobs("jobs"),
        _FAILS, _AGAIN, named=_NAMED,
    ),
    Rule(
        "checksums", "failed", "{n} failed jobs are not what was written: {some}",
        _jobs("failed", f" OR result_crc IS NOT {_DATA.format('head_crc', 'result')}"),
        "they cannot be tried again", "submit them again, and drop these with eventmq failed drop",
        named=_NAMED,
    ),
    Rule(
        "checksums", "outcomes", "{n} outcomes are not what was written: {some}", _outcomes,
        "whoever asks for these results gets an error", "submit these jobs again", named=_NAMED,
    ),
    Rule(
        "checksums", "attempts", "{n} errors of earlier attempts are not what was written: {some}",
        f"SELECT {_ID} FROM attempts WHERE crc IS NOT {_DATA.format(_OF_ID, 'error')}",
        "they are shown as unknown; no job depends on them", "nothing need be done", named=_NAMED,
    ),
    Rule(
        "checksums", "member_results",
        "{n} results that jobs wait for are not what was written: {some}",
        f"SELECT {_ID} FROM member_results WHERE crc IS NOT {_DATA.format(_OF_ID, 'result')}",
        "the jobs that take them fail", "submit these graphs again", named=_NAMED,
    ),
    Rule(
        "checksums", "join_arguments",
        "{n} joins do not know what they hand on in which order: {some}",
        """SELECT join_key FROM join_arguments
           WHERE crc IS NOT data_crc(join_key, x'', CAST(tree AS BLOB))""",
        "the jobs that wait there fail", "submit these graphs again", named=_NAMED,
    ),
    Rule(
        "checksums", "schedules", "{n} schedules are not what was written: {some}", _schedules,
        "they do not fire", "define them again, with app.schedule() or by starting their beat",
        named=_NAMED,
    ),
)  # fmt: skip
