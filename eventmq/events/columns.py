"""Stored events as columns of the published row: what a journal writes and observers get."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgpack

from eventmq.events.packed import KIND_CODES, Field, unpack_blocks
from eventmq.events.schema import COLUMNS, SCHEMA_VERSION, EventKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from eventmq.events.packed import Block

    Redact = Callable[[str, Block], Sequence[str | None]]

__all__ = ["EventColumns", "fingerprint", "rows_of"]


_NAMES = tuple(column.name for column in COLUMNS)

_KINDS = tuple(kind.value for kind in EventKind)

_MICRO = 1_000_000

#: Columns that are taken from a field as they are; "" and a missing one are null.
_PLAIN = {
    "queue": Field.QUEUE,
    "attempt": Field.ATTEMPT,
    "delivery": Field.DELIVERY,
    "worker_id": Field.WORKER,
    "error_type": Field.ERROR_TYPE,
    "error_fingerprint": Field.FINGERPRINT,
    "bytes_in": Field.BYTES_IN,
    "bytes_out": Field.BYTES_OUT,
    "gap_first": Field.GAP_FIRST,
    "gap_last": Field.GAP_LAST,
}

#: Columns of a label, in its order; the fields after it say what is not the label's.
_LABEL = ("task", "root_id", "parent_id", "trace_id", "schedule_id", "release")

_LINEAGE = {"root_id": Field.ROOT, "parent_id": Field.PARENT}

#: Columns of times, from seconds.
_TIMES = {"leased_us": Field.LEASED, "started_us": Field.STARTED, "due_us": Field.DUE}

#: Columns of values, with the kinds of the events whose values they have.
_VALUES = {
    "arguments": frozenset({KIND_CODES[EventKind.ENQUEUED], KIND_CODES[EventKind.DELAYED]}),
    "result": frozenset({KIND_CODES[EventKind.SUCCEEDED]}),
}


class EventColumns:
    """A table that grows: column name -> values, in the order of the numbers.

    Args:
        redact: Says what of arguments and results is in it; nothing where there is none.
    """

    def __init__(self, redact: Redact | None = None) -> None:
        self._redact = redact
        self.values: dict[str, list[Any]] = {name: [] for name in _NAMES}

    def __len__(self) -> int:
        return len(self.values["seq"])

    def add(self, broker_id: str, first: int, body: bytes) -> int:
        """Add the events of one stored row; return how many they are.

        Args:
            broker_id: Id of the store.
            first: Number of the first of them.
            body: Their bytes.

        Raises:
            EventMQError: These are no packed events.
        """
        n = 0
        for block in unpack_blocks(body):
            n += self._add(broker_id, first + n, block)
        return n

    def _add(self, broker_id: str, first: int, block: Block) -> int:
        n = len(block.ids)
        common, columns = block.common, block.columns
        values = self.values
        values["broker_id"] += [broker_id] * n
        values["seq"] += range(first, first + n)
        values["ts_us"] += [int(common[Field.AT] * _MICRO)] * n
        values["kind"] += [_kind(common[Field.KIND])] * n
        values["job_id"] += block.ids if "" not in block.ids else [i or None for i in block.ids]
        values["schema_version"] += [SCHEMA_VERSION] * n
        self._add_label(block, n)
        values["host"] += [_host(common.get(Field.WORKER))] * n
        for name, field in _PLAIN.items():
            own = columns.get(field)
            if own is None:
                value = common.get(field)
                values[name] += [None if value == "" else value] * n
            else:
                values[name] += [None if value == "" else value for value in own]
        for name, field in _TIMES.items():
            values[name] += _micros(block.column(field))
        started, run_time = block.column(Field.STARTED), block.column(Field.RAN)
        values["run_us"] += _micros(run_time, started)
        values["wait_us"] += _waits(block, started, run_time)
        self._add_values(block, n)
        return n

    def _add_values(self, block: Block, n: int) -> None:
        redact = self._redact if block.has(Field.VALUE) else None
        kind = block.common[Field.KIND]
        for name, kinds in _VALUES.items():
            if redact is not None and kind in kinds:
                self.values[name] += redact(name, block)
            else:
                self.values[name] += [None] * n

    def _add_label(self, block: Block, n: int) -> None:
        common, values = block.common, self.values
        for name, text in zip(_LABEL, common.get(Field.LABEL, ("",) * len(_LABEL)), strict=True):
            lineage = _LINEAGE.get(name)
            if lineage is None or not block.has(lineage):
                values[name] += [text or None] * n
            else:
                values[name] += [value or None for value in block.column(lineage)]

    def extend(self, other: EventColumns) -> None:
        """Add the events of another table."""
        for name, values in other.values.items():
            self.values[name] += values

    def cut(self, n: int) -> EventColumns:
        """Take the first ``n`` events out, and return them."""
        first = EventColumns()
        for name, values in self.values.items():
            first.values[name] = values[:n]
            del values[:n]
        return first


def rows_of(broker_id: str, first: int, body: bytes) -> Iterator[Mapping[str, Any]]:
    """Yield the events of one stored row, each as a map of its columns without those that are null.

    Raises:
        EventMQError: These are no packed events.
    """
    table = EventColumns()
    table.add(broker_id, first, body)
    for row in zip(*table.values.values(), strict=True):
        yield {name: value for name, value in zip(_NAMES, row, strict=True) if value is not None}


def _kind(code: int) -> str:
    """Return the name of a kind; one of a newer EventMQ has a name that says so."""
    return _KINDS[code] if 0 <= code < len(_KINDS) else f"kind-{code}"


def _host(worker: str | None) -> str | None:
    """Return the host in the name of a worker session, ``host:pid``."""
    return (worker or "").rpartition(":")[0] or None


def _waits(block: Block, started: Sequence[Any], run_time: Sequence[Any]) -> list[int | None]:
    """Return how long jobs were ready before they started.

    That is of the broker's clock: a start that a worker's clock puts before the lease is taken to
    have been then, and one after the answer so long before it as the run took.
    """
    leased, at = block.column(Field.LEASED), block.common[Field.AT]
    waits: list[int | None] = []
    for start, ready, lease, ran_for in zip(
        started, block.column(Field.READY), leased, run_time, strict=True
    ):
        if not start or not ready:
            waits.append(None)
            continue
        began = start if start <= at else at - (ran_for or 0.0)
        began = max(began, lease or ready)
        waits.append(max(0, int((began - ready) * _MICRO)))
    return waits


def _micros(seconds: Sequence[Any], present: Sequence[Any] | None = None) -> list[int | None]:
    """Return times in microseconds, null where there is none (or nothing that it belongs to)."""
    if present is not None:
        return [
            int(value * _MICRO) if value is not None and known else None
            for value, known in zip(seconds, present, strict=True)
        ]
    return [int(value * _MICRO) if value else None for value in seconds]


_FRAME = re.compile(r'File "(?:[^"]*[/\\])?([^"/\\]*)", line \d+, in (\S+)')

_VARYING = re.compile(r"0x[0-9a-fA-F]+|\d+|'[^']*'|\"[^\"]*\"")

#: A longer error is looked at anew each time.
_REMEMBERED = 16 * 1024


def fingerprint(error: bytes) -> tuple[str, str]:
    """Return the dotted type of an encoded error, "" where it has none, and its fingerprint."""
    return _remembered(error) if len(error) <= _REMEMBERED else _fingerprint(error)


def _fingerprint(error: bytes) -> tuple[str, str]:
    try:
        kind, message, traceback, *_ = msgpack.unpackb(error)
        frames = _FRAME.findall(traceback)
        place = repr(frames) if frames else _VARYING.sub("_", message[:400])
    except Exception:  # noqa: BLE001 - an error of any shape is an error
        return "", ""
    text = f"{kind}\0{place}"
    return kind, hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


_remembered = lru_cache(maxsize=256)(_fingerprint)
