"""Worker harness: an executor with small tasks, chunks, waiting with a deadline.

Fork servers import it too (`load`), so it contains the tasks.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import math
import os
import select
import signal
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgpack

from eventmq.clock import SystemClock
from eventmq.errors import AppNotFound, JobCancelled, PluginError, SerializationError
from eventmq.execution.executor import Executor
from eventmq.execution.processes import child
from eventmq.execution.spec import TaskSpec
from eventmq.interfaces import JobsEnded, SlotDied, current_job
from eventmq.job import OutcomeKind
from eventmq.wire.batches import OutcomeRow, decode_outcomes, encode_chunk
from eventmq.wire.results import ResultLocation

TIMEOUT = 20.0

OK = OutcomeKind.SUCCEEDED


class PlainSerializer:
    """MessagePack or JSON, without extras."""

    def __init__(self, name: str) -> None:
        self.pack: Callable[[object], bytes] = {
            "msgpack": msgpack.packb,
            "json": lambda value: json.dumps(value).encode(),
        }[name]
        self.unpack = {"msgpack": msgpack.unpackb, "json": json.loads}[name]

    def encode(self, value, envelope):
        try:
            return self.pack(value), ""
        except TypeError as error:
            raise SerializationError(str(error)) from error

    def decode(self, data, envelope):
        return self.unpack(data)


class Fixed:
    """A retry policy with a fixed delay; None for no retry."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds

    def delay(self, failure):
        return self.seconds


def serializer(name: str) -> PlainSerializer:
    if name not in {"msgpack", "json"}:
        raise PluginError(f"no serializer {name!r}")
    return PlainSerializer(name)


def make_executor(*tasks: Any, clock: Any = None, **options: Any) -> Executor:
    """Return an executor of functions, by their names, and of `TaskSpec`s."""
    location = {name: options.pop(name) for name in ("backend", "max_result") if name in options}
    specs = [t if isinstance(t, TaskSpec) else TaskSpec(name=t.__name__, function=t) for t in tasks]
    return Executor(
        {spec.name: spec for spec in specs},
        serializer=options.pop("serializer", serializer),
        retry_policy=options.pop("retry_policy", lambda *_: Fixed(7.0)),
        clock=clock or SystemClock(),
        location=ResultLocation(name="elsewhere", **location),
        **options,
    )


# Tasks


def noop():
    pass


def add(a, b):
    return a + b


def echo(value):
    return value


def pid():
    return os.getpid()


def hold(path):
    """Run until a file exists; make another file at the start."""
    Path(path + ".runs").touch()
    wait_for(Path(path).exists)


def sleep(seconds):
    time.sleep(seconds)


def stubborn(path):
    """Make a file at the start and another one when cancelled, and continue to run."""
    try:
        Path(path).touch()  # from now on it may be cancelled
        while True:  # a signal right before a sleep is noticed after it
            time.sleep(0.02)
    except JobCancelled:
        Path(path + ".interrupted").touch()
        time.sleep(600.0)


def leave(status):
    os._exit(status)


def give_up():
    raise SystemExit(1)


def shoot_self():
    os.kill(os.getpid(), signal.SIGKILL)


def close_all(*others):
    """Close all file descriptors, and open other files in their places."""
    os.closerange(3, 1024)
    for path in others:
        os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


def close_results():
    """Close the pipe of the outcomes, which has the third of four descriptors."""
    for fd in range(3, 1024):
        try:
            if stat.S_ISFIFO(os.fstat(fd).st_mode) and fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_WRONLY:
                os.close(fd)
        except OSError:
            continue


def end_before_the_answer(status):
    """End the process when it is about to send the outcome."""
    os.write = lambda *_: os._exit(status)


def stop_self():
    os.kill(os.getpid(), signal.SIGSTOP)


def fork_and_return():
    """Return in this process and in a forked one, like a careless task."""
    return os.fork()


def whoami():
    job = current_job()
    return [job.id, job.task, job.queue, job.attempt, job.delivery]


async def later():
    await asyncio.sleep(0)
    return current_job().task


def load(fail: str = "") -> Executor:
    """Return the executor of a child."""
    if fail == "app":
        raise AppNotFound("module shop has no attribute app")
    if fail == "import":
        __import__("module_that_is_not_there")
    if fail == "exit":
        os._exit(3)
    tasks = (
        noop,
        add,
        echo,
        pid,
        hold,
        sleep,
        stubborn,
        leave,
        shoot_self,
        give_up,
        fork_and_return,
        close_all,
        close_results,
        end_before_the_answer,
        stop_self,
        whoami,
        later,
    )
    return make_executor(*tasks)


def load_without_flush() -> Any:
    """Load the tasks in a process whose children send no outcome before the end of a chunk."""
    child.FLUSH_AFTER = math.inf
    return load()


class Stillborn:
    """An executor with which every child dies at its start."""

    def for_slot(self):
        raise SystemExit(4)


def load_stillborn() -> Stillborn:
    return Stillborn()


# Chunks


def call(task: str, *args: Any, headers: str = "", **kwargs: Any) -> tuple[str, bytes]:
    """Return the header text and payload of a job."""
    text = f"task:{task},content-type:msgpack" + (f",{headers}" if headers else "")
    return text, msgpack.packb([args, kwargs])


def make_chunk(*calls: tuple[str, bytes], expires: float = 0.0) -> tuple[bytes, int]:
    """Return the body of a chunk, and its number of jobs; ids are j0, j1, ..."""
    rows = [
        (f"j{n}", 1, 1, headers, 0.0, expires, payload)
        for n, (headers, payload) in enumerate(calls)
    ]
    return encode_chunk("default", rows), len(rows)


def wait_for(condition: Callable[[], object], seconds: float = TIMEOUT) -> None:
    """Wait until a condition is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"it did not come true within {seconds} s")
        select.select([], [], [], 0.001)


class Driver:
    """Drives a pool like a job manager, and records its events."""

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self.rows: dict[int, list[OutcomeRow]] = {}
        self.deaths: list[SlotDied] = []

    def assign(self, chunk: int, *calls: tuple[str, bytes], slot: int = 0) -> None:
        body, count = make_chunk(*calls)
        self.pool.assign(slot, chunk, body, count)

    def poll(self, seconds: float = 0.0) -> None:
        select.select(list(self.pool.filenos()), [], [], seconds)
        self.take(self.pool.poll())

    def take(self, events: Sequence[JobsEnded | SlotDied]) -> None:
        for event in events:
            if isinstance(event, SlotDied):
                self.deaths.append(event)
                continue
            rows = [OutcomeRow(*row) for row in decode_outcomes(event.outcomes)]
            assert len(rows) == event.count
            self.rows.setdefault(event.chunk, []).extend(rows)

    def until(self, condition: Callable[[], object], seconds: float = TIMEOUT) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            self.poll(0.002)
            if time.monotonic() > deadline:
                raise AssertionError(f"after {seconds} s: {self.rows}, {self.deaths}")

    def until_answered(self, chunk: int, count: int) -> list[Any]:
        """Wait for ``count`` outcomes of a chunk; return the decoded results."""
        self.until(lambda: len(self.rows.get(chunk, [])) >= count)
        return self.results(chunk)

    def positions(self, chunk: int, count: int) -> list[int]:
        """Wait for ``count`` outcomes of a chunk; return the positions of all of its outcomes."""
        self.until(lambda: len(self.rows.get(chunk, [])) >= count)
        return [row.position for row in self.rows.get(chunk, [])]

    def results(self, chunk: int) -> list[Any]:
        return [msgpack.unpackb(row.result) for row in self.rows[chunk]]


def options(**values: Any) -> Mapping[str, Any]:
    """Return the options of a pool of two slots."""
    return {
        "concurrency": 2,
        "loader": "tests.support.worker_harness:load",
        "arguments": {},
        **values,
    }
