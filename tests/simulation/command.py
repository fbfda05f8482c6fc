"""Command ``python -m tests.simulation``: runs seeds and prints one closing line."""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import signal
import time
from collections import Counter
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.simulation.run import simulate
from tests.simulation.shrink import shrink
from tests.simulation.workload import make_scenario, make_shared_scenario

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tests.simulation.scenario import Scenario

__all__ = ["main"]

#: Seeds between two saves of the progress.
SAVE_EVERY = 200

#: Last lines of a history that are printed.
MAX_LINES = 150


class Result(NamedTuple):
    """Result of a seed."""

    seed: int
    failure: str
    counts: dict[str, float]


def run_seed(make: Callable[[int], Scenario], seed: int) -> Result:
    """Run the scenario of a seed."""
    logging.disable(logging.CRITICAL)
    report = simulate(make(seed))
    counts = {
        "jobs": report.jobs, "executions": report.executions, "crashes": report.crashes,
        "seconds": report.seconds,
    }  # fmt: skip
    return Result(seed, report.failure, counts)


def explain(make: Callable[[int], Scenario], seed: int) -> None:
    """Print the history of a seed, made smaller first if the seed fails."""
    logging.disable(logging.CRITICAL)
    scenario = make(seed)
    failure = simulate(scenario).failure
    if failure:
        scenario = shrink(scenario, failure)
    report = simulate(scenario, tracing=True)
    print("\n".join(scenario.lines()))
    shown = [line for line in report.history if "Heartbeat(" not in line]
    if len(shown) > MAX_LINES:
        print(f"... {len(shown) - MAX_LINES} earlier lines are left out")
    print("\n".join(shown[-MAX_LINES:]))
    print(f"seed {seed}: {report.failure or 'nothing was found'}")
    shared = "--shared " if scenario.brokers > 1 else ""
    print(f"again: python -m tests.simulation {shared}--explain {seed}")


class Progress:
    """Progress of a run, saved in a file if one is named."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.path: Path | None = arguments.resume
        self.shared: bool = arguments.shared
        self.first: int = arguments.first
        self.last: int = arguments.first + arguments.seeds - 1
        self.next = self.first
        self.failed: dict[int, str] = {}
        self.counts: Counter[str] = Counter()
        if self.path is not None and self.path.exists():
            self._read(json.loads(self.path.read_text()))

    def _read(self, saved: dict[str, Any]) -> None:
        seeds = (saved["first"], saved["last"], saved.get("shared", False))
        if seeds != (self.first, self.last, self.shared):
            raise SystemExit(
                f"{self.path} has the progress of seeds {saved['first']} to {saved['last']}"
            )
        self.next = saved["next"]
        self.failed = {int(seed): text for seed, text in saved["failed"].items()}
        self.counts = Counter(saved["counts"])

    def take(self, result: Result) -> None:
        self.next = result.seed + 1
        self.counts.update(result.counts)  # type: ignore[arg-type]
        if result.failure:
            self.failed[result.seed] = result.failure
            print(f"seed {result.seed}: {result.failure}", flush=True)
        if (self.next - self.first) % SAVE_EVERY == 0:
            self.save()

    def save(self) -> None:
        if self.path is not None:
            saved = {
                "first": self.first, "last": self.last, "next": self.next,
                "shared": self.shared, "failed": self.failed, "counts": self.counts,
            }  # fmt: skip
            self.path.write_text(json.dumps(saved))

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
    """Yield a function like `map` that keeps the order and uses so many processes."""
    if workers <= 1:
        yield map
        return
    # The handlers of this process are not for its workers, which it ends itself.
    with multiprocessing.get_context("fork").Pool(workers, _end_quietly) as pool:
        yield lambda function, seeds: pool.imap(function, seeds, chunksize=10)


def _end_quietly() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit code."""
    arguments = read(argv)
    make = make_shared_scenario if arguments.shared else make_scenario
    if arguments.explain is not None:
        explain(make, arguments.explain)
        return 0
    progress = Progress(arguments)
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
    ):  # a shell ignores SIGINT for a job started with &
        signal.signal(number, signal.default_int_handler)
    start = time.perf_counter()
    try:
        with mapped(arguments.workers) as map_seeds:
            for result in map_seeds(
                partial(run_seed, make), range(progress.next, progress.last + 1)
            ):
                progress.take(result)
                if result.failure and not arguments.keep_going:
                    break
    except KeyboardInterrupt:
        print(f"interrupted before seed {progress.next}")
    progress.save()
    if progress.failed and not arguments.keep_going:
        explain(make, next(iter(progress.failed)))
    print(progress.closing(time.perf_counter() - start))
    return 1 if progress.failed else 0


def read(argv: Sequence[str]) -> argparse.Namespace:
    """Read the arguments."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, metavar="N", help="number of seeds")
    parser.add_argument("--first", type=int, default=1, metavar="SEED")
    parser.add_argument("--workers", type=int, default=1, metavar="K", help="processes")
    parser.add_argument(
        "--keep-going", action="store_true", help="continue after a seed that fails"
    )
    parser.add_argument(
        "--resume", type=Path, metavar="FILE", help="save the progress there, and continue from it"
    )
    parser.add_argument(
        "--shared", action="store_true", help="two or three brokers that share their store"
    )
    parser.add_argument("--explain", type=int, metavar="SEED", help="print the history of one seed")
    return parser.parse_args(argv)
