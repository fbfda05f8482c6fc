"""``python -m benchmarks [NAME] [--runs N] [--json FILE]``."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks import gateways, journal, life, rows
from benchmarks.figures import Figures

ROWS = rows.ROWS | life.ROWS | gateways.ROWS | journal.ROWS
GOALS = rows.GOALS | life.GOALS | gateways.GOALS | journal.GOALS


def main() -> None:
    """Run one row, or list them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("name", nargs="?", choices=sorted(ROWS), help="the row to run")
    parser.add_argument("--runs", type=int, default=5, help="runs, 5 unless told otherwise")
    parser.add_argument("--json", type=Path, help="file for the figures")
    arguments = parser.parse_args()
    if arguments.name is None:
        for name, row in ROWS.items():
            print(f"{name:14} {(row.__doc__ or '').splitlines()[0]}")
        return
    figures = Figures(arguments.name, GOALS.get(arguments.name, {}))
    for _ in range(arguments.runs):
        ROWS[arguments.name](figures)
    figures.print()
    if arguments.json:
        figures.write(arguments.json)


if __name__ == "__main__":
    main()
