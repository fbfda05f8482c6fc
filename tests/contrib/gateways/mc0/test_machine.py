"""mc0 0.3 without sockets: frames written by hand from the document, and the times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventmq.errors import ProtocolError
from eventmq.task.task import header_text
from eventmq_contrib.gateways.mc0.machine import (
    Mc0Limits,
    Mc0Machine,
    Mc0Message,
    command_of,
    decode,
    encode,
    identifier,
    origin_of,
    publication_of,
)

A, B = b"client-a", b"client-b"


class World:
    """A machine whose answers are collected per client."""

    def __init__(self, **limits):
        self.published = []
        put = lambda topic, message: self.published.append((topic, message))  # noqa: E731
        self.machine = Mc0Machine(Mc0Limits(**limits), put)
        self.now = 100.0

    def send(self, who, *frames):
        """Give a message, without its leading empty frame; return what all are sent."""
        raw = [f.encode() if isinstance(f, str) else f for f in frames]
        self.machine.receive("main", [who, b"", *raw], self.now)
        return self.received()

    def received(self):
        messages = list(self.machine.outbox)
        self.machine.outbox.clear()
        assert all(port == "main" and frames[1] == b"" for port, frames in messages)
        return [(frames[0], frames[2:]) for _, frames in messages]

    def wait(self, seconds):
        self.now += seconds
        self.machine.tick(self.now)
        return self.received()


@pytest.fixture
def world():
    return World()


# Messages

#: From the document, with the leading empty frame.
VECTORS = [
    (Mc0Message(b"NOOP"), [b"", b"NOOP"]),
    (Mc0Message(b"NOOP", ((b"ID", b"1234"),)), [b"", b"NOOP", b"ID", b"1234"]),
    (
        Mc0Message(b"CONNECT", ((b"VERSION", b"0.1"), (b"TTL", b"1000"))),
        [b"", b"CONNECT", b"VERSION", b"0.1", b"TTL", b"1000"],
    ),
    (Mc0Message(b"DISCONNECT"), [b"", b"DISCONNECT"]),
    (Mc0Message(b"SUB", (), (b"topic1", b"topic2")), [b"", b"SUB", b"", b"topic1", b"topic2"]),
    (Mc0Message(b"UNSUB", (), (b"topic1", b"topic2")), [b"", b"UNSUB", b"", b"topic1", b"topic2"]),
    (
        Mc0Message(b"PUT", ((b"TOPIC", b"topic1"),), (b"body",)),
        [b"", b"PUT", b"TOPIC", b"topic1", b"", b"body"],
    ),
    (
        Mc0Message(b"MESSAGE", ((b"TOPIC", b"topic1"),), (b"body", b"", b"", b"more")),
        [b"", b"MESSAGE", b"TOPIC", b"topic1", b"", b"body", b"", b"", b"more"],
    ),
]


@pytest.mark.parametrize(("command", "frames"), VECTORS, ids=lambda v: str(v)[:40])
def test_a_message_is_these_frames(command, frames):
    assert frames == encode(command)
    assert command == decode(frames)


@pytest.mark.parametrize(
    "frames", [[], [b""], [b"NOOP"], [b"", b""], [b"NOOP", b""], [b"", b"NOOP", b"ID"]], ids=str
)
def test_a_malformed_message_is_refused(frames):
    with pytest.raises(ProtocolError):
        decode(frames)


@given(st.lists(st.sampled_from([b"", b"a", b"ID", b"TOPIC", b"PUT", b"\xff\0"]), max_size=9))
def test_any_frames_are_a_message_or_refused(frames):
    identifier(frames)
    try:
        command = decode(frames)
    except ProtocolError:
        return
    assert command == decode(encode(command))


# Verbs and their answers


@pytest.mark.parametrize(
    "frames",
    [
        ["NOOP"],
        ["CONNECT", "VERSION", "0.1", "TTL", "1000"],
        ["CONNECT"],
        ["CONNECT", "VERSION", "99"],
        ["SUB", "", "t"],
        ["SUB", ""],
        ["UNSUB", "", "t"],
        ["PUT", "TOPIC", "t", "", "body"],
        ["DISCONNECT"],
    ],
    ids=str,
)
def test_every_verb_is_answered_only_where_it_has_an_id(world, frames):
    """OK ID x; the version is not compared."""
    assert [] == world.send(A, *frames)
    verb, *rest = frames
    assert [(A, [b"OK", b"ID", b"1234"])] == world.send(A, verb, "ID", "1234", *rest)


WRONG = {
    "unknown verb": (["JUMP"], "unknown verb 'JUMP'"),
    "verb of the middleware": (["MESSAGE"], "unknown verb"),
    "small letters": (["noop"], "unknown verb"),
    "key without a value": (["NOOP", "X-A"], "no value"),
    "TTL that is no number": (["CONNECT", "TTL", "soon"], "TTL is 'soon'"),
    "TTL of 0": (["CONNECT", "TTL", "0"], "TTL is '0'"),
    "negative TTL": (["CONNECT", "TTL", "-5"], "TTL is '-5'"),
    "empty TTL": (["CONNECT", "TTL", ""], "TTL is ''"),
    "endless TTL": (["CONNECT", "TTL", "9" * 13], "TTL is"),
    "odd digits": (["CONNECT", "TTL", "\u0663"], "TTL is"),
    "PUT without a topic": (["PUT", "", "body"], "needs a header TOPIC"),
    "long topic": (["PUT", "TOPIC", "t" * 256, "", "x"], "at most 255 bytes"),
    "long subscription": (["SUB", "", "t" * 256], "at most 255 bytes"),
    "many frames": (["SUB", "", *["t"] * 300], "at most 256 frames"),
    "many topics": (["SUB", "", *map(str, range(200))], "at most 100 topics"),
}


@pytest.mark.parametrize(("frames", "text"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_one_error(frames, text):
    """ERROR MESSAGE text, with the ID where the message has one; nothing is changed by it."""
    world = World(topics=100)
    ((who, answer),) = world.send(A, *frames)
    assert (A, [b"ERROR", b"MESSAGE"], 3) == (who, answer[:2], len(answer))
    assert text in answer[2].decode()
    if frames != ["NOOP", "X-A"]:
        verb, *rest = frames
        ((_, answer),) = world.send(A, verb, "ID", "7", *rest)
        assert [b"ID", b"7"] == answer[3:]
    assert 0 == world.machine.clients


def test_frames_that_are_no_message_are_an_error(world):
    for frames in ([A], [A, b""], [A, b"NOOP"]):
        world.machine.receive("main", frames, 0.0)
        ((_, answer),) = world.received()
        assert [b"ERROR", b"MESSAGE"] == answer[:2]


# Topics


def test_a_put_reaches_subscribers_with_all_headers_but_id_in_order(world):
    world.send(A, "SUB", "", "t", "u")
    world.send(B, "SUB", "", "u")
    sent = ["X-1", "a", "TOPIC", "t", "ID", "9", "X-2", "", "X-1", "b", "", "body", "", "more"]
    message = [b"MESSAGE", b"X-1", b"a", b"TOPIC", b"t", b"X-2", b"", b"X-1", b"b", b""]
    expected = [(A, [*message, b"body", b"", b"more"]), (B, [b"OK", b"ID", b"9"])]
    assert expected == world.send(B, "PUT", *sent)


def test_the_sender_gets_its_copy_after_ok(world):
    """OK is the next frame after a request with an ID."""
    world.send(A, "SUB", "", "t")
    world.send(B, "SUB", "", "t")
    messages = world.send(A, "PUT", "TOPIC", "t", "ID", "1", "", "x")
    message = [b"MESSAGE", b"TOPIC", b"t", b"", b"x"]
    assert [(B, message), (A, [b"OK", b"ID", b"1"]), (A, message)] == messages


def test_a_duplicate_sub_gives_one_copy(world):
    for topics in (["t", "t"], ["t"]):
        world.send(A, "SUB", "", *topics)
    assert [(A, [b"MESSAGE", b"TOPIC", b"t", b"", b"x"])] == world.send(
        B, "PUT", "TOPIC", "t", "", "x"
    )


def test_a_put_without_body_keeps_the_empty_key(world):
    world.send(A, "SUB", "", "t")
    assert [(A, [b"MESSAGE", b"TOPIC", b"t", b""])] == world.send(B, "PUT", "TOPIC", "t")


def test_topics_are_compared_whole(world):
    world.send(A, "SUB", "", "t")
    assert [] == world.send(B, "PUT", "TOPIC", "tt", "", "x")


def test_unsub_ends_a_subscription_and_others_stay(world):
    world.send(A, "SUB", "", "t", "u")
    world.send(A, "UNSUB", "", "t", "never")
    assert [] == world.send(B, "PUT", "TOPIC", "t", "", "x")
    assert 1 == len(world.send(B, "PUT", "TOPIC", "u", "", "x"))


def test_disconnect_ends_everything(world):
    world.send(A, "CONNECT", "TTL", "1000")
    world.send(A, "SUB", "", "t")
    world.send(A, "DISCONNECT")
    assert 0 == world.machine.clients
    assert [] == world.send(B, "PUT", "TOPIC", "t", "", "x")
    assert [] == world.wait(5.0)


def test_a_client_that_is_gone_is_forgotten_and_a_slow_one_is_not(world):
    world.send(A, "SUB", "", "t")
    world.machine.not_sent("main", [A, b"", b"MESSAGE"], disconnected=False)
    assert (1, 1) == (world.machine.clients, world.machine.dropped)
    world.machine.not_sent("main", [A, b"", b"MESSAGE"], disconnected=True)
    assert (0, 2) == (world.machine.clients, world.machine.dropped)
    assert [] == world.send(B, "PUT", "TOPIC", "t", "", "x")


def test_clients_are_bounded():
    world = World(clients=1)
    world.send(A, "SUB", "", "t")
    ((_, answer),) = world.send(B, "SUB", "", "t")
    assert b"1 clients already" in answer[2]
    assert [] == world.send(B, "PUT", "TOPIC", "u", "", "x")
    world.send(A, "DISCONNECT")
    assert [] == world.send(B, "SUB", "", "t")


# Times


def test_noop_is_sent_when_nothing_was_for_half_of_the_ttl(world):
    """A client that expects something within its TTL has it, although the machine is slow."""
    world.send(A, "CONNECT", "TTL", "1000")
    assert [] == world.wait(0.49)
    assert [(A, [b"NOOP"])] == world.wait(0.02)
    assert [] == world.wait(0.48)
    assert [(A, [b"NOOP"])] == world.wait(0.03)


def test_what_is_sent_puts_the_noop_off(world):
    world.send(A, "CONNECT", "TTL", "1000")
    world.wait(0.4)
    world.send(A, "NOOP", "ID", "1")
    assert [] == world.wait(0.45)
    assert [(A, [b"NOOP"])] == world.wait(0.06)


def test_who_is_silent_for_1_05_ttl_is_forgotten(world):
    world.send(A, "CONNECT", "TTL", "1000")
    world.send(A, "SUB", "", "t")
    world.wait(1.04)
    assert 1 == world.machine.clients
    world.wait(0.02)
    assert 0 == world.machine.clients
    assert [] == world.send(B, "PUT", "TOPIC", "t", "", "x")


def test_any_message_is_a_sign_of_life(world):
    """Also one that is wrong."""
    world.send(A, "CONNECT", "TTL", "1000")
    for frames in (["NOOP"], ["PUT", "TOPIC", "u", "", "x"], ["JUMP"], ["NOOP"]):
        world.wait(1.0)
        world.send(A, *frames)
    assert 1 == world.machine.clients


def test_without_a_ttl_nothing_is_due(world):
    world.send(A, "SUB", "", "t")
    assert float("inf") == world.machine.wait(world.now)
    assert [] == world.wait(1e6)
    assert 1 == world.machine.clients


def test_a_later_connect_sets_another_ttl(world):
    world.send(A, "CONNECT", "TTL", "1000")
    world.send(A, "CONNECT", "TTL", "10000")
    assert [] == world.wait(4.0)
    assert 1 == world.machine.clients
    assert pytest.approx(1.0) == world.machine.wait(world.now)


EVENTS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from([A, B]),
            st.lists(
                st.sampled_from(
                    [b"", b"CONNECT", b"TTL", b"50", b"SUB", b"PUT", b"TOPIC", b"t", b"ID", b"1",
                     b"UNSUB", b"DISCONNECT", b"NOOP", b"\xff"]
                ),
                max_size=7,
            ),
        ),
        st.floats(0, 0.1),
    )
)  # fmt: skip


@given(EVENTS)
def test_any_conversation_goes_by_the_rules(events):
    """No exception is raised, and a message with an ID is first answered with that."""
    world = World(clients=2, topics=2)
    for event in events:
        if isinstance(event, float):
            world.wait(event)
            assert world.machine.wait(world.now) >= 0.0
            continue
        who, frames = event
        world.machine.receive("main", [who, *frames], world.now)
        own = [answer for other, answer in world.received() if other == who]
        id = identifier(frames)
        if id is not None and len(frames) > 1 and not frames[0] and frames[1]:
            assert [b"ID", id] == own[0][-2:]
            assert own[0][0] in {b"OK", b"ERROR"}


# Topics of the app


@pytest.mark.parametrize("body", [(b"x",), (b"",), (), (b"a", b"", b"\xff")], ids=str)
def test_a_message_comes_back_from_a_publication_as_it_was(body):
    """Headers in order, bytes of any kind, and the mark of the gateway."""
    pairs = ((b"X-\xff", b"a=b&c,d%"), (b"TOPIC", b"t"), (b"X-E", b""))
    message = Mc0Message(b"MESSAGE", pairs, body)
    publication = publication_of(b"t", message, "mark")
    text = header_text(publication.headers)
    value = body[0] if len(body) == 1 else list(body)
    assert "mark" == origin_of(text)
    assert message == command_of(publication.topic, value, text)


@pytest.mark.parametrize(
    ("value", "body"),
    [
        (b"\xff", (b"\xff",)),
        ("\u00e9", ("\u00e9".encode(),)),
        ([b"a", b"b"], (b"a", b"b")),
        ({"a": 1}, (b'{"a": 1}',)),
        (5, (b"5",)),
        ({1, 2}, (b'"{1, 2}"',)),
    ],
    ids=str,
)
def test_what_an_app_publishes_is_a_message(value, body):
    assert Mc0Message(b"MESSAGE", ((b"TOPIC", b"t"),), body) == command_of("t", value, "")


def test_a_topic_that_is_no_text_is_not_published():
    assert publication_of(b"\xff", Mc0Message(b"MESSAGE"), "mark") is None
    assert "" == origin_of("timeout:nonsense")
