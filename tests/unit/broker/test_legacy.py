"""Legacy peers, which know only the published document: their messages to and from the core."""

from __future__ import annotations

import json

import pytest

from eventmq.job import OutcomeKind
from eventmq.wire.commands import (
    Ack,
    Disconnect,
    Error,
    Heartbeat,
    Inform,
    Kbai,
    Ready,
    Reply,
    Request,
    Schedule,
)
from eventmq.wire.features import EXTENSIONS, Features
from eventmq.wire.results import ERROR_TYPE, RemoteError, encode_error
from tests.support.broker_harness import Broker, chunks, row

BODY = b'["run", {}]'


def submit(broker: Broker, headers: str = "reply-requested", body: bytes = BODY) -> str:
    job_id = broker.new_id()
    broker.tell(b"c", Request(job_id, "default", headers, body))
    return job_id


def legacy_worker(broker: Broker, identity: bytes = b"w", slots: int = 1) -> None:
    broker.tell(identity, Inform("i", "", "worker"))
    for n in range(slots):
        broker.put(identity, Ready(f"r{n}"))
    broker.tick()


def replies(broker: Broker) -> list[Reply]:
    return [m for m in broker.took(b"c") if isinstance(m, Reply)]


def test_a_client_that_says_nothing_for_hours_gets_its_reply(broker: Broker) -> None:
    """Only worker, scheduler and broker must send HEARTBEATs."""
    job_id = submit(broker)
    broker.took(b"c")
    broker.wait(broker.limits.heartbeat_timeout * 3)
    assert broker.took(b"c") == []
    legacy_worker(broker)
    broker.tell(b"w", Reply("1", b'{"value": 4}', job_id))
    assert [(r.result, r.request, r.outcome) for r in replies(broker)] == [
        (b'{"value": 4}', job_id, None)
    ]
    broker.wait(broker.limits.heartbeat_timeout + 1)
    assert broker.core.state.peers == {}


def test_a_client_that_is_owed_nothing_is_forgotten(broker: Broker) -> None:
    """Peers are limited, and this one waits for nothing."""
    submit(broker, "guarantee")
    broker.wait(broker.limits.heartbeat_timeout + 1)
    assert broker.core.state.peers == {}


def test_a_five_frame_reply_names_the_job_by_its_own_id(broker: Broker) -> None:
    """It belongs to the leased job of that message id, else to the session's oldest lease."""
    first, second = submit(broker), submit(broker)
    legacy_worker(broker, slots=2)
    broker.tell(b"w", Reply(second, b"2"))
    broker.tell(b"w", Reply("other", b"1"))
    assert [(r.request, r.result) for r in replies(broker)] == [(second, b"2"), (first, b"1")]


def test_a_reply_for_an_id_that_is_not_leased_changes_nothing(broker: Broker) -> None:
    """With six frames no lease is guessed."""
    submit(broker)
    legacy_worker(broker)
    broker.tell(b"w", Reply("1", b"x", "nobody"))
    assert replies(broker) == []
    assert broker.call("queues")[0]["running"] == 1


def test_after_a_restart_the_reply_of_a_legacy_worker_is_taken(broker: Broker) -> None:
    """The first REPLY for an unfinished job wins, whichever peer sends it."""
    job_id = submit(broker)
    legacy_worker(broker)
    broker.crash()
    assert broker.tell(b"w2", Reply("1", b"4", job_id)) == []
    assert broker.call("state", ids=[job_id]) == [[job_id, "succeeded"]]


def test_after_a_restart_a_legacy_job_is_done_again(broker: Broker) -> None:
    """Its worker cannot report what it holds: the job runs again after a heartbeat timeout."""
    job_id = submit(broker)
    legacy_worker(broker)
    broker.crash()
    legacy_worker(broker, b"w")
    broker.wait(broker.limits.heartbeat_timeout - 1)
    assert [m for m in broker.took(b"w") if isinstance(m, Request)] == []
    broker.put(b"w", Heartbeat("h", "1"))
    broker.wait(2.0)
    assert [m.id for m in broker.took(b"w") if isinstance(m, Request)] == [job_id]


def test_after_kbai_a_legacy_worker_gets_nothing_more_and_its_reply_counts(broker: Broker) -> None:
    """The receiver of KBAI stops sending to the component, which may finish its jobs."""
    job_id = submit(broker)
    legacy_worker(broker)
    broker.took(b"w")
    broker.tell(b"w", Kbai("k", "KBYE"))
    submit(broker)
    broker.wait(5.0)
    broker.tell(b"a", Disconnect("d"), "admin")
    assert broker.took(b"w") == []
    broker.tell(b"w", Reply("1", b"4", job_id))
    assert broker.call("state", ids=[job_id]) == [[job_id, "succeeded"]]
    assert broker.core.done


def test_after_kbai_an_idle_legacy_worker_gets_nothing_more_whatever_it_says(
    broker: Broker,
) -> None:
    """A READY may come a second late; nothing is sent until the worker informs again."""
    legacy_worker(broker)
    broker.took(b"w")
    broker.tell(b"w", Kbai("k"))
    submit(broker)
    broker.wait(5.0)
    assert broker.tell(b"w", Ready("late")) == []
    broker.wait(5.0)
    assert broker.took(b"w") == []
    assert broker.call("workers") == []
    legacy_worker(broker)
    assert Request in [type(m) for m in broker.took(b"w")]


def test_a_legacy_worker_that_is_silent_after_our_kbai_may_still_reply(broker: Broker) -> None:
    """It must stop sending to the disconnecting broker, which lets pending jobs complete."""
    job_id = submit(broker)
    legacy_worker(broker)
    broker.took(b"w")
    broker.tell(b"a", Disconnect("d"), "admin")
    assert [m.word for m in broker.took(b"w") if isinstance(m, Kbai)] == ["KBAI", "KBYE"]
    broker.wait(broker.limits.heartbeat_timeout * 3)
    assert broker.took(b"w") == []
    assert not broker.core.done
    broker.tell(b"w", Reply("1", b"4", job_id))
    assert broker.core.done
    assert broker.call("state", ids=[job_id]) == [[job_id, "succeeded"]]


def test_disconnect_says_goodbye_once(broker: Broker) -> None:
    """KBAI to all connected components."""
    broker.tell(b"s", Inform("1", "", "scheduler", Features(session="s").format()))
    broker.took(b"s")
    broker.tell(b"a", Disconnect("d"), "admin")
    broker.core.close(broker.clock.now())
    broker.tick()
    assert [type(m).__name__ for m in broker.took(b"s")] == ["Kbai"]


@pytest.mark.parametrize(
    ("kind", "content_type", "result", "expected"),
    [
        (OutcomeKind.SUCCEEDED, "plain", b'{"value": 4}', {"value": 4}),
        (OutcomeKind.SUCCEEDED, "json", b'{"a": 1}', {"a": 1}),
        (OutcomeKind.SUCCEEDED, "msgpack", b"\xc3\xff", {"value": True}),
        (OutcomeKind.SUCCEEDED, "plain", b"", {"value": True}),
        (
            OutcomeKind.FAILED,
            ERROR_TYPE,
            encode_error(RemoteError("builtins.ValueError", "no \N{SNOWMAN}")),
            {"value": "no \N{SNOWMAN}"},
        ),
        (
            OutcomeKind.FAILED,
            ERROR_TYPE,
            encode_error(RemoteError("eventmq.errors.TimeLimitExceeded", "5 s")),
            {"value": "TimeoutError"},
        ),
        (OutcomeKind.CANCELLED, "", b"", {"value": "cancelled"}),
    ],
)
def test_a_legacy_client_is_told_in_text(
    broker: Broker, kind: int, content_type: str, result: bytes, expected: object
) -> None:
    """JSON {"value": ...}, an exception its text, a time-out TimeoutError, True for nothing."""
    submit(broker)
    [(chunk, _)] = chunks(broker.worker(callables=("jobs.*",)))
    broker.took(b"c")
    broker.answer(b"worker", chunk, [row(kind=kind, content_type=content_type, result=result)])
    [reply] = replies(broker)
    assert json.loads(reply.result) == expected
    assert reply.outcome is None


def test_one_of_our_clients_is_told_the_state(broker: Broker) -> None:
    """With FEATURES the REPLY has seven frames; `test_ended` covers the extension ``ended``."""
    known = tuple(name for name in EXTENSIONS if name != "ended")
    broker.tell(b"c", Inform("1", "", "client", Features(extensions=known, session="c").format()))
    submit(broker)
    legacy_worker(broker)
    broker.tell(b"w", Reply("1", b"4"))
    [reply] = replies(broker)
    assert (reply.result, reply.outcome) == (b"4", "succeeded")


def test_a_job_that_no_legacy_peer_could_read_is_refused(broker: Broker) -> None:
    """Legacy peers decode every frame as UTF-8."""
    [error] = broker.tell(b"c", Request(broker.new_id(), "default", "", b"\xff"))
    assert isinstance(error, Error)
    assert error.code == "bad-body"
    assert broker.call("queues") == []


def test_a_repeated_request_is_replied_to_once_and_to_the_last_who_asked(broker: Broker) -> None:
    """Repeating is safe, and leaves nothing behind."""
    job_id = submit(broker)
    broker.tell(b"c2", Request(job_id, "default", "reply-requested", BODY))
    legacy_worker(broker)
    broker.tell(b"w", Reply("1", b"4", job_id))
    assert replies(broker) == []
    assert [m.result for m in broker.took(b"c2") if isinstance(m, Reply)] == [b"4"]
    messages = broker.tell(b"c", Request(job_id, "default", "reply-requested", BODY))
    assert [type(m) for m in messages] == [Ack, Reply]
    assert [peer.owed for peer in broker.core.state.peers.values()] == [0] * len(
        broker.core.state.peers
    )


# Schedules


def schedulers(broker: Broker) -> None:
    broker.tell(b"s1", Inform("1", "", "scheduler"))
    broker.tell(b"s2", Inform("1", "", "scheduler", Features(session="s").format()))
    broker.took(b"s1")
    broker.took(b"s2")


def receivers(broker: Broker, message: Schedule) -> list[bytes]:
    """Return the peers that got the message, after checking that it is unchanged."""
    broker.tell(b"c", message)
    got = [identity for identity in (b"s1", b"s2") if message in broker.took(identity)]
    broker.sent.clear()
    return got


def test_schedule_goes_to_one_scheduler_and_unschedule_to_all(broker: Broker) -> None:
    """Two schedulers would both fire it; our own read it from the store."""
    schedulers(broker)
    assert receivers(broker, Schedule("1", "q", "nohaste", BODY, "60", "")) == [b"s1"]
    assert receivers(broker, Schedule("2", "q", "interval:60", BODY)) == [b"s1"]
    assert receivers(broker, Schedule("3", "q", "", BODY, "-1", "* * * * *")) == [b"s1"]
    assert receivers(broker, Schedule("4", "q", "", BODY, remove=True)) == [b"s1", b"s2"]


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (Schedule("1", "q", "", BODY), "no-trigger"),
        (Schedule("1", "q", "nohaste", BODY, "", ""), "no-trigger"),
        (Schedule("1", "q", "", BODY, "-1", ""), "bad-trigger"),
        (Schedule("1", "q", "interval:0", BODY), "bad-trigger"),
        (Schedule("1", "q", "", BODY, "soon", ""), "bad-trigger"),
        (Schedule("1", "q", "", BODY, "nan", ""), "bad-trigger"),
        (Schedule("1", "q", "interval:soon", BODY), "bad-header"),
        (Schedule("1", "q", "interval:60,run_count:0", BODY), "bad-header"),
        (Schedule("1", "q", "interval:60", b"\xff"), "bad-body"),
        (Schedule("1", "q", "interval:60", b"x" * 1_048_577), "too-large"),
        (Schedule("1", "q" * 256, "interval:60", BODY), "too-large"),
    ],
)
def test_a_schedule_that_no_scheduler_could_fire_is_refused(
    broker: Broker, message: Schedule, code: str
) -> None:
    """The document's seven frames need interval:N or cron:..., else ERROR."""
    [error] = broker.tell(b"c", message)
    assert isinstance(error, Error)
    assert error.code == code
    assert broker.call("schedules.list")["rows"] == []


def test_a_schedule_is_acknowledged_if_it_asks_for_that(broker: Broker) -> None:
    schedulers(broker)
    got = broker.tell(b"c", Schedule("1", "q", "ack-requested", BODY, "60", ""))
    assert [type(m) for m in got] == [Ack]
