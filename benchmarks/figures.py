"""Figures of several runs: median and spread, the machine they were taken on, as text and JSON."""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import time
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from eventmq.plugins.database import library_version

__all__ = ["Figures", "machine"]


def machine() -> dict[str, Any]:
    """Return the properties of the machine and its software."""
    return {
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "sqlite": library_version(),
        **{name: metadata.version(name) for name in ("eventmq", "pyzmq", "msgpack")},
        "durability": "durable: receipt after fsync",
    }


@dataclass
class Figures:
    """Named series of one benchmark; ``goals`` maps a name to its goal, as text."""

    name: str
    goals: dict[str, str] = field(default_factory=dict)
    series: dict[str, list[float]] = field(default_factory=dict)
    #: Further properties that the figures depend on, by name.
    more: dict[str, Any] = field(default_factory=dict)
    #: Sizes of a row that scales; empty for its default sizes.
    sizes: tuple[int, ...] = ()

    def add(self, **values: float) -> None:
        """Add the figures of one run."""
        for name, value in values.items():
            self.series.setdefault(name, []).append(value)

    def rows(self) -> list[dict[str, Any]]:
        """Return name, median, least, most, runs and goal per series."""
        return [
            {
                "name": name,
                "median": statistics.median(values),
                "least": min(values),
                "most": max(values),
                "runs": len(values),
                "goal": self.goals.get(name, ""),
            }
            for name, values in self.series.items()
        ]

    def print(self) -> None:
        """Print a table."""
        print(f"{self.name}: {json.dumps({**machine(), **self.more})}")
        print(f"  {'figure':32} {'median':>14} {'least':>14} {'most':>14}  goal")
        for row in self.rows():
            numbers = "".join(f" {row[key]:14,.4g}" for key in ("median", "least", "most"))
            if row["median"] >= 1000:
                numbers = "".join(f" {row[key]:14,.0f}" for key in ("median", "least", "most"))
            print(f"  {row['name']:32}{numbers}  {row['goal']}")

    def write(self, path: Path, command: str = "") -> None:
        """Write strict JSON, in which infinite times are null.

        Args:
            path: The file; its folder is made.
            command: Command of the measurement.
        """
        rows = [row | {"values": self.series[row["name"]]} for row in self.rows()]
        record = {
            "benchmark": self.name,
            "command": command,
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "machine": {**machine(), **self.more},
            "rows": [{key: _finite(value) for key, value in row.items()} for row in rows],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=2, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    """Return a value that strict JSON can represent."""
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
