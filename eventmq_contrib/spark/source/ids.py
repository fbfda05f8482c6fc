"""Ids of jobs derived from rows: the same row has the same id at every write.

They have the layout of UUID version 7 (RFC 9562, section 5.7), like all ids of EventMQ: twelve hex
digits of milliseconds, then a digest. A repeated write, by a Spark task that is retried or by a
program that is started again, therefore submits ids that the broker already has.
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

#: Milliseconds with which ids begin if the rows have no time: the year 2000.
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

#: Maximum of twelve hex digits.
_MAX_MS = (1 << 48) - 1


def derived_id(text: str, ms: int = EPOCH) -> str:
    """Return the id that is derived from a text.

    Args:
        text: Text that is different for each job.
        ms: Milliseconds since 1970.
    """
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=10).digest()
    tail = int.from_bytes(digest[:8], "big") & 0x3FFFFFFFFFFFFFFF | 0x8000000000000000
    rand_a = int.from_bytes(digest[8:], "big") & 0xFFF
    return f"{ms & _MAX_MS:012x}7{rand_a:03x}{tail:016x}"


def derived_ids(
    space: str, keys: Sequence[Sequence[Any]], times: Sequence[int] | None = None
) -> Iterator[str]:
    """Yield the ids of rows, derived from the values of their key columns.

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
        text = f"{space}\0{_canonical(key)!r}"
        yield derived_id(text, EPOCH if times is None else times[index])


def _canonical(value: Any) -> Any:
    """Return a value whose text is the same in every time zone and shows its type."""
    if isinstance(value, datetime):
        return ("at", value.astimezone(timezone.utc).isoformat() if value.tzinfo else str(value))
    if isinstance(value, (list, tuple)):
        return tuple(_canonical(item) for item in value)
    if isinstance(value, dict):
        return ("map", tuple((name, _canonical(item)) for name, item in value.items()))
    return value


def unix_ms(value: Any) -> int:
    """Return the milliseconds since 1970 of a value of the column of times.

    Raises:
        SettingsError: The value is not a time.
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
    if not 0 <= ms <= _MAX_MS:
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
    # Two bits of this digit are the variant of RFC 9562; the other two are from the digest.
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
