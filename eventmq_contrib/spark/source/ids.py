"""Ids of jobs made from rows: the same row has the same id at every write.

They have the layout of UUID version 7 (RFC 9562, section 5.7), as all ids of EventMQ: twelve hex
digits of milliseconds, then a digest. So a write that is repeated, by a Spark task that is retried
or by a whole program, submits ids that the broker already has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from datetime import date, datetime, timezone
from typing import Any

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from eventmq.errors import SettingsError

__all__ = ["EPOCH", "derived_id", "derived_ids", "unix_ms", "with_ids"]

#: Milliseconds with which ids begin where the rows say no time: the year 2000.
EPOCH = 946_684_800_000

#: Options for writing values that determine ids, without loss of precision.
_EXACT = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
}

#: Intermediate columns.
_CONTENT, _ORDINAL, _DIGEST = "_eventmq_content", "_eventmq_ordinal", "_eventmq_digest"

#: Of the twelve hex digits.
_MOST_MS = (1 << 48) - 1


def derived_id(text: str, ms: int = EPOCH) -> str:
    """Return the id of a text.

    Args:
        text: Text that is different for each job.
        ms: Milliseconds since 1970.
    """
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=10).digest()
    tail = int.from_bytes(digest[:8], "big") & 0x3FFFFFFFFFFFFFFF | 0x8000000000000000
    more = int.from_bytes(digest[8:], "big") & 0xFFF
    return f"{ms & _MOST_MS:012x}7{more:03x}{tail:016x}"


def derived_ids(
    space: str, keys: Sequence[Sequence[Any]], times: Sequence[int] | None = None
) -> Iterator[str]:
    """Yield the ids of rows by the values of their key columns.

    Args:
        space: Name within which the keys are unique: the name of the task.
        keys: Values by column.
        times: Milliseconds by row.

    Raises:
        SettingsError: A row has no value in a key column.
    """
    for index, key in enumerate(zip(*keys, strict=True)):
        if None in key:
            raise SettingsError(
                "a row has no value in a column of idColumns, so that it has no id"
                "; fill it in or leave the row out"
            )
        text = f"{space}\0{_plain(key)!r}"
        yield derived_id(text, EPOCH if times is None else times[index])


def _plain(value: Any) -> Any:
    """Return a value whose text is the same in every time zone and says its type."""
    if isinstance(value, datetime):
        return ("at", value.astimezone(timezone.utc).isoformat() if value.tzinfo else str(value))
    if isinstance(value, (list, tuple)):
        return tuple(_plain(item) for item in value)
    if isinstance(value, dict):
        return ("map", tuple((name, _plain(item)) for name, item in value.items()))
    return value


def unix_ms(value: Any) -> int:
    """Return the milliseconds since 1970 of a value of the column of times.

    Raises:
        SettingsError: The value is no time.
    """
    if isinstance(value, datetime):
        value = value if value.tzinfo else value.replace(tzinfo=timezone.utc)
        ms = int(value.timestamp() * 1000)
    elif isinstance(value, date):
        midnight = datetime(value.year, value.month, value.day, tzinfo=timezone.utc)
        ms = int(midnight.timestamp()) * 1000
    else:
        raise SettingsError(
            f"the column of idTime has {value!r}; allowed is: a timestamp or date in every row"
        )
    if not 0 <= ms <= _MOST_MS:
        raise SettingsError(f"the column of idTime has {value!r}, which is before 1970")
    return ms


def with_ids(rows: DataFrame, space: str, ms: int) -> DataFrame:
    """Return rows with a column ``job_id``, the same for the same rows.

    Args:
        rows: Rows of one batch.
        space: Name space of the ids.
        ms: Milliseconds with which the ids begin.
    """
    content = f.sha2(f.to_json(f.struct(*rows.columns), _EXACT), 256)
    equal = Window.partitionBy(_CONTENT).orderBy(_CONTENT)
    text = f.concat_ws("|", f.lit(space), _CONTENT, f.col(_ORDINAL).cast("string"))
    # The variant of RFC 9562 is in two bits; the other two of the digit are of the digest.
    digit = f.conv(f.substring(_DIGEST, 4, 1), 16, 10).cast("int").bitwiseAND(3) + 8
    job_id = f.concat(
        f.lit(f"{ms:012x}7"), f.substring(_DIGEST, 1, 3), f.lower(f.hex(digit)),
        f.substring(_DIGEST, 5, 15),
    )  # fmt: skip
    return (
        rows.withColumn(_CONTENT, content)
        .withColumn(_ORDINAL, f.row_number().over(equal))
        .withColumn(_DIGEST, f.sha2(text, 256))
        .withColumn("job_id", job_id)
        .drop(_CONTENT, _ORDINAL, _DIGEST)
    )
