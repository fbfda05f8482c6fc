"""What client and worker of an earlier commit really sent, said to this broker again.

The file was recorded at a broker of this version. The client ran a single job, a batch of one, a
chain of two, a job that it cancelled, and asked for queues and status; the worker ran what it got.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING

from eventmq.headers import parse_headers
from eventmq.wire.batches import unpack
from eventmq.wire.commands import Call, Error, Reply, decode
from eventmq.wire.outcomes import read_row

if TYPE_CHECKING:
    from eventmq.wire.commands import Command
    from tests.support.broker_harness import Broker

RECORDED = json.loads(Path(__file__).with_name("recorded_203776b.json").read_text("utf-8"))


def messages() -> list[tuple[bytes, Command]]:
    """Return each message as the broker decodes it, with its peer."""
    return [
        (peer.encode(), decode([base64.b64decode(frame) for frame in frames]))
        for peer, *frames in RECORDED["messages"]
    ]


def test_an_earlier_client_and_worker_are_served(broker: Broker) -> None:
    """Each gets what it asked for, and no error; a chunk of then has the number that it has now."""
    chunks = 0
    said: list[Command] = []
    calls: dict[str, str] = {}
    for peer, recorded in messages():
        message = recorded
        if isinstance(message, Reply):  # the broker's message ids are of its own run
            chunk = broker.dispatched[chunks]
            assert message.outcome == f"chunk:{parse_headers(chunk.headers).chunk}"
            message, chunks = message._replace(request=chunk.id), chunks + 1
        elif isinstance(message, Call):
            calls[message.id] = message.name
        broker.put(peer, message)
        broker.tick()
        said += [each for sent in broker.sent.values() for each in sent]
        broker.sent.clear()
    assert [each for each in said if isinstance(each, Error)] == []
    answers: dict[str, list[object]] = {}
    for each in said:
        if isinstance(each, Reply) and each.request in calls:
            answers.setdefault(calls[each.request], []).append(unpack(each.result, "result"))
    assert sorted(answers) == ["cancel", "get", "queues", "status"]
    rows = [read_row(row) for page in answers["get"] for row in page]  # type: ignore[attr-defined]
    assert [row[1] for row in rows] == ["succeeded"] * 3
    assert len(broker.dispatched) == chunks == 4
    ends = [event["kind"] for event in broker.events()]
    assert (ends.count("succeeded"), ends.count("cancelled"), ends.count("failed")) == (4, 1, 0)
