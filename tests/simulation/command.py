"""What ``python -m tests.simulation`` does: seeds, one after the other, and a closing line."""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import signal
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.simulation.run import simulate
from tests.simulation.shrink import shrink
from tests.simulation.workload import make_scenario

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

__all__ = ["main"]

#: Seeds between two notes of how far a run is.
NOTED = 200

#: Lines of history that are shown.
SHOWN = 150


class Result(NamedTuple):
    """What came of a seed."""

    seed: int
    failure: str
    counts: dict[str, float]


def run_seed(seed: int) -> Result:
    """Run the scenario of a seed."""
    logging.disable(logging.CRITICAL)
    report = simulate(make_scenario(seed))
    counts = {
        "jobs": report.jobs, "executions": report.executions, "crashes": report.crashes,
        "seconds": report.seconds,
    }  # fmt: skip
    return Result(seed, report.failure, counts)


def explain(seed: int) -> None:
    """Print the shortest history found of a seed that fails."""
    logging.disable(logging.CRITICAL)
    scenario = make_scenario(seed)
    failure = simulate(scenario).failure
    if failure:
        scenario = shrink(scenario, failure)
    report = simulate(scenario, told=True)
    print("\n".join(scenario.lines()))
    shown = [line for line in report.history if "Heartbeat(" not in line]
    if len(shown) > SHOWN:
        print(f"... {len(shown) - SHOWN} earlier lines are left out")
    print("\n".join(shown[-SHOWN:]))
    print(f"seed {seed}: {report.failure or 'nothing was found'}")
    print(f"again: python -m tests.simulation --explain {seed}")


class Progress:
    """How far a run is; kept in a file where one is named."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.path: Path | None = arguments.resume
        self.first: int = arguments.first
        self.last: int = arguments.first + arguments.seeds - 1
        self.next = self.first
        self.failed: dict[int, str] = {}
        self.counts: Counter[str] = Counter()
        if self.path is not None and self.path.exists():
            self._read(json.loads(self.path.read_text()))

    def _read(self, kept: dict[str, Any]) -> None:
        if (kept["first"], kept["last"]) != (self.first, self.last):
            raise SystemExit(f"{self.path} is of seeds {kept['first']} to {kept['last']}")
        self.next = kept["next"]
        self.failed = {int(seed): text for seed, text in kept["failed"].items()}
        self.counts = Counter(kept["counts"])

    def take(self, result: Result) -> None:
        self.next = result.seed + 1
        self.counts.update(result.counts)  # type: ignore[arg-type]
        if result.failure:
            self.failed[result.seed] = result.failure
            print(f"seed {result.seed}: {result.failure}", flush=True)
        if (self.next - self.first) % NOTED == 0:
            self.save()

    def save(self) -> None:
        if self.path is not None:
            kept = {
                "first": self.first, "last": self.last, "next": self.next,
                "failed": self.failed, "counts": self.counts,
            }  # fmt: skip
            self.path.write_text(json.dumps(kept))

    def closing(self, seconds: float) -> str:
        done, counts = self.next - self.first, self.counts
        failed = f"{len(self.failed)} failed"
        if self.failed:
            failed += f" ({', '.join(map(str, list(self.failed)[:10]))})"
        return (
            f"{done} seeds from {self.first}: {failed}; {counts['jobs']:.0f} jobs, "
            f"{counts['executions']:.0f} executions, {counts['crashes']:.0f} ends of the broker, "
            f"{counts['seconds'] / 3600:.1f} simulated hours in {seconds:.1f} s"
        )


@contextmanager
def mapped(workers: int) -> Iterator[Callable[..., Iterable[Result]]]:
    """Give what maps a function over seeds, in order, in so many processes."""
    if workers <= 1:
        yield map
        return
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        yield lambda function, seeds: pool.imap(function, seeds, chunksize=10)


def main(argv: Sequence[str]) -> int:
    """Run it; return the exit code."""
    arguments = read(argv)
    if arguments.explain is not None:
        explain(arguments.explain)
        return 0
    progress = Progress(arguments)
    for number in (signal.SIGINT, signal.SIGTERM):  # also where a shell has begun it with &
        signal.signal(number, signal.default_int_handler)
    begun = time.perf_counter()
    try:
        with mapped(arguments.workers) as each:
            for result in each(run_seed, range(progress.next, progress.last + 1)):
                progress.take(result)
                if result.failure and not arguments.keep_going:
                    break
    except KeyboardInterrupt:
        print(f"interrupted before seed {progress.next}")
    progress.save()
    if progress.failed and not arguments.keep_going:
        explain(next(iter(progress.failed)))
    print(progress.closing(time.perf_counter() - begun))
    return 1 if progress.failed else 0


def read(argv: Sequence[str]) -> argparse.Namespace:
    """Read the arguments."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, metavar="N", help="how many")
    parser.add_argument("--first", type=int, default=1, metavar="SEED")
    parser.add_argument("--workers", type=int, default=1, metavar="K", help="processes")
    parser.add_argument("--keep-going", action="store_true", help="after a seed that fails")
    parser.add_argument(
        "--resume", type=Path, metavar="FILE", help="note there how far it is, and go on from there"
    )
    parser.add_argument("--explain", type=int, metavar="SEED", help="show what happens in one")
    return parser.parse_args(argv)
