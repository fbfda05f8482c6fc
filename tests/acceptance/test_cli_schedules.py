"""Schedules on the command line: exit codes, and what stands on stdout."""

from __future__ import annotations

import json
import re
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest

from eventmq.app import EventMQ
from tests.support.shell import Shell
from tests.support.system import until

if TYPE_CHECKING:
    from collections.abc import Iterator

SHOP = """
from eventmq import EventMQ, cron, every

app = EventMQ("shop")

@app.task
def total(prices, *, discount=0.0):
    return sum(prices) * (1 - discount)

@app.task(schedule=every(seconds=0.2))
def often():
    pass

app.schedule("nightly", total.s([1, 2]), cron("0 3 * * *", tz="Europe/Paris"))
"""
COLUMNS = (
    "name task trigger queue enabled next next_local zone last last_local last_job outcome source "
    "app remaining misfire overlap jitter version"
)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A broker, a worker and a beat."""
    folder = tmp_path_factory.mktemp("running")
    (folder / "shop.py").write_text(SHOP)
    shell = Shell(folder)
    shell.environ["EVENTMQ_BROKER"] = shell.start("broker", "--bind", "tcp://127.0.0.1:0").ready()[
        "main"
    ]
    shell.start("worker", "-A", "shop", "-c", "1", "--pool", "threads").ready()
    assert {"app": "shop", "store": "broker"} == shell.start("beat", "-A", "shop").ready()
    yield shell
    shell.close()


@pytest.fixture(scope="module")
def app(running: Shell) -> Iterator[EventMQ]:
    """A client that reads the same store."""
    with EventMQ("look", broker=running.environ["EVENTMQ_BROKER"]) as app:
        yield app


def listing(shell: Shell) -> dict[str, dict[str, Any]]:
    done = shell.run("schedules", "list", "--json")
    assert done.returncode == 0, done.stderr
    return {row["name"]: row for row in json.loads(done.stdout)}


def refused(shell: Shell, *arguments: str) -> tuple[int, str]:
    done = shell.run(*arguments)
    assert done.stdout == ""
    assert done.stderr.startswith("error: "), done.stderr
    assert done.stderr.count("\n") == 1
    return done.returncode, done.stderr


def test_the_list_has_next_and_last_runs_and_the_outcome(running: Shell) -> None:
    until(lambda: listing(running)["shop.often"]["outcome"] == "succeeded", "a run")
    rows = listing(running)
    nightly, often = rows["nightly"], rows["shop.often"]
    assert COLUMNS.split() == list(nightly)
    assert (nightly["zone"], nightly["source"], nightly["last"]) == ("Europe/Paris", "code", None)
    assert 0 < nightly["next"] - time.time() < 25 * 3600
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \S+", nightly["next_local"])
    assert abs(often["last"] - time.time()) < 10
    assert len(often["last_job"]) == 32
    table = running.run("schedules", "list").stdout.splitlines()
    assert table[0].split()[:3] == ["name", "task", "trigger"]
    assert len(table) == 1 + len(rows)


def test_a_schedule_is_made_run_switched_and_removed(running: Shell) -> None:
    made = running.run(
        "schedule", "-A", "shop", "weekly", "total", "[1, 2, 3]", "discount=0.5", "--cron",
        "0 9 * * 1", "--tz", "America/New_York", "--queue", "default", "--misfire", "skip",
        "--jitter", "5",
    )  # fmt: skip
    assert (made.returncode, made.stdout, made.stderr) == (0, "", "")
    row = listing(running)["weekly"]
    assert (row["task"], row["source"], row["misfire"], row["jitter"]) == (
        "shop.total", "cli", "skip", 5.0,
    )  # fmt: skip
    job = running.run("schedules", "run", "weekly").stdout.strip()
    until(
        lambda: json.loads(running.run("job", job, "--json").stdout)["state"] == "succeeded",
        "the job",
    )
    assert running.run("schedules", "disable", "weekly").returncode == 0
    row = listing(running)["weekly"]
    assert (row["enabled"], row["next"]) == (False, None)
    assert running.run("schedules", "enable", "weekly").returncode == 0
    assert listing(running)["weekly"]["enabled"]
    assert running.run("unschedule", "weekly").returncode == 0
    assert "weekly" not in listing(running)
    for command in (("schedules", "remove"), ("unschedule",), ("schedules", "run")):
        code, message = refused(running, *command, "weekly")
        assert (code, "no schedule 'weekly'" in message) == (4, True)


def test_one_that_fires_so_often_is_gone_then(running: Shell) -> None:
    call = ("schedule", "brief", "shop.total", "[1]", "--every", "0.1s", "--run-count", "2")
    assert running.run(*call, "--now").returncode == 0
    until(lambda: "brief" not in listing(running), "its end")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--every", "0s"), "an interval of 0 s is not allowed"),
        (("--every", "soon"), "write 30s, 5m, 2h or 1d"),
        (("--cron", "0 0 30 2 *"), "month 2 never has a day 30"),
        (("--cron", "0 0 * * *", "--tz", "Europe/Pari"), "did you mean 'Europe/Paris'"),
        (("--every", "5s", "--tz", "UTC"), "an interval has no zone"),
        (("--at", "2030-01-01T09:00"), "has no time zone"),
        (("--at", "2020-01-01T09:00+00:00"), "would never fire"),
        (("--at", "tomorrow"), "is not a time"),
        ((), "name one of --every, --cron and --at"),
        (("--every", "5s", "--cron", "* * * * *"), "name one of --every, --cron and --at"),
        (("--every", "5s", "--run-count", "0"), "a whole number from 1"),
    ],
)
def test_a_problem_is_reported_in_one_line(
    running: Shell, app: EventMQ, arguments: tuple[str, ...], problem: str
) -> None:
    code, message = refused(running, "schedule", "x", "shop.total", "[1]", *arguments)
    assert (code, problem in message) == (2, True), message
    assert "x" not in {schedule.name for schedule in app.schedules.list()}


def test_a_task_that_the_app_has_not_is_wrong_usage(running: Shell) -> None:
    code, message = refused(running, "schedule", "-A", "shop", "x", "totl", "--every", "5s")
    assert (code, "did you mean" in message) == (2, True)
    code, message = refused(running, "schedule", "-A", "shop", "x", "total", "--every", "5s")
    assert (code, "missing a required argument" in message) == (2, True)


def test_a_time_takes_its_zone_from_tz(running: Shell) -> None:
    call = ("schedule", "once", "shop.total", "[1]", "--at", "2130-07-01T09:00")
    assert running.run(*call, "--tz", "Europe/Paris").returncode == 0
    assert listing(running)["once"]["next"] == (
        datetime(2130, 7, 1, 7, tzinfo=timezone.utc).timestamp()
    )
    assert running.run("unschedule", "once").returncode == 0


def test_a_beat_needs_an_app(running: Shell) -> None:
    code, message = refused(running, "beat")
    assert (code, "a scheduler needs an app" in message) == (2, True)


def test_without_a_broker_it_reports_that(running: Shell) -> None:
    shell = Shell(running.folder, EVENTMQ_SUBMIT_TIMEOUT="0.1")
    code, _ = refused(shell, "schedules", "list", "--broker", "tcp://127.0.0.1:9")
    assert code == 3
