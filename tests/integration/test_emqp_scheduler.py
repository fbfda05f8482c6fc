"""eMQP/1.0 as a scheduler sees it that knows only the published document.

Raw sockets, written from the sections "eMQP / Scheduler", "Heartbeating" and the SCHEDULE and
UNSCHEDULE frames of the client. Deployed software sends nine frames, the document shows seven.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.raw_peer import QUIET

if TYPE_CHECKING:
    from tests.support.emqp_broker import BrokerProcess, Connect, StartBroker
    from tests.support.raw_peer import RawPeer

BODY = b'["run", {"callable": "tick", "path": "jobs"}]'


@pytest.fixture
def scheduler(broker: BrokerProcess, connect: Connect) -> RawPeer:
    scheduler = connect(broker["main"])
    assert len(scheduler.inform(b"scheduler")) == 5
    return scheduler


@pytest.fixture
def client(broker: BrokerProcess, connect: Connect) -> RawPeer:
    return connect(broker["main"])


def test_heartbeats_come_right_behind_the_ack_and_at_intervals(scheduler: RawPeer) -> None:
    """Scheduler and broker must send heartbeats at regular and agreed-upon intervals."""
    first, second = scheduler.expect(b"HEARTBEAT"), scheduler.expect(b"HEARTBEAT")
    assert len(first) == len(second) == 5
    assert float(second[4]) >= float(first[4])


def test_the_queues_of_a_scheduler_are_unused(broker: BrokerProcess, connect: Connect) -> None:
    assert len(connect(broker["main"]).inform(b"scheduler", b"anything")) == 5


@pytest.mark.parametrize(
    "rest",
    [
        [b"default", b"interval:60", BODY],
        [b"default", b"cron:0 4 * * *,nohaste", BODY],
        [b"default", b"nohaste", b"60", BODY, b""],
        [b"default", b"", b"-1", BODY, b"0 4 * * *"],
    ],
)
def test_schedule_reaches_the_scheduler_as_it_was_sent(
    client: RawPeer, scheduler: RawPeer, rest: list[bytes]
) -> None:
    """With the client's message id; seven frames or nine."""
    sent = client.send(b"SCHEDULE", *rest)
    assert scheduler.expect(b"SCHEDULE")[3:] == [sent, *rest]
    assert client.silent(0.1)


@pytest.mark.parametrize("rest", [[b"", b"", BODY], [b"default", b"", b"-1", BODY, b"0 4 * * *"]])
def test_unschedule_goes_to_all_schedulers(
    broker: BrokerProcess, client: RawPeer, scheduler: RawPeer, connect: Connect, rest: list[bytes]
) -> None:
    """It is broadcast."""
    other = connect(broker["main"])
    other.inform(b"scheduler")
    sent = client.send(b"UNSCHEDULE", *rest)
    assert scheduler.expect(b"UNSCHEDULE")[3:] == [sent, *rest]
    assert other.expect(b"UNSCHEDULE")[3:] == [sent, *rest]


def test_schedule_goes_to_one_of_two_schedulers(
    broker: BrokerProcess, client: RawPeer, scheduler: RawPeer, connect: Connect
) -> None:
    """With both, the job would run twice."""
    other = connect(broker["main"])
    other.inform(b"scheduler")
    client.send(b"SCHEDULE", b"default", b"interval:60", BODY)
    got = [f for peer in (scheduler, other) for f in peer.all_within(QUIET) if f[2] == b"SCHEDULE"]
    assert len(got) == 1


def test_a_schedule_without_a_scheduler_is_kept(
    broker: BrokerProcess, client: RawPeer, connect: Connect
) -> None:
    """It is acknowledged once on disk; a later worker gets it, and does not run it at once."""
    sent = client.send(b"SCHEDULE", b"default", b"guarantee,interval:60", BODY)
    assert client.expect(b"ACK")[4] == sent
    broker.kill()
    broker.start()
    scheduler = connect(broker["main"])
    scheduler.inform(b"scheduler")
    got = scheduler.expect(b"SCHEDULE")
    assert got[4:] == [b"default", b"guarantee,interval:60,nohaste", BODY]
    assert scheduler.silent()


def test_a_schedule_of_seven_frames_without_a_trigger_is_refused(
    client: RawPeer, scheduler: RawPeer
) -> None:
    """It would have no fire times."""
    sent = client.send(b"SCHEDULE", b"default", b"nohaste", BODY)
    assert client.expect(b"ERROR")[4:6] == [sent, b"no-trigger"]
    assert scheduler.silent(0.1)


def test_a_schedule_of_eight_frames_is_neither_form(client: RawPeer, scheduler: RawPeer) -> None:
    sent = client.send(b"SCHEDULE", b"default", b"", b"60", BODY)
    assert client.expect(b"ERROR")[4:6] == [sent, b"frame-count"]
    assert scheduler.silent(0.1)


def test_a_scheduler_hands_in_jobs_like_a_client(
    broker: BrokerProcess, scheduler: RawPeer, connect: Connect
) -> None:
    """When the time has come it sends a REQUEST."""
    worker = connect(broker["main"])
    worker.inform(b"worker")
    worker.send(b"READY")
    job = scheduler.send(b"REQUEST", b"default", b"guarantee,run_count:5", BODY)
    assert scheduler.expect(b"ACK")[4] == job
    request = worker.expect(b"REQUEST")
    assert request[3] == job
    assert b"run_count:5" in request[5].split(b",")


def test_a_silent_scheduler_is_forgotten(start_broker: StartBroker, connect: Connect) -> None:
    """Nothing is sent to it any more; it should restart the conversation."""
    broker = start_broker(heartbeat_interval=0.2, heartbeat_timeout=0.6)
    scheduler, client = connect(broker["main"]), connect(broker["main"])
    scheduler.inform(b"scheduler")
    scheduler.all_within(2.0)
    sent = client.send(b"SCHEDULE", b"default", b"ack-requested,interval:60", BODY)
    assert client.expect(b"ACK")[4] == sent
    assert scheduler.all_within(0.5) == []
    scheduler.inform(b"scheduler")
    assert scheduler.expect(b"SCHEDULE")


def test_a_scheduler_that_has_left_is_sent_nothing(client: RawPeer, scheduler: RawPeer) -> None:
    """KBAI: must stop sending, should clean up references."""
    scheduler.send(b"KBAI")
    scheduler.all_within(0.1)
    sent = client.send(b"SCHEDULE", b"default", b"ack-requested,interval:60", BODY)
    assert client.expect(b"ACK")[4] == sent
    assert scheduler.all_within(0.6) == []


def test_a_broker_that_was_restarted_is_silent_until_a_scheduler_informs(
    broker: BrokerProcess, client: RawPeer, scheduler: RawPeer
) -> None:
    """If the scheduler detects that the broker disconnects it should restart the conversation.

    It can only detect silence. See also ``test_deployed_restart.py``.
    """
    scheduler.expect(b"HEARTBEAT")
    broker.kill()
    scheduler.all_within(0.1)
    broker.start()
    scheduler.send(b"HEARTBEAT", b"1")
    scheduler.send(b"REQUEST", b"default", b"reply-requested", BODY)
    scheduler.send(b"HEARTBEAT", b"2")
    assert scheduler.all_within(3 * QUIET) == []
    assert len(scheduler.inform(b"scheduler")) == 5
    client.send(b"SCHEDULE", b"default", b"interval:60", BODY)
    assert scheduler.expect(b"SCHEDULE")
