"""Brokers and workers as a user starts them: ready lines, signals, errors and exit codes."""

from __future__ import annotations

import json
import re
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from eventmq.plugins.database import connect
from tests.support.shell import Shell, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SHOP = """
import logging
import time
from eventmq import EventMQ, current_job

app = EventMQ("shop")
log = logging.getLogger("shop.till")

@app.task
def audible():
    log.debug("too quiet")
    log.info("loud enough")
    return current_job().id

@app.task
def total(prices, *, discount=0.0):
    return sum(prices) * (1 - discount)

@app.task
def broken(what):
    raise ValueError(what)

@app.task
def slow(path, seconds):
    with open(path, "w") as file:
        file.write("started")
    time.sleep(seconds)
    with open(path, "w") as file:
        file.write("done")
"""
FREE = "tcp://127.0.0.1:0"
UNUSED_ADDRESS = "tcp://127.0.0.1:9"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A folder with the app, and nothing running."""
    (tmp_path / "shop.py").write_text(SHOP)
    shell = Shell(tmp_path)
    yield shell
    shell.close()


def test_what_starts_fast_imports_little(shell: Shell) -> None:
    """``eventmq version`` needs no ZeroMQ, no tables and no plugin."""
    libraries = {"dill", "msgpack", "pluggy", "rich", "zmq"}
    code = (
        "import sys; from eventmq.cli.program import program\n"
        "try: program.main(['version'])\n"
        f"finally: print(sorted({libraries} & set(sys.modules)))"
    )
    program = shell.launch(sys.executable, "-c", code)
    assert program.line().startswith("eventmq ")
    assert "[]" == program.line()


# Broker


def test_the_ready_line_of_a_broker_has_the_real_addresses(shell: Shell) -> None:
    broker = shell.start("broker", "--bind", FREE, "--admin-bind", FREE)
    ready = broker.ready()
    assert ["main", "admin", "store", "epoch"] == list(ready)
    assert ready["main"] != FREE
    assert "1" == ready["epoch"]
    answer = shell.json("ping", "--broker", ready["main"])
    assert (ready["store"], 1) == (answer["store"], answer["epoch"])
    assert (shell.folder / ".eventmq" / "queue.sqlite").exists()


def test_without_bind_all_ports_of_the_settings_are_opened(shell: Shell) -> None:
    names = ["worker_bind", "admin_bind", "publish_bind", "subscribe_bind"]
    port = free_port()
    toml = "".join(f'{name} = "{FREE}"\n' for name in names)
    (shell.folder / "eventmq.toml").write_text(f'{toml}bind = "tcp://127.0.0.1:{port}"\n')
    ready = shell.start("broker").ready()
    assert ["main", "worker", "admin", "publish", "subscribe"] == list(ready)[:5]


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1"])
def test_a_broker_whose_host_is_not_of_this_machine_says_so(shell: Shell, host: str) -> None:
    address = f"tcp://{host}:47291"
    ended = shell.run("broker", "--bind", address, "--insecure")
    reason = "its host cannot be resolved, or is not an address of this machine; name another"
    assert f"error: cannot bind main to {address}: {reason}" in ended.stderr
    assert 1 == ended.returncode


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_broker_cleanly(shell: Shell, signum: int) -> None:
    broker = shell.start("broker", "--bind", FREE)
    broker.ready()
    assert 0 == broker.stop(signum)
    while "the broker has stopped" not in broker.line(err=True):
        continue


def test_a_broker_keeps_its_store_over_a_restart(shell: Shell) -> None:
    first = shell.start("broker", "--bind", FREE, "--data-dir", "kept")
    ready = first.ready()
    job = shell.output("call", "shop.total", "[1]", "--broker", ready["main"]).strip()
    first.stop()
    again = shell.start("broker", "--bind", FREE, "--data-dir", "kept").ready()
    assert (ready["store"], "2") == (again["store"], again["epoch"])
    kept = shell.json("job", job, "--broker", again["main"])
    assert "queued" == kept["state"]
    assert kept["reason"].startswith("no worker serves the queue 'default'; start one with: ")


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["--bind", "nonsense"], 2, "'bind' has the value 'nonsense'"),
        (["--bind", "tcp://0.0.0.0:0"], 1, "say --insecure"),
        (["--data-dir", "shop.py"], 1, "name another with --data-dir"),
        (["--store", "sqlit"], 2, "did you mean 'sqlite'?"),
        (["--store-option", "x"], 2, "is not written as name=value"),
        (["--store-option", "reserv=1"], 1, "did you mean 'reserve'?"),
        (["--store-option", "reserve=much"], 1, "must be a whole number"),
        (["--durability", "hope"], 2, "'hope' is not one of"),
        (["-A", "nowhere"], 2, "there is no module 'nowhere'"),
    ],
)
def test_a_broker_that_cannot_start_reports_the_reason(
    shell: Shell, arguments, code, expected
) -> None:
    actual_code, message = shell.error("broker", "--bind", FREE, *arguments)
    assert code == actual_code
    assert expected in message


def test_a_port_in_use_is_named(shell: Shell) -> None:
    address = shell.start("broker", "--bind", FREE).ready()["main"]
    code, message = shell.error("broker", "--bind", address, "--data-dir", "other")
    assert 1 == code
    assert address in message
    assert "in use" in message


def test_a_data_directory_in_use_is_named_with_its_owner(shell: Shell) -> None:
    broker = shell.start("broker", "--bind", FREE, "--data-dir", "mine")
    broker.ready()
    code, message = shell.error("broker", "--bind", FREE, "--data-dir", "mine")
    assert 1 == code
    assert f"in use by another broker (process {broker.process.pid})" in message


def test_the_store_of_another_version_is_refused(shell: Shell) -> None:
    broker = shell.start("broker", "--bind", FREE)
    broker.ready()
    broker.stop()
    db = connect(shell.folder / ".eventmq" / "queue.sqlite", busy=5.0)
    db.execute("PRAGMA user_version = 99")
    db.close()
    code, message = shell.error("broker", "--bind", FREE)
    assert 1 == code
    assert "has store version 99" in message
    assert "--data-dir" in message


# Worker


def test_a_worker_lists_its_tasks_and_reports_when_it_is_ready(shell: Shell) -> None:
    address = shell.start("broker", "--bind", FREE).ready()["main"]
    options = ("-A", "shop", "--broker", address, "-Q", "email:40,default", "-c", "1")
    worker = shell.start("worker", *options)
    assert {"app": "shop", "pool": "prefork", "queues": "email:40,default:10"} == worker.ready()
    assert all(f"task shop.{name}, " in worker.text for name in ("broken", "slow", "total"))
    [row] = shell.json("workers", "--broker", address)
    assert ("email:40,default:10", False) == (row["queues"], row["legacy"])
    assert 0 == worker.stop()


def test_the_ready_line_of_a_worker_moves_no_cursor(shell: Shell) -> None:
    address = shell.start("broker", "--bind", FREE).ready()["main"]
    options = ("-A", "shop", "--broker", address, "-Q", "q\x1b[31m", "-c", "1")
    assert r"q\x1b[31m:10" == shell.start("worker", *options).ready()["queues"]


def test_a_worker_waits_for_a_broker_that_is_not_there_yet(shell: Shell) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    worker = shell.start("worker", "-A", "shop", "--broker", address, "--pool", "threads")
    while "no broker answers" not in (line := worker.line(err=True)):
        continue
    assert address in line
    assert "start one with: eventmq broker" in line
    shell.start("broker", "--bind", address)
    assert "threads" == worker.ready()["pool"]
    while "connected to the broker at" not in (line := worker.line(err=True)):
        continue
    assert address in line
    assert (
        "3.0"
        == shell.output(
            "call", "-A", "shop", "total", "[1, 2]", "--wait", "--broker", address
        ).strip()
    )


def test_a_worker_lets_a_running_job_end_at_sigterm(shell: Shell) -> None:
    _, path, worker = started_job(shell, "1")
    assert 0 == worker.stop(signal.SIGTERM)
    assert "done" == path.read_text()


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_second_signal_stops_a_worker_at_once_and_logs_the_interrupted_jobs(
    shell: Shell, pool: str
) -> None:
    job, path, worker = started_job(shell, "600", pool)
    worker.process.send_signal(signal.SIGTERM)
    while "ending" not in worker.line(err=True):
        continue
    assert 0 == worker.stop(signal.SIGTERM)
    assert "started" == path.read_text()
    (line,) = [line for line in worker.text.splitlines() if "stopped at once" in line]
    assert " WARNING " in line
    assert line.endswith(f"aborted 1 running job, which will run again: {job} (shop.slow)")


def started_job(shell: Shell, seconds: str, pool: str = "prefork"):
    """Return the id and the note of a job that has been started, and its worker."""
    address = shell.start("broker", "--bind", FREE).ready()["main"]
    options = ("-A", "shop", "--broker", address, "-c", "1", "--pool", pool)
    worker = shell.start("worker", *options)
    worker.ready()
    path = shell.folder / "note"
    call = ("call", "-A", "shop", "slow", f'"{path}"', seconds, "--broker", address)
    job = shell.output(*call).strip()
    while not path.exists() or "started" != path.read_text():
        shell.output("ping", "--broker", address)
    return job, path, worker


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        ([], 2, "-A module[:attribute]"),
        (["-A", "shap"], 2, "did you mean 'shop'?"),
        (["-A", "shop", "-Q", "a:none"], 2, "'queues'"),
        (["-A", "shop", "--pool", "prefrok"], 2, "did you mean 'prefork'?"),
        (["-A", "shop", "--pool-option", "start_timeout=soon"], 1, "must be a number"),
        (["-A", "shop", "-I", "nowhere"], 2, "-I nowhere"),
    ],
)
def test_a_worker_that_cannot_start_reports_the_reason(
    shell: Shell, arguments, code, expected
) -> None:
    done = shell.run("-q", "worker", "--broker", UNUSED_ADDRESS, *arguments)
    assert code == done.returncode
    assert 1 == len(done.stderr.splitlines()), done.stderr
    assert expected in done.stderr


def test_what_fails_in_a_child_is_logged_like_the_rest(shell: Shell) -> None:
    address = shell.start("broker", "--bind", FREE).ready()["main"]
    worker = shell.start("worker", "-A", "shop", "--broker", address, "-c", "1")
    worker.ready()
    shell.run("call", "shop.broken", "1", "--wait", "--broker", address)
    worker.stop()
    (line,) = [line for line in worker.text.splitlines() if "shop.broken failed" in line]
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ERROR   eventmq\.", line)
    assert "ValueError: 1" in line
    assert "        raise ValueError(what)" in worker.text.splitlines(), "with its traceback"


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_what_a_task_logs_at_info_is_shown_with_its_job(shell: Shell, pool: str) -> None:
    address = shell.start("broker", "--bind", FREE).ready()["main"]
    options = ("-A", "shop", "--broker", address)
    worker = shell.start("worker", *options, "-c", "1", "--pool", pool)
    worker.ready()
    job = json.loads(shell.output("call", *options, "audible", "--wait"))
    worker.stop()
    (line,) = [line for line in worker.text.splitlines() if "loud enough" in line]
    timestamp = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"
    where = re.escape(f"shop.till [shop.audible {job} attempt 1]")
    assert re.fullmatch(f"{timestamp} INFO    {where}: loud enough", line)
    assert "too quiet" not in worker.text


def test_a_misspelt_variable_is_reported_once_in_each_command(shell: Shell) -> None:
    shell.environ["EVENTMQ_BROKRE"] = "tcp://127.0.0.1:9"
    words = "environment variable EVENTMQ_BROKRE is unknown; did you mean EVENTMQ_BROKER?"
    warning = f"warning: {words}"
    broker = shell.start("broker", "--bind", FREE)
    address = broker.ready()["main"]
    worker = shell.start("worker", "-A", "shop", "--broker", address, "-c", "1")
    worker.ready()
    for command in (["ping"], ["status"], ["jobs", "--json"], ["call", "shop.total", "[1]"]):
        done = shell.run(*command, "--broker", address)
        assert [warning] == done.stderr.splitlines(), command
    worker.stop()
    broker.stop()
    for program in (broker, worker):
        assert 1 == program.text.count("EVENTMQ_BROKRE"), program.text


def test_dev_tells_of_a_misspelt_variable_once_for_all(shell: Shell) -> None:
    shell.environ["EVENTMQ_BROKRE"] = "tcp://127.0.0.1:9"
    dev = shell.start("dev", "-A", "shop", "--bind", FREE, "-c", "1")
    dev.ready()
    dev.stop()
    assert 1 == dev.text.count("EVENTMQ_BROKRE"), dev.text


def test_i_imports_more_tasks(shell: Shell) -> None:
    (shell.folder / "more.py").write_text(
        "from shop import app\n@app.task\ndef twice(n):\n    return 2 * n\n"
    )
    address = shell.start("broker", "--bind", FREE).ready()["main"]
    shell.start("worker", "-A", "shop", "-I", "more", "--broker", address, "-c", "1").ready()
    options = ("-A", "shop", "-I", "more", "--broker", address)
    assert "6\n" == shell.output("call", *options, "twice", "3", "--wait")


# Broker and worker together


def test_dev_runs_both_and_ends_both(shell: Shell) -> None:
    dev = shell.start("dev", "-A", "shop", "--bind", FREE, "-c", "1")
    address = dev.ready()["main"]
    options = ("-A", "shop", "--broker", address)
    assert "1.0\n" == shell.output("call", *options, "total", "[1]", "--wait")
    assert 0 == dev.stop(signal.SIGINT)
    assert "worker | " in dev.text
    shell.environ["EVENTMQ_SUBMIT_TIMEOUT"] = "0.1"
    assert 3 == shell.run("ping", "--broker", address).returncode


def test_dev_writes_json_that_names_the_process(shell: Shell) -> None:
    (shell.folder / "loud.py").write_text(
        "import sys\nfrom eventmq import EventMQ\n"
        "app = EventMQ('loud')\nprint('hi', file=sys.stderr)\n"
    )
    options = ("-A", "loud", "--bind", FREE, "-c", "1", "--log-format", "json")
    dev = shell.start("dev", *options)
    dev.ready()
    assert 0 == dev.stop(signal.SIGINT)
    output = dev.text.split("hi\n", 1)[1]  # dev itself imports the app before it has a log
    lines = [json.loads(line) for line in output.splitlines() if line[:6] != "ready "]
    assert {"broker", "worker", "beat", "dev"} <= {line["process"] for line in lines}
    assert ("worker", "hi") in {(line["process"], line["message"]) for line in lines}


def test_dev_reports_which_of_the_two_failed(shell: Shell) -> None:
    done = shell.run("dev", "-A", "shop", "--bind", FREE, "--data-dir", "shop.py")
    assert 1 == done.returncode
    assert "error: the broker ended with exit code 1: " in done.stderr.splitlines()[-1]
    code, message = shell.error("dev", "-A", "shap")
    assert 2 == code
    assert "did you mean 'shop'?" in message
