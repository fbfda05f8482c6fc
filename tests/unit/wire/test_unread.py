"""What may wait for a peer that does not read: the accounts, and a real socket that keeps them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import zmq

from eventmq.wire.sockets import (
    FEW,
    RESERVE,
    SHORT,
    STEP,
    UNMARKED,
    RouterLink,
    Total,
    Unread,
    Unroutable,
    new_context,
    open_router,
)
from tests.support.system import until

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1024 * 1024


@dataclass
class FakeMark:
    done: bool = False


def send(unread: Unread, peer: bytes, size: int) -> FakeMark | None:
    """Send as the link does; return the mark that the message got."""
    account = unread.account(peer)
    if account.sent + size < account.mark_at:
        account.sent += size
        return None
    assert unread.admits(account, size)
    account.sent += size
    mark = FakeMark()
    account.mark(mark)
    return mark


def test_a_mark_that_is_done_frees_all_before_it() -> None:
    unread = Unread(MIB)
    marks = [send(unread, b"p", STEP // 2) for _ in range(8)]
    assert [False, True] * 4 == [mark is not None for mark in marks]
    assert 4 * STEP == unread.waiting(b"p")
    marks[3].done = True  # type: ignore[union-attr] # it is there
    assert 4 * STEP == unread.waiting(b"p"), "the first one is not done: this cannot be"
    marks[1].done = True  # type: ignore[union-attr] # it is there
    assert 2 * STEP == unread.waiting(b"p")


def test_small_messages_cost_no_mark_until_they_are_many() -> None:
    unread = Unread(MIB)
    marks = [send(unread, b"p", 1000) for _ in range(STEP // 1000 + 1)]
    assert [STEP // 1000] == [place for place, mark in enumerate(marks) if mark is not None]


def test_over_the_bound_only_a_short_message_is_admitted_up_to_a_reserve() -> None:
    unread = Unread(2 * MIB)
    account = unread.account(b"p")
    while unread.admits(account, STEP):
        send(unread, b"p", STEP)
    assert 2 * MIB == unread.waiting(b"p")
    assert not unread.admits(account, SHORT + 1)
    short = 0
    while unread.admits(account, SHORT):
        account.sent += SHORT
        short += SHORT
    assert RESERVE == short
    assert unread.admits(unread.account(b"neighbour"), STEP)


def test_a_message_over_the_bound_is_sent_by_itself() -> None:
    """A frame may be longer than the bound: then nothing else waits."""
    unread = Unread(MIB)
    mark = send(unread, b"p", 10 * MIB)
    account = unread.account(b"p")
    assert not unread.admits(account, 10 * MIB)
    assert mark is not None
    mark.done = True
    assert unread.admits(account, 10 * MIB)


def test_accounts_of_peers_that_have_gone_are_closed_and_others_are_not() -> None:
    unread = Unread(MIB)
    send(unread, b"stuck", STEP)
    for number in range(3 * FEW):
        mark = send(unread, b"%d" % number, 10)
        if mark is not None:
            mark.done = True
    assert len(unread) <= FEW
    assert STEP == unread.waiting(b"stuck")


def test_what_peers_leave_that_come_and_go_does_not_add_up() -> None:
    """Where the sum has no bound, or is never met, nothing else looks at their accounts."""
    unread = Unread(MIB)
    for number in range(20 * FEW):
        peer = b"%d" % number
        mark = send(unread, peer, 10)
        if mark is not None:
            mark.done = True
        if number % 2:
            unread.forget(peer)
    assert len(unread.total._open) <= 2 * FEW


def test_who_makes_others_come_and_go_hides_no_more_than_a_step() -> None:
    """An account that was closed begins anew with a mark, which keeps it open."""
    unread = Unread(MIB)
    for round_ in range(5):
        send(unread, b"sly", STEP - 1)
        for number in range(FEW):
            other = send(unread, b"%d.%d" % (round_, number), 10)
            if other is not None:
                other.done = True
    assert 4 * (STEP - 1) == unread.waiting(b"sly")


# All peers together


def fill(unread: Unread, peer: bytes, size: int) -> int:
    """Send messages that are not read until no more may be; return the bytes."""
    account, sent = unread.account(peer), 0
    while unread.admits(account, size):
        account.sent += size
        account.mark(FakeMark(), size)
        sent += size
    return sent


def test_a_few_that_do_not_read_have_half_of_the_sum_and_others_are_served() -> None:
    total = Total(64 * MIB)
    main, worker = Unread(64 * MIB, total), Unread(64 * MIB, total)
    hogs = [fill(main if n % 2 else worker, b"hog%d" % n, 20_000) for n in range(20)]
    assert 0.4 * 64 * MIB < sum(hogs) == total.used < 0.65 * 64 * MIB
    for n in range(50):
        assert main.admits(main.account(b"honest%d" % n), 200_000)


def test_a_hundred_that_do_not_read_stay_under_the_sum_and_another_is_served() -> None:
    total = Total(256 * MIB)
    unread = Unread(64 * MIB, total)
    for n in range(100):
        fill(unread, b"hog%d" % n, 100_000)
    assert total.used < 0.95 * 256 * MIB
    assert unread.admits(unread.account(b"honest"), 900_000)


def test_however_many_do_not_read_the_sum_holds() -> None:
    total = Total(16 * MIB)
    unread = Unread(64 * MIB, total)
    for n in range(2000):
        fill(unread, b"hog%d" % n, 5000)
    assert 15 * MIB < total.used <= 16 * MIB


def test_what_one_has_read_is_free_for_the_others() -> None:
    total = Total(8 * MIB)
    unread = Unread(8 * MIB, total)
    account, marks = unread.account(b"p"), []
    while unread.admits(account, STEP):
        account.sent += STEP
        marks.append(FakeMark())
        account.mark(marks[-1])
    before = total.share()
    for mark in marks:
        mark.done = True
    assert unread.admits(unread.account(b"other"), 2 * before), "it is looked at, before a refusal"
    assert total.used == 0
    assert not total.warned


def test_a_peer_that_has_gone_has_nothing_of_the_sum() -> None:
    total = Total(8 * MIB)
    unread = Unread(8 * MIB, total)
    assert fill(unread, b"p", STEP) == total.used > 0
    unread.forget(b"p")
    assert (total.used, total.accounts) == (0, 0)
    total.refresh()
    assert total.used == 0


def test_who_had_much_when_there_was_much_is_sent_short_messages_all_the_same() -> None:
    """Its heartbeats, say: without them it would be told to inform again."""
    total = Total(16 * MIB)
    unread = Unread(64 * MIB, total)
    fill(unread, b"first", 100_000)
    first = unread.account(b"first")
    for n in range(30):
        fill(unread, b"%d" % n, 20_000)
    assert not unread.admits(first, SHORT + 1)
    short = 0
    while unread.admits(first, SHORT):
        first.sent += SHORT
        short += SHORT
    assert 10 * SHORT < short <= RESERVE


def test_what_has_no_mark_keeps_nobody_from_being_served() -> None:
    """It was read, perhaps: only another mark can tell."""
    total = Total(48 * MIB)
    unread = Unread(64 * MIB, total)
    honest = unread.account(b"honest")
    assert send(unread, b"honest", 150_000) is None
    for n in range(100):
        fill(unread, b"%d" % n, 150_000)
    assert unread.admits(honest, 150_000)


def test_with_many_peers_the_marks_are_closer() -> None:
    """So what is behind the last marks of all is a part of the sum at most."""
    total = Total(256 * MIB)
    unread = Unread(64 * MIB, total)
    assert total.step == STEP
    for n in range(1000):
        send(unread, b"%d" % n, 10)
    assert total.step * 1000 <= 256 * MIB * UNMARKED


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
        """Send messages of a size until no more are taken; return how many were."""
        for number in range(100_000):
            if not self.link.send([b"p", b"x" * size]):
                return number
        raise AssertionError("there is no bound")

    def drain(self) -> int:
        """Read what comes, until nothing does; return how many messages it was."""
        count = 0
        while self.dealer.poll(200):
            self.dealer.recv_multipart()
            count += 1
        return count


@pytest.fixture
def pair(context) -> Iterator[Pair]:
    """A link with a bound of 4 MiB, and a peer ``p`` that has little room of its own."""
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
    """Whatever the size of the messages; and what was taken arrives."""
    count = 0
    end = time.monotonic() + 5.0
    while (more := pair.flood(size)) or not count:
        count += more
        assert time.monotonic() < end
    assert 4 * MIB - size - SHORT <= pair.link.unread.waiting(b"p") <= 5 * MIB + STEP
    assert 1 == len(caplog.records)
    assert "slow to read" in caplog.text
    assert count == pair.drain()
    assert pair.flood(size), "it reads again, and is served again"


def test_a_peer_that_has_gone_owes_nothing(pair: Pair) -> None:
    """libzmq drops what waited for it, and the next one of this name begins anew."""
    pair.flood(900_000)
    pair.dealer.close(0)

    def gone() -> bool:
        try:
            pair.link.send([b"p", b"x"])
        except Unroutable:
            return True
        return False

    until(gone, "libzmq knows that it has gone", 5.0)
    assert 0 == pair.link.unread.waiting(b"p")
