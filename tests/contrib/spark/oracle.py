"""The products again, in plain Python and in another way: what Spark is compared with."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["double_leased", "expired_waiting", "holes", "jobs_of", "once", "state_of", "states"]

Row = dict[str, Any]

ENDS = {"succeeded", "failed", "cancelled", "expired"}
WAITING = {"enqueued", "delayed", "retry", "lease_lost", "handed_back", "replayed"}
STATE_KINDS = ENDS | WAITING | {"leased", "progress"}


def once(rows: Iterable[Row]) -> list[Row]:
    """Each row once, in the order of the numbers."""
    return [row for _, row in sorted({(row["broker_id"], row["seq"]): row for row in rows}.items())]


def expired_waiting(row: Row) -> bool:
    """It was ready, and no worker started it in time."""
    return row["kind"] == "expired" and row.get("due_us") is None


def of_brokers(rows: Iterable[Row]) -> dict[str, list[Row]]:
    jobs: dict[str, list[Row]] = defaultdict(list)
    for row in once(rows):
        jobs[row["broker_id"]].append(row)
    return jobs


def holes(rows: list[Row]) -> tuple[set[int], set[int]]:
    """The numbers of one broker that are missing, and those that were dropped."""
    there = {row["seq"] for row in rows}
    absent = set(range(min(there), max(there) + 1)) - there
    reported = {
        number
        for row in rows
        if row["kind"] == "gap"
        for number in range(row["gap_first"], row["gap_last"] + 1)
    }
    return absent - reported, absent & reported


def jobs_of(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """The events of each job, without those that do not change its state."""
    by_group: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in once(rows):
        if row["kind"] in STATE_KINDS:
            by_group[row["broker_id"], row["job_id"]].append(row)
    return by_group


def state_of(
    job: list[Row], missing: set[int], dropped: set[int], newest: int, stuck_after: float
) -> str:
    kind: str = job[-1]["kind"]
    if kind in ENDS:
        return kind
    if any(number > job[0]["seq"] for number in missing):
        return "lost"
    if any(number > job[0]["seq"] for number in dropped):
        return "unknown"
    if kind in WAITING:
        return "waiting"
    age = newest - job[-1]["ts_us"]
    return "stuck" if age >= stuck_after * 1e6 else "running"


def states(rows: list[Row], stuck_after: float = 60.0) -> dict[tuple[str, str], str]:
    brokers = {
        broker: (*holes(some), max(row["ts_us"] for row in some))
        for broker, some in of_brokers(rows).items()
    }
    return {key: state_of(job, *brokers[key[0]], stuck_after) for key, job in jobs_of(rows).items()}


def double_leased(rows: Iterable[Row]) -> set[tuple[str, str]]:
    return {key for key, job in jobs_of(rows).items() if is_double(job)}


def is_double(job: list[Row]) -> bool:
    admitted = any(row["kind"] in {"enqueued", "delayed", "replayed"} for row in job)
    held: dict[Any, tuple[int, int]] = {}
    ended = False
    for row in job:
        if ended and row["kind"] in {"enqueued", "delayed", "replayed"}:
            held, ended = {}, False
        leased = row.get("leased_us")
        if ended and admitted and (leased is not None or row["kind"] in ENDS):
            return True
        ended = ended or row["kind"] in ENDS
        if leased is None:
            continue
        lease = (row["delivery"], row["worker_id"])
        first, last = held.get(lease, (leased, row["ts_us"]))
        held[lease] = (min(first, leased), max(last, row["ts_us"]))
        for other, (begin, end) in held.items():
            first, last = held[lease]
            if other != lease and first < end and begin < last:
                return True
    return False
