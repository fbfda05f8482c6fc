"""Majordomo draft 0.1 without sockets: frames written by hand from the draft, and the rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventmq.errors import ProtocolError
from eventmq_contrib.gateways.majordomo.machine import (
    AssignedJob,
    ClientRequest,
    MajordomoLimits,
    MajordomoMachine,
)
from eventmq_contrib.gateways.majordomo.messages import (
    Disconnect,
    Final,
    Heartbeat,
    Partial,
    Ping,
    Ready,
    Request,
    command,
    decode_client,
    decode_worker,
    reply,
    request,
)

C, W, W2 = b"client", b"worker", b"worker-2"
NAME = b"MDPW02"


# Messages: the tables "Breakdown" of the draft

FROM_WORKERS = [
    ([NAME, b"\x01", b"echo"], Ready("echo")),
    ([NAME, b"\x03", C, b"", b"id", b"a", b""], Partial(C, b"id", (b"a", b""))),
    ([NAME, b"\x04", C, b"", b"id", b"a"], Final(C, b"id", (b"a",))),
    ([NAME, b"\x04", C, b"", b"id"], Final(C, b"id", ())),
    ([NAME, b"PING"], Ping()),
    ([NAME, b"\x05"], Heartbeat()),
    ([NAME, b"\x06"], Disconnect()),
]


@pytest.mark.parametrize(("frames", "message"), FROM_WORKERS, ids=lambda v: str(v)[:50])
def test_what_workers_send(frames, message):
    """A leading empty frame is accepted."""
    assert message == decode_worker(frames, NAME)
    assert message == decode_worker([b"", *frames], NAME)


def test_disconnect_is_known_by_its_literal_under_any_name():
    assert Disconnect() == decode_worker([b"MDPW02", b"\x06"], b"MINE")
    assert Disconnect() == decode_worker([b"MINE", b"\x06"], b"MINE")
    with pytest.raises(ProtocolError):
        decode_worker([b"MDPW02", b"PING"], b"MINE")


def test_what_clients_send():
    frames = [b"MDPC02", b"\x01", b"echo", b"id", b"a", b"", b"b"]
    message = Request("echo", b"id", (b"a", b"", b"b"))
    assert message == decode_client(frames, b"MDPC02")
    assert message == decode_client([b"", *frames], b"MDPC02")


def test_what_we_send():
    client = reply(b"MDPC02", "echo", b"id", [b"a", b""], final=False)
    assert [b"MDPC02", b"\x02", b"echo", b"id", b"a", b""] == client
    assert [b"MDPC02", b"\x03", b"echo", b"id", b""] == reply(
        b"MDPC02", "echo", b"id", [], final=True
    )
    assert [NAME, b"\x02", C, b"", b"id", b"a"] == request(NAME, C, b"id", [b"a"])
    assert [NAME, b"PONG"] == command(NAME, "PONG")
    assert [NAME, b"\x06"] == command(NAME, "DISCONNECT")


INVALID = [
    [], [b""], [NAME], [b"", NAME], [b"MDPW01", b"PING"], [NAME, b"\x01"], [NAME, b"\x01", b""],
    [NAME, b"\x01", b"\xff"], [NAME, b"\x01", b"a\nb"], [NAME, b"\x01", b"a", b"b"],
    [NAME, b"\x02", C, b"", b"id", b"x"], [NAME, b"\x04", C, b"" ], [NAME, b"\x04", C, b"x", b"i"],
    [NAME, b"PING", b""], [NAME, b"PONG"], [NAME, b"\x06", b""], [NAME, b"\x07"], [NAME, b""],
]  # fmt: skip


@pytest.mark.parametrize("frames", INVALID, ids=str)
def test_an_invalid_message_of_a_worker_is_refused(frames):
    with pytest.raises(ProtocolError):
        decode_worker(frames, NAME)


INVALID_OF_CLIENTS = [
    [], [b"MDPC02"], [b"MDPC02", b"\x01", b"s", b"id"], [b"MDPC02", b"\x02", b"s", b"id", b"x"],
    [b"MDPW02", b"\x01", b"s", b"id", b"x"], [b"MDPC02", b"\x01", b"", b"id", b"x"],
    [b"MDPC02", b"\x01", b"s", b"", b"x"], [b"MDPC02", b"\x01", b"\xff", b"id", b"x"],
]  # fmt: skip


@pytest.mark.parametrize("frames", INVALID_OF_CLIENTS, ids=str)
def test_an_invalid_message_of_a_client_is_refused(frames):
    with pytest.raises(ProtocolError):
        decode_client(frames, b"MDPC02")


@given(st.lists(st.sampled_from([b"", NAME, b"\x01", b"\x04", b"PING", b"\xff", b"a"])))
def test_any_frames_are_read_or_refused(frames):
    for decode in (decode_client, decode_worker):
        try:
            decode(frames, NAME)
        except ProtocolError:
            continue


# The machine


class World:
    """A machine with clients and workers, and a record of its calls."""

    def __init__(self, **limits):
        self.done = []
        self.room = True
        self.machine = MajordomoMachine(MajordomoLimits(**limits), self)
        self.now = 50.0

    # MajordomoJobs

    def key(self, request):
        return f"{request.client.decode()}-{request.id.decode()}"

    def submit(self, job_id, request, body):
        self.done.append(("submit", job_id, request.service, list(body)))

    def find_service(self, job_id, service):
        self.done.append(("look up", job_id, service))

    def attach(self, worker, service):
        if self.room:
            self.done.append(("attach", worker, service))
        return self.room

    def part_received(self, worker, job_id, body):
        self.done.append(("part_received", worker, job_id, list(body)))

    def result_received(self, worker, job_id, body):
        self.done.append(("result_received", worker, job_id, list(body)))

    def detach(self, worker, *, died):
        self.done.append(("detach", worker, died))

    # Peers

    def ask(self, id, *body, client=C, service=b"echo"):
        frames = [client, b"MDPC02", b"\x01", service, id, *(body or (b"x",))]
        self.machine.receive("front", frames, self.now)
        return self.received()

    def send(self, worker, *frames):
        self.machine.receive("back", [worker, NAME, *frames], self.now)
        return self.received()

    def received(self):
        messages = [(frames[0], frames[2:]) for _, frames in self.machine.outbox]
        self.machine.outbox.clear()
        return messages

    def wanted(self):
        done, self.done = self.done, []
        return done

    def wait(self, seconds):
        self.now += seconds
        self.machine.tick(self.now)
        return self.received()


@pytest.fixture
def world():
    return World()


@pytest.fixture
def busy(world):
    """A world with a client's request in the hands of worker 1."""
    world.ask(b"1", b"body")
    world.send(W, b"\x01", b"echo")
    world.machine.assign(1, AssignedJob("client-1", C, b"1", [b"body"]))
    assert [(W, [b"\x02", C, b"", b"1", b"body"])] == world.received()
    world.wanted()
    return world


def test_a_request_becomes_a_job_and_its_end_the_final(world):
    assert [] == world.ask(b"1", b"a", b"")
    assert [("submit", "client-1", "echo", [b"a", b""])] == world.wanted()
    world.machine.finished("client-1", [b"r"])
    assert [(C, [b"\x03", b"echo", b"1", b"r"])] == world.received()
    assert 0 == world.machine.requests


def raw(world, port, *frames):
    """Send any frames, and return the sent messages, with all frames after the identity."""
    world.machine.receive(port, list(frames), world.now)
    sent = [(frames[0], frames[1:]) for _, frames in world.machine.outbox]
    world.machine.outbox.clear()
    return sent


def test_a_client_that_sends_an_empty_frame_first_is_answered_with_one(world):
    """A REQ socket adds it, and ignores messages without it."""
    raw(world, "front", C, b"", b"MDPC02", b"\x01", b"echo", b"1", b"x")
    raw(world, "front", b"other", b"MDPC02", b"\x01", b"echo", b"1", b"x")
    for job in ("client-1", "other-1"):
        world.machine.part(job, [b"p"])
        world.machine.finished(job, [b"r"])
    assert [frames for _, frames in world.machine.outbox] == [
        [C, b"", b"MDPC02", b"\x02", b"echo", b"1", b"p"],
        [C, b"", b"MDPC02", b"\x03", b"echo", b"1", b"r"],
        [b"other", b"MDPC02", b"\x02", b"echo", b"1", b"p"],
        [b"other", b"MDPC02", b"\x03", b"echo", b"1", b"r"],
    ]


def test_a_client_of_an_earlier_run_is_answered_as_it_asked(world):
    world.machine.expect("client-1", ClientRequest(C, b"1", "echo", True))
    world.machine.finished("client-1", [b"r"])
    assert [b"", b"MDPC02"] == world.machine.outbox[0][1][1:3]


def test_a_worker_that_sends_an_empty_frame_first_gets_one_with_each_message(world):
    """Common libraries do, and expect it in received messages."""
    raw(world, "back", W, b"", NAME, b"\x01", b"echo")
    world.machine.assign(1, AssignedJob("client-1", C, b"1", [b"x"]))
    assert raw(world, "back", W, b"", NAME, b"PING") == [
        (W, [b"", NAME, b"\x02", C, b"", b"1", b"x"]),
        (W, [b"", NAME, b"PONG"]),
    ]
    raw(world, "back", W, b"", NAME, b"\x04", C, b"", b"1", b"r")
    assert ("result_received", 1, "client-1", [b"r"]) in world.wanted()
    world.machine.session_ended(1)
    assert [(BACK, [W, b"", NAME, b"\x06"])] == list(world.machine.outbox)


BACK = "back"


def test_a_stranger_is_sent_away_in_its_own_form(world):
    assert [(W, [b"", NAME, b"\x06"])] == raw(world, "back", W, b"", NAME, b"PING")
    assert [(W, [NAME, b"\x06"])] == raw(world, "back", W, NAME, b"PING")


def test_whether_a_service_is_there(world):
    """ZeroMQ RFC 8; a service without a worker here is looked up."""
    world.send(W, b"\x01", b"echo")
    world.wanted()
    replies = world.ask(b"1", b"echo", service=b"mmi.service")
    assert [(C, [b"\x03", b"mmi.service", b"1", b"200"])] == replies
    assert [] == world.ask(b"2", b"else", service=b"mmi.service")
    assert [("look up", "client-2", "else")] == world.wanted()
    world.machine.finished("client-2", [b"404"])
    assert [(C, [b"\x03", b"mmi.service", b"2", b"404"])] == world.received()
    assert 0 == world.machine.requests


@pytest.mark.parametrize(("service", "body", "code"), [
    (b"mmi.service", b"\xff", b"404"), (b"mmi.discover", b"x", b"501"), (b"mmi.", b"x", b"501"),
])  # fmt: skip
def test_other_questions_of_management(world, service, body, code):
    assert [(C, [b"\x03", service, b"1", code])] == world.ask(b"1", body, service=service)
    assert [] == world.wanted()


def test_a_worker_cannot_serve_management(world, caplog):
    assert [(W, [b"\x06"])] == world.send(W, b"\x01", b"mmi.service")
    assert [] == world.wanted()
    assert "service names mmi.* are reserved" in caplog.text


RFC_7, RFC_18 = "Majordomo 0.1 (ZeroMQ RFC 7)", "Majordomo 0.2 (ZeroMQ RFC 18)"

OTHER_VERSIONS = [
    ("front", [b"", b"MDPC01", b"echo", b"body"], RFC_7, "begin with MDPC01, not with MDPC02"),
    ("front", [b"MDPC02", b"\x01", b"echo", b"body"], RFC_18, "its REQUEST has no request id"),
    ("front", [b"", b"MDPC02", b"\x01", b"echo", b"body"], RFC_18, "has no request id"),
    ("back", [b"", b"MDPW01", b"\x01", b"echo"], RFC_7, "begin with MDPW01, not with MDPW02"),
]


@pytest.mark.parametrize(("port", "frames", "version", "sign"), OTHER_VERSIONS, ids=str)
def test_a_peer_of_another_version_is_named_once(world, caplog, port, frames, version, sign):
    """Each time that it comes it has another identity."""
    for identity in (b"1", b"2", b"2"):
        assert [] == raw(world, port, identity, *frames)
    [record] = [r for r in caplog.records if r.levelname == "WARNING"]
    message = record.getMessage()
    assert f"on the {port} port for the service echo speaks {version}" in message
    assert sign in message
    assert "this gateway speaks the Majordomo draft 0.1" in message
    assert [] == world.wanted()


def test_a_worker_of_0_2_is_recognized_by_its_heartbeat(world, caplog):
    """The heartbeat counts, and is not answered: the draft has PING and PONG."""
    for identity in (b"1", b"2"):
        world.send(identity, b"\x01", b"echo")
        for _ in range(4):
            assert [] == world.wait(5.0)
            assert [] == world.send(identity, b"\x05")
        world.send(identity, b"\x06")
    assert 1 == caplog.text.count(f"for the service echo speaks {RFC_18} (it sends HEARTBEAT, 05)")
    assert [("attach", 1, "echo"), ("detach", 1, False)] == world.wanted()[:2]


NO_VERSION = [
    [], [b""], [b"MDPW01"], [b"MDPW01", b"\x04"], [b"MDPW01", b"\x01", b"a\nb"],
    [b"x", b"\x01", b"a"], [b"MDPW01", b"\x01", b"a" * 256],
    [NAME, b"\x07", b"echo"], [NAME, b"\x01", b"echo", b"more"], [b"MDPW01", b"\x07", b"echo"],
]  # fmt: skip


@pytest.mark.parametrize("frames", NO_VERSION, ids=str)
def test_what_is_of_no_version_is_dropped_without_a_warning(world, caplog, frames):
    assert [] == raw(world, "back", W, *frames)
    assert [] == [r for r in caplog.records if r.levelname == "WARNING"]


def test_versions_are_named_for_so_many_services(world, caplog, monkeypatch):
    monkeypatch.setattr("eventmq_contrib.gateways.majordomo.machine.MAX_WARNINGS", 3)
    for n in range(5):
        raw(world, "back", W, b"MDPW01", b"\x01", b"s%d" % n)
    assert 3 == caplog.text.count(RFC_7)


def test_the_reason_of_a_disconnect_is_logged_once_for_a_service(world, caplog):
    """One that leaves the request id out comes back again and again."""
    for _ in range(3):
        world.send(W, b"\x01", b"echo")
        world.send(W, b"\x04", C, b"", b"reply")
    assert 1 == caplog.text.count("a worker of echo is disconnected: it answered the request id")


def test_a_repeat_joins_the_first_and_has_one_final(world):
    world.ask(b"1")
    world.ask(b"1")
    assert 1 == len(world.wanted())
    world.machine.finished("client-1", [b"r"])
    world.machine.finished("client-1", [b"r"])
    assert 1 == len(world.received())


def test_many_requests_of_a_client_are_in_flight(world):
    world.ask(b"1")
    world.ask(b"2")
    world.ask(b"1", client=b"other")
    assert ["client-1", "client-2", "other-1"] == [done[1] for done in world.wanted()]
    for job in ("client-2", "other-1"):
        world.machine.finished(job, [job.encode()])
    expected = [(C, [b"\x03", b"echo", b"2", b"client-2"])]
    assert [*expected, (b"other", [b"\x03", b"echo", b"1", b"other-1"])] == world.received()


def test_open_requests_are_bounded():
    world = World(requests=1)
    world.ask(b"1")
    world.ask(b"2")
    assert 1 == len(world.wanted())


def test_a_worker_registers_works_and_pings_while_it_is_busy(busy):
    assert [(W, [b"PONG"])] == busy.send(W, b"PING")
    assert [] == busy.send(W, b"\x04", C, b"", b"1", b"r")
    assert [("result_received", 1, "client-1", [b"r"])] == busy.wanted()


def test_partials_reach_the_client_and_are_not_repeated_after_a_death(busy):
    assert [(C, [b"\x02", b"echo", b"1", b"p1"])] == busy.send(W, b"\x03", C, b"", b"1", b"p1")
    busy.wait(10.0)
    assert ("detach", 1, True) in busy.wanted()
    busy.send(W2, b"\x01", b"echo")
    busy.machine.assign(2, AssignedJob("client-1", C, b"1", [b"body"]))
    busy.received()
    assert [] == busy.send(W2, b"\x03", C, b"", b"1", b"p1")
    assert [(C, [b"\x02", b"echo", b"1", b"p2"])] == busy.send(W2, b"\x03", C, b"", b"1", b"p2")


@pytest.mark.parametrize(
    "frames",
    [
        (b"PING",),
        (b"\x05",),
        (b"\x04", C, b"", b"1", b"x"),
        (b"\x03", C, b"", b"1", b"x"),
    ],
    ids=str,
)
def test_a_stranger_must_register_again(world, frames):
    """PING of an unregistered worker: DISCONNECT."""
    assert [(W, [b"\x06"])] == world.send(W, *frames)
    assert [] == world.wanted()


@pytest.mark.parametrize(
    "frames",
    [
        (b"\x01", b"echo"),
        (b"\x04", C, b"", b"9", b"x"),
        (b"\x04", b"else", b"", b"1", b"x"),
        (b"\x03", C, b"", b"9", b"x"),
    ],
    ids=str,
)
def test_valid_and_unexpected_is_disconnect_then_silence(busy, frames):
    assert [(W, [b"\x06"])] == busy.send(W, *frames)
    assert [("detach", 1, False)] == busy.wanted()
    busy.machine.assign(1, AssignedJob("client-2", C, b"2", [b""]))
    assert [] == busy.received()


def test_a_final_without_a_request_is_unexpected(world):
    world.send(W, b"\x01", b"echo")
    assert [(W, [b"\x06"])] == world.send(W, b"\x04", C, b"", b"1", b"x")


def test_invalid_messages_are_dropped(busy):
    for frames in ((b"\x07",), (b"\x01", b""), (b"\x04", C, b"x", b"1"), (b"\x03",) * 950):
        assert [] == busy.send(W, *frames)
    assert [] == busy.wanted()
    assert 1 == busy.machine.workers


def test_a_worker_that_leaves_is_no_death(busy):
    assert [] == busy.send(W, b"\x06")
    assert [("detach", 1, False)] == busy.wanted()
    assert [] == busy.send(W, b"\x06")


def test_a_worker_is_dead_after_10_seconds_of_silence(busy):
    busy.wait(9.9)
    assert [] == busy.wanted()
    busy.send(W, b"\x05")
    busy.wait(9.9)
    assert [] == busy.wanted()
    assert pytest.approx(0.1) == busy.machine.wait(busy.now)
    busy.wait(0.2)
    assert [("detach", 1, True)] == busy.wanted()


def test_an_idle_worker_that_dies_is_no_death_of_a_job(world):
    world.send(W, b"\x01", b"echo")
    world.wait(10.0)
    assert [("attach", 1, "echo"), ("detach", 1, False)] == world.wanted()


def test_workers_are_bounded():
    world = World(workers=1)
    world.send(W, b"\x01", b"echo")
    assert [(W2, [b"\x06"])] == world.send(W2, b"\x01", b"echo")
    assert 1 == world.machine.workers


def test_a_worker_without_a_session_is_sent_away(world):
    world.room = False
    assert [(W, [b"\x06"])] == world.send(W, b"\x01", b"echo")
    assert 0 == world.machine.workers


def test_a_session_that_ends_by_itself_sends_its_worker_away(busy):
    busy.machine.session_ended(1)
    busy.machine.session_ended(1)
    assert [(W, [b"\x06"])] == busy.received()


def test_the_end_tells_all_workers(busy):
    busy.machine.close(busy.now)
    assert [(W, [b"\x06"])] == busy.received()
    assert 0 == busy.machine.workers


def test_a_worker_that_cannot_be_reached_is_given_up(busy):
    busy.machine.not_sent("back", [W, NAME, b"PONG"], disconnected=True)
    assert [("detach", 1, False)] == busy.wanted()


def test_a_reply_waits_a_while_for_a_client_that_is_away(world):
    """It is tried again and again for 60 seconds."""
    world.ask(b"1")
    world.machine.finished("client-1", [b"r"])
    for _ in range(50):
        ((_, frames),) = list(world.machine.outbox)
        world.machine.outbox.clear()
        world.machine.not_sent("front", frames, disconnected=True)
        world.now += 1.0
        world.machine.tick(world.now)
    assert [(C, [b"\x03", b"echo", b"1", b"r"])] == world.received()
    assert [] == world.wait(1.0)


def test_a_reply_is_given_up_after_a_minute(world):
    world.ask(b"1")
    world.machine.finished("client-1", [b"r"])
    frames = world.machine.outbox.popleft()[1]
    world.machine.not_sent("front", frames, disconnected=True)
    assert [] == world.wait(61.0)
    assert [] == world.wait(1.0)


def refuse(world):
    """Let the client receive no messages."""
    for _ in range(len(world.machine.outbox)):
        world.machine.not_sent("front", world.machine.outbox.popleft()[1], disconnected=False)


def test_what_follows_a_reply_that_waits_waits_behind_it(world):
    """PARTIALs reach a slow client in their order; another client's go out at once."""
    world.ask(b"1")
    world.ask(b"1", client=b"other")
    world.machine.part("client-1", [b"a"])
    refuse(world)
    world.machine.part("client-1", [b"b"])
    world.machine.finished("client-1", [b"end"])
    world.machine.part("other-1", [b"x"])
    assert [(b"other", [b"\x02", b"echo", b"1", b"x"])] == world.received()
    expected = [(b"\x02", b"a"), (b"\x02", b"b"), (b"\x03", b"end")]
    assert expected == [(frames[0], frames[3]) for _, frames in world.wait(1.0)]
    world.ask(b"2")
    world.machine.finished("client-2", [b"r"])
    assert 1 == len(world.received())


@pytest.mark.parametrize("limits", [{"max_replies": 3}, {"max_reply_bytes": 3500}], ids=str)
def test_what_waits_for_a_client_that_never_reads_is_bounded(limits):
    """The oldest go first."""
    world = World(**limits)
    for number in range(10):
        id = b"%d" % number
        world.ask(id)
        world.machine.finished(f"client-{number}", [id, bytes(1000)])
        refuse(world)
    assert [b"7", b"8", b"9"] == [frames[2] for _, frames in world.wait(1.0)]


def test_a_partial_of_a_job_that_streams_is_handed_on(world):
    """It goes to the job's stream; a client of this gateway waits for none."""
    world.send(W, b"\x01", b"echo")
    world.machine.assign(1, AssignedJob("job", b"c", b"1", [b"body"], streams=True))
    world.received()
    world.wanted()
    assert [] == world.send(W, b"\x03", b"c", b"", b"1", b"p")
    assert [("part_received", 1, "job", [b"p"])] == world.wanted()


def test_the_request_of_an_earlier_run_is_expected_once(world):
    request = ClientRequest(C, b"1", "echo")
    assert world.machine.expect("client-1", request)
    assert not world.machine.expect("client-1", request)
    world.ask(b"1")
    assert [] == world.wanted()
    world.machine.finished("client-1", [b"r"])
    assert 1 == len(world.received())


def test_what_has_ended_meanwhile_is_not_expected(world):
    """The broker listed it as open; its client has the reply."""
    world.ask(b"1")
    world.machine.finished("client-1", [b"r"])
    assert 1 == len(world.received())
    request = ClientRequest(C, b"1", "echo")
    assert not world.machine.expect("client-1", request)
    assert world.machine.expect("client-2", request._replace(id=b"2"))
    world.machine.recovered()
    assert not world.machine.expect("client-2", request._replace(id=b"2"))


def test_of_what_has_ended_meanwhile_the_last_are_known(world):
    """As many as requests may be open."""
    many = world.machine._limits.requests
    for number in range(many + 1):
        world.machine.finished(f"client-{number}", [])
    assert world.machine.expect("client-0", ClientRequest(C, b"0", "echo"))
    assert not world.machine.expect("client-1", ClientRequest(C, b"1", "echo"))
    assert not world.machine.expect(f"client-{many}", ClientRequest(C, b"%d" % many, "echo"))


EVENTS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["front", "back"]),
            st.sampled_from([C, W, W2]),
            st.lists(
                st.sampled_from(
                    [b"", NAME, b"MDPC02", b"\x01", b"\x03", b"\x04", b"\x06", b"PING", b"s", b"1"]
                ),
                max_size=7,
            ),
        ),
        st.integers(1, 3),
        st.floats(0, 6),
    )
)


@given(EVENTS)
def test_any_conversation_goes_by_the_rules(events):
    """Nothing is raised; a worker is attached and detached once, and jobs go to those attached."""
    world = World(workers=2, requests=3)
    for event in events:
        match event:
            case int():
                world.machine.assign(event, AssignedJob("s-1", C, b"1", [b"x"]))
            case float():
                world.now += event
                world.machine.tick(world.now)
            case (port, who, frames):
                world.machine.receive(port, [who, *frames], world.now)
    attached = [done[1] for done in world.done if done[0] == "attach"]
    detached = [done[1] for done in world.done if done[0] == "detach"]
    assert list(range(1, len(attached) + 1)) == attached
    assert len(set(detached)) == len(detached)
    assert set(detached) <= set(attached)
    assert len(attached) - len(detached) == world.machine.workers <= 2
