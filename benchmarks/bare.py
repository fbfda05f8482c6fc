"""Lower bound of the time of a call and its result: bare sockets, bare syncs, a bare child.

The same frames as EventMQ's go from a client to a loop that only forwards them
(`benchmarks.forward`), to a worker, through a pipe to its child, and all the way back. The loop
writes and syncs one page before it forwards anything: twice per call, as a job and its outcome are
stored. No frame is decoded and no job is stored; each process only waits and is woken. No task
queue with these promises and these processes can be faster on this machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from subprocess import PIPE
from typing import TYPE_CHECKING

import zmq

from benchmarks.system import ROOT
from eventmq.clock import SystemClock
from eventmq.job import IdFactory
from eventmq.wire.batches import OutcomeRow, encode_outcomes
from eventmq.wire.commands import PROTOCOL, Reply, Request
from eventmq.wire.sockets import Link, new_context, open_dealer

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["WARM", "call_seconds", "receipts_per_second", "round_trip_seconds", "times_of"]

_HEADERS = "task:benchmarks.bench_app.nothing,content-type:msgpack"
_BODY = b"\x92\x90\x80"

#: Bytes of one read from the pipes of a child.
_PIPE = 65_536

#: Number of untimed calls at the beginning.
WARM = 100


def round_trip_seconds(calls: int = 2000) -> float:
    """Return the median time from a call to its result, which follows a separate receipt."""
    with tempfile.TemporaryDirectory(prefix="eventmq-bare-") as folder:
        times = sorted(times_of(calls, Path(folder) / "synced"))
    return times[len(times) // 2]


def call_seconds(calls: int = 2000) -> float:
    """Return the median time from a call to its result, which is the receipt as well."""
    with tempfile.TemporaryDirectory(prefix="eventmq-bare-") as folder:
        times = sorted(times_of(calls, Path(folder) / "synced", only="results"))
    return times[len(times) // 2]


def receipts_per_second(calls: int = 5000) -> float:
    """Return how many calls a second get a receipt, one by one; no worker runs."""
    with tempfile.TemporaryDirectory(prefix="eventmq-bare-") as folder:
        return calls / sum(times_of(calls, Path(folder) / "synced", only="receipts"))


def times_of(calls: int, synced: Path, *, only: str = "") -> list[float]:
    """Return the seconds of each call, the first ones left out.

    Args:
        calls: Number of timed calls; `WARM` untimed calls precede them.
        synced: The file that is synced.
        only: ``receipts`` for no worker, ``results`` for no receipts; "" for both.
    """
    loop = _start("forward", str(synced), only)
    assert loop.stdout is not None
    front, back = loop.stdout.readline().split()
    processes = [loop] if only == "receipts" else [loop, _start("bare", back)]
    loop.stdout.readline()  # the loop knows the worker
    context = new_context()
    client = open_dealer(context, front)
    assert client.socket.poll(10_000, zmq.POLLOUT), "no connection"
    try:
        ids = IdFactory(SystemClock()).new_many(WARM + calls)
        return list(_calls(client, ids, 1 if only else 2))[WARM:]
    finally:
        client.close(0)
        context.term()
        for process in processes:
            process.communicate(timeout=10)


def _start(module: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
    return subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True, cwd=ROOT)


def _calls(client: Link, ids: list[str], answers: int) -> Iterator[float]:
    for job_id in ids:
        begin = time.perf_counter()
        client.send(Request(job_id, "default", _HEADERS, _BODY).frames())
        for _ in range(answers):
            while client.receive() is None:
                assert client.socket.poll(10_000), "no message came"
        yield time.perf_counter() - begin


# The worker, a process of its own


def main() -> None:
    """Pass messages through a child and back, until stdin ends."""
    to_child, from_child = _child()
    outcome = encode_outcomes([OutcomeRow(0, 1, 1.8e9, 1e-6, "msgpack", b"\xc0")])
    context = new_context()
    link = open_dealer(context, sys.argv[1])
    assert link.socket.poll(10_000, zmq.POLLOUT), "no connection"
    link.send([b"", PROTOCOL, b"READY", b"1"])
    poller = zmq.Poller()
    for source in (link.socket, from_child, sys.stdin.fileno()):
        poller.register(source, zmq.POLLIN)
    waiting: list[str] = []
    while sys.stdin.fileno() not in (ready := dict(poller.poll())):
        if link.socket in ready:
            while (frames := link.receive()) is not None:
                waiting.append(frames[3].decode())
                os.write(to_child, b"".join(frames))
        if from_child in ready:
            os.read(from_child, _PIPE)
            job_id = waiting.pop(0)
            link.send(Reply(job_id, outcome, job_id, "chunk:1").frames())
    link.close(0)
    context.term()


def _child() -> tuple[int, int]:
    """Fork a child that echoes its input; return the pipes to and from it."""
    read_given, given = os.pipe()
    from_child, write_taken = os.pipe()
    if os.fork() == 0:
        os.close(given)
        os.close(from_child)
        while data := os.read(read_given, _PIPE):
            os.write(write_taken, data)
        os._exit(0)
    os.close(read_given)
    os.close(write_taken)
    return given, from_child


if __name__ == "__main__":
    main()
