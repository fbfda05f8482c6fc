"""What the tests of worker pools have in common: chunks, and driving a pool as the manager does."""

# ruff: noqa: S101 - suites assert

from __future__ import annotations

import os
import select
import time
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from eventmq.interfaces import Answered, Died
from eventmq.wire.bulk import OutcomeRow, decode_outcomes, encode_chunk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from eventmq.interfaces import PoolEvent, WorkerPool

__all__ = ["DEADLINE", "Call", "PoolHarness", "make_chunk"]

#: Seconds that any of these jobs may take.
DEADLINE = 30.0

Call = tuple[str, tuple[Any, ...]]


def make_chunk(calls: Sequence[Call], expires: float = 0.0, headers: str = "") -> bytes:
    """Return the body of a chunk of calls."""
    rows = [
        (
            f"job-{i}",
            1,
            1,
            f"task:{task},content-type:msgpack{headers}",
            0.0,
            expires,
            msgpack.packb([args, {}]),
        )
        for i, (task, args) in enumerate(calls)
    ]
    return encode_chunk("q", rows)


class PoolHarness:
    """Owns the pools of a test; see `eventmq.testing.WorkerPoolSuite`."""

    processes = True

    def make(self, slots: int) -> WorkerPool:
        """Return a pool of so many slots, not started."""
        raise NotImplementedError(
            "define make() in your subclass: it returns your pool, not started"
        )

    @pytest.fixture(autouse=True)
    def _around(self, tmp_path: Path) -> Iterator[None]:
        self.path = tmp_path
        self.pools: list[WorkerPool] = []
        self.events: list[PoolEvent] = []
        yield
        for pool in self.pools:
            pool.stop(0.0)

    def begin(self, slots: int = 1) -> WorkerPool:
        """Return a pool that runs."""
        pool = self.make(slots)
        self.pools.append(pool)
        pool.start()
        return pool

    def give(self, pool: WorkerPool, slot: int, chunk: int, *calls: Call) -> None:
        """Give a slot a chunk of calls."""
        pool.assign(slot, chunk, make_chunk(calls), len(calls))

    def pump(self, pool: WorkerPool, done: Callable[[], bool]) -> None:
        """Poll as the job manager does until it is done."""
        deadline = time.monotonic() + DEADLINE
        while not done():
            assert time.monotonic() < deadline, f"the pool said only {self.events}"
            select.select(pool.filenos(), [], [], 0.02)
            self.events += pool.poll()

    def rows(self, slot: int, chunk: int) -> list[OutcomeRow]:
        """Return the outcomes of a chunk that came so far; a `SharedPool` names no slot."""
        slot = 0 if self.pools[0].shared else slot
        return [
            OutcomeRow(*row)
            for event in self.events
            if isinstance(event, Answered) and (event.slot, event.chunk) == (slot, chunk)
            for row in decode_outcomes(event.outcomes)
        ]

    def run(self, pool: WorkerPool, slot: int, chunk: int, *calls: Call) -> list[OutcomeRow]:
        """Give a slot a chunk and return all of its outcomes."""
        self.give(pool, slot, chunk, *calls)
        self.pump(pool, lambda: len(self.rows(slot, chunk)) >= len(calls))
        return self.rows(slot, chunk)

    def block(self, pool: WorkerPool, slot: int, chunk: int, *others: Call) -> str:
        """Give a slot a chunk whose first job waits, and return when it runs."""
        pipe = str(self.path / f"pipe-{slot}-{chunk}")
        os.mkfifo(pipe)
        self.give(pool, slot, chunk, ("wait", (pipe,)), *others)
        self.pump(pool, lambda: pool.running(slot) is not None)
        return pipe

    def release(self, pipe: str) -> None:
        """Let the job that waits end."""
        with open(pipe, "w", encoding="utf-8") as writer:  # noqa: PTH123 - a pipe, not a file
            writer.write("released")

    def died(self) -> list[Died]:
        """Return the ends of slots that were told so far."""
        return [event for event in self.events if isinstance(event, Died)]
