"""The program ``eventmq`` with a timed store in PostgreSQL: claims, start and commits.

``python -m benchmarks.timed broker --store postgresql://...`` is a broker like any other. At its
end it writes JSON into the file that ``BENCH_TIMES`` names; see `Times`.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq.broker.runner import BrokerRunner
from eventmq.cli import main
from eventmq_contrib.postgres.ownership import PostgresOwnership
from eventmq_contrib.postgres.store import PostgresStore

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["FILE", "Times", "read"]

#: Environment variable with the path of the file.
FILE = "BENCH_TIMES"


class Times(NamedTuple):
    """Measurements of a broker.

    Attributes:
        claim: Unix time at which the last successful claim started.
        opened: Unix time at which the store was open after it.
        ready: Unix time at which the broker had loaded its state, and could answer.
        commits: For each commit its end as Unix time, and its seconds.
    """

    claim: float
    opened: float
    ready: float
    commits: list[tuple[float, float]]


def read(path: Path) -> Times:
    """Return the times that a broker wrote at its end."""
    claim, opened, ready, commits = json.loads(path.read_text())
    return Times(claim, opened, ready, [tuple(commit) for commit in commits])


class _Timed:
    claim = opened = ready = 0.0
    commits: list[tuple[float, float]] = []  # noqa: RUF012 - one per process


def _note() -> None:
    """Record claims, starts and commits."""
    claim, opened, submit = PostgresOwnership.claim, PostgresStore.open, PostgresStore.submit
    recover = BrokerRunner._recover  # noqa: SLF001 - there is no other place where it is ready

    def noted_claim(self: PostgresOwnership, *arguments: Any) -> int:
        begin = time.time()
        epoch = claim(self, *arguments)
        if epoch:
            _Timed.claim = begin
        return epoch

    def noted_open(self: PostgresStore) -> Any:
        result = opened(self)
        _Timed.opened = time.time()
        return result

    def noted_recover(self: BrokerRunner, recovered: Any) -> None:
        recover(self, recovered)
        _Timed.ready = time.time()

    def noted_submit(self: PostgresStore, batch: Sequence[Any]) -> None:
        begin = time.perf_counter()
        submit(self, batch)
        _Timed.commits.append((time.time(), time.perf_counter() - begin))

    PostgresOwnership.claim = noted_claim  # type: ignore[method-assign]
    PostgresStore.open = noted_open  # type: ignore[method-assign]
    BrokerRunner._recover = noted_recover  # type: ignore[method-assign] # noqa: SLF001
    PostgresStore.submit = noted_submit  # type: ignore[method-assign]


def _write() -> None:
    path = Path(os.environ[FILE])
    path.write_text(json.dumps([_Timed.claim, _Timed.opened, _Timed.ready, _Timed.commits]))


if __name__ == "__main__":
    if FILE in os.environ and sys.argv[1:2] == ["broker"]:
        _note()
        atexit.register(_write)
    main()
