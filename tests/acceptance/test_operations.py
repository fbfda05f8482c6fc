"""What operators do with real processes, with a broker that is killed in the middle of it."""

from __future__ import annotations

import getpass
import json
import signal
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from eventmq.app import EventMQ
from eventmq.cli.target import user
from eventmq.errors import EventMQError, JobCancelled
from eventmq.events import rows_of
from tests.support.shell import DEADLINE, Shell, free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SHOP = """
import os
import pathlib
import time

from eventmq import EventMQ

app = EventMQ("shop")


@app.task(queue="orders")
def order(number):
    if not pathlib.Path("stock").exists():
        raise ValueError(f"no stock for {number}")
    return number


@app.task(queue="mail", retries=2, retry_policy="none")
def mail(to):
    raise OSError(f"nobody at {to}")


@app.task(queue="slow")
def slow(seconds):
    pathlib.Path("started").write_text(str(os.getpid()))
    time.sleep(seconds)
    pathlib.Path("finished").touch()
"""


class System(Shell):
    """A shell with a broker that can be killed and started again at its address."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (folder / "shop.py").write_text(SHOP)
        self.bind = f"tcp://127.0.0.1:{free_port()}"
        self.environ["EVENTMQ_BROKER"] = self.bind
        self.app = EventMQ("client", broker=self.bind, submit_timeout=20.0)
        self.broker = self.start("broker", "--bind", self.bind)
        self.broker.ready()

    def worker(self) -> None:
        options = ("-A", "shop", "-c", "1", "-Q", "orders,mail,slow")
        self.start("worker", *options).ready()

    def crash(self) -> None:
        """Kill the broker with SIGKILL, and start it again."""
        self.broker.stop(signal.SIGKILL)
        self.broker = self.start("broker", "--bind", self.bind)
        self.broker.ready()

    def queue(self, name: str) -> dict[str, Any]:
        [row] = [row for row in self.app.ask("queues") if row["name"] == name]
        return dict(row)

    def close(self) -> None:
        self.app.close()
        super().close()


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    system = System(tmp_path)
    yield system
    system.close()


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """One without jobs or workers, for commands that are refused."""
    system = System(tmp_path_factory.mktemp("idle"))
    yield system
    system.close()


def until(condition: Callable[[], object], what: str) -> None:
    """Wait until a condition holds, and fail by name if it never does."""
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, f"not within {DEADLINE} s: {what}"
        time.sleep(0.02)


def test_cancel_retry_and_purge_survive_a_broker_that_is_killed(system: System) -> None:
    """kill -9 in the middle: finished jobs stay finished, started ones continue, none is lost."""
    system.worker()
    jobs = [system.app.send("shop.order", (n,), queue="orders") for n in range(20)]
    until(lambda: system.queue("orders")["failed"] == 20, "all orders have failed")
    rows = system.json("failed", "list", "--queue", "orders", "--error", "ValueError")
    assert {job.id for job in jobs} == {row["id"] for row in rows}
    running = system.app.send("shop.slow", (600,), queue="slow")
    until((system.folder / "started").exists, "the slow job runs")
    waiting = [system.app.send("shop.slow", (0,), queue="slow") for _ in range(3)]
    count = 30_000
    for start in range(0, count, 1000):
        with system.app.batch():
            for n in range(start, start + 1000):
                system.app.send("shop.order", (n,), queue="bulk")

    errors: list[Exception] = []
    waiter = threading.Thread(target=lambda: errors.append(_get(running)))
    waiter.start()
    system.output("cancel", waiting[0].id)  # while the slow one is before it
    assert running.cancel("the shop is closed")
    waiter.join(DEADLINE)
    assert [type(error) for error in errors] == [JobCancelled]
    assert "the shop is closed" in str(errors[0])
    (system.folder / "stock").touch()
    purge = system.start("purge", "bulk", "--json")
    until(lambda: system.queue("bulk")["waiting"] < count, "the purge has begun")
    system.crash()
    assert 0 == purge.wait()
    assert {"cancelled": count} == json.loads("".join(_lines(purge)))
    assert 0 == system.queue("bulk")["waiting"]

    states = [system.app.job(job.id).state for job in (running, waiting[0])]
    assert ["cancelled"] * 2 == states
    retried = system.json("failed", "retry", "--queue", "orders", "--error", "ValueError")
    assert {"queued": 20} == retried
    system.crash()
    results = [system.app.job(job.id).get(timeout=DEADLINE) for job in jobs]
    assert list(range(20)) == results
    info = system.json("job", jobs[0].id)
    assert (2, ["ValueError: no stock for 0"]) == (
        info["attempt"],
        [attempt["error"] for attempt in info["attempts"]],
    )
    assert 0 == system.queue("orders")["failed"]
    assert [None, None] == [system.app.job(job.id).get(timeout=DEADLINE) for job in waiting[1:]]
    assert "cancelled" == system.app.job(running.id).state


def _get(job: Any) -> Exception:
    try:
        job.get(timeout=DEADLINE)
    except EventMQError as error:
        return error
    raise AssertionError("it ended by success")


def _lines(program: Any) -> Iterator[str]:
    while (line := program.out.get(timeout=DEADLINE)) is not None:
        yield line


def test_a_paused_queue_waits_over_a_kill_and_is_drained_when_it_is_resumed(
    system: System,
) -> None:
    (system.folder / "stock").touch()
    jobs = [system.app.send("shop.order", (n,), queue="orders") for n in range(5)]
    system.output("pause", "orders")
    system.worker()
    system.crash()
    code, message = system.error("drain", "orders", "--timeout", "0.5")
    assert 1 == code
    assert "5 waiting, and it is paused" in message
    assert {"orders"} == {row["name"] for row in system.json("queues") if row["paused"]}
    system.output("resume", "orders")
    system.output("drain", "orders", "--timeout", str(DEADLINE))
    assert ["succeeded"] * 5 == [job.state for job in jobs]


def test_failed_jobs_are_shown_with_all_their_attempts(system: System) -> None:
    system.worker()
    job = system.app.send("shop.mail", ("nobody@nowhere",), queue="mail", retries=2)
    until(lambda: system.queue("mail")["failed"] == 1, "the mail has failed")
    [row] = system.json("failed", "list", "--since", "1h", "--limit", "5")
    assert (job.id, "OSError: nobody at nobody@nowhere") == (row["id"], row["error"])
    assert [] == system.json("failed", "list", "--until", "1h")
    shown = system.json("failed", "show", job.id)
    assert [1, 2, 3][: len(shown["attempts"])] == [a["attempt"] for a in shown["attempts"]]
    assert "raise OSError" in shown["attempts"][0]["traceback"]
    text = system.output("failed", "show", job.id)
    assert "\nhistory\n" in text
    assert "raise OSError" in text
    assert [{"id": job.id, "state": "dropped", "was": "failed"}] == system.json(
        "failed", "drop", job.id
    )
    for command in (["failed", "show"], ["job"], ["cancel"], ["failed", "retry"]):
        code, message = _error(system, *command, job.id)
        assert (4, True) == (code, job.id in message), command


def _error(system: System, *arguments: str) -> tuple[int, str]:
    done = system.run(*arguments)
    return done.returncode, done.stderr


def test_the_last_failed_are_retried_by_number(system: System) -> None:
    """The others stay."""
    system.worker()
    for n in range(3):
        system.app.send("shop.order", (n,), queue="orders")
        until(lambda: system.queue("orders")["failed"] == n + 1, "it has failed")  # noqa: B023
    (system.folder / "stock").touch()
    assert {"queued": 1} == system.json("failed", "retry", "--queue", "orders", "--limit", "1")
    system.output("drain", "orders", "--timeout", str(DEADLINE))
    remaining = system.json("failed", "list")
    assert ["ValueError: no stock for 1", "ValueError: no stock for 0"] == [
        row["error"] for row in remaining
    ]
    assert "2 jobs dropped" in system.output("failed", "drop", "--all")
    assert [] == system.json("failed", "list")


@pytest.mark.parametrize("command", ["pause", "resume", "purge", "drain"])
def test_an_unknown_queue_is_exit_code_4(idle: System, command: str) -> None:
    code, message = idle.error(command, "nosuch")
    assert 4 == code
    assert "nosuch" in message


@pytest.mark.parametrize(
    "arguments",
    [
        ["cancel"],
        ["cancel", "x", "--queue", "y"],
        ["cancel", "--running"],
        ["failed", "retry"],
        ["failed", "drop", "x", "--all"],
        ["failed", "drop", "--all", "--queue", "x"],
        ["failed", "list", "--since", "yesterday"],
    ],
    ids=" ".join,
)
def test_what_is_not_clear_is_exit_code_2(idle: System, arguments: list[str]) -> None:
    code, _ = idle.error(*arguments)
    assert 2 == code


def test_the_broker_knows_who_typed_a_command(idle: System) -> None:
    """As user@host, unless EVENTMQ_ACTOR sets another name."""
    idle.app.send("shop.order", (1,), queue="orders")
    idle.output("pause", "orders")
    idle.environ["EVENTMQ_ACTOR"] = "on call: anna"
    try:
        idle.output("resume", "orders")
        idle.output("purge", "orders")
    finally:
        del idle.environ["EVENTMQ_ACTOR"]
    rows = idle.app.ask("events.read", {"after": 0})["rows"]
    events = [event for first, _, body in rows for event in rows_of("b", first, body)]
    assert [
        (event["operation"], event["actor"]) for event in events if event["kind"] == "operation"
    ] == [("pause", user()), ("resume", "on call: anna"), ("purge", "on call: anna")]
    assert user() == f"{getpass.getuser()}@{socket.gethostname()}"
