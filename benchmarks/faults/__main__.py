"""``python -m benchmarks.faults --all | ROW...  [--faults N] [--json FILE] [--table FILE]``."""

from __future__ import annotations

import argparse
import subprocess
import time
from pathlib import Path

from benchmarks.faults.results import keep, read, table
from benchmarks.faults.rows import ROWS
from benchmarks.figures import machine

_STATIC = Path(__file__).resolve().parents[2] / "docs" / "_static"


def main() -> int:
    """Run rows and print a line of each; 1 if anything was lost."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--all", action="store_true", help="all of them")
    parser.add_argument(
        "--faults", type=int, help="number of faults of each row, instead of its default"
    )
    parser.add_argument("--json", type=Path, help="file to which the results are added")
    parser.add_argument(
        "--table", action="store_true", help="write that file as the table of the docs"
    )
    arguments = parser.parse_args()
    names = list(ROWS) if arguments.all else arguments.rows
    if unknown := [name for name in names if name not in ROWS]:
        parser.error(f"no row is called {', '.join(unknown)}; there are: {', '.join(ROWS)}")
    if arguments.table and arguments.json is None:
        parser.error("--table needs the file of --json")
    for name, (row, faults) in ROWS.items() if not names and not arguments.table else ():
        print(f"{name:12} {(row.__doc__ or '').splitlines()[0]} [{faults}]")
    code = max([_run(name, arguments.faults, arguments.json) for name in names], default=0)
    if arguments.table:
        path = _STATIC / "faults.inc"
        path.write_text(table(read(arguments.json)))
        print(path)
    return code


def _run(name: str, faults: int | None, path: Path | None) -> int:
    run, usual = ROWS[name]
    start = time.monotonic()
    row = run(faults or usual)
    seconds = round(time.monotonic() - start, 1)
    bound = "-" if row.bound is None else f"{row.bound:.2g}"
    print(
        f"{name}: {row.jobs} jobs, {row.faults} faults, {row.lost} lost, {row.twice} ran again, "
        f"bound {bound}, {seconds} s, {dict(row.more)}",
        flush=True,
    )
    if path is not None:
        keep(path, name, row, {"seconds": seconds, "commit": _commit(), "machine": machine()})
    return int(row.lost > 0)


def _commit() -> str:
    """Return the commit under test, with a plus if files have changed since."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty=+"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


if __name__ == "__main__":
    raise SystemExit(main())
