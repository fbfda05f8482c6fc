"""The client's state machine against brokers that answer frames, without sockets and clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from eventmq.client.machine import ClientMachine
from eventmq.client.requests import (
    LOST,
    NO_BROKER,
    OneWayMessage,
    PendingCall,
    PendingRequest,
    PendingSubmit,
)
from eventmq.errors import (
    BrokerUnavailable,
    DuplicateJob,
    JobNotFound,
    MessageTooLarge,
    NotAllowed,
    ProtocolError,
    QueueFull,
    RateLimited,
    ResultTimeout,
    SerializationError,
)
from eventmq.wire.batches import encode_batch, pack
from eventmq.wire.commands import (
    Ack,
    Call,
    Disconnect,
    Error,
    Heartbeat,
    Inform,
    Kbai,
    Publish,
    Reply,
    Request,
    decode,
)
from eventmq.wire.features import Features
from tests.support.client_harness import FakeBroker, Net

if TYPE_CHECKING:
    from collections.abc import Sequence


def submit(job_id: str = "j1", net: Net | None = None, timeout: float = 5.0) -> PendingSubmit:
    now = net.now if net else 1000.0
    frames = Request(job_id, "default", "ack-requested,task:t", b"body").frames()
    return PendingSubmit(frames, id=job_id, deadline=now + timeout)


def batch(net: Net, ids: list[str]) -> PendingSubmit:
    body = encode_batch([("default", "task:t")], [(i, 0, b"x") for i in ids])
    frames = Request("b1", "default", f"ack-requested,batch:{len(ids)}", body).frames()
    return PendingSubmit(frames, id="b1", deadline=net.now + 5.0, count=len(ids))


def call(net: Net, name: str, timeout: float | None = 5.0, **more: Any) -> PendingCall:
    deadline = float("inf") if timeout is None else net.now + timeout
    return PendingCall([], id=net.machine.message_id(), deadline=deadline, name=name, **more)


def get(net: Net, *ids: str, timeout: float | None = 60.0, **more: Any) -> PendingCall:
    return call(net, "get", timeout, ids=set(ids), subject=ids[0], **more)


def rows(pending_call: PendingCall) -> list[list[Any]]:
    return [list(row) for row in pending_call.answers]


# Beginning


def test_nothing_is_sent_before_the_inform_is_acknowledged() -> None:
    """Store, epoch and longest frame are known from the ACK only."""
    broker = FakeBroker(silent=True)
    net = Net(broker)
    net.begin(submit())
    assert broker.kinds() == ["Inform"]
    broker.silent = False
    net.advance(3.5)
    assert broker.kinds() == ["Inform", "Inform", "Request"]


def test_the_inform_says_role_session_and_extensions() -> None:
    broker = FakeBroker()
    Net(broker, name="web:1")
    inform = broker.received[0]
    assert isinstance(inform, Inform)
    assert inform.role == "client"
    assert inform.queues == ""
    assert "session:session" in (inform.features or "")
    assert "name:web%3A1" in (inform.features or "")


# Receipts


def test_a_receipt_ends_the_submission_of_a_job() -> None:
    net = Net(FakeBroker())
    job = submit()
    net.begin(job)
    assert net.notified == [job]
    assert job.done
    assert job.error is None
    assert (job.broker, job.store) == (0, "s1")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("queue-full", QueueFull),
        ("store-full", QueueFull),
        ("too-many-subqueues", QueueFull),
        ("too-large", MessageTooLarge),
        ("not-allowed", NotAllowed),
        ("job-not-found", JobNotFound),
        ("duplicate", DuplicateJob),
        ("rate-limited", RateLimited),
        ("bad-header", ProtocolError),
    ],
)
def test_a_refusal_is_the_exception_of_its_code(code: str, kind: type[Exception]) -> None:
    net = Net(FakeBroker(refuse={"j1": (code, "because")}))
    job = submit()
    net.begin(job)
    assert type(job.error) is kind
    assert "because" in str(job.error) or kind is JobNotFound


def test_a_batch_has_one_receipt_with_its_exceptions() -> None:
    broker = FakeBroker(refuse={"j2": ("queue-full", "full")})
    net = Net(broker)
    jobs = batch(net, ["j1", "j2", "j3"])
    net.begin(jobs)
    assert jobs.error is None
    assert jobs.refused == {1: ("queue-full", "full")}
    assert list(broker.jobs) == ["j1", "j3"]


def test_a_frame_over_the_limit_is_refused_before_it_is_sent() -> None:
    broker = FakeBroker(max_frame=3)
    net = Net(broker)
    job = submit()
    net.begin(job)
    assert isinstance(job.error, MessageTooLarge)
    assert broker.kinds() == ["Inform"]


def test_jobs_with_the_same_id_are_sent_once_and_end_together() -> None:
    """Two threads of an idempotent producer may use one id at the same time."""
    broker = FakeBroker(silent=True)
    net = Net(broker)
    first, second = submit(), submit()
    net.begin(first)
    net.begin(second)
    broker.silent = False
    net.advance(3.5)
    assert broker.kinds().count("Request") == 1
    assert first.done
    assert second.done
    assert first.error is second.error is None


def test_the_second_of_two_with_one_id_goes_on_when_the_first_gives_up() -> None:
    broker = FakeBroker(hold={"j1"})
    net = Net(broker)
    first, second = submit(timeout=2.0), submit(timeout=20.0)
    net.begin(first)
    net.begin(second)
    net.advance(2.5)
    assert isinstance(first.error, BrokerUnavailable)
    assert not second.done
    broker.hold.clear()
    broker.restart()
    net.advance(4.0)
    assert second.error is None
    assert second.done


# Deadlines


def test_an_unsent_job_is_forgotten_at_its_deadline() -> None:
    """Unsent messages are the client's, not libzmq's: they cannot arrive minutes later."""
    broker = FakeBroker()
    net = Net(broker)
    net.lose(0)
    job = submit(net=net)
    net.begin(job)
    net.advance(5.0)
    error = job.error
    assert isinstance(error, BrokerUnavailable)
    assert error.job_id == "j1"
    assert not error.maybe_accepted
    assert "broker0" in str(error)
    net.restore(0)
    net.advance(10.0)
    assert broker.jobs == {}


def test_a_sent_job_without_receipt_may_have_been_accepted() -> None:
    net = Net(FakeBroker(hold={"j1"}))
    job = submit()
    net.begin(job)
    net.advance(5.0)
    assert isinstance(job.error, BrokerUnavailable)
    assert job.error.maybe_accepted


def test_deadlines_are_kept_one_by_one() -> None:
    net = Net(FakeBroker(hold={"a", "b"}))
    early, late = submit("a", net, 1.0), submit("b", net, 3.0)
    net.begin(late)
    net.begin(early)
    net.advance(1.0)
    assert early.done
    assert not late.done
    net.advance(2.0)
    assert late.done


def test_a_broker_that_left_a_job_unanswered_and_is_silent_gets_a_new_connection() -> None:
    """A half-open connection must not cost every later submission its deadline."""
    broker = FakeBroker()
    net = Net(broker)
    broker.silent = True
    net.begin(submit(net=net))
    net.advance(5.0)
    assert net.machine.reopen == [0]


def test_a_broker_that_leaves_calls_unanswered_gets_a_new_connection() -> None:
    """This holds even if each call times out before the broker counts as dead."""
    broker = FakeBroker()
    net = Net(broker)
    broker.silent = True
    net.begin(PendingCall([], id="q", name="ping", deadline=net.now + 5.0))
    net.advance(5.0)
    assert net.machine.reopen == [0]


def wait_in_vain(net: Net, seconds: float, times: int) -> None:
    """Ask for the end of a job so often, each time with this timeout."""
    for n in range(times):
        arguments = {"ids": ["j1"]}
        net.begin(
            PendingCall([], id=f"q{n}", name="get", arguments=arguments, deadline=net.now + seconds)
        )
        net.advance(seconds)


@pytest.mark.parametrize("seconds", [1.0, 3.0, 10.0])
def test_a_job_that_does_not_end_is_no_unanswered_message(seconds: float) -> None:
    """``get`` is answered when the job has ended; what comes of the broker says that it lives."""
    net = Net(FakeBroker())
    net.begin(submit("j1"))
    wait_in_vain(net, seconds, times=20)
    assert net.machine.reopen == []


def test_a_silent_broker_that_is_only_asked_for_ends_of_jobs_gets_a_new_connection() -> None:
    """Each wait is shorter than the heartbeat timeout, and nothing is in flight between two."""
    broker = FakeBroker()
    net = Net(broker)
    net.begin(submit("j1"))
    broker.silent = True
    wait_in_vain(net, 3.0, times=4)
    assert net.machine.reopen == []
    wait_in_vain(net, 3.0, times=1)
    assert net.machine.reopen == [0]


def test_a_connection_that_is_there_again_is_given_up_for_a_new_socket() -> None:
    """Its routing id is that of the lost one, which the broker may still take for whole."""
    net = Net(FakeBroker())
    net.begin(submit("a"))
    net.machine.lost(0, net.now)
    assert net.machine.reopen == []
    net.machine.restored(0, net.now)
    assert net.machine.reopen == [0]


# Restarts


def test_a_job_without_receipt_is_sent_again_with_its_id_after_a_restart() -> None:
    broker = FakeBroker(hold={"j1"})
    net = Net(broker)
    job = submit()
    net.begin(job)
    broker.hold.clear()
    broker.restart()
    net.advance(3.5)
    assert job.done
    assert job.error is None
    ids = [m.id for m in broker.received if isinstance(m, Request)]
    assert ids == ["j1", "j1"]


def test_a_waiting_get_survives_a_restart_and_asks_for_the_rest_only() -> None:
    broker = FakeBroker()
    net = Net(broker)
    for job_id in ("a", "b"):
        net.begin(submit(job_id))
    pending_call = get(net, "a", "b", timeout=None)
    net.begin(pending_call)
    broker.finish("a", "succeeded", data=b"1")
    net.deliver(0, broker.flush())
    broker.restart()
    broker.finish("b", "succeeded", data=b"2")
    net.advance(3.5)
    assert pending_call.done
    assert rows(pending_call) == [
        ["a", "succeeded", "msgpack", b"1"],
        ["b", "succeeded", "msgpack", b"2"],
    ]


def test_a_lost_connection_is_informed_again_as_soon_as_it_is_back() -> None:
    broker = FakeBroker(hold={"j1"})
    net = Net(broker)
    job = submit()
    net.begin(job)
    net.lose(0)
    broker.hold.clear()
    net.restore(0)
    assert job.done
    assert job.error is None


def test_many_inform_agains_are_answered_by_one_inform() -> None:
    broker = FakeBroker()
    net = Net(broker)
    broker.restart()
    for n in range(5):
        net.machine.begin(submit(f"j{n}"), net.now)
    net.run()
    assert broker.kinds().count("Inform") == 2
    assert len(broker.jobs) == 5


# Several brokers


def test_new_jobs_go_to_the_next_broker_while_the_first_is_away() -> None:
    first, second = FakeBroker(store="s1"), FakeBroker(store="s2")
    net = Net(first, second)
    net.begin(submit("a"))
    net.lose(0)
    job = submit("b")
    net.begin(job)
    assert (job.broker, job.store) == (1, "s2")
    net.restore(0)
    net.begin(submit("c"))
    assert list(first.jobs) == ["a", "c"]
    assert list(second.jobs) == ["b"]


def test_an_id_that_was_sent_goes_to_no_other_store() -> None:
    """The first broker may hold the job: the second would run it again."""
    first, second = FakeBroker(store="s1", hold={"a"}), FakeBroker(store="s2")
    net = Net(first, second)
    job = submit("a")
    net.begin(job)
    net.lose(0)
    net.advance(5.0)
    assert isinstance(job.error, BrokerUnavailable)
    assert job.error.maybe_accepted
    assert second.jobs == {}


def test_an_id_that_was_sent_goes_to_another_broker_of_the_same_store() -> None:
    first, second = FakeBroker(store="s1", hold={"a"}), FakeBroker(store="s1")
    net = Net(first, second)
    job = submit("a")
    net.begin(job)
    net.lose(0)
    assert job.error is None
    assert list(second.jobs) == ["a"]


def test_a_job_that_was_not_sent_goes_to_any_broker() -> None:
    first, second = FakeBroker(store="s1"), FakeBroker(store="s2")
    net = Net(first, second)
    net.cut.add(0)
    net.begin(submit("a"))
    net.lose(0)
    assert list(second.jobs) == ["a"]


def test_a_call_goes_to_the_broker_of_its_job_only() -> None:
    first, second = FakeBroker(store="s1"), FakeBroker(store="s2")
    net = Net(first, second)
    net.begin(submit("a"))
    first.finish("a", "succeeded", data=b"1")
    net.lose(0)
    pending_call = get(net, "a", target=0, store="s1")
    net.begin(pending_call)
    assert not pending_call.done
    net.restore(0)
    assert rows(pending_call) == [["a", "succeeded", "msgpack", b"1"]]
    assert "Call" not in second.kinds()


def test_a_broker_that_sends_kbai_is_left_and_informed_again_after_an_interval() -> None:
    first, second = FakeBroker(store="s1"), FakeBroker(store="s2")
    net = Net(first, second)
    net.machine.received(0, Kbai("b").frames(), net.now)
    net.begin(submit("a"))
    assert list(second.jobs) == ["a"]
    net.advance(3.5)
    net.begin(submit("b"))
    assert list(first.jobs) == ["b"]


def test_disconnect_is_answered_by_kbai_and_the_broker_is_sent_nothing_more() -> None:
    """Emqp-1.0, "DISCONNECT and KBAI": a peer that receives it says goodbye and stops sending."""
    first, second = FakeBroker(store="s1"), FakeBroker(store="s2")
    net = Net(first, second)
    net.machine.received(0, Disconnect("b").frames(), net.now)
    net.begin(submit("a"))
    assert list(second.jobs) == ["a"]
    assert type(first.received[-1]) is Kbai


# Questions


def test_a_call_is_answered() -> None:
    net = Net(FakeBroker(epoch=7))
    pending_call = call(net, "ping")
    net.begin(pending_call)
    assert list(pending_call.answers) == [{"epoch": 7}]
    assert pending_call.done


def test_a_get_ends_when_every_id_was_answered_once() -> None:
    broker = FakeBroker()
    net = Net(broker)
    net.begin(submit("a"))
    pending_call = get(net, "a", "unknown")
    net.begin(pending_call)
    assert rows(pending_call) == [["unknown", "", "", None]]
    assert not pending_call.done
    broker.finish("a", "failed", "error", b"e")
    net.deliver(0, broker.flush())
    assert rows(pending_call)[1] == ["a", "failed", "error", b"e"]
    assert pending_call.done


def test_an_answer_that_comes_twice_is_taken_once() -> None:
    broker = FakeBroker()
    net = Net(broker)
    net.begin(submit("a"))
    net.begin(submit("b"))
    pending_call = get(net, "a", "b")
    net.begin(pending_call)
    row = pack([["a", "succeeded", "msgpack", b"1"]])
    for _ in range(2):
        net.machine.received(0, Reply("b", row, pending_call.id, "part").frames(), net.now)
    assert len(pending_call.answers) == 1


def test_an_overdue_get_is_a_timeout_and_is_forgotten_by_the_broker() -> None:
    broker = FakeBroker()
    net = Net(broker)
    net.begin(submit("a"))
    pending_call = get(net, "a", timeout=2.0)
    net.begin(pending_call)
    net.advance(2.5)
    assert isinstance(pending_call.error, ResultTimeout)
    assert pending_call.error.job_id == "a"
    assert broker.waits == {}
    assert net.machine.reopen == []


def test_another_overdue_call_is_an_unavailable_broker() -> None:
    broker = FakeBroker()
    net = Net(broker)
    broker.silent = True
    pending_call = call(net, "ping")
    net.begin(pending_call)
    net.advance(5.0)
    assert isinstance(pending_call.error, BrokerUnavailable)


def test_a_call_that_is_not_needed_is_forgotten_on_both_sides() -> None:
    broker = FakeBroker()
    net = Net(broker)
    net.begin(submit("a"))
    pending_call = get(net, "a")
    net.begin(pending_call)
    net.machine.forget(pending_call)
    net.run()
    assert broker.waits == {}
    assert pending_call.done
    net.machine.forget(pending_call)


def test_a_call_of_another_client_is_left_alone() -> None:
    """A forked child may close a stream or drop a handle that its parent waits for."""
    broker = FakeBroker()
    parent, child = Net(broker), Net(FakeBroker())
    parent.begin(submit("a"))
    pending_call = get(parent, "a")
    parent.begin(pending_call)
    sent = len(child.brokers[0].received)
    child.machine.forget(pending_call)
    child.machine.credit(pending_call)
    child.run()
    assert len(child.brokers[0].received) == sent
    assert not pending_call.done
    broker.finish("a", "succeeded")
    parent.advance(0.5)
    assert (pending_call.done, pending_call.error) == (True, None)
    own = get(child, "b")
    child.begin(own)
    assert own.done


def test_a_refused_call_is_an_error() -> None:
    net = Net(FakeBroker())
    pending_call = call(net, "info", arguments={"id": "nobody"}, subject="nobody")
    net.begin(pending_call)
    assert isinstance(pending_call.error, JobNotFound)
    assert pending_call.error.job_id == "nobody"


def test_a_subscription_goes_on_after_a_restart() -> None:
    broker = FakeBroker()
    net = Net(broker)
    pending_call = call(net, "subscribe", None, arguments={"topics": ["a"]}, limit=3)
    net.begin(pending_call)
    broker.restart()
    net.advance(3.5)
    for n in range(4):
        message = Publish(f"p{n}", "abc", None, b"%d" % n)
        net.begin(OneWayMessage(message.frames(), id=f"p{n}", deadline=net.now + 5))
    assert [answer[2] for answer in pending_call.answers] == [b"1", b"2", b"3"]
    assert pending_call.dropped > 0
    assert not pending_call.done


# Liveness


def test_heartbeats_are_sent_only_while_something_is_waited_for() -> None:
    broker = FakeBroker()
    net = Net(broker)
    net.advance(10.0)
    assert "Heartbeat" not in broker.kinds()
    net.begin(submit("a"))
    net.begin(get(net, "a", timeout=None))
    net.advance(7.0)
    beats = [m for m in broker.received if isinstance(m, Heartbeat)]
    assert len(beats) == 2
    assert float(beats[0].timestamp) > 1000


def test_a_broker_that_is_silent_for_too_long_gets_a_new_connection() -> None:
    broker = FakeBroker()
    net = Net(broker)
    net.begin(submit("a"))
    pending_call = get(net, "a", timeout=None)
    net.begin(pending_call)
    broker.silent = True
    net.advance(14.0)
    assert net.machine.reopen == []
    net.advance(1.5)
    assert net.machine.reopen == [0]
    broker.silent = False
    net.peer[0] += 1
    net.machine.opened(0, net.now)
    broker.finish("a", "succeeded", data=b"1")
    net.run()
    assert pending_call.done


def test_silence_counts_from_when_something_is_waited_for() -> None:
    """After an idle hour the broker gets its time to answer."""
    broker = FakeBroker()
    net = Net(broker)
    net.now += 3600
    net.begin(submit("a"))
    assert net.machine.reopen == []
    assert list(broker.jobs) == ["a"]


def test_the_machine_says_when_it_wants_the_time() -> None:
    net = Net(FakeBroker(hold={"j1"}))
    assert net.machine.next_tick() == float("inf")
    net.begin(submit(net=net, timeout=2.0))
    assert net.machine.next_tick() == net.now + 2.0
    net.begin(submit("j2", net, 10.0))
    net.advance(2.0)
    assert net.machine.next_tick() == float("inf")


# Bad input


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b""],
        [b"", b"eMQP/2.0", b"ACK", b"1", b"2"],
        [b"", b"eMQP/1.0", b"NONSENSE", b"1"],
        [b"", b"eMQP/1.0", b"ACK", b"1", b"\xff"],
        [b"", b"eMQP/1.0", b"ACK", b"1", b"b1", b"no msgpack \xc1"],
        [b"", b"eMQP/1.0", b"ACK", b"1", b"b1", pack([1, 2])],
        [b"", b"eMQP/1.0", b"ACK", b"1", b"b1", pack({"x": 1})],
        [b"", b"eMQP/1.0", b"REPLY", b"1"],
        [b"", b"eMQP/1.0", b"REPLY", b"1", b"x", b"nobody"],
        [b"", b"eMQP/1.0", b"ERROR", b"1", b"", b"too-many-peers", b"no room"],
        Kbai("b").frames()[:3],
        Inform("b", "", "worker").frames(),
        Call("b", "get", b"").frames(),
    ],
)
def test_a_malformed_message_is_dropped(frames: list[bytes]) -> None:
    """Never a crash, never a lost job."""
    broker = FakeBroker(hold={"b1"})
    net = Net(broker)
    jobs = batch(net, ["j1"])
    net.begin(jobs)
    net.machine.received(0, frames, net.now)
    assert not jobs.done
    broker.hold.clear()
    broker.restart()
    net.advance(4.0)
    assert jobs.error is None
    assert jobs.done


@pytest.mark.parametrize("answer", [b"\xc1", pack(5), pack([1]), pack([["a", 1, 2, 3]])])
def test_a_malformed_answer_ends_the_call(answer: bytes) -> None:
    broker = FakeBroker()
    net = Net(broker)
    net.begin(submit("a"))
    pending_call = get(net, "a")
    net.begin(pending_call)
    net.machine.received(0, Reply("b", answer, pending_call.id).frames(), net.now)
    assert isinstance(pending_call.error, ProtocolError)


def test_features_that_cannot_be_read_leave_the_broker_informing() -> None:
    broker = FakeBroker(silent=True)
    net = Net(broker)
    inform = broker.received[0]
    for extra in (b"\xff", b"epoch:x"):
        net.machine.received(0, Ack("b", inform.id, extra).frames(), net.now)
    assert not net.machine.connections[0].ready


def test_a_broker_that_has_no_room_is_named_with_its_reason() -> None:
    broker = FakeBroker(silent=True)
    net = Net(broker)
    text = "at most 3 peers"
    net.machine.received(0, Error("b", "", "too-many-peers", text).frames(), net.now)
    job = submit(net=net)
    net.begin(job)
    net.advance(5.0)
    assert text in str(job.error)


def test_a_graph_is_not_sent_to_a_broker_that_does_not_know_graphs() -> None:
    """It would take it for one job."""
    net = Net(FakeBroker())
    net.machine.connections[0].features = Features(extensions=("batch", "call"))
    graph = submit("g1", net)
    graph.extension = "graph"
    net.begin(graph)
    assert isinstance(graph.error, ProtocolError)
    assert "lacks the protocol extension 'graph'" in str(graph.error)


def test_a_legacy_broker_takes_jobs_but_no_batches_and_no_calls() -> None:
    """A broker without FEATURES knows the published document only."""
    broker = FakeBroker(features=False)
    net = Net(broker)
    job, jobs, pending_call = submit(), batch(net, ["a"]), call(net, "ping")
    for request in (job, jobs, pending_call):
        net.begin(request)
    assert job.error is None
    assert isinstance(jobs.error, ProtocolError)
    assert isinstance(pending_call.error, ProtocolError)
    assert job.store == "broker0"


def test_a_job_for_a_legacy_broker_is_over_when_it_was_sent() -> None:
    """No receipt comes from there, and nothing says that one was there."""
    broker = FakeBroker(features=False)
    net = Net(broker)
    net.cut.add(0)
    net.begin(job := submit())
    assert not job.done
    net.cut.clear()
    net.run()
    assert job.done
    assert job.error is None
    assert not job.confirmed


def test_a_body_that_is_no_text_is_not_sent_to_a_legacy_broker() -> None:
    """A router of EventMQ 0.3 ends when it reads it."""
    net = Net(FakeBroker(features=False))
    frames = Request("j1", "default", "", b"\x92\xff").frames()
    job = PendingSubmit(frames, id="j1", deadline=net.now + 5)
    message = OneWayMessage(
        Publish("p1", "t", None, b"\xff").frames(), id="p1", deadline=net.now + 5
    )
    for request in (job, message):
        net.begin(request)
        assert isinstance(request.error, SerializationError)
        assert not request.sent


@pytest.mark.parametrize(("role", "sent"), [("client", "Request"), ("scheduler", "Inform")])
def test_a_broker_that_is_said_to_be_a_legacy_one_is_not_asked_by_clients(
    role: str, sent: str
) -> None:
    """It would not answer their INFORM; that of a scheduler it does."""
    machine = ClientMachine(["old"], session="s", role=role, legacy=True)
    machine.opened(0, 1.0)
    frames = Request("j1", "default", "", b"text").frames()
    machine.begin(PendingSubmit(frames, id="j1", deadline=9.0), 1.0)
    machine.tick(4.0, 1.0)
    messages: list[str] = []

    def send(message: Sequence[bytes]) -> bool:
        messages.append(type(decode(message)).__name__)
        return True

    assert machine.flush(0, send, 4.0)
    assert messages == [sent], "and no HEARTBEAT"


def test_a_legacy_broker_whose_connection_is_lost_is_left_until_it_is_back() -> None:
    """Its jobs go to the next one; a new socket takes it for there again."""
    machine = ClientMachine(["one", "two"], session="s", legacy=True)
    for index in (0, 1):
        machine.opened(index, 1.0)
    machine.lost(0, 2.0)
    frames = Request("j1", "default", "", b"text").frames()
    machine.begin(job := PendingSubmit(frames, id="j1", deadline=9.0), 2.0)
    assert job.assigned_to == 1
    machine.restored(0, 3.0)
    assert machine.reopen == [0]
    machine.opened(0, 3.0)
    machine.begin(job := PendingSubmit(frames, id="j2", deadline=9.0), 3.0)
    assert job.assigned_to == 0


def test_a_connection_that_came_back_was_lost_whatever_arrived_since() -> None:
    """An answer that was under way had cleared the reason, which the log says."""
    machine = ClientMachine(["one"], session="s")
    machine.opened(0, 1.0)
    machine.lost(0, 2.0)
    machine.connections[0].last_error = ""
    machine.restored(0, 3.0)
    assert machine.reopen == [0]
    assert machine.connections[0].last_error == LOST


# The end


def test_a_one_way_message_has_ended_when_it_was_sent() -> None:
    broker = FakeBroker()
    net = Net(broker)
    net.cut.add(0)
    message = OneWayMessage(Publish("p1", "t", None, b"x").frames(), id="p1", deadline=net.now + 5)
    net.begin(message)
    assert not message.done
    net.cut.clear()
    net.run()
    assert message.done
    assert message.error is None
    assert broker.kinds()[-1] == "Publish"


def test_everything_open_fails_when_the_client_ends() -> None:
    net = Net(FakeBroker(hold={"a"}))
    job, pending_call = submit("a"), get(net, "b", timeout=None)
    requests: list[PendingRequest] = [job, pending_call]
    net.lose(0)
    for request in requests:
        net.begin(request)
    net.machine.abandon("closed")
    assert [type(request.error) for request in requests] == [BrokerUnavailable, BrokerUnavailable]
    assert all(request.assigned_to == NO_BROKER for request in requests)


def test_kbai_goes_to_brokers_that_are_ready() -> None:
    first, second = FakeBroker(), FakeBroker(silent=True)
    net = Net(first, second)
    net.machine.queue_kbai()
    net.run()
    assert first.kinds()[-1] == "Kbai"
    assert "Kbai" not in second.kinds()
