"""What listings look like at 80 and 120 columns, kept as files in ``snapshots/``.

After a change that is meant, make them anew and look at the difference:
``EVENTMQ_TEST_SNAPSHOTS=write .venv/bin/pytest tests/unit/cli/test_listings.py``
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click
import pytest
from rich.cells import cell_len

from eventmq.broker.grants import Grant
from eventmq.cli.program import program
from eventmq.cli.target import Target
from eventmq.errors import JobNotFound, NotAllowed
from eventmq.schedule import Schedule
from eventmq.wire.results import RemoteError
from tests.unit.cli.test_output import become_terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SNAPSHOTS = Path(__file__).parent / "snapshots"
WRITE = os.environ.get("EVENTMQ_TEST_SNAPSHOTS") == "write"

NOW = 1_800_000_000.0
MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0

LONG = "billing.reports.quarterly.consolidated_statements_of_all_subsidiaries"
EVIL = "\x1b[2J\x07evil\nqueue\u202e"
WORKER = "db-worker-7.example.internal:4711"


def row(number: int, state: str, task: str, **more: Any) -> dict[str, Any]:
    """Return a job as the broker lists it."""
    error = more.pop("error", None)
    return {
        "id": f"01a1fc7a9c067000bee557cd8eb62d{number:02x}",
        "task": task,
        "queue": "default",
        "state": state,
        "attempt": 1,
        "delivery": 1,
        "priority": 0,
        "created": NOW - 2 * MINUTE,
        "due": 0.0,
        "expires": 0.0,
        "started": 0.0,
        "ran": 0.0,
        "worker": "",
        "finished": 0.0,
        "content_type": "",
        "headers": "task:t",
        "leased": 0.0,
        "error": error and RemoteError(*error),
        **more,
    }


FAILED = row(
    5,
    "failed",
    "shop.send",
    queue="mail",
    attempt=3,
    delivery=4,
    started=NOW - HOUR,
    ran=0.00027,
    finished=NOW - 55 * MINUTE,
    worker=WORKER,
    created=NOW - 3 * HOUR,
    error=(
        "builtins.ConnectionError",
        f"no route to 10.0.0.7:25: {EVIL}, tried for a while",
        'Traceback (most recent call last):\n  File "shop.py", line 3\nConnectionError: \x1b[2J',
    ),
)

JOBS = [
    row(1, "running", "shop.total", leased=NOW - 12, worker=WORKER),
    row(2, "queued", "shop.total", delivery=0, created=NOW - 0.4),
    row(3, "delayed", LONG, delivery=0, due=NOW + 2 * HOUR, attempt=2),
    row(
        4,
        "succeeded",
        "写真.縮小",
        queue="画像",
        finished=NOW - 100,
        ran=0.000037,
        worker=WORKER,
        started=NOW - 101,
        created=NOW - 2 * DAY,
    ),
    FAILED,
    row(6, "cancelled", "", queue=EVIL, finished=NOW - 30, error=("", "not wanted\x1b[31m", "")),
]

QUEUES = [
    {
        "name": "default",
        "waiting": 1200,
        "delayed": 1,
        "running": 8,
        "failed": 0,
        "paused": False,
        "workers": 2,
        "limits": "",
        "waited": 0.0314,
    },
    {
        "name": EVIL,
        "waiting": 3,
        "delayed": 0,
        "running": 0,
        "failed": 12,
        "paused": False,
        "workers": 0,
        "limits": "",
        "waited": 3 * HOUR,
    },
    {
        "name": "画像",
        "waiting": 7,
        "delayed": 0,
        "running": 0,
        "failed": 0,
        "paused": True,
        "workers": 1,
        "limits": "rate:10/s",
        "waited": 200.0,
    },
]

WORKERS = [
    {
        "session": "7c175e00aa914cb29706703949589f0f",
        "name": WORKER,
        "queues": [[40, "mail"], [10, "default"]],
        "tasks": ["shop.send", LONG, *(f"shop.task_{n}" for n in range(20))],
        "window": 8,
        "chunks": 3,
        "running": 5,
        "seen": 0.52,
        "plain": False,
        "pool": "prefork",
        "slots": 4,
        "version": "1.0.0",
        "jobs": [{"id": JOBS[0]["id"], "task": "shop.total", "leased": NOW - 12}],
    },
    {
        "session": "plain.1.main.00",
        "name": "plain.1.main.00",
        "queues": [[10, "default"]],
        "tasks": [],
        "window": 0,
        "chunks": 1,
        "running": 1,
        "seen": 2.0,
        "plain": True,
        "pool": "",
        "slots": 2,
        "version": "",
        "jobs": [{"id": "x", "task": "", "leased": NOW - 4 * HOUR}],
    },
    {
        "session": "s3",
        "name": "old",
        "queues": [[10, EVIL]],
        "tasks": ["a"],
        "window": 1,
        "chunks": 0,
        "running": 0,
        "seen": None,
        "plain": False,
    },
]

STATUS = {
    "version": "1.0.0",
    "epoch": 3,
    "store": "b436609ea0c4e835",
    "now": NOW,
    "started": NOW - 3 * HOUR,
    "clock": {"unconfirmed": 0.0, "step": 3600.0},
    "addresses": {"main": "tcp://127.0.0.1:47291"},
    "peers": 3,
    "counters": {"admitted": 9, "errors.not-allowed": 1},
    "queue_limits": {},
    "waited_for": 0,
    "unread_bytes": 80_830_488_576,
    "latency_messages_by_queue": {"mail": 40_136},
    "waiting_messages_by_queue": {EVIL: 3},
    "connected_workers": {"w": {"hb": NOW - 2, "queues": [[10, "default"]]}},
}

ATTEMPTS = [
    {
        "attempt": n,
        "delivery": n,
        "at": NOW - (3 - n) * HOUR,
        "started": NOW - (3 - n) * HOUR - 1,
        "ran": 1.25,
        "worker": WORKER,
        "content_type": "",
        "error": FAILED["error"],
    }
    for n in (1, 2, 3)
]

INFOS = {
    JOBS[0]["id"]: {
        **JOBS[0],
        "attempts": ATTEMPTS[:1],
        "root": "",
        "parent": "",
        "attempt": 2,
        "progress": {"done": 30.0, "total": 100.0, "note": "rows\x1b", "at": NOW},
    },
    FAILED["id"]: {**FAILED, "attempts": ATTEMPTS, "root": "r", "parent": "p", "progress": None},
    JOBS[1]["id"]: {**JOBS[1], "attempts": [], "root": "", "parent": "", "progress": None},
    JOBS[2]["id"]: {
        **JOBS[2],
        "attempts": ATTEMPTS[:1],
        "root": "",
        "parent": "",
        "progress": None,
    },
    JOBS[3]["id"]: {**JOBS[3], "attempts": [], "root": "", "parent": "", "progress": None},
}

ARGUMENTS = {
    JOBS[0]["id"]: {"args": [1, "a\x1b[2J\nb"], "kwargs": {"to": "写真"}, "args_note": ""},
    FAILED["id"]: {
        "args": None,
        "kwargs": None,
        "args_note": "they are 9 bytes of dill: only json and msgpack are decoded to be shown",
    },
}

LOGS = [
    {"attempt": 1, "at": NOW - 2 * HOUR, "text": ""},
    {"attempt": 2, "at": NOW - HOUR, "text": "10:00 INFO shop: sold\x1b\n10:01 INFO shop: sent\n"},
]

SCHEDULES = [
    Schedule(
        name="nightly",
        task="shop.report",
        trigger='cron:{"expression": "0 3 * * *", "tz": "Europe/Paris"}',
        queue="default",
        source="code",
        app="shop",
        last_fire_time=NOW - 9 * HOUR,
        last_job="j1",
    ),
    Schedule(
        name=EVIL,
        task=LONG,
        trigger='every:{"seconds": 90}',
        queue="mail",
        source="cli",
        enabled=False,
    ),
]


KEYS = [
    (Grant("f" * 43, "web", frozenset({"client", "admin"}), "shop"), "a" * 40),
    (Grant("g" * 43, "gate", frozenset({"gateway"}), "", frozenset({"in"}), frozenset()), "b" * 40),
]


class FakeApp:
    """Answers as an app whose broker has what is above."""

    def __init__(self) -> None:
        self.settings = SimpleNamespace(broker=("tcp://127.0.0.1:47291",))
        self.answers: dict[str, Any] = {
            "queues": QUEUES,
            "workers": WORKERS,
            "status": STATUS,
            "jobs": {"jobs": JOBS, "cursor": ""},
            "failed": {"failed": [FAILED], "cursor": ""},
        }
        self.schedules = SimpleNamespace(
            list=lambda: SCHEDULES, next_fire_time=lambda made: NOW + HOUR if made.enabled else None
        )
        self.calls: list[tuple[str, Any]] = []

    def ask(self, name: str, arguments: Any = None) -> Any:
        self.calls.append((name, arguments))
        if name == "state":
            states = {"j1": "failed", **{each["id"]: each["state"] for each in JOBS}}
            return [[i, states.get(i, "")] for i in arguments["ids"]]
        if name == "cancel":
            return [[i, "cancelled", "queued"] for i in arguments["ids"]]
        return self.answers[name]

    def job(self, job_id: str) -> Any:
        def info(*, args: bool = False, logs: bool = False) -> dict[str, Any]:
            if job_id not in INFOS:
                raise JobNotFound(job_id)
            more = {**(ARGUMENTS[job_id] if args else {}), **({"logs": LOGS} if logs else {})}
            return {**INFOS[job_id], **more}

        return SimpleNamespace(info=info)


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApp]:
    """Let commands ask a broker whose answers never change, at a time that stands still."""
    app = FakeApp()

    @contextmanager
    def asking(*_: object) -> Iterator[FakeApp]:
        yield app

    monkeypatch.setattr(Target, "asking", asking)
    monkeypatch.setattr("eventmq.cli.keys._clients", lambda _: KEYS)
    clock = SimpleNamespace(time=lambda: NOW, monotonic=lambda: 0.0)
    monkeypatch.setattr("eventmq.cli.output.time", clock)
    monkeypatch.setenv("TZ", "Europe/Paris")
    time.tzset()
    yield app
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def shown(app: FakeApp, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return what a command prints on a terminal of some columns, without colours."""

    def shown(command: str, columns: int) -> str:
        terminal = become_terminal(monkeypatch)
        monkeypatch.setenv("COLUMNS", str(columns))
        with pytest.raises(SystemExit) as ended:
            program.main(command.split())
        assert not ended.value.code
        text = re.sub(r"\x1b\[[0-9;]*m", "", terminal.text)
        return "".join(f"{line.rstrip()}\n" for line in text.splitlines())

    return shown


LISTINGS = {
    "queues": "queues",
    "workers": "workers",
    "jobs": "jobs",
    "failed": "failed",
    "schedules": "schedules",
    "keys": "keys list",
}

OTHERS = {
    "jobs-wide": "jobs --wide",
    "workers-wide": "workers --wide",
    "queues-wide": "queues --wide",
    "schedules-wide": "schedules --wide",
    "failed-wide": "failed --wide",
    "status": "status",
    "status-verbose": "status --verbose",
    "job-running": "job eb62d01 --args",
    "job-queued": "job eb62d02",
    "job-failed": "job eb62d05 --args -v",
    "job-delayed": "job eb62d03",
    "job-succeeded": "job eb62d04",
    "failed-show": "failed show eb62d05",
    "job-logs": "job eb62d03 --logs",
    "cancel": f"cancel {JOBS[1]['id']}",
}


def check(name: str, text: str) -> None:
    """Compare a text with its snapshot, or write that."""
    path = SNAPSHOTS / f"{name}.txt"
    if WRITE:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("name", LISTINGS)
def test_a_listing_has_a_line_per_row_that_fits(
    name: str, columns: int, shown: Callable[..., str]
) -> None:
    text = shown(LISTINGS[name], columns)
    check(f"{name}-{columns}", text)
    lines = text.splitlines()
    number = {"queues": 3, "workers": 3, "jobs": 6, "failed": 1, "schedules": 2, "keys": 2}[name]
    assert number + 1 == len(lines)
    assert [] == [line for line in lines if cell_len(line) > columns]


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_schedule_that_is_disabled_says_so_at_any_width(
    columns: int, shown: Callable[..., str]
) -> None:
    head, on, off = shown(LISTINGS["schedules"], columns).splitlines()
    place = head.index("enabled")
    assert ("yes", "no") == tuple(line[place : place + 7].strip() for line in (on, off))


@pytest.mark.parametrize("name", OTHERS)
def test_what_does_not_depend_on_the_width(name: str, shown: Callable[..., str]) -> None:
    text = shown(OTHERS[name], 80)
    check(name, text)
    assert text == shown(OTHERS[name], 120)


@pytest.mark.parametrize("name", ["settings", "plugins"])
def test_listings_about_the_installation_fit_too(name: str, shown: Callable[..., str]) -> None:
    for columns in (80, 120):
        lines = shown(name, columns).splitlines()
        assert len(lines) > 20
        assert [] == [line for line in lines if cell_len(line) > columns]


def test_there_is_no_snapshot_of_nothing() -> None:
    names = {*OTHERS, *(f"{name}-{n}" for name in LISTINGS for n in (80, 120))}
    assert names == {path.stem for path in SNAPSHOTS.glob("*")}


def test_no_control_character_of_a_job_reaches_the_terminal(shown: Callable[..., str]) -> None:
    for command in (*LISTINGS.values(), *OTHERS.values()):
        assert shown(command, 80).replace("\n", "").isprintable(), command


def test_columns_give_way_in_the_stated_order(shown: Callable[..., str]) -> None:
    """Worker, queue, finished, attempt."""
    seen = [set(shown("failed", n).splitlines()[0].split()) for n in range(140, 40, -1)]
    gone = [name for before, after in pairwise(seen) for name in before - after]
    assert ["worker", "queue", "finished", "attempt"] == gone


def test_ids_are_as_long_as_tells_them_apart(app: FakeApp, shown: Callable[..., str]) -> None:
    similar = [{**row(1, "queued", "t"), "id": f"{n}{'0' * 20}"} for n in (1, 2)]
    app.answers["jobs"] = {"jobs": similar, "cursor": ""}
    ids = [line.split()[0] for line in shown("jobs", 80).splitlines()[1:]]
    assert [each["id"] for each in similar] == ids


def test_states_in_the_drawing_of_a_graph_have_colours(
    app: FakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {"input": 0, "output": 0, "handler": False, "place": 1}
    app.answers["graph"] = {"jobs": [{**FAILED, **parts}], "size": 1}
    terminal = become_terminal(monkeypatch)
    with pytest.raises(SystemExit):
        program.main(["job", "eb62d05", "--tree"])
    assert "└─ shop.send  \x1b[31m\x1b[1mfailed\x1b[0m  01a1fc7a9c" in terminal.text


def test_states_have_colours_and_notes_too(app: FakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = become_terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", "120")
    for command in ("jobs", "queues", "job eb62d05"):
        with pytest.raises(SystemExit):
            program.main(command.split())
    for text in ("\x1b[31mfailed", "\x1b[34mrunning", "\x1b[33mdelayed", "\x1b[33mno worker"):
        assert text in terminal.text
    assert 2 == terminal.text.count("\x1b[31m"), "also the state of the one job"


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("queues", "No queues."),
        ("workers", "No workers."),
        ("jobs", "No jobs."),
        ("jobs --queue mail --state running", "No running jobs in queue mail."),
        ("failed", "No failed jobs."),
        ("schedules", "No schedules."),
        (
            "failed --queue mail --error ValueError",
            "No failed jobs in queue mail with error ValueError.",
        ),
        (
            "failed list --task a --since 2027-01-15T00:00",
            "No failed jobs of task a since 2027-01-15 00:00:00 CET.",
        ),
    ],
)
def test_an_empty_listing_is_no_error(
    app: FakeApp, capsys: pytest.CaptureFixture[str], command: str, sentence: str
) -> None:
    app.answers = {
        "queues": [],
        "workers": [],
        "jobs": {"jobs": [], "cursor": ""},
        "failed": {"failed": [], "cursor": ""},
    }
    app.schedules.list = list
    for more, out in (([], ""), (["--json"], "[]\n")):
        with pytest.raises(SystemExit) as ended:
            program.main([*command.split(), *more])
        assert 0 == ended.value.code
        assert (out, "" if more else f"{sentence}\n") == capsys.readouterr()


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        program.main(list(arguments))
    code = ended.value.code
    assert isinstance(code, int)
    return code


# Parts of ids


@pytest.mark.parametrize("text", ["eb62d05", FAILED["id"], FAILED["id"][4:]])
def test_a_part_of_an_id_is_enough(
    app: FakeApp, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    for command in (("job",), ("failed", "show")):
        assert 0 == run(*command, text, "--json")
        assert FAILED["id"] == json.loads(capsys.readouterr().out)["id"]
    assert 0 == run("cancel", text)
    assert ("cancel", {"ids": [FAILED["id"]], "reason": ""}) == app.calls[-1]


def test_a_part_of_several_ids_is_wrong_usage(
    app: FakeApp, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is done to any of them."""
    assert 2 == run("cancel", "eb62d0")
    ids = ", ".join(sorted(each["id"] for each in JOBS))
    assert f"'eb62d0' is part of several ids: {ids} " in capsys.readouterr().err
    assert "cancel" not in [name for name, _ in app.calls]


@pytest.mark.parametrize("text", ["d05", "nothing", "eb62d99"])
def test_a_part_of_no_id_or_too_short_a_part_is_not_found(
    app: FakeApp, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    assert 4 == run("job", text)
    assert f"no job with id '{text}'" in capsys.readouterr().err


def test_who_may_not_list_jobs_names_whole_ids(
    app: FakeApp, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only a part of an id is refused; of a whole one the broker says whether it knows it."""
    ask = app.ask

    def guarded(name: str, arguments: Any = None) -> Any:
        if name in {"jobs", "failed", "queues", "workers"}:
            raise NotAllowed(f"you may not call {name!r}")
        return ask(name, arguments)

    monkeypatch.setattr(app, "ask", guarded)
    assert 1 == run("job", "eb62d05")
    assert "give the whole id: parts are looked up" in (error := capsys.readouterr().err)
    assert error.endswith("in the list of jobs, and you may not call 'jobs'\n")
    assert 4 == run("job", "0" * 32)
    for each in (FAILED, JOBS[1]):
        assert 0 == run("job", each["id"], "--json")
        assert json.loads(capsys.readouterr().out)["reason"] is None


# JSON


def test_json_has_what_a_running_job_s_lease_and_a_worker_are(
    app: FakeApp, capsys: pytest.CaptureFixture[str]
) -> None:
    run("jobs", "--json")
    leased = [each["leased"] for each in json.loads(capsys.readouterr().out)]
    assert [NOW - 12, None] == leased[:2]
    run("workers", "--json")
    first, legacy, old = json.loads(capsys.readouterr().out)
    names = ("pool", "slots", "version", "runs", "runs_task", "since")
    expected = ("prefork", 4, "1.0.0", JOBS[0]["id"], "shop.total", NOW - 12)
    assert expected == tuple(first[name] for name in names)
    assert ("", 2, NOW - 4 * HOUR) == (legacy["pool"], legacy["slots"], legacy["since"])
    assert {None} == {old[name] for name in names}
    run("queues", "--json")
    assert [
        "name",
        "waiting",
        "delayed",
        "running",
        "failed",
        "paused",
        "workers",
        "limits",
    ] == list(json.loads(capsys.readouterr().out)[0])


def test_json_of_a_status_has_the_health_beside_all_else(
    app: FakeApp, capsys: pytest.CaptureFixture[str]
) -> None:
    run("status", "--json")
    status = json.loads(capsys.readouterr().out)
    assert (3 * HOUR, 1210, 8, 1, 12) == tuple(
        status[name] for name in ("uptime", "waiting", "running", "delayed", "failed")
    )
    assert 3 * HOUR == status["oldest_waiting"]
    assert status["counters"] == STATUS["counters"]
    assert 4 == len(status["attention"])


def test_a_broker_that_refuses_new_jobs_is_not_ready(
    app: FakeApp, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older broker does not say whether it does."""
    assert 0 == run("status", "--check", "ready")
    monkeypatch.setitem(STATUS, "refusing", "the disk is nearly full")
    capsys.readouterr()
    assert 1 == run("status", "--check", "ready")
    assert "not ready: new jobs are refused: the disk is nearly full" in capsys.readouterr().err
    run("status")
    first = next(line for line in capsys.readouterr().out.splitlines() if "attention" in line)
    assert "attention: new jobs are refused: the disk is nearly full" == first


@pytest.mark.parametrize(
    ("standbys", "addresses", "role"),
    [
        (0, 1, "at tcp://10.0.0.1:47291; no standby"),
        (0, 2, "at tcp://10.0.0.1:47291; no standby"),
        (1, 2, "at tcp://10.0.0.1:47291; 1 standby"),
        (2, 2, "at tcp://10.0.0.1:47291; 2 standbys"),
        (None, 2, "at tcp://10.0.0.1:47291"),
    ],
)
def test_a_missing_standby_needs_attention_where_several_brokers_are_configured(
    app: FakeApp, capsys: pytest.CaptureFixture[str], standbys: int | None, addresses: int, role
) -> None:
    """An older broker, or one that does not own the store yet, does not know the number."""
    owner = {"role": "active", "shared": True, "owner": "tcp://10.0.0.1:47291"}
    app.answers["status"] = {**STATUS, **owner, "standbys": standbys}
    app.settings.broker *= addresses
    run("status")
    lines = capsys.readouterr().out.splitlines()
    assert f"role     owner of the store, epoch 3, {role}" in lines
    missing = "no broker stands by: if this one ends, no job is accepted until one is started"
    assert (f"attention: {missing}" in lines) == (standbys == 0 and addresses == 2)


def test_arguments_are_in_json_where_they_are_asked_for(
    app: FakeApp, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["job"], ["failed", "show"]):
        run(*command, FAILED["id"], "--json")
        assert "args" not in json.loads(capsys.readouterr().out)
        run(*command, FAILED["id"], "--json", "--args")
        assert "9 bytes of dill" in json.loads(capsys.readouterr().out)["args_note"]


def test_logs_are_in_json_where_they_are_asked_for(
    app: FakeApp, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["job"], ["failed", "show"]):
        run(*command, FAILED["id"], "--json")
        assert "logs" not in json.loads(capsys.readouterr().out)
        run(*command, FAILED["id"], "--json", "--logs")
        assert json.loads(capsys.readouterr().out)["logs"] == LOGS


def test_a_job_without_a_log_says_so(
    app: FakeApp, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.unit.cli.test_listings.LOGS", [])
    run("job", FAILED["id"], "--logs")
    assert "log: none is kept; a task keeps the logs of its jobs" in capsys.readouterr().out


# The program


def test_the_help_groups_all_commands_and_cuts_no_summary(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = become_terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", "80")
    assert 0 == run("--help")
    text = terminal.text
    assert ["Start:", "Submit:", "Inspect:", "Act:", "Store:", "Extend:"] == re.findall(
        r"^[A-Z]\w+:$", text.replace("Options:", ""), re.MULTILINE
    )
    assert "..." not in text.replace("[ARGS]...", "")
    assert {*program.commands} == {name for name in program.commands if f"\n  {name} " in text}
    assert sys.stdout is terminal
    groups = {*_groups(program)}
    assert {("broker",), ("keys",), ("spark",), ("store",), ("failed",)} <= groups
    for path in groups:
        before = len(terminal.text)
        assert 0 == run(*path, "--help")
        commands = terminal.text[before:].partition("\nCommands:\n")[2]
        assert commands, path
        assert "..." not in commands, path


def _groups(group: click.Group, *path: str) -> Iterator[tuple[str, ...]]:
    """Give the words that name each group below this one, with those of plugins."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield (*path, name)
            yield from _groups(command, *path, name)
