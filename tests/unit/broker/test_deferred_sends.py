"""Messages that nobody waits for."""

from __future__ import annotations

from eventmq.broker.peers import Key
from eventmq.broker.runner import PATIENCE, Later
from eventmq.broker.state import Outgoing

WORKER, OTHER = Key("main", b"worker"), Key("main", b"other")


def message(key: Key, text: bytes, *, patient: bool = False) -> Outgoing:
    return Outgoing(key, [text], patient=patient)


def frames(messages: list[Outgoing]) -> list[bytes]:
    return [message.frames[0] for message in messages]


def test_a_patient_message_follows_the_next_one_to_its_peer() -> None:
    later = Later()
    assert [] == later.pick([message(WORKER, b"ack", patient=True)], 10.0)
    assert [b"to another"] == frames(later.pick([message(OTHER, b"to another")], 10.001))
    assert [b"chunk", b"ack"] == frames(later.pick([message(WORKER, b"chunk")], 10.002))
    assert later.due == float("inf")


def test_a_patient_message_may_follow_one_of_the_same_turn() -> None:
    turn = [message(WORKER, b"ack", patient=True), message(WORKER, b"chunk")]
    assert [b"chunk", b"ack"] == frames(Later().pick(turn, 10.0))


def test_a_patient_message_is_sent_alone_when_no_other_one_came() -> None:
    later = Later()
    later.pick([message(WORKER, b"first", patient=True)], 10.0)
    later.pick([message(WORKER, b"second", patient=True)], 10.0 + PATIENCE / 2)
    assert later.due == 10.0 + PATIENCE
    assert [b"first", b"second"] == frames(later.pick([], later.due))
    assert later.due == float("inf")
    assert [] == later.pick([], 11.0)
