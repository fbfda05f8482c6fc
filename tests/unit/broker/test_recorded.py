"""Recorded messages of an earlier version, replayed against this one.

``recorded_203776b.json`` holds the messages of a client and a worker of the earlier version, at a
broker of this version. The client ran a single job, a batch of one job, a chain of two jobs, and a
job that it cancelled; it also requested the queues and the status. The worker ran the jobs.
``recorded_broker_203776b.json`` was written by ``python -m tests.faults.recording``: a broker of
the earlier version, with a client and a worker of this version. ``python -m tests.faults.upgrades``
runs both combinations with real processes.
"""

from __future__ import annotations

import base64
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eventmq.client.machine import ClientMachine
from eventmq.client.requests import PendingCall, PendingSubmit
from eventmq.headers import parse_headers
from eventmq.interfaces import JobsEnded
from eventmq.wire.batches import decode_chunk, decode_outcomes, unpack
from eventmq.wire.commands import Ack, Call, Error, Inform, Reply, Request, decode
from eventmq.wire.features import Features
from eventmq.wire.outcomes import read_row
from tests.support.manager_harness import World

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from eventmq.wire.commands import Command
    from tests.support.broker_harness import Broker


def recorded(name: str) -> list[tuple[str, list[bytes]]]:
    """Return each message of a file: its sender, or its peer and direction, and its frames."""
    text = Path(__file__).with_name(f"{name}_203776b.json").read_text("utf-8")
    return [
        (who, [base64.b64decode(frame) for frame in frames])
        for who, *frames in json.loads(text)["messages"]
    ]


def messages_of(role: str) -> list[tuple[str, Command]]:
    """Return what a client or worker sent to and received from the earlier broker."""
    recording = [(who.split(), decode(frames)) for who, frames in recorded("recorded_broker")]
    return [(verb, message) for (peer, verb), message in recording if peer == role]


def test_an_earlier_client_and_worker_are_served(broker: Broker) -> None:
    """Each request is answered without an error, and chunks have the same numbers as before."""
    chunks = 0
    messages: list[Command] = []
    calls: dict[str, str] = {}
    for name, frames in recorded("recorded"):
        peer, message = name.encode(), decode(frames)
        if isinstance(message, Reply):  # the broker makes new message ids
            chunk = broker.dispatched[chunks]
            assert message.outcome == f"chunk:{parse_headers(chunk.headers).chunk}"
            message, chunks = message._replace(request=chunk.id), chunks + 1
        elif isinstance(message, Call):
            calls[message.id] = message.name
        broker.put(peer, message)
        broker.tick()
        messages += [each for sent in broker.sent.values() for each in sent]
        broker.sent.clear()
    assert [each for each in messages if isinstance(each, Error)] == []
    answers: dict[str, list[object]] = {}
    for each in messages:
        if isinstance(each, Reply) and each.request in calls:
            answers.setdefault(calls[each.request], []).append(unpack(each.result, "result"))
    assert sorted(answers) == ["cancel", "get", "queues", "status"]
    rows = [read_row(row) for page in answers["get"] for row in page]  # type: ignore[attr-defined]
    assert [row[1] for row in rows] == ["succeeded"] * 3
    assert len(broker.dispatched) == chunks == 4
    ends = [event["kind"] for event in broker.events()]
    assert (ends.count("succeeded"), ends.count("cancelled"), ends.count("failed")) == (4, 1, 0)


def test_an_earlier_broker_serves_a_client(caplog: pytest.LogCaptureFixture) -> None:
    """The client sends the same messages as recorded, and every request is answered."""
    (_, inform), *exchange = messages_of("client")
    assert isinstance(inform, Inform)
    session = Features.parse(inform.features or "").session
    machine = ClientMachine(["broker"], session=session)
    sent: list[Command] = []
    requests: dict[str, PendingSubmit | PendingCall] = {}
    now = 1000.0

    def send(frames: Sequence[bytes]) -> bool:
        sent.append(decode(frames))
        return True

    machine.opened(0, now)
    machine.flush(0, send, now)
    for verb, message in exchange:
        if verb == "hears":
            machine.received(0, message.frames(), now)
        elif isinstance(message, Request):
            count = parse_headers(message.headers).batch
            requests[message.id] = PendingSubmit(message.frames(), id=message.id, count=count)
            machine.begin(requests[message.id], now)
        elif isinstance(message, Call):
            requests[message.id] = call_of(message)
            machine.begin(requests[message.id], now)
        machine.flush(0, send, now)
    messages = [message for verb, message in exchange if verb == "says"]
    assert [each for each in messages if isinstance(each, Request | Call)] == sent[1:]
    assert [each.id for each in requests.values() if each.error is not None] == []
    calls = [each for each in requests.values() if isinstance(each, PendingCall)]
    open_ = [each.name for each in requests.values() if not each.done]  # type: ignore[union-attr]
    assert open_ == ["stream"], "only the reader ends a stream"
    ends = [row[1] for each in calls if each.name == "get" for row in each.answers]
    assert ends == ["succeeded"] * 4 + ["cancelled", "failed"]
    (stream,) = (each.answers for each in calls if each.name == "stream")
    assert len(stream) == 4
    answers = {each.name: each.answers[0] for each in calls if each.name in {"queues", "status"}}
    assert answers["queues"][0]["name"] == "default"
    assert answers["status"]["epoch"] == 1
    assert caplog.records == []


def call_of(message: Call) -> PendingCall:
    """Return the call that a client made."""
    arguments: dict[str, Any] = unpack(message.arguments, "arguments")
    ids = set(arguments.pop("ids")) if message.name == "get" else set()
    return PendingCall([], id=message.id, name=message.name, arguments=arguments, ids=ids)


def test_an_earlier_broker_serves_a_worker(caplog: pytest.LogCaptureFixture) -> None:
    """The worker runs and answers each recorded chunk, and keeps nothing afterwards."""
    (_, inform), *exchange = messages_of("worker")
    assert isinstance(inform, Inform)
    features = Features.parse(inform.features or "")
    inform_fields = {"session": features.session, "name": features.name, "tasks": features.tasks}
    world: Any = World(slots=1, **inform_fields)  # type: ignore[no-untyped-call]
    world.manager.connected(world.now)
    (informed,) = world.out()
    assert isinstance(informed, Inform)
    ids = {inform.id: informed.id}  # recorded id -> new id, of the messages of the worker
    jobs: list[tuple[str, int]] = []
    with caplog.at_level(logging.WARNING):
        for verb, message in exchange:
            if verb == "says":
                if isinstance(message, Reply) and str(message.outcome).startswith("chunk:"):
                    ids[message.id] = answer(world, message)
                continue
            if isinstance(message, Ack):
                message = message._replace(acked=ids.pop(message.acked))  # noqa: PLW2901
            world.receive(message)
            if isinstance(message, Request):
                assert message.id.startswith(features.session)
                index = decode_chunk(world.pool.bodies[-1])
                jobs += [(entry.id, entry.attempt) for entry in index.entries]
    assert ids == {}, "each was acknowledged"
    assert [attempt for _, attempt in jobs] == [1, 1, 1, 1, 1, 2, 1, 1]
    assert len({job_id for job_id, _ in jobs}) == 7
    assert world.manager.online
    assert world.manager.idle
    assert caplog.records == []


def answer(world: Any, recorded_reply: Reply) -> str:
    """Let the pool report the recorded outcomes; return the id of the new, equal REPLY."""
    number = int(str(recorded_reply.outcome).partition(":")[2])
    rows: Sequence[Any] = decode_outcomes(recorded_reply.result)
    world.pool.waiting[0] -= len(rows)
    event = JobsEnded(0, number, len(rows), 0.001 * len(rows), recorded_reply.result)
    world.manager.pool_events([event], world.now)
    (reply,) = (each for each in world.out() if isinstance(each, Reply))
    assert (reply.request, reply.outcome) == (recorded_reply.request, recorded_reply.outcome)
    assert decode_outcomes(reply.result) == rows
    return reply.id
