"""Results of rows: stored in a file run by run, summed up over runs, and as a table for the docs.

A row may be run in several portions: the loads and faults of its runs are added.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

__all__ = ["Row", "keep", "read", "summed", "table"]

#: Suffix of names whose maximum over all runs is kept; other counts are added.
WORST = " at worst"

#: Maximum number of runs whose texts are in the table; the file has all.
MAX_TEXTS = 3


class Row(NamedTuple):
    """Result of a run of a row.

    Attributes:
        jobs: Number of jobs with a receipt.
        faults: Number of injected faults.
        lost: Number of lost jobs, or of broken promises.
        twice: Number of jobs that ran again; None if not counted.
        more: Other counts by name; also texts, or mappings of numbers.
    """

    jobs: int
    faults: int
    lost: int
    twice: int | None
    more: Mapping[str, Any]

    @property
    def bound(self) -> float | None:
        """Upper bound of the share of faults that lose a job, with 95 % confidence, if none did."""
        return 3 / self.faults if self.faults and not self.lost else None


def keep(path: Path, name: str, row: Row, about: Mapping[str, Any]) -> None:
    """Add a run to a file."""
    runs = read(path)
    runs.append({"row": name, **row._asdict(), **about})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(runs, indent=1) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    """Return the runs of a file, none if there is no file."""
    runs: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    return runs


def summed(runs: Sequence[Mapping[str, Any]]) -> Row:
    """Return the runs of one row as one."""
    counted = [run["twice"] for run in runs if run["twice"] is not None]
    more: dict[str, Any] = {}
    for run in runs:
        for name, value in run["more"].items():
            more[name] = _both(name, more[name], value) if name in more else value
    jobs, faults, lost = (sum(run[name] for run in runs) for name in ("jobs", "faults", "lost"))
    return Row(jobs, faults, lost, sum(counted) if counted else None, more)


def _both(name: str, one: Any, other: Any) -> Any:
    """Return the combined count of two runs under a name."""
    if isinstance(one, dict) and isinstance(other, dict):
        names = [*one, *(key for key in other if key not in one)]
        return {key: one.get(key, 0) + other.get(key, 0) for key in names}
    if name.endswith(WORST):
        return max(one, other)
    if isinstance(one, int) and isinstance(other, int):
        return one + other
    return one if one == other else f"{one}; {other}"  # texts and rates have no sum


def table(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of the docs: a line for each row, in the order of their runs."""
    names = list(dict.fromkeys(run["row"] for run in runs))
    head = ("row", "jobs", "faults", "lost", "ran again", "bound (3/N)", "commit")
    lines = ["..", "   Written by python -m benchmarks.faults --table; do not edit.", ""]
    lines += [".. list-table::", "   :header-rows: 1", "   :widths: 14 9 40 7 9 9 12", ""]
    for cells in (head, *(_cells(name, runs) for name in names)):
        lines += [f"   {'* -' if not n else '  -'} {cell}".rstrip() for n, cell in enumerate(cells)]
    return "\n".join(lines) + "\n"


def _cells(name: str, runs: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    own_runs = [run for run in runs if run["row"] == name]
    row = summed(own_runs)
    text = "; ".join(_texts(row.more))
    commits = ", ".join(dict.fromkeys(run["commit"] for run in own_runs))
    bound = "" if row.bound is None else f"{row.bound:.2g}"
    twice = "not counted" if row.twice is None else f"{row.twice:,}"
    faults = f"{row.faults:,}: {text}" if row.faults else text
    return f"``{name}``", f"{row.jobs:,}", faults, f"{row.lost:,}", twice, bound, commits


def _texts(more: Mapping[str, Any]) -> Iterator[str]:
    """Yield the counts as texts."""
    for name, value in more.items():
        if isinstance(value, dict):
            each = ", ".join(f"{number:,} {unit}" for unit, number in value.items())
            yield f"{name}: {each}"
        else:
            yield f"{name}: {_first(value)}" if isinstance(value, str) else f"{name} {value:,}"


def _first(text: str) -> str:
    """Return the texts of the first runs, and the number of further runs."""
    texts = text.split("; ")
    hidden = len(texts) - MAX_TEXTS
    return text if hidden <= 0 else f"{'; '.join(texts[:MAX_TEXTS])} and {hidden} more runs"
