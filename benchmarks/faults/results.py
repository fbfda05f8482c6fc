"""What rows came to: kept in a file run by run, summed up over runs, and as a table for the docs.

A row may be run in portions, on several days: loads and faults of its runs add up.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

__all__ = ["Row", "keep", "read", "summed", "table"]

#: A name that ends so has the highest of all runs; other counts are added up.
WORST = " at worst"

#: Texts of as many runs are in the table; the file has all.
SHOWN = 3


class Row(NamedTuple):
    """What a run of a row came to.

    Attributes:
        jobs: With a receipt.
        faults: How many things went wrong.
        lost: Jobs, or promises, that were lost.
        twice: Jobs that ran again; None if not counted.
        more: What else was counted, by name; text, or a mapping of numbers, too.
    """

    jobs: int
    faults: int
    lost: int
    twice: int | None
    more: Mapping[str, Any]

    @property
    def bound(self) -> float | None:
        """The share of faults that may lose something: 95 % sure where none of them did."""
        return 3 / self.faults if self.faults and not self.lost else None


def keep(path: Path, name: str, row: Row, about: Mapping[str, Any]) -> None:
    """Add a run to a file."""
    runs = read(path)
    runs.append({"row": name, **row._asdict(), **about})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(runs, indent=1) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    """Return the runs of a file; none where there is no file."""
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
    """Return what two runs have counted under a name."""
    if isinstance(one, dict) and isinstance(other, dict):
        names = [*one, *(key for key in other if key not in one)]
        return {key: one.get(key, 0) + other.get(key, 0) for key in names}
    if name.endswith(WORST):
        return max(one, other)
    if isinstance(one, int) and isinstance(other, int):
        return one + other
    return one if one == other else f"{one}; {other}"  # a text, or a rate, of which is no sum


def table(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return what the docs include: a line for each row, in the order in which they were run."""
    names = list(dict.fromkeys(run["row"] for run in runs))
    head = ("row", "jobs", "faults", "lost", "ran again", "bound (3/N)", "commit")
    lines = ["..", "   Written by python -m benchmarks.faults --table; do not edit.", ""]
    lines += [".. list-table::", "   :header-rows: 1", "   :widths: 14 9 40 7 9 9 12", ""]
    for cells in (head, *(_cells(name, runs) for name in names)):
        lines += [f"   {'* -' if not n else '  -'} {cell}".rstrip() for n, cell in enumerate(cells)]
    return "\n".join(lines) + "\n"


def _cells(name: str, runs: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    mine = [run for run in runs if run["row"] == name]
    row = summed(mine)
    said = "; ".join(_said(row.more))
    commits = ", ".join(dict.fromkeys(run["commit"] for run in mine))
    bound = "" if row.bound is None else f"{row.bound:.2g}"
    twice = "not counted" if row.twice is None else f"{row.twice:,}"
    faults = f"{row.faults:,}: {said}" if row.faults else said
    return f"``{name}``", f"{row.jobs:,}", faults, f"{row.lost:,}", twice, bound, commits


def _said(more: Mapping[str, Any]) -> Iterator[str]:
    """Yield what was counted, for people."""
    for name, value in more.items():
        if isinstance(value, dict):
            each = ", ".join(f"{number:,} {what}" for what, number in value.items())
            yield f"{name}: {each}"
        else:
            yield f"{name}: {_first(value)}" if isinstance(value, str) else f"{name} {value:,}"


def _first(text: str) -> str:
    """Return what the first runs said, and how many more there are."""
    said = text.split("; ")
    more = len(said) - SHOWN
    return text if more <= 0 else f"{'; '.join(said[:SHOWN])} and {more} more runs"
