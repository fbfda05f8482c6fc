"""Commands that inspect a running system: their exit codes and their output."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.shell import Shell

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SHOP = """
from eventmq import EventMQ

app = EventMQ("shop")

@app.task
def total(prices, *, discount=0.0):
    return sum(prices) * (1 - discount)

@app.task
def broken(what):
    raise ValueError(what)
"""
WORKERS = (
    "name session queues tasks running chunks window seen legacy pool slots version runs runs_task "
    "since"
)
JOBS = (
    "id task queue state attempt delivery priority created due expires started ran finished worker "
    "error"
)
FREE = "tcp://127.0.0.1:0"
UNUSED_ADDRESS = "tcp://127.0.0.1:9"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A folder with the app, and nothing running."""
    (tmp_path / "shop.py").write_text(SHOP)
    shell = Shell(tmp_path)
    yield shell
    shell.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """The same with a broker and a worker, for tests that change nothing."""
    folder = tmp_path_factory.mktemp("running")
    (folder / "shop.py").write_text(SHOP)
    shell = Shell(folder)
    shell.environ["EVENTMQ_BROKER"] = shell.start("broker", "--bind", FREE).ready()["main"]
    shell.start("worker", "-A", "shop", "-c", "1").ready()
    yield shell
    shell.close()


@pytest.fixture(scope="module")
def one_job(running: Shell) -> None:
    """Something to be listed."""
    running.output("call", "-A", "shop", "total", "[1]", "--wait")


# Call


def test_a_call_that_waits_prints_the_result(running: Shell) -> None:
    assert "1.5\n" == running.output(
        "call", "-A", "shop", "total", "[1,2]", "discount=0.5", "--wait"
    )


def test_a_call_by_name_needs_no_app(running: Shell) -> None:
    job = running.output("call", "shop.total", "[4]").strip()
    assert "4.0\n" == running.output("call", "shop.total", "[4]", "--wait")
    assert "shop.total" == running.json("job", job)["task"]


def test_a_failing_job_is_exit_code_1(running: Shell) -> None:
    code, message = running.error("call", "-A", "shop", "broken", '"out of stock"', "--wait")
    assert 1 == code
    assert "ValueError: out of stock" in message


def test_a_result_that_does_not_come_is_exit_code_1(running: Shell) -> None:
    options = ("--queue", "nobody", "--wait", "--timeout", "0.2")
    code, _ = running.error("call", "shop.total", "[1]", *options)
    assert 1 == code


# Looking


@pytest.mark.parametrize(
    "arguments",
    [
        ["ping", "--timeout", "0.1"],
        ["status"],
        ["queues"],
        ["workers"],
        ["jobs"],
        ["job", "x"],
        ["call", "shop.total"],
        ["cancel", "x"],
        ["cancel", "--queue", "x"],
        ["purge", "x"],
        ["pause", "x"],
        ["resume", "x"],
        ["drain", "x"],
        ["failed", "list"],
        ["failed", "show", "x"],
        ["failed", "retry", "--all"],
        ["failed", "drop", "x"],
        ["publish", "a", "1"],
        ["subscribe", "a"],
    ],
    ids=" ".join,
)
def test_without_a_broker_the_exit_code_is_3(shell: Shell, arguments) -> None:
    shell.environ["EVENTMQ_SUBMIT_TIMEOUT"] = "0.1"
    code, message = shell.error(*arguments, "--broker", UNUSED_ADDRESS)
    assert 3 == code
    assert UNUSED_ADDRESS in message
    assert 'start one with "eventmq broker"' in message


def test_an_unknown_job_is_exit_code_4(running: Shell) -> None:
    code, message = running.error("job", "nobody-knows-it")
    assert 4 == code
    assert "nobody-knows-it" in message


@pytest.mark.parametrize(
    ("command", "columns"),
    [
        ("queues", "name waiting delayed running failed paused workers"),
        ("workers", WORKERS),
        ("jobs", f"{JOBS} leased"),
        ("plugins", "name version origin hooks provides in_use"),
        ("settings", "name value source type unit default env"),
    ],
)
@pytest.mark.usefixtures("one_job")
def test_listings_have_their_columns(running: Shell, command: str, columns: str) -> None:
    rows = running.json(command)
    assert rows
    assert all(columns == " ".join(row) for row in rows)
    header = running.output(command).splitlines()[0].split()
    assert columns.startswith(f"{header[0]} ")
    flat = (str, int, float, bool, type(None))
    assert all(isinstance(value, flat) for row in rows for value in row.values())


def test_jobs_are_listed_by_state_task_and_queue(running: Shell) -> None:
    running.run("call", "-A", "shop", "broken", "1", "--wait")
    failed = running.json("jobs", "--state", "failed", "--task", "shop.broken")
    assert {"failed"} == {row["state"] for row in failed}
    assert "ValueError: 1" in {row["error"] for row in failed}
    assert 1 == len(running.json("jobs", "--limit", "1"))
    assert [] == running.json("jobs", "--queue", "no-such-queue")


def test_a_job_is_one_object(running: Shell) -> None:
    running.run("call", "-A", "shop", "broken", "2", "--wait")
    job = running.json("jobs", "--state", "failed", "--limit", "1")[0]["id"]
    info = running.json("job", job)
    assert (job, "shop.broken", "failed") == (info["id"], info["task"], info["state"])
    assert "raise ValueError(what)" in info["traceback"]
    shown = running.output("job", job).splitlines()
    assert "    Traceback (most recent call last):" in shown
    assert any(line.startswith("ran ") and line.endswith(("us", "ms")) for line in shown)


def test_arguments_are_shown_on_request_by_a_part_of_an_id(running: Shell) -> None:
    running.run("call", "-A", "shop", "broken", '"out of stock"', "--wait")
    job = running.json("failed")[0]["id"]
    for command in (("job",), ("failed", "show")):
        assert "args" not in running.json(*command, job[-8:])
        shown = running.json(*command, job[-8:], "--args")
        assert (job, ["out of stock"], {}) == (shown["id"], shown["args"], shown["kwargs"])
    assert '\narguments\n    "out of stock"\n' in running.output("job", job[-8:], "--args")


def test_a_worker_shows_its_description(running: Shell) -> None:
    (worker,) = running.json("workers")
    versions = running.json("version")
    assert ("prefork", 1) == (worker["pool"], worker["slots"])
    assert versions["eventmq"] in {worker["version"], "unknown"}
    assert (None, None) == (worker["runs"], worker["since"])


def test_a_status_begins_with_how_the_broker_is(running: Shell) -> None:
    running.output("call", "shop.total", "[1]", "--queue", "unserved")
    lines = running.output("status").splitlines()
    assert ["broker", "jobs", "oldest", "workers"] == [line.split()[0] for line in lines[:4]]
    assert "attention: queue unserved: no worker" in lines
    assert "peers" not in {line.split()[0] for line in lines}
    assert "counters.admitted" in running.output("status", "--verbose")
    status = running.json("status")
    assert 0 < status["oldest_waiting"] <= status["uptime"]


def test_a_broker_without_space_is_alive_and_not_ready(shell: Shell) -> None:
    """It answers but refuses every new job: the probe fails, and the status has the reason."""
    shell.environ["EVENTMQ_DISK_RESERVE"] = str(1 << 60)
    shell.environ["EVENTMQ_BROKER"] = shell.start("broker", "--bind", FREE).ready()["main"]
    assert "" == shell.output("status", "--check", "live")
    code, message = shell.error("status", "--check", "ready")
    assert 1 == code
    assert "the broker is not ready: new jobs are refused: the disk is nearly full" in message
    shown = shell.output("status")
    assert "attention: new jobs are refused: the disk is nearly full" in shown
    assert "Nothing needs attention" not in shown
    assert 1 << 60 == shell.json("status")["disk"]["reserve_bytes"]


def test_the_latest_failure_is_the_first_in_the_list(running: Shell) -> None:
    for number in ("3", "4"):
        running.run("call", "-A", "shop", "broken", number, "--wait")
    (job,) = running.json("jobs", "--state", "failed", "--limit", "1")
    assert "ValueError: 4" == job["error"]


def test_a_queue_without_a_worker_is_shown_with_the_command_that_starts_one(running: Shell) -> None:
    options = ("--queue", "mail", "--wait", "--timeout", "0.2")
    code, message = running.error("call", "shop.total", "[1]", *options)
    assert 1 == code
    assert "is still queued after 0.2 s: no worker serves the queue 'mail'" in message
    assert "eventmq worker -A MODULE -Q mail" in message


def test_the_status_and_the_ping_are_one_object(running: Shell) -> None:
    status = running.json("status")
    assert running.environ["EVENTMQ_BROKER"] == status["addresses"]["main"]
    assert "default" in status["connected_queues"]
    expected = {"version", "epoch", "store", "events_id", "now", "round_trip"}
    assert expected == set(running.json("ping"))


# Topics


def test_what_is_published_is_printed(running: Shell) -> None:
    lines = running.start("subscribe", "news", "--count", "2")
    objects = running.start("subscribe", "news", "--count", "2", "--json")
    assert "subscribed" in lines.line(err=True)
    assert "subscribed" in objects.line(err=True)
    assert {"topic": "other", "value": 1} == running.json("publish", "other", "1")
    running.output("publish", "news", "plain words")
    running.output("publish", "news.x", '{"a": [1]}')
    assert ['news "plain words"', 'news.x {"a": [1]}'] == [lines.line(), lines.line()]
    assert '{"topic": "news", "value": "plain words"}' == objects.line()
    assert (0, 0) == (lines.wait(), objects.wait())


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_subscription_as_usual(running: Shell, signum: int) -> None:
    program = running.start("subscribe", "news")
    program.line(err=True)
    assert 0 == program.stop(signum)


def test_a_graph_is_drawn_and_cancelled_whole(running: Shell) -> None:
    """By the id of any of its jobs."""
    program = (
        "from shop import total\n"
        "from eventmq import chord\n"
        "late = total.options(countdown=3600)\n"
        "print(chord([late.s([1]), late.s([2])], total.s()).delay().id)\n"
    )
    done = running.launch(sys.executable, "-c", program)
    job_id = done.line().strip()
    assert 0 == done.wait()
    lines = running.output("job", job_id, "--tree").splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [
        ["└─", "shop.total", "blocked"],
        ["├─", "shop.total", "delayed"],
        ["└─", "shop.total", "delayed"],
    ]
    rows = running.json("job", job_id, "--tree")
    assert f"{JOBS} place input output handler leased" == " ".join(rows[0])
    assert {"cancelled": 3} == running.json("cancel", "--group", rows[0]["id"])
    assert "3 cancelled" in running.output("job", rows[0]["id"], "--tree")
    code, _ = running.error("cancel", "--group", "nobody-knows-it")
    assert 4 == code
