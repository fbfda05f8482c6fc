"""Beats as processes: each fire time of a short interval fires exactly once, despite any kill."""

from __future__ import annotations

import signal
import time
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import zmq

from eventmq.job import id_time
from eventmq.policies import every
from tests.support.raw_peer import RawPeer
from tests.support.system import Process, System, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from eventmq.schedule import Schedule

#: Seconds between two fire times: short, so that many are due while no beat runs.
INTERVAL = 0.25

APP = f"""
import os

from eventmq import EventMQ, current_job, every

app = EventMQ("clockwork")


@app.task(name="tick", schedule=every(seconds={INTERVAL}))
def tick():
    fd = os.open(os.environ["RECORD"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, f"{{current_job().id}}\\n".encode())
    os.close(fd)
"""


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    system = System(tmp_path)
    (tmp_path / "clockwork.py").write_text(APP)
    yield system
    system.stop()


def beat(system: System, *, wait: bool = True) -> Process:
    arguments = ("beat", "-A", "clockwork", "--broker", system.address)
    return system.start(*arguments, wait=wait)[0]


def worker(system: System, *, wait: bool = True) -> Process:
    common = ("-A", "clockwork", "--broker", system.address, "-c", "1", "--pool", "threads")
    return system.start("worker", *common, wait=wait)[0]


def worker_and_beats(system: System) -> list[Process]:
    """Start a worker and two beats at a time; return the beats, the one that fires first."""
    beats = [beat(system)]
    others = [worker(system, wait=False), beat(system, wait=False)]
    for process in others:
        system.ready(process)
    return [*beats, others[1]]


def executed(system: System) -> Counter[str]:
    """Return how often each job was executed, by id."""
    text = system.record.read_text() if system.record.exists() else ""
    return Counter(text.split("\n")[:-1])


def fire_times(system: System) -> list[float]:
    """Return the fire times of the jobs that were executed, in order."""
    return sorted(id_time(job_id) or 0.0 for job_id in executed(system))


def gaps(system: System) -> set[float]:
    times = fire_times(system)
    return {round(b - a, 3) for a, b in pairwise(times)}


def test_each_fire_time_fires_once_while_beats_are_killed(system: System) -> None:
    """Two run; the one that fires is killed, another is started in its place, again and again."""
    system.broker()
    beats = worker_and_beats(system)
    until(lambda: len(fire_times(system)) >= 2, "the first fire times")
    for _ in range(3):
        seen = len(fire_times(system))
        beats.pop(0).kill9()
        beats.append(beat(system, wait=False))
        until(lambda seen=seen: len(fire_times(system)) >= seen + 4, "fire times after a death")
        system.ready(beats[-1])
    assert gaps(system) == {INTERVAL}
    assert set(executed(system).values()) == {1}


def test_a_beat_takes_over_within_two_seconds(system: System) -> None:
    """The fire time that was due just after the death is late by less than that.

    SIGTERM ends a beat in order.
    """
    system.broker()
    first = beat(system)
    second = beat(system)
    app = system.app()
    store = app.schedules.store

    def last() -> float:
        return store.find("tick").last_fire_time or 0.0  # type: ignore[union-attr]  # it is there

    begin = last()
    until(lambda: last() > begin, "the first fire time")
    first.kill9()
    died = time.time()
    before = last()
    until(lambda: last() > before, "the next fire time")
    took = time.time() - max(died, before + INTERVAL)
    assert took < 2.5  # 2 s, and what these processes take on a busy machine
    second.send_signal(signal.SIGTERM)
    assert second.wait(10) == 0


def test_each_fire_time_fires_once_while_the_broker_is_killed(system: System) -> None:
    """The broker is unavailable for a while; fire times due meanwhile fire later, once."""
    broker = system.broker()
    worker_and_beats(system)
    until(lambda: len(fire_times(system)) >= 2, "the first fire times")
    for _ in range(2):
        seen = len(fire_times(system))
        broker.kill9()
        broker = system.broker()
        until(lambda seen=seen: len(fire_times(system)) >= seen + 6, "fire times after a death")
    assert gaps(system) == {INTERVAL}


def test_a_paused_beat_does_no_harm(system: System) -> None:
    """It continues as if it had the lease; the broker refuses jobs that were fired meanwhile."""
    system.broker()
    beats = worker_and_beats(system)
    until(lambda: len(fire_times(system)) >= 1, "the first fire time")
    for _ in range(2):
        beats[0].freeze()
        seen = len(fire_times(system))
        # More than were under way: the other one has the lease.
        until(
            lambda seen=seen: len(fire_times(system)) >= seen + 7, "fire times while one is paused"
        )
        beats[0].send_signal(signal.SIGCONT)
        beats.reverse()
    until(lambda seen=seen: len(fire_times(system)) >= seen + 14, "fire times after that")
    assert gaps(system) == {INTERVAL}
    assert set(executed(system).values()) == {1}


def test_schedules_of_clients_survive_everything(system: System) -> None:
    """Stored when ``schedule`` returns; the code's come and go with the code."""
    broker = system.broker()
    app = system.app()

    @app.task(name="tick")
    def tick() -> None:
        """Stand for the worker's."""

    app.schedule("mine", tick.s(), every(seconds=INTERVAL), run_count=3)
    broker.kill9()
    system.broker()
    worker(system)
    first = beat(system)
    until(lambda: app.schedules.store.find("mine") is None, "the last of three")
    assert app.schedules.store.find("tick") is not None
    first.kill9()
    path = system.folder / "clockwork.py"
    path.write_text(APP.replace(f", schedule=every(seconds={INTERVAL})", ""))
    beat(system)
    assert app.schedules.store.find("tick") is None


def legacy_schedules(system: System) -> list[Schedule]:
    """Return the schedules that are not of the beat's code."""
    schedules = system.apps[0].schedules.list() if system.apps else system.app().schedules.list()
    return [schedule for schedule in schedules if schedule.source == "wire"]


def test_a_schedule_of_a_legacy_client_is_fired_for_a_legacy_worker(system: System) -> None:
    """Broker and beat are EventMQ; client and worker know only the published document."""
    broker = system.broker()
    beat(system)
    context = zmq.Context()
    client, laborer = (RawPeer(context, system.address) for _ in range(2))
    body = b'["run", {"callable": "tick", "path": "jobs", "args": [7]}]'
    sent = client.send(b"SCHEDULE", b"plain", b"guarantee,nohaste,run_count:2", b"0.4", body, b"")
    assert client.expect(b"ACK")[4] == sent
    broker.kill9()
    system.broker()
    laborer.inform(b"worker", b'[[10, "plain"]]')
    for _ in range(2):
        laborer.send(b"READY")
        request = laborer.expect(b"REQUEST")
        assert (request[4], request[6]) == (b"plain", body)
        laborer.send(b"REPLY", b'{"value": null}', request[3])
    laborer.send(b"READY")
    until(lambda: not legacy_schedules(system), "it is over")
    assert laborer.silent()
    for peer in (client, laborer):
        peer.close()
    context.term()
