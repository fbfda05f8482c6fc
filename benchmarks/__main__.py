"""``python -m benchmarks [NAME | --all | report FOLDER]``; see ``--help``."""

from __future__ import annotations

import argparse
import signal
import sys
import time
import traceback
from pathlib import Path

from benchmarks import (
    app_brokers,
    crash,
    django_view,
    gateways,
    journal,
    life,
    limit,
    listings,
    look_back,
    month,
    outbox,
    overhead,
    postgres,
    report,
    resources,
    rows,
    scaling,
    spark,
    spark_source,
)
from benchmarks.figures import Figures
from benchmarks.peers import compare
from benchmarks.peers.catalog import PEERS
from benchmarks.peers.measure import ROWS as COMPARED

_PARTS = (
    rows, life, limit, listings, resources, crash, app_brokers, django_view, gateways, journal,
    look_back, month, outbox, overhead, postgres, scaling, spark, spark_source,
)  # fmt: skip
ROWS = {name: row for part in _PARTS for name, row in part.ROWS.items()}
GOALS = {name: goals for part in _PARTS for name, goals in part.GOALS.items()}

#: Maximum seconds of a row against peers, by default.
_LIMIT = 110.0


def main() -> None:
    """Run one row, alone or against peers; run all rows; or list them."""
    signal.signal(signal.SIGTERM, _end)
    if sys.argv[1:2] == ["report"]:
        report.main(sys.argv[2:])
        return
    parser = _parser()
    arguments = parser.parse_args()
    peers = _peers(parser, arguments.against)
    if arguments.all:
        raise SystemExit(_everything(arguments, peers))
    if arguments.name is None:
        _list()
        return
    if peers and arguments.name not in COMPARED:
        parser.error(f"{arguments.name} has no peers; with --against: {', '.join(COMPARED)}")
    limit = arguments.limit or _LIMIT * bool(peers)
    _measure(arguments.name, peers, arguments, limit, arguments.json)


def _end(*_: object) -> None:
    """End as after Ctrl-C, so that all processes are stopped."""
    raise SystemExit(128 + signal.SIGTERM)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("name", nargs="?", choices=sorted({*ROWS, *COMPARED}), help="the row")
    parser.add_argument("--all", action="store_true", help="all rows, into the folder --json")
    parser.add_argument("--against", default="", metavar="PEER,...", help="or all")
    parser.add_argument("--runs", type=int, default=5, help="runs, 5 by default")
    parser.add_argument("--limit", type=float, default=0.0, metavar="SECONDS",
                        help="start no run that would end later; 110 with --against")  # fmt: skip
    parser.add_argument("--sizes", default="", metavar="N,...", help="sizes of a row that scales")
    parser.add_argument("--json", type=Path, metavar="PATH", help="file, or folder, of figures")
    return parser


def _measure(
    name: str, peers: list[str], arguments: argparse.Namespace, limit: float, path: Path | None
) -> None:
    """Run a row the given number of times, or until its time is over; print and write each run."""
    alone = name in ROWS and not peers
    figures = Figures(name, GOALS.get(name, {}) if alone else {})
    figures.sizes = tuple(int(size) for size in arguments.sizes.split(",") if size)
    length = compare.span(name, peers, limit / arguments.runs) if limit else compare.SPAN
    begin, longest = time.monotonic(), 0.0
    for run in range(arguments.runs):
        started = time.monotonic()
        if limit and run and started - begin + longest > limit:
            print(
                f"{name}: the time was over after {run} of {arguments.runs} runs", file=sys.stderr
            )
            break
        if alone:
            ROWS[name](figures)
        else:
            compare.compare(figures, name, peers, length)
        longest = max(longest, time.monotonic() - started)
        if not alone:
            figures.more = compare.about(peers) | {"seconds of work": length}
        if path:
            figures.write(path, _command(name, peers, arguments))
    figures.print()
    for line in () if alone else compare.ratios(figures, name, peers):
        print(line)


def _everything(arguments: argparse.Namespace, peers: list[str]) -> int:
    """Run all rows, those against peers first, as long as the time allows; return 1 on failure."""
    end = time.monotonic() + (arguments.limit or float("inf"))
    plans = [(name, peers) for name in COMPARED if peers]
    plans += [(name, []) for name in {**ROWS, **COMPARED} if name in ROWS or not peers]
    failed, skipped = [], []
    for name, others in plans:
        remaining = end - time.monotonic()
        if remaining < 1.0:
            skipped.append(name)
            continue
        file = f"{name}{'.peers' if others else ''}.json"
        try:
            path = arguments.json and arguments.json / file
            _measure(name, others, arguments, min(remaining, _LIMIT), path)
        except Exception:  # noqa: BLE001 - the other rows can be measured all the same
            traceback.print_exc()
            failed.append(name)
    for names, reason in ((failed, "failed"), (skipped, "not started, the time was over")):
        if names:
            print(f"{reason}: {', '.join(names)}", file=sys.stderr)
    return 1 if failed else 0


def _command(name: str, peers: list[str], arguments: argparse.Namespace) -> str:
    """Return the command that repeats this measurement."""
    options = f" --against {','.join(peers)}" if peers else ""
    options += f" --sizes {arguments.sizes}" if arguments.sizes else ""
    return f"python -m benchmarks {name}{options}"


def _list() -> None:
    for name, row in {**COMPARED, **ROWS}.items():
        against = " [--against]" if name in COMPARED else ""
        print(f"{name:18} {(row.__doc__ or '').splitlines()[0]}{against}")
    print(f"--against: {', '.join(name for name in PEERS if name != 'eventmq')}")


def _peers(parser: argparse.ArgumentParser, text: str) -> list[str]:
    others = [name for name in PEERS if name != "eventmq"]
    if text == "all":
        return others
    names = [name for name in text.split(",") if name]
    if unknown := [name for name in names if name not in others]:
        parser.error(f"no peer is called {', '.join(unknown)}; there are: {', '.join(others)}")
    return names


if __name__ == "__main__":
    main()
