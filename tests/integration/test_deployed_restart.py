"""A broker that is killed and comes back under peers that behave as EventMQ 0.3.13 does.

None of them informs by itself: see `tests.integration.deployed_peers`.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.integration.deployed_peers import (
    LIVENESS,
    TIMEOUT,
    CommandLine,
    DeployedPeer,
    DocumentWorker,
    JobManager,
    Scheduler,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import zmq

    from tests.support.emqp_broker import BrokerProcess, Connect, StartBroker
    from tests.support.raw_peer import RawPeer

BODY = b'["run", {"callable": "add", "path": "jobs", "args": [1, 2], "kwargs": {}}]'
TICK = b'["run", {"callable": "tick", "path": "jobs", "args": [%d], "kwargs": {}}]'

#: Jobs that wait when the broker is killed, more or less.
JOBS = 1000

#: How much faster than the deployed software most of these tests are.
PACE = 0.1

#: Times of a broker beside it.
QUICK = {"heartbeat_interval": 0.3, "lease_interval": 0.3, "heartbeat_timeout": 1.5}


@pytest.fixture
def run() -> Iterator[Callable[[DeployedPeer], None]]:
    """Call it to start a peer, which is ended with the test."""
    with ExitStack() as stack:

        def start(peer: DeployedPeer) -> None:
            stack.callback(peer.stop)
            peer.start()

        yield start


@pytest.fixture
def command_line(context: zmq.Context) -> Iterator[Callable[[BrokerProcess], CommandLine]]:
    """Call it with a broker to get a command line."""
    with ExitStack() as stack:

        def make(broker: BrokerProcess) -> CommandLine:
            shell = CommandLine(context, broker["admin"])
            stack.callback(shell.socket.close, 0)
            return shell

        yield make


def until(true: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait until something is true."""
    end = time.monotonic() + seconds
    event = threading.Event()
    while not true():
        assert time.monotonic() < end, f"within {seconds:g} s it did not happen that {what}"
        event.wait(0.02)


def schedule(client: RawPeer, number: int) -> str:
    """Let something be fired each second, from now on; return its body."""
    body = TICK % number
    sent = client.send(b"SCHEDULE", b"default", b"guarantee", b"1", body, b"")
    assert client.expect(b"ACK")[4] == sent
    return body.decode()


def submit(client: RawPeer, count: int) -> set[str]:
    jobs = {client.send(b"REQUEST", b"default", b"guarantee", BODY) for _ in range(count)}
    got = {client.expect(b"ACK")[4] for _ in jobs}
    assert got == jobs
    return {job.decode() for job in jobs}


def restart(broker: BrokerProcess, away: float) -> tuple[float, float]:
    """Kill the broker and start it again after some seconds; return when it went and was back."""
    broker.kill()
    gone = time.monotonic()
    threading.Event().wait(away)
    broker.start()
    return gone, time.monotonic()


@pytest.mark.parametrize("away", [1, 5, 20])
def test_all_go_on_after_a_restart_and_no_job_is_lost(
    start_broker: StartBroker,
    connect: Connect,
    run: Callable[[DeployedPeer], None],
    command_line: Callable[[BrokerProcess], CommandLine],
    away: float,
) -> None:
    """After 1, 5 and 20 seconds; the last is longer than the silence in which they give up.

    The scheduler fires more often than that, so its REQUESTs must not be answered either.
    """
    broker = start_broker(**QUICK)
    managers = [JobManager(broker["worker"], PACE, seconds=0.002)]
    managers += [DocumentWorker(broker["worker"], PACE, seconds=0.002)]
    scheduler = Scheduler(broker["main"], PACE)
    everybody: list[DeployedPeer] = [*managers, scheduler]
    for peer in everybody:
        run(peer)
    client, shell = connect(broker["main"]), command_line(broker)
    assert shell.ask("STATUS") is not None
    until(lambda: all(peer.got["ACK"] for peer in everybody), 10.0, "all are registered")
    first = schedule(client, 1)
    until(lambda: first in scheduler.schedules, 10.0, "the scheduler has a schedule")
    jobs = submit(client, JOBS)
    until(lambda: all(manager.done for manager in managers), 20.0, "some jobs have ended")
    assert len(jobs.intersection(*(manager.done for manager in managers))) < JOBS / 2

    gone, back = restart(broker, away * PACE)
    second = schedule(connect(broker["main"]), 2)

    def over() -> bool:
        return jobs <= {job for manager in managers for job in manager.done}

    until(over, 45.0, "all jobs have ended")
    until(lambda: second in scheduler.schedules, 10.0, "the scheduler has the new schedule")
    fired = len(scheduler.fired)
    until(lambda: len(scheduler.fired) > fired + 2, 10.0, "the scheduler fires")
    assert [peer.ended for peer in everybody] == ["", "", ""]
    assert set(shell.ask("ROUTER_SHOW_SCHEDULERS")["connected_schedulers"]), "on its old socket"
    # A peer gives up after a silence, and heard the broker last up to a heartbeat before it went. A
    # slow machine starts the broker so late that a peer gives up meanwhile, and again afterwards.
    silence, heartbeat = LIVENESS * TIMEOUT * PACE, QUICK["heartbeat_interval"]
    if back - gone < silence - heartbeat:
        informed = [len([at for at in peer.informs if at < back]) for peer in everybody]
        assert informed == [1, 1, 1], "no peer has noticed before the broker was back"
    assert all(
        at - gone >= silence - heartbeat
        for peer in everybody
        for at in peer.informs[1:]
        if at < back
    )
    if back - gone < 2 * silence - heartbeat:
        assert [len(peer.informs) for peer in everybody] == [2, 2, 2]


def test_at_the_pace_of_the_deployed_software(
    start_broker: StartBroker, connect: Connect, run: Callable[[DeployedPeer], None]
) -> None:
    """The scheduler is back after 15 seconds of silence, the job manager when a job has ended."""
    broker = start_broker()
    manager, scheduler = JobManager(broker["worker"], seconds=0.5), Scheduler(broker["main"])
    for peer in (manager, scheduler):
        run(peer)
    client = connect(broker["main"])
    until(lambda: bool(manager.got["HEARTBEAT"] and scheduler.got["ACK"]), 10.0, "all are there")
    first = schedule(client, 1)
    jobs = submit(client, 40)
    until(lambda: bool(manager.done and scheduler.schedules == [first]), 10.0, "jobs have ended")
    until(lambda: manager.busy > 0.3, 10.0, "it has jobs that end while the broker is away")

    _, back = restart(broker, 1.0)
    second = schedule(connect(broker["main"]), 2)
    until(lambda: len(manager.informs) == 2, 5.0, "the job manager informs again")
    assert manager.got["DISCONNECT"] == 1
    until(lambda: second in scheduler.schedules, 22.0, "the scheduler informs again")
    until(lambda: jobs <= set(manager.done), 20.0, "all jobs have ended")
    assert [manager.ended, scheduler.ended] == ["", ""]
    silence = LIVENESS * TIMEOUT
    assert silence - 2.0 <= scheduler.informs[1] - back <= silence + 4.0
