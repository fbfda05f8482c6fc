"""Apps with keys: clients and workers reach a real broker over CURVE, or report the problem."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from eventmq import EventMQ
from eventmq.errors import BrokerUnavailable, KeyFileError, NotAllowed, RateLimited
from eventmq.wire.curve import Certificate, write_new
from tests.support.cli_harness import open_cli
from tests.support.keyed_broker import House

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import zmq

    from eventmq.worker.runner import WorkerRunner

DEADLINE = 20.0


def refused(app: EventMQ, why: str) -> None:
    """Submit until the error has the reason: the time of a handshake depends on the machine."""
    end = time.monotonic() + DEADLINE
    while True:
        with pytest.raises(BrokerUnavailable) as raised:
            app.send("double", (1,))
        if why in str(raised.value):
            return
        assert time.monotonic() < end, raised.value


class Apps:
    """Apps and workers of one folder, each with the key of a name."""

    def __init__(self, folder: Path, context: zmq.Context) -> None:
        self.house = House(folder, context, max_message_rate=50.0)
        self._folder = folder
        self._apps: list[EventMQ] = []
        self._workers: list[tuple[WorkerRunner, threading.Thread]] = []

    def settings(self, name: str) -> dict[str, Any]:
        """Return the settings of a name, whose key is written into a file."""
        return {"broker": self.house.broker["main"], **self.house.keys.settings(name)}

    def app(self, name: str, **more: Any) -> EventMQ:
        """Return an app that connects with the key of a name."""
        self._apps.append(EventMQ("keyed", **{**self.settings(name), **more}))
        return self._apps[-1]

    def work(self, name: str, **more: Any) -> threading.Event:
        """Start a worker; return an event that is set when a broker knows it."""
        app, ready = self.app(name, **more), threading.Event()

        @app.task(name="double")
        def double(value: int) -> int:
            return 2 * value

        worker = app.make_worker(pool="threads", concurrency=1, on_ready=ready.set)
        thread = threading.Thread(target=worker.run)
        self._workers.append((worker, thread))
        thread.start()
        return ready

    def close(self) -> None:
        for app in self._apps:
            app.close()
        for worker, thread in self._workers:
            worker.stop(now=True)
            thread.join(DEADLINE)
        self.house.stop()


@pytest.fixture
def apps(tmp_path: Path, context: zmq.Context) -> Iterator[Apps]:
    apps = Apps(tmp_path, context)
    apps.house.keys.authorize("web", "client")
    apps.house.keys.authorize("work", "worker")
    apps.house.start()
    yield apps
    apps.close()


def test_client_and_worker_meet_over_curve(apps: Apps) -> None:
    assert apps.work("work").wait(DEADLINE)
    app = apps.app("web")
    assert [2 * i for i in range(20)] == [
        job.get(timeout=DEADLINE) for job in [app.send("double", (i,)) for i in range(20)]
    ]


def test_the_result_of_another_is_not_allowed(apps: Apps) -> None:
    apps.house.keys.authorize("other", "client")
    job = apps.app("web").send("double", (1,))
    with pytest.raises(NotAllowed, match="submitted with another key than 'other'"):
        apps.app("other").job(job.id).get(timeout=DEADLINE)
    with pytest.raises(NotAllowed, match="needs the role admin"):
        apps.app("web").ask("jobs")


def test_a_part_of_an_id_needs_a_key_that_may_list_jobs(
    apps: Apps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another key needs the whole id, and is told so."""
    apps.house.keys.authorize("looks", "viewer")
    job, cli = apps.app("web").send("double", (1,)), open_cli(tmp_path, monkeypatch)

    def use(name: str) -> None:
        for setting, value in apps.settings(name).items():
            monkeypatch.setenv(f"EVENTMQ_{setting.upper()}", value)

    use("web")
    for command in (["job"], ["failed", "show"], ["cancel"]):
        code, error = cli.error(*command, job.id[-8:])
        assert 1 == code
        assert error == (
            f"no job with id {job.id[-8:]!r}; if it is a part of an id, give the whole id: parts "
            "are looked up in the list of jobs, and the key 'web' (client) may not call 'jobs': "
            "that needs the role admin or viewer"
        )
    assert job.id == cli.json("job", job.id, "--json")["id"]
    unknown = f"{int(job.id, 16) + 1:032x}"
    assert (4, f"no job with id {unknown!r}: never submitted here, or forgotten since") == (
        cli.error("job", unknown)
    )
    use("looks")
    assert job.id == cli.json("job", job.id[-8:], "--json")["id"]


def test_a_refused_client_gets_the_reason_and_is_served_once_authorised(apps: Apps, caplog) -> None:
    """The same app, without a restart."""
    app = apps.app("late", submit_timeout=0.5)
    refused(app, "it refused the key")
    assert "cannot be used: it refused the key" in caplog.text
    apps.house.keys.authorize("late", "client")
    end = time.monotonic() + DEADLINE
    while True:
        try:
            assert app.send("double", (1,)).id
            return
        except BrokerUnavailable:
            assert time.monotonic() < end


def test_a_worker_that_is_refused_waits_until_it_is_authorised(apps: Apps, caplog) -> None:
    ready = apps.work("late")
    end = time.monotonic() + DEADLINE
    while "it refused the key" not in caplog.text:
        assert time.monotonic() < end
        time.sleep(0.02)
    apps.house.keys.authorize("late", "worker")
    assert ready.wait(DEADLINE)
    assert 1 == caplog.text.count("it refused the key")


def test_a_client_without_keys_gets_an_error_about_the_handshake(apps: Apps) -> None:
    app = apps.app("web", broker_key_file="", key_file="", submit_timeout=0.5)
    refused(app, "one side uses CURVE keys and the other none")


def test_the_key_of_another_broker_is_reported_too(apps: Apps, tmp_path: Path) -> None:
    """Nothing is sent to a broker that has not the key."""
    public, _ = apps.house.keys.pair("some other broker")
    write_new(tmp_path / "other.key", Certificate(public.decode()), "test")
    app = apps.app("web", broker_key_file=str(tmp_path / "other.key"), submit_timeout=0.5)
    refused(app, "the handshake failed")
    assert [] == apps.app("web").ask("queues")


def test_a_secret_key_that_others_can_read_is_not_used(apps: Apps, tmp_path: Path) -> None:
    settings = apps.settings("web")
    (tmp_path / "keys" / "web.key_secret").chmod(0o644)
    app = EventMQ("keyed", **settings)
    with pytest.raises(KeyFileError, match="chmod 600"):
        app.send("double", (1,))
    app.close()


def test_each_address_has_its_own_broker_key(apps: Apps, tmp_path: Path) -> None:
    """Client and worker reach the second broker with the second key."""
    public, _ = apps.house.keys.pair("first broker")
    write_new(tmp_path / "first.key", Certificate(public.decode()), "test")
    right = apps.settings("web")
    several = {
        "broker": ["tcp://127.0.0.1:9", right["broker"]],
        "broker_key_file": [str(tmp_path / "first.key"), right["broker_key_file"]],
        "heartbeat_interval": 0.2,
        "heartbeat_timeout": 1.0,
    }
    assert apps.work("work", **several).wait(DEADLINE)
    assert 4 == apps.app("web", **several).send("double", (2,)).get(timeout=DEADLINE)


def test_a_client_that_sends_too_much_gets_an_error(apps: Apps) -> None:
    """A batch is one message."""
    app = apps.app("web")
    with app.batch():
        jobs = [app.send("double", (i,)) for i in range(500)]
    assert all(job.id for job in jobs)
    with pytest.raises(RateLimited, match="more than 50 messages a second"):
        list(map(app.send, ["double"] * 500, [(1,)] * 500))
