"""Reader of a row's JSON: figures per system, and per size for rows that scale."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["OWN_NAME", "Figure", "Record", "is_ours", "read"]

#: Name of EventMQ among the compared systems.
OWN_NAME = "eventmq"


def is_ours(system: str) -> bool:
    """Return whether a system is EventMQ, with any durability."""
    return system.partition("-")[0] == OWN_NAME


class Figure(NamedTuple):
    """A figure of some runs. The time of a job that never came back is infinite."""

    name: str
    median: float
    least: float
    most: float
    runs: int
    goal: str = ""


@dataclass(frozen=True)
class Record:
    """A measured row.

    Attributes:
        name: Name of the row.
        command: Command of the measurement.
        at: Date of the measurement, as text.
        machine: Properties of the machine and its software.
        figures: Figures in the order in which they were written.
    """

    name: str
    command: str
    at: str
    machine: dict[str, Any]
    figures: list[Figure] = field(default_factory=list)

    @property
    def promises(self) -> dict[str, dict[str, str]]:
        """The promises of each system; empty for a row without peers."""
        promises: dict[str, dict[str, str]] = self.machine.get("promises", {})
        return promises

    @property
    def runs(self) -> int:
        """Number of runs of the figure with the fewest."""
        return min((figure.runs for figure in self.figures), default=0)

    def systems(self) -> dict[str, dict[str, Figure]]:
        """Return the figures of each system, by name."""
        by_system: dict[str, dict[str, Figure]] = {}
        for figure in self.figures:
            system, _, name = figure.name.partition(" ")
            if name and system in self.promises:
                by_system.setdefault(system, {})[name] = figure
        return by_system

    def curves(self) -> dict[str, dict[str, list[tuple[float, Figure]]]]:
        """Return axis -> figure -> points, for figures like ``children=4 per_second``."""
        by_axis: dict[str, dict[str, list[tuple[float, Figure]]]] = {}
        for figure in self.figures:
            where, _, name = figure.name.partition(" ")
            axis, _, size = where.partition("=")
            if name and size:
                by_axis.setdefault(axis, {}).setdefault(name, []).append((float(size), figure))
        return by_axis


def read(folder: Path) -> list[Record]:
    """Return the records in a folder's JSON files, in the order of their names.

    Raises:
        ValueError: The folder has no JSON file, or the named file is not of this suite.
    """
    records = []
    for path in sorted(folder.glob("*.json")):
        try:
            content = json.loads(path.read_text())
            records.append(_record(content))
        except (KeyError, TypeError, ValueError) as error:
            msg = f"{path} is not what python -m benchmarks --json writes: {error!r}"
            raise ValueError(msg) from error
    if not records:
        raise ValueError(f"{folder} has no JSON files; python -m benchmarks --all --json {folder}")
    return records


def _record(content: dict[str, Any]) -> Record:
    return Record(
        content["benchmark"], content["command"], content["at"], content["machine"],
        list(_figures(content["rows"])),
    )  # fmt: skip


def _figures(rows: list[dict[str, Any]]) -> Iterator[Figure]:
    for row in rows:
        median, least, most = (
            math.inf if row[key] is None else float(row[key]) for key in ("median", "least", "most")
        )
        yield Figure(row["name"], median, least, most, row["runs"], row["goal"])
