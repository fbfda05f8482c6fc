"""A beat of EventMQ at a broker that knows only the published document: a raw ROUTER."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
import zmq

from eventmq.app import EventMQ
from eventmq.errors import PluginError
from eventmq.policies import every
from eventmq.schedule import Schedule
from tests.support.raw_peer import DEADLINE, PROTOCOL

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Seconds between two fire times, and as they are written in a message.
SLOT, INTERVAL = 0.4, b"0.4"

BODY = b'["run", {"callable": "tick", "path": "jobs", "args": [1]}]'


class RawBroker:
    """A ROUTER that acknowledges INFORM, sends HEARTBEATs, and notes the rest."""

    def __init__(self, context: zmq.Context) -> None:
        self.socket = context.socket(zmq.ROUTER)
        self.socket.linger = 0
        port = self.socket.bind_to_random_port("tcp://127.0.0.1")
        self.address = f"tcp://127.0.0.1:{port}"
        self.peer = b""
        self.informs: list[list[bytes]] = []
        self.beats = 0

    def send(self, command: bytes, *rest: bytes) -> None:
        self.socket.send_multipart([self.peer, b"", PROTOCOL, command, b"id", *rest])

    def expect(self, command: bytes, within: float = DEADLINE) -> list[bytes] | None:
        """Return the next message of this command, None if there is none in time."""
        end = time.monotonic() + within
        while (remaining := end - time.monotonic()) > 0:
            if not self.socket.poll(min(200, int(remaining * 1000) + 1)):
                continue
            self.peer, *frames = self.socket.recv_multipart()
            for frame in (self.peer, *frames):
                frame.decode()  # a router of EventMQ 0.3 ends where it cannot
            if frames[2] == b"INFORM":
                self.informs.append(frames)
                self.send(b"ACK", frames[3])
                self.send(b"HEARTBEAT", f"{time.time():.2f}".encode())
            self.beats += frames[2] == b"HEARTBEAT"
            if frames[2] == command:
                return frames
        return None


@pytest.fixture
def broker() -> Iterator[RawBroker]:
    context = zmq.Context()
    broker = RawBroker(context)
    yield broker
    broker.socket.close(0)
    context.term()


@pytest.fixture
def beat(broker: RawBroker) -> Iterator[EventMQ]:
    """A running beat that keeps schedules itself."""
    with EventMQ("old", broker=broker.address, schedule_store="memory") as app:
        app.inform_as("scheduler")
        runner = app.make_beat()
        thread = threading.Thread(target=runner.run)
        thread.start()
        yield app
        runner.stop()
        thread.join(DEADLINE)


def test_it_informs_as_a_scheduler_and_sends_heartbeats(broker: RawBroker, beat: EventMQ) -> None:
    assert broker.expect(b"HEARTBEAT")
    assert broker.informs[0][4:6] == [b"", b"scheduler"]
    assert broker.peer.decode("ascii").startswith("eventmq1:scheduler."), (
        "a deployed router reads it as UTF-8"
    )


@pytest.mark.parametrize(
    "frames",
    [
        [b"default", b"guarantee,run_count:2", INTERVAL, BODY, b""],
        [b"default", b"guarantee,run_count:2,interval:" + INTERVAL, BODY],
    ],
)
def test_it_keeps_what_the_broker_sends_and_fires_legacy_jobs(
    broker: RawBroker, beat: EventMQ, frames: list[bytes]
) -> None:
    """At once, since nohaste is not set, and after the interval; then run_count is reached."""
    assert broker.expect(b"HEARTBEAT")
    broker.send(b"SCHEDULE", *frames)
    first = broker.expect(b"REQUEST")
    second = broker.expect(b"REQUEST")
    assert first is not None
    assert second is not None
    assert first[4:] == second[4:] == [b"default", b"guarantee", BODY]
    assert first[3] != second[3]
    assert broker.expect(b"REQUEST", 1.5 * SLOT) is None


def test_unschedule_ends_it(broker: RawBroker, beat: EventMQ) -> None:
    assert broker.expect(b"HEARTBEAT")
    broker.send(b"SCHEDULE", b"default", b"", INTERVAL, BODY, b"")
    assert broker.expect(b"REQUEST")
    broker.send(b"UNSCHEDULE", b"default", b"", INTERVAL, BODY, b"")
    broker.expect(b"REQUEST", SLOT)  # one may have been on its way
    broker.expect(b"REQUEST", SLOT)  # and one more, since it reads what came every 0.4 s
    assert broker.expect(b"REQUEST", 2 * SLOT) is None


def test_an_overlap_that_it_cannot_be_asked_about_is_allowed(
    broker: RawBroker, beat: EventMQ
) -> None:
    """The first fired job has an unknown state."""
    assert broker.expect(b"HEARTBEAT")
    made = Schedule(
        name="skips", queue="default", body=BODY, trigger=str(every(seconds=SLOT)), overlap="skip"
    ).started(time.time())
    made.last_job = "1" * 32
    assert beat.schedules.store.save([(made, None)]).done == [True]
    assert broker.expect(b"REQUEST")
    assert broker.expect(b"REQUEST")


def test_a_bad_one_does_not_end_the_others(
    broker: RawBroker, beat: EventMQ, caplog: pytest.LogCaptureFixture
) -> None:
    assert broker.expect(b"HEARTBEAT")
    broker.send(b"SCHEDULE", b"default", b"", b"-5", b"one", b"")
    broker.send(b"SCHEDULE", b"default", b"", b"-1", b"two", b"0 0 30 2 *")
    broker.send(b"SCHEDULE", b"default", b"nohaste", INTERVAL, BODY, b"")
    assert broker.expect(b"REQUEST")
    assert "the interval is -5 s" in caplog.text
    assert "cannot fire: cron expression '0 0 30 2 *'" in caplog.text


def test_the_store_of_the_broker_is_missing_and_it_reports_that(broker: RawBroker) -> None:
    with EventMQ("old", broker=broker.address) as app:
        runner = app.make_beat()
        errors: list[Exception] = []

        def run() -> None:
            try:
                runner.run()
            except PluginError as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        end = time.monotonic() + DEADLINE
        while thread.is_alive() and time.monotonic() < end:
            broker.expect(b"NOTHING", 0.2)
        thread.join(DEADLINE)
    assert "this broker keeps no schedules: choose another schedule_store, such as sqlite" in str(
        errors[0]
    )
