"""The prefork pool alone: pre-encoded chunks of no-op jobs through two children.

    python -m benchmarks.pool [--jobs N] [--children N] [--chunk N] [--runs N] [--json FILE]

Prints jobs/s of each run and their median, and the CPU time of the manager per job.
"""

from __future__ import annotations

import argparse
import json
import platform
import select
import statistics
import time
from pathlib import Path
from typing import Any

import msgpack

from eventmq.clock import SystemClock
from eventmq.execution.executor import Executor
from eventmq.execution.spec import TaskSpec
from eventmq.interfaces import JobsEnded
from eventmq.job import IdFactory
from eventmq.plugins.pools.prefork.pool import PreforkPool
from eventmq.wire.batches import encode_chunk

#: Chunks that a slot has at a time.
LOOK_AHEAD = 3


class Msgpack:
    """As small as a serializer can be."""

    def encode(self, value: object, envelope: object) -> tuple[bytes, str]:
        return msgpack.packb(value), ""

    def decode(self, data: bytes, envelope: object) -> Any:
        return msgpack.unpackb(data)


class NoRetry:
    def delay(self, failure: object) -> float | None:
        return None


def noop() -> None:
    """Do nothing."""


def load() -> Executor:
    """Return the executor of a child."""
    serializer, policy = Msgpack(), NoRetry()
    return Executor(
        {"noop": TaskSpec(name="noop", function=noop)},
        serializer=lambda _: serializer,
        retry_policy=lambda *_: policy,
        clock=SystemClock(),
    )


def make_chunks(jobs: int, size: int) -> list[tuple[bytes, int]]:
    """Return encoded chunks of no-op jobs."""
    new = IdFactory(SystemClock()).new
    payload = msgpack.packb([[], {}])
    row = (1, 1, "task:noop,content-type:msgpack", 0.0, 0.0, payload)
    return [
        (encode_chunk("default", [(new(), *row) for _ in range(size)]), size)
        for _ in range(jobs // size)
    ]


def drain(pool: PreforkPool, chunks: list[tuple[bytes, int]]) -> float:
    """Run all chunks; return jobs per second."""
    started = time.perf_counter()
    todo = list(enumerate(chunks, 1))[::-1]
    open_jobs = [0] * pool.slots
    sizes = chunks[0][1]
    left = len(chunks) * sizes
    poller = select.poll()
    for fd in pool.filenos():
        poller.register(fd, select.POLLIN)
    total = left
    while left:
        for slot in range(pool.slots):
            while todo and open_jobs[slot] <= (LOOK_AHEAD - 1) * sizes:
                number, (body, count) = todo.pop()
                pool.assign(slot, number, body, count)
                open_jobs[slot] += count
        poller.poll(1000)
        for event in pool.poll():
            assert isinstance(event, JobsEnded)
            open_jobs[event.slot] -= event.count
            left -= event.count
    return total / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=200_000)
    parser.add_argument("--children", type=int, default=2)
    parser.add_argument("--chunk", type=int, default=400)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    chunks = make_chunks(args.jobs, args.chunk)
    pool = PreforkPool(concurrency=args.children, loader="benchmarks.pool:load", arguments={})
    pool.start()
    cpu = time.process_time()
    rates = [drain(pool, chunks) for _ in range(args.runs)]
    cpu = (time.process_time() - cpu) / (args.jobs * args.runs)
    pool.stop(5.0)
    result = {
        "benchmark": "pool",
        "python": platform.python_version(),
        "children": args.children,
        "chunk": args.chunk,
        "rates": rates,
        "median": statistics.median(rates),
        "manager_us_per_job": cpu * 1e6,
    }
    print(f"{args.children} children, chunks of {args.chunk}, {args.jobs:,} no-op jobs per run")
    print("jobs/s:", " ".join(f"{rate:,.0f}" for rate in rates))
    print(f"median {result['median']:,.0f} jobs/s; the manager took {cpu * 1e6:.2f} us per job")
    if args.json:
        args.json.write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
