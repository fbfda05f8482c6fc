"""``python -m benchmarks report FOLDER``: the JSON of a folder as a table for the docs, and plots.

It writes ``figures.inc``, which ``docs/lab/performance.rst`` includes, and one SVG per row
with peers or curves. The table needs only the standard library, the plots need matplotlib. With
``--spark`` it writes ``spark.inc`` instead, with the rows of the pipeline and their goals.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.report.pipeline import pipeline_page
from benchmarks.report.record import read
from benchmarks.report.table import page

__all__ = ["main"]

_STATIC = Path(__file__).resolve().parents[2] / "docs" / "_static"


def main(arguments: list[str]) -> None:
    """Render a folder of JSON files."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks report")
    parser.add_argument("folder", type=Path, help="folder that --json wrote")
    parser.add_argument("--into", type=Path, default=_STATIC / "benchmarks", metavar="FOLDER")
    parser.add_argument("--spark", action="store_true", help="only the table of the pipeline")
    parser.add_argument("--no-plots", action="store_true", help="only the table")
    options = parser.parse_args(arguments)
    try:
        records = read(options.folder)
    except ValueError as error:
        parser.error(str(error))
    options.into.mkdir(parents=True, exist_ok=True)
    if options.spark:
        path = options.into / "spark.inc"
        path.write_text(pipeline_page(records))
        print(path)
        return
    plots: dict[str, str] = {}
    if not options.no_plots:
        try:
            from benchmarks.report.plots import draw
        except ImportError as error:
            print(f"no plots, {error}: pip install -e '.[bench]', or --no-plots", file=sys.stderr)
        else:
            plots = draw(records, options.into)
    path = options.into / "figures.inc"
    path.write_text(page(records, plots))
    print(path, *(options.into / name for name in plots.values()), sep="\n")
