"""Bytes that wait for a peer that does not read: the buffer usage, and a real socket."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import zmq

from eventmq.wire import sockets
from eventmq.wire.sockets import (
    PRUNE_ABOVE,
    RESERVE,
    SHORT,
    STEP,
    UNTRACKED,
    NoConnection,
    RouterLink,
    SendBuffers,
    TotalUsage,
    new_context,
    open_router,
)
from tests.support.system import until

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1024 * 1024


@dataclass
class FakeTracker:
    done: bool = False


def send(buffers: SendBuffers, peer: bytes, size: int) -> FakeTracker | None:
    """Send as the link does; return the tracker of the message."""
    usage = buffers.usage(peer)
    if usage.sent + size < usage.track_at:
        usage.sent += size
        return None
    assert buffers.may_send(usage, size)
    usage.sent += size
    tracker = FakeTracker()
    usage.track(tracker)
    return tracker


def test_a_mark_that_is_done_frees_all_before_it() -> None:
    buffers = SendBuffers(MIB)
    trackers = [send(buffers, b"p", STEP // 2) for _ in range(8)]
    assert [False, True] * 4 == [tracker is not None for tracker in trackers]
    assert 4 * STEP == buffers.waiting(b"p")
    trackers[3].done = True  # type: ignore[union-attr] # it is there
    assert 4 * STEP == buffers.waiting(b"p"), "the first one is not done: this cannot be"
    trackers[1].done = True  # type: ignore[union-attr] # it is there
    assert 2 * STEP == buffers.waiting(b"p")


def test_small_messages_cost_no_mark_until_they_are_many() -> None:
    buffers = SendBuffers(MIB)
    trackers = [send(buffers, b"p", 1000) for _ in range(STEP // 1000 + 1)]
    assert [STEP // 1000] == [
        index for index, tracker in enumerate(trackers) if tracker is not None
    ]


def test_over_the_bound_only_a_short_message_is_admitted_up_to_a_reserve() -> None:
    buffers = SendBuffers(2 * MIB)
    usage = buffers.usage(b"p")
    while buffers.may_send(usage, STEP):
        send(buffers, b"p", STEP)
    assert 2 * MIB == buffers.waiting(b"p")
    assert not buffers.may_send(usage, SHORT + 1)
    short = 0
    while buffers.may_send(usage, SHORT):
        usage.sent += SHORT
        short += SHORT
    assert RESERVE == short
    assert buffers.may_send(buffers.usage(b"neighbour"), STEP)


def test_a_message_over_the_bound_is_sent_by_itself() -> None:
    """A frame may exceed the limit if no other one waits."""
    buffers = SendBuffers(MIB)
    tracker = send(buffers, b"p", 10 * MIB)
    usage = buffers.usage(b"p")
    assert not buffers.may_send(usage, 10 * MIB)
    assert tracker is not None
    tracker.done = True
    assert buffers.may_send(usage, 10 * MIB)


def test_the_usage_of_peers_that_have_gone_is_forgotten_and_that_of_others_is_not() -> None:
    buffers = SendBuffers(MIB)
    send(buffers, b"stuck", STEP)
    for number in range(3 * PRUNE_ABOVE):
        tracker = send(buffers, b"%d" % number, 10)
        if tracker is not None:
            tracker.done = True
    assert len(buffers) <= PRUNE_ABOVE
    assert STEP == buffers.waiting(b"stuck")


def test_what_peers_leave_that_come_and_go_does_not_add_up() -> None:
    """Without a common limit, or below it, nothing else settles their usage."""
    buffers = SendBuffers(MIB)
    for number in range(20 * PRUNE_ABOVE):
        peer = b"%d" % number
        tracker = send(buffers, peer, 10)
        if tracker is not None:
            tracker.done = True
        if number % 2:
            buffers.forget(peer)
    assert len(buffers.total._open) <= 2 * PRUNE_ABOVE


def test_who_makes_others_come_and_go_hides_no_more_than_a_step() -> None:
    """A usage that was forgotten starts with a tracker, which keeps it open."""
    buffers = SendBuffers(MIB)
    for round_ in range(5):
        send(buffers, b"sly", STEP - 1)
        for number in range(PRUNE_ABOVE):
            other = send(buffers, b"%d.%d" % (round_, number), 10)
            if other is not None:
                other.done = True
    assert 4 * (STEP - 1) == buffers.waiting(b"sly")


# All peers together


def fill(buffers: SendBuffers, peer: bytes, size: int) -> int:
    """Send messages, which are not read, until one is refused; return the bytes."""
    usage, sent = buffers.usage(peer), 0
    while buffers.may_send(usage, size):
        usage.sent += size
        usage.track(FakeTracker(), size)
        sent += size
    return sent


def test_a_few_that_do_not_read_have_half_of_the_sum_and_others_are_served() -> None:
    total = TotalUsage(64 * MIB)
    main, worker = SendBuffers(64 * MIB, total), SendBuffers(64 * MIB, total)
    hogs = [fill(main if n % 2 else worker, b"hog%d" % n, 20_000) for n in range(20)]
    assert 0.4 * 64 * MIB < sum(hogs) == total.used < 0.65 * 64 * MIB
    for n in range(50):
        assert main.may_send(main.usage(b"honest%d" % n), 200_000)


def test_a_hundred_that_do_not_read_stay_under_the_sum_and_another_is_served() -> None:
    total = TotalUsage(256 * MIB)
    buffers = SendBuffers(64 * MIB, total)
    for n in range(100):
        fill(buffers, b"hog%d" % n, 100_000)
    assert total.used < 0.95 * 256 * MIB
    assert buffers.may_send(buffers.usage(b"honest"), 900_000)


def test_however_many_do_not_read_the_sum_holds() -> None:
    total = TotalUsage(16 * MIB)
    buffers = SendBuffers(64 * MIB, total)
    for n in range(2000):
        fill(buffers, b"hog%d" % n, 5000)
    assert 15 * MIB < total.used <= 16 * MIB


def test_what_one_has_read_is_free_for_the_others() -> None:
    total = TotalUsage(8 * MIB)
    buffers = SendBuffers(8 * MIB, total)
    usage, trackers = buffers.usage(b"p"), []
    while buffers.may_send(usage, STEP):
        usage.sent += STEP
        trackers.append(FakeTracker())
        usage.track(trackers[-1])
    before = total.share()
    for tracker in trackers:
        tracker.done = True
    assert buffers.may_send(buffers.usage(b"other"), 2 * before), (
        "it is looked at, before a refusal"
    )
    assert total.used == 0
    assert not total.warned


def test_a_peer_that_has_gone_has_nothing_of_the_sum() -> None:
    total = TotalUsage(8 * MIB)
    buffers = SendBuffers(8 * MIB, total)
    assert fill(buffers, b"p", STEP) == total.used > 0
    buffers.forget(b"p")
    assert (total.used, total.peers) == (0, 0)
    total.refresh()
    assert total.used == 0


def test_who_had_much_when_there_was_much_is_sent_short_messages_all_the_same() -> None:
    """Such as HEARTBEATs: without them it would be asked to inform again."""
    total = TotalUsage(16 * MIB)
    buffers = SendBuffers(64 * MIB, total)
    fill(buffers, b"first", 100_000)
    first = buffers.usage(b"first")
    for n in range(30):
        fill(buffers, b"%d" % n, 20_000)
    assert not buffers.may_send(first, SHORT + 1)
    short = 0
    while buffers.may_send(first, SHORT):
        first.sent += SHORT
        short += SHORT
    assert 10 * SHORT < short <= RESERVE


def test_what_has_no_mark_keeps_nobody_from_being_served() -> None:
    """It may have been read: only another tracker can show that."""
    total = TotalUsage(48 * MIB)
    buffers = SendBuffers(64 * MIB, total)
    honest = buffers.usage(b"honest")
    assert send(buffers, b"honest", 150_000) is None
    for n in range(100):
        fill(buffers, b"%d" % n, 150_000)
    assert buffers.may_send(honest, 150_000)


def test_with_many_peers_the_marks_are_closer() -> None:
    """So the bytes after all last trackers are a limited part of the total."""
    total = TotalUsage(256 * MIB)
    buffers = SendBuffers(64 * MIB, total)
    assert total.step == STEP
    for n in range(1000):
        send(buffers, b"%d" % n, 10)
    assert total.step * 1000 <= 256 * MIB * UNTRACKED


# A real socket


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    context = new_context()
    yield context
    context.destroy(0)


@dataclass
class Pair:
    link: RouterLink
    dealer: zmq.Socket[bytes]

    def flood(self, size: int) -> int:
        """Send messages of a size until one is refused; return their number."""
        for number in range(100_000):
            if not self.link.send([b"p", b"x" * size]):
                return number
        raise AssertionError("there is no bound")

    def drain(self) -> int:
        """Read all messages; return their number."""
        count = 0
        while self.dealer.poll(200):
            self.dealer.recv_multipart()
            count += 1
        return count


@pytest.fixture
def pair(context) -> Iterator[Pair]:
    """A link with a limit of 4 MiB, and a peer ``p`` with small buffers."""
    link = open_router(context, max_unsent_bytes=4 * MIB)
    link.socket.set(zmq.SNDBUF, 65536)
    dealer = context.socket(zmq.DEALER)
    dealer.set(zmq.IDENTITY, b"p")
    dealer.set(zmq.RCVHWM, 1)
    dealer.set(zmq.RCVBUF, 65536)
    dealer.connect(link.bind("tcp://127.0.0.1:0"))
    dealer.send(b"hello")
    assert link.socket.poll(5000)
    assert link.receive() == [b"p", b"hello"]
    yield Pair(link, dealer)
    dealer.close(0)
    link.close(0)


@pytest.mark.parametrize("size", [1000, 20_000, 900_000])
def test_bytes_for_a_peer_that_does_not_read_are_bounded(pair: Pair, size: int, caplog) -> None:
    """For messages of any size; and accepted messages arrive."""
    count = 0
    end = time.monotonic() + 5.0
    while (more := pair.flood(size)) or not count:
        count += more
        assert time.monotonic() < end
    assert 4 * MIB - size - SHORT <= pair.link.buffers.waiting(b"p") <= 5 * MIB + STEP
    assert 1 == len(caplog.records)
    assert "slow to read" in caplog.text
    assert count == pair.drain()
    assert pair.flood(size), "it reads again, and is served again"


def test_a_message_waits_once_for_what_its_peer_has_read_to_be_recorded(
    pair: Pair, monkeypatch
) -> None:
    """pyzmq's thread records it, and the link's own thread may keep it from running."""
    usage = pair.link.buffers.usage(b"p")
    now, sleeps, read, unread = [100.0], [], FakeTracker(), FakeTracker()

    def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        now[0] += seconds
        read.done = True

    clock = SimpleNamespace(sleep=sleep, monotonic=lambda: now[0])
    monkeypatch.setattr(sockets, "time", clock)
    usage.sent = 4 * MIB
    usage.track(read)
    assert pair.link.send([b"p", b"x" * MIB]), "all before it has been read"
    usage.sent += 4 * MIB
    usage.track(unread)
    assert not pair.link.send([b"p", b"x" * MIB])
    assert len(sleeps) == 1, "there is one such wait in a while for all peers"
    now[0] += 1.0
    assert not pair.link.send([b"p", b"x" * MIB])
    assert len(sleeps) == 1, "it was refused before: it does not read"
    unread.done = True
    assert pair.drain() == 1
    until(lambda: pair.link.send([b"p", b"x" * MIB]), "it reads again")
    usage.sent += 4 * MIB
    usage.track(FakeTracker())
    assert not pair.link.send([b"p", b"x" * MIB])
    assert len(sleeps) == 2


def test_a_peer_that_has_gone_owes_nothing(pair: Pair) -> None:
    """libzmq drops its waiting messages, and the next peer with its identity starts at zero."""
    pair.flood(900_000)
    pair.dealer.close(0)

    def disconnected() -> bool:
        try:
            pair.link.send([b"p", b"x"])
        except NoConnection:
            return True
        return False

    until(disconnected, "libzmq knows that it has gone", 5.0)
    assert 0 == pair.link.buffers.waiting(b"p")
