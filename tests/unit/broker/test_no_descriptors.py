"""A running broker needs no new descriptor, since its peers may use up all of them."""

from __future__ import annotations

import os
import resource
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import zmq

from eventmq.job import IdFactory, JobRecord
from eventmq.plugins.queue_stores.sqlite.disk import FILE_NAME
from eventmq.plugins.queue_stores.sqlite.store import SqliteStore
from eventmq.store.writes import Admit
from eventmq.testing import FakeClock
from eventmq.wire.sockets import STEP, new_context, open_dealer, open_router

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MIB = 1024 * 1024

#: Commits of a MiB each: the log is checkpointed after 4, and restarts after 8.
WRITTEN = 60

#: Number of descriptors that may be opened before none is left.
_SPARE = 64


def _open_all() -> Iterator[int]:
    """Yield new descriptors until none is left."""
    while True:
        yield os.open(os.devnull, os.O_RDONLY)


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Open all descriptors that this process may have."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))  # noqa: PTH208 - numbers
    opened: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + _SPARE, limits[1]))
        with pytest.raises(OSError, match="Too many open files"):
            opened.extend(_open_all())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for fd in opened:
            os.close(fd)


@pytest.mark.parametrize("durability", ["durable", "relaxed"])
def test_the_log_is_moved_and_synced_without_a_descriptor(tmp_path: Path, durability: str) -> None:
    """Peers may have used all descriptors before the first checkpoint."""
    clock = FakeClock()
    store = SqliteStore(tmp_path, clock, reserve=0, durability=durability, fsync_interval=0.001)
    store.open()
    new_id = IdFactory(clock).new
    log = os.open(tmp_path / f"{FILE_NAME}-wal", os.O_RDONLY)
    times_begun = _times_begun(log)
    with no_descriptor_left():
        for number in range(WRITTEN):
            job = JobRecord(
                new_id(), "q", "task:t", bytes(MIB), number, number, created=clock.now()
            )
            store.submit([Admit([job])])
            assert store.finished() == [[{}]]
            if _times_begun(log) > times_begun:
                break
    assert _times_begun(log) > times_begun, "the log was never moved and begun anew"
    os.close(log)
    store.close()


def _times_begun(log: int) -> int:
    """Return the sequence number in the header of the log, which grows when the log restarts."""
    return int.from_bytes(os.pread(log, 4, 12), "big")


def test_what_waits_for_a_peer_is_counted_without_a_descriptor() -> None:
    """pyzmq reports sent frames from a thread that needs descriptors when it starts."""
    context = new_context()
    router = open_router(context)
    dealer = open_dealer(context, router.bind("tcp://127.0.0.1:0"))
    assert dealer.socket.poll(20_000, zmq.POLLOUT)
    assert dealer.send([b"here"])
    assert router.socket.poll(20_000)
    peer, _ = router.receive() or ()
    with no_descriptor_left():
        assert all(router.send([peer, bytes(STEP)]) for _ in range(4))
        for _ in range(4):
            assert dealer.socket.poll(20_000)
            assert dealer.receive() == [bytes(STEP)]
    for link in (router, dealer):
        link.close(0)
    context.term()
