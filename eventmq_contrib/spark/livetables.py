"""Live tables: the output files of a stream, ``stats`` by hour, ``slo``, and text for Prometheus.

Files are replaced atomically, so readers see the old or the new file, and a batch may be repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from eventmq_contrib.atomic import write_file
from eventmq_contrib.spark.atomic import write_parquet

if TYPE_CHECKING:
    from eventmq_contrib.spark.waiting import Oldest, WaitingJobs

__all__ = ["LiveTables", "burn_rate", "slo_rows"]

#: Key of a row of ``stats``.
_KEY = ("start", "queue", "task")

#: Suffix of a burn rate column -> minutes, as in the table of the command ``slo``.
_BURNS = {"5m": 5, "1h": 60}

_HOUR = timedelta(hours=1)

#: Types of the table ``slo``: a column of nulls has no type by itself.
_SLO = pa.schema({
    "queue": pa.string(), "starts": pa.int64(), "good": pa.int64(), "burn_5m": pa.float64(),
    "burn_1h": pa.float64(), "attainment": pa.float64(), "budget_left": pa.float64(),
    "target": pa.float64(), "share": pa.float64(), "until": pa.timestamp("us", "UTC"),
    "waiting": pa.int64(), "oldest": pa.float64(), "oldest_ready": pa.timestamp("us", "UTC"),
}.items())  # fmt: skip

_Row = dict[str, Any]


class LiveTables:
    """Applies changed rows of the table by minute to the files, batch by batch.

    Args:
        out: Folder of the tables.
        target: Seconds within which jobs must start.
        share: Share of the jobs that must start within ``target``.
        text: Path of a file for Prometheus, or None.
        waiting: Waiting jobs, None if they are not known.
    """

    def __init__(
        self, out: Path, *, target: float, share: float, text: Path | None,
        waiting: WaitingJobs | None = None,
    ) -> None:  # fmt: skip
        self._out = out
        self._target, self._share = target, share
        self._text = text
        self._waiting = waiting
        self._newest: datetime | None = None

    def update(self, changed: DataFrame, batch: int) -> None:
        """Write changed rows into the tables; the function for ``foreachBatch``."""
        rows: list[_Row] = changed.toArrow().to_pylist()
        hours: dict[datetime, list[_Row]] = {}
        for row in rows:
            row["start"] = row["start"].astimezone(timezone.utc)
            row["batch"] = batch
            hours.setdefault(row["start"].replace(minute=0), []).append(row)
        for hour, additions in sorted(hours.items()):
            merged = {**_by_key(self._hour(hour)), **_by_key(additions)}
            table = pa.Table.from_pylist(list(merged.values()))
            write_parquet(self._path(hour), table.schema, [table])
        # Events later than the watermark change no row, but may be of waiting jobs.
        waits = self._waiting is not None and self._waiting.advance(batch)
        starts = [*(row["start"] for row in rows), *self._latest_minute()]
        if (rows or waits) and starts:
            self._newest = max(starts)
            self._update_slo(self._newest)

    def _latest_minute(self) -> list[datetime]:
        """Return the last minute so far as a list, empty if there is none.

        A batch of older events does not set it back.
        """
        path = self._out / "slo" / "slo.parquet"
        if self._newest is not None or not path.is_file():
            return [self._newest] if self._newest else []
        ends = pq.ParquetFile(path).read().column("until").to_pylist()
        return [max(ends) - timedelta(minutes=1)]

    def _update_slo(self, newest: datetime) -> None:
        now = newest.replace(minute=0)
        recent = [*self._hour(now - _HOUR), *self._hour(now)]
        rows = slo_rows(
            recent, newest, target=self._target, share=self._share,
            waiting=None if self._waiting is None else self._waiting.queues(),
        )  # fmt: skip
        if rows:
            path = self._out / "slo" / "slo.parquet"
            write_parquet(path, _SLO, [pa.Table.from_pylist(rows, schema=_SLO)])
        if self._text is not None:
            write_file(self._text, _text(recent, rows, newest))

    def _path(self, hour: datetime) -> Path:
        return self._out / "stats" / f"date={hour:%Y-%m-%d}" / f"hour={hour:%H}" / "stats.parquet"

    def _hour(self, hour: datetime) -> list[_Row]:
        """Return the present rows of an hour."""
        path = self._path(hour)
        if not path.is_file():
            return []
        rows: list[_Row] = pq.ParquetFile(path).read().to_pylist()
        return rows


def _by_key(rows: Iterable[_Row]) -> dict[tuple[Any, ...], _Row]:
    return {tuple(row[name] for name in _KEY): row for row in rows}


def burn_rate(good: int, started: int, share: float) -> float | None:
    """Return how fast the error budget is spent; 1.0 spends it exactly.

    Args:
        good: Jobs that started in time.
        started: All jobs that started.
        share: Share of the jobs that must start in time, below 1.
    """
    return (1.0 - good / started) / (1.0 - share) if started else None


def slo_rows(
    rows: Iterable[_Row], newest: datetime, *, target: float, share: float,
    waiting: Mapping[str, Oldest] | None = None,
) -> list[_Row]:  # fmt: skip
    """Return the service level of each queue in the last hour.

    Args:
        rows: Rows of the table by minute.
        newest: The last minute.
        target: Seconds within which jobs must start.
        share: Share of the jobs that must start within ``target``.
        waiting: Waiting jobs by queue, None if not known.

    Returns:
        Rows of ``queue starts good attainment budget_left burn_5m burn_1h target share waiting
        oldest``, as those of the command ``slo``; ``until``, the end of the last minute; and
        ``oldest_ready``, the time at which the oldest waiting job became ready.
    """
    rows = list(rows)
    queues = {row["queue"] for row in rows if row["queue"] is not None} | {*(waiting or ())}
    return [
        {
            "queue": queue,
            **_slo([row for row in rows if row["queue"] == queue], newest, target, share),
            **_waits(queue, waiting),
        }
        for queue in sorted(queues)
    ]  # fmt: skip


def _waits(queue: str, waiting: Mapping[str, Oldest] | None) -> _Row:
    if waiting is None or queue not in waiting:
        n = None if waiting is None else 0
        return {"waiting": n, "oldest": None, "oldest_ready": None}
    jobs, ready_us, seconds = waiting[queue]
    ready = datetime.fromtimestamp(0, timezone.utc) + timedelta(microseconds=ready_us)
    return {"waiting": jobs, "oldest": seconds, "oldest_ready": ready}


def _slo(rows: list[_Row], newest: datetime, target: float, share: float) -> _Row:
    result: _Row = {}
    for name, span in sorted(_BURNS.items(), key=lambda item: item[1]):
        recent = [row for row in rows if row["start"] > newest - timedelta(minutes=span)]
        starts, good = sum(row["starts"] for row in recent), sum(row["good"] for row in recent)
        result |= {"starts": starts, "good": good, f"burn_{name}": burn_rate(good, starts, share)}
    starts, burn = result["starts"], result["burn_1h"]
    return result | {
        "attainment": result["good"] / starts if starts else None,
        "budget_left": None if burn is None else 1.0 - burn, "target": target, "share": share,
        "until": newest + timedelta(minutes=1),
    }  # fmt: skip


# For Prometheus

#: Name, type and help of the metrics.
_METRICS = {
    "eventmq_minute_events": "Events of the last whole minute, by task, queue and kind.",
    "eventmq_minute_wait_seconds": "Waiting times of jobs that started in the last whole minute.",
    "eventmq_minute_run_seconds": "Run times of jobs that ended in the last whole minute.",
    "eventmq_slo_attainment": "Share of jobs that started in time in the last hour, by queue.",
    "eventmq_slo_burn_rate": "How fast the error budget is spent, by queue and window.",
    "eventmq_waiting_jobs": "Jobs that wait for a worker, by queue.",
    "eventmq_oldest_waiting_seconds": "Age of the oldest waiting job, by queue.",
    "eventmq_oldest_ready_timestamp_seconds": "When that job became ready, by queue.",
    "eventmq_stream_newest_timestamp_seconds": "Time of the newest counted event.",
}

#: Columns that are samples of ``eventmq_minute_events``.
_COUNTS = (
    "arrived", "succeeded", "failed", "retries", "expired", "cancelled", "lost", "handed_back",
    "replayed",
)  # fmt: skip


def _text(rows: Iterable[_Row], levels: Iterable[_Row], newest: datetime) -> str:
    """Return the text format of Prometheus, version 0.0.4."""
    samples: dict[str, str] = dict.fromkeys(_METRICS, "")
    for name, value, labels in _samples(list(rows), levels, newest):
        if value is not None:
            number = value if isinstance(value, int) else f"{value:.6f}"
            samples[name] += f"{name}{_labels(labels)} {number}\n"
    return "".join(
        f"# HELP {name} {text}\n# TYPE {name} gauge\n{samples[name]}"
        for name, text in _METRICS.items()
    )


def _samples(
    rows: Sequence[_Row], levels: Iterable[_Row], newest: datetime
) -> Iterator[tuple[str, float | None, dict[str, str]]]:
    """Yield metric, value and labels of each sample; a value of None is not a sample."""
    for row in rows:
        if row["start"] == newest - timedelta(minutes=1):
            of = {"task": row["task"] or "", "queue": row["queue"] or ""}
            for name in _COUNTS:
                yield "eventmq_minute_events", row[name], {**of, "kind": name}
            for measure, mark in product(("wait", "run"), (50, 95, 99)):
                labels = {**of, "quantile": str(mark / 100)}
                yield f"eventmq_minute_{measure}_seconds", row[f"{measure}_p{mark}"], labels
    for row in levels:
        of, ready = {"queue": row["queue"]}, row["oldest_ready"]
        yield "eventmq_slo_attainment", row["attainment"], of
        for name in _BURNS:
            yield "eventmq_slo_burn_rate", row[f"burn_{name}"], {**of, "window": name}
        yield "eventmq_waiting_jobs", row["waiting"], of
        yield "eventmq_oldest_waiting_seconds", row["oldest"], of
        since = None if ready is None else ready.timestamp()
        yield "eventmq_oldest_ready_timestamp_seconds", since, of
    newest_us = max((row["newest_us"] for row in rows), default=0)
    yield "eventmq_stream_newest_timestamp_seconds", newest_us / 1_000_000, {}


def _labels(labels: Mapping[str, str]) -> str:
    """Return labels, escaped for the format."""
    escapes = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
    pairs = ",".join(f'{name}="{value.translate(escapes)}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""
