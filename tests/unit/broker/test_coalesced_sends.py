"""Messages that can wait for another one to the same peer."""

from __future__ import annotations

from eventmq.broker.peers import Key
from eventmq.broker.runner import MAX_DELAY, CoalescedSends
from eventmq.broker.state import DeferredSend

WORKER, OTHER = Key("main", b"worker"), Key("main", b"other")


def message(key: Key, text: bytes, *, coalesce: bool = False) -> DeferredSend:
    return DeferredSend(key, [text], coalesce=coalesce)


def frames(messages: list[DeferredSend]) -> list[bytes]:
    return [message.frames[0] for message in messages]


def test_a_coalesced_message_follows_the_next_one_to_its_peer() -> None:
    coalesced = CoalescedSends()
    assert [] == coalesced.release([message(WORKER, b"ack", coalesce=True)], 10.0)
    assert [b"to another"] == frames(coalesced.release([message(OTHER, b"to another")], 10.001))
    assert [b"chunk", b"ack"] == frames(coalesced.release([message(WORKER, b"chunk")], 10.002))
    assert coalesced.flush_at == float("inf")


def test_a_coalesced_message_may_follow_one_of_the_same_tick() -> None:
    tick = [message(WORKER, b"ack", coalesce=True), message(WORKER, b"chunk")]
    assert [b"chunk", b"ack"] == frames(CoalescedSends().release(tick, 10.0))


def test_a_coalesced_message_is_sent_alone_when_no_other_one_came() -> None:
    coalesced = CoalescedSends()
    coalesced.release([message(WORKER, b"first", coalesce=True)], 10.0)
    coalesced.release([message(WORKER, b"second", coalesce=True)], 10.0 + MAX_DELAY / 2)
    assert coalesced.flush_at == 10.0 + MAX_DELAY
    assert [b"first", b"second"] == frames(coalesced.release([], coalesced.flush_at))
    assert coalesced.flush_at == float("inf")
    assert [] == coalesced.release([], 11.0)
