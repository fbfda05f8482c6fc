"""A client in a process whose threads are gevent's: while one greenlet waits, the others run."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.system import APP, DEADLINE, System

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("gevent")

#: Beginning of every script. `Beat` records the longest time in which no greenlet could run.
HEAD = """
from gevent import monkey
monkey.patch_all()

import json, sys, time
import gevent
from eventmq import EventMQ, ResultTimeout, BrokerUnavailable

app = EventMQ("survivor", broker=sys.argv[1])

@app.task(name="survivor.slow")
def slow(number, seconds): ...

@app.task(name="survivor.work")
def work(number): ...

@app.task(name="survivor.parts")
def parts(count):
    yield

class Beat:
    def __init__(self):
        self.beats, self.longest, self.going = 0, 0.0, True
        self.greenlet = gevent.spawn(self.run)

    def run(self):
        last = time.monotonic()
        while self.going:
            gevent.sleep(0.01)
            now = time.monotonic()
            self.beats, self.longest, last = self.beats + 1, max(self.longest, now - last), now

    def stop(self):
        self.going = False
        self.greenlet.join()

def say(**values):
    print(json.dumps(values))
"""

MORE = """

@app.task
def parts(count):
    for number in range(count):
        yield number
        time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def gevent() -> None:
    if importlib.util.find_spec("gevent") is None:
        pytest.skip("needs gevent: it is not installed")


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    system = System(tmp_path_factory.mktemp("gevent"))
    with (system.folder / "survivor.py").open("a", encoding="utf-8") as app:
        app.write(MORE)
    system.broker()
    system.worker("-c", "8", "--pool", "threads")
    yield system
    system.stop()


def run(system: System, script: str, *, head: str = HEAD) -> dict[str, Any]:
    """Run a script in a process of its own; return its JSON output."""
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", head + dedent(script), system.address],
        check=False,
        cwd=system.folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    answer: dict[str, Any] = json.loads(ended.stdout)
    return answer


def test_others_run_while_a_greenlet_waits(system: System) -> None:
    """For a result of a job that takes a second: the others have a hundred turns, and no gap."""
    answer = run(
        system,
        """
        work.delay(0).get()
        beat = Beat()
        job = slow.delay(1, 1.0)
        value, again = job.get(timeout=30), slow.call(2, 0.5)
        beat.stop()
        app.close()
        say(value=value, again=again, beats=beat.beats, longest=beat.longest)
        """,
    )
    assert (answer["value"], answer["again"]) == (1, 2)
    assert answer["beats"] > 50
    assert answer["longest"] < 0.5


def test_many_greenlets_submit_and_wait_at_once(system: System) -> None:
    """Each has its own result; they share one connection, and the eight jobs run side by side."""
    answer = run(
        system,
        """
        def one(number):
            return slow.delay(number, 0.2).get(timeout=30)

        waiting = [gevent.spawn(one, number) for number in range(24)]
        gevent.joinall(waiting)
        found = [each.value for each in waiting]
        jobs = work.map([(number,) for number in range(300)])
        done, pending = app.wait(jobs, timeout=30)
        ended = [job.get() for job in app.as_completed(jobs, timeout=30)]
        say(found=found, done=len(done), pending=len(pending), ended=sorted(ended))
        """,
    )
    assert answer["found"] == list(range(24))
    assert (answer["done"], answer["pending"]) == (300, 0)
    assert answer["ended"] == list(range(300))


def test_streams_topics_and_limits_of_time(system: System) -> None:
    """Waiting for several answers, or for one that does not arrive in time, blocks no greenlet."""
    answer = run(
        system,
        """
        beat = Beat()
        received = list(parts.delay(5).stream(timeout=30))
        job = slow.delay(3, 1.5)
        try:
            job.get(timeout=0.3)
        except ResultTimeout:
            late = True
        with app.subscribe("news") as news:
            gevent.spawn_later(0.3, app.publish, "news", "hello")
            message = next(iter(news)).value
        value = job.get(timeout=None)
        beat.stop()
        say(received=received, late=late, message=message, value=value, longest=beat.longest)
        """,
    )
    assert answer.pop("longest") < 0.5
    assert answer == {"received": [0, 1, 2, 3, 4], "late": True, "message": "hello", "value": 3}


def test_without_a_broker_the_error_comes_in_time(system: System) -> None:
    """The caller gets the error, and the other greenlets run meanwhile."""
    answer = run(
        system,
        """
        lost = EventMQ("lost", broker="tcp://127.0.0.1:9", submit_timeout=0.5)
        beat = Beat()
        try:
            lost.send("survivor.work", (1,))
        except BrokerUnavailable:
            error = True
        beat.stop()
        say(error=error, beats=beat.beats, longest=beat.longest)
        """,
    )
    assert answer["error"]
    assert answer["beats"] > 20
    assert answer["longest"] < 0.4


def test_an_app_may_be_older_than_the_greenlets(system: System) -> None:
    """As where a server loads it before it forks what runs greenlets."""
    answer = run(
        system,
        """
        import eventmq, sys
        app = eventmq.EventMQ("survivor", broker=sys.argv[1])
        from gevent import monkey
        monkey.patch_all()
        import gevent, json

        turns = []
        gevent.spawn(lambda: [turns.append(gevent.sleep(0.05)) for _ in range(6)])
        jobs = [gevent.spawn(lambda: app.send("survivor.slow", (4, 1.0)).get()) for _ in range(3)]
        gevent.joinall(jobs)
        print(json.dumps({"turns": len(turns), "values": [job.value for job in jobs]}))
        """,
        head="",
    )
    assert answer == {"turns": 6, "values": [4, 4, 4]}


def test_a_broker_in_memory_reports_that_it_needs_threads(system: System) -> None:
    """A worker whose app's module calls ``patch_all``, and a broker in the process itself."""
    answer = run(
        system,
        """
        from eventmq import NotAllowed
        try:
            EventMQ("own", broker="memory://").send("a")
        except NotAllowed as error:
            say(error=str(error))
        """,
    )
    assert "the broker of 'memory://' needs threads" in answer["error"]
    (system.folder / "patched.py").write_text(HEAD.partition("import json")[0] + APP)
    worker = subprocess.run(
        [sys.executable, "-m", "eventmq", "worker", "-A", "patched", "--broker", system.address],
        check=False,
        cwd=system.folder,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert worker.returncode != 0
    assert "a worker needs threads: call gevent.monkey.patch_all() where the web" in worker.stderr
    assert "Traceback" not in worker.stderr
