"""What jobs log is kept with them: real brokers and workers, in every pool."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING

import pytest

from eventmq import EventMQ
from eventmq.errors import JobFailed
from tests.support.shell import Shell, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SHOP = """
import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

from eventmq import EventMQ, current_job, fixed

app = EventMQ("shop", task_defaults={"keep_logs": True})
log = logging.getLogger("shop.mail")


@app.task(retry_policy=fixed(delay=0.01))
def send(number):
    log.info("to %d", number)
    log.debug("not at this level")
    if number == 3:
        raise ValueError(f"attempt {current_job().attempt}")
    return number


@app.task
async def asend(number):
    await asyncio.sleep(0)
    log.warning("async %d", number)
    await asyncio.to_thread(log.info, "and in a thread %d", number)


@app.task(keep_logs=False)
def quiet():
    log.info("only in the log of the worker")


@app.task
def flood(lines):
    for n in range(lines):
        log.info("line %d of many", n)
"""


@pytest.fixture(params=["prefork", "threads", "asyncio"])
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shell]:
    (tmp_path / "shop.py").write_text(SHOP)
    bind = f"tcp://127.0.0.1:{free_port()}"
    shell = Shell(tmp_path, EVENTMQ_BROKER=bind)
    shell.start("broker", "--bind", bind).ready()
    shell.start("worker", "-A", "shop", "-c", "2", "--pool", request.param).ready()
    yield shell
    shell.close()


@pytest.fixture
def app(shell: Shell) -> Iterator[EventMQ]:
    with EventMQ("client", broker=shell.environ["EVENTMQ_BROKER"], submit_timeout=20.0) as app:
        yield app


def lines_of(text: str) -> list[str]:
    """Return the lines of a log, without times and tracebacks."""
    made = re.compile(r"20[0-9-]+ [0-9:,]+ ([A-Z]+ +[\w.]+: .*)|(attempt \d:|\[.*\])")
    matches = (made.fullmatch(line) for line in text.splitlines())
    return [match[1] or match[2] for match in matches if match]


def test_each_job_has_its_own_log(shell: Shell, app: EventMQ) -> None:
    """Of many that run at the same time, plain functions and coroutines."""
    sent = [app.send("shop.send", (n,)) for n in range(10, 40)]
    async_sent = [app.send("shop.asend", (n,)) for n in range(10, 40)]
    quiet = app.send("shop.quiet")
    for job in [*sent, *async_sent, quiet]:
        job.get(timeout=40)
    assert [lines_of(job.logs()) for job in sent] == [
        ["attempt 1:", f"INFO    shop.mail: to {n}"] for n in range(10, 40)
    ]
    assert [lines_of(job.logs()) for job in async_sent] == [
        [
            "attempt 1:", f"WARNING shop.mail: async {n}",
            f"INFO    shop.mail: and in a thread {n}",
        ]
        for n in range(10, 40)
    ]  # fmt: skip
    assert quiet.logs() == ""


def test_attempts_that_failed_have_theirs_and_the_commands_show_them(
    shell: Shell, app: EventMQ
) -> None:
    job = app.send("shop.send", (3,), retries=1)
    with pytest.raises(Exception, match="attempt 2"):
        job.get(timeout=40)
    again = f"attempt 1 of job {job.id} of task shop.send failed: ValueError: attempt 1"
    failed = f"job {job.id} of task shop.send failed for good at attempt 2: ValueError: attempt 2"
    lines = [
        "attempt 1:",
        "INFO    shop.mail: to 3",
        f"WARNING eventmq.execution.joblog: {again}; the next is in 0.01 s",
        "attempt 2:",
        "INFO    shop.mail: to 3",
        f"ERROR   eventmq.execution.joblog: {failed}",
    ]
    assert lines_of(job.logs()) == lines
    assert lines_of(asyncio.run(job.alogs())) == lines
    assert 'raise ValueError(f"attempt' in job.logs()
    for command in (("job",), ("failed", "show")):
        text = shell.output(*command, job.id[-8:], "--logs")
        _, first, second = text.split("\nlog of attempt ")
        assert (first[:2], second[:2]) == ("1\n", "2\n")
        assert all(
            "    20" in part and "INFO    shop.mail: to 3" in part for part in (first, second)
        )
        assert [log["attempt"] for log in shell.json(*command, job.id, "--logs")["logs"]] == [1, 2]
        assert "shop.mail" not in shell.output(*command, job.id)


def test_the_last_lines_are_kept(shell: Shell, app: EventMQ) -> None:
    job = app.send("shop.flood", (3000,))
    job.get(timeout=40)
    [log] = job.info(logs=True)["logs"]
    first, *lines = lines_of(log["text"])
    assert 60_000 < len(log["text"].encode()) <= 65_536
    assert first == f"[lines cut before these: {3000 - len(lines)}; max_job_log_bytes is 65536]"
    assert lines[-1] == "INFO    shop.mail: line 2999 of many"
    assert f"INFO    shop.mail: line {3000 - len(lines)} of many" == lines[0]


def test_a_program_that_is_its_own_worker_keeps_them_as_well() -> None:
    with EventMQ("shop", broker="memory://") as app:

        @app.task(name="warn", keep_logs=True)
        def warn() -> None:
            logging.getLogger("shop").warning("said")

        job = warn.delay()
        job.get(timeout=20)
        assert lines_of(job.logs()) == ["attempt 1:", "WARNING shop: said"]


NOISY = """
import logging

from eventmq import EventMQ, fixed


class Broken(logging.Handler):
    def emit(self, record):
        raise RuntimeError("no such file")


class Full(logging.FileHandler):
    def __init__(self):
        super().__init__("/dev/full")


logging.basicConfig(level=logging.INFO, handlers=[logging.StreamHandler(), Broken(), Full()])
logging.getLogger("shop.mail").addHandler(Broken())
app = EventMQ("shop")


@app.task(retry_policy=fixed(delay=0.01), keep_logs=True)
def send(number):
    logging.getLogger("shop.mail").info("to %d", number)
    if number % 10 == 3:
        raise ValueError(number)
    return number
"""


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_log_handlers_that_raise_fail_no_job_and_are_named_once(tmp_path: Path, pool: str) -> None:
    """In the worker, its processes and the broker; a full disk as well."""
    (tmp_path / "shop.py").write_text(NOISY)
    bind = f"tcp://127.0.0.1:{free_port()}"
    shell = Shell(tmp_path, EVENTMQ_BROKER=bind)
    try:
        broker = shell.start("broker", "-A", "shop", "--bind", bind)
        broker.ready()
        worker = shell.start("worker", "-A", "shop", "-c", "1", "--pool", pool)
        worker.ready()
        with EventMQ("client", broker=bind, submit_timeout=20.0) as app:
            jobs = app.send_many("shop.send", [((n,), {}) for n in range(50)], retries=1)
            for n, job in enumerate(jobs):
                if n % 10 == 3:
                    with pytest.raises(JobFailed, match=f"ValueError: {n}"):
                        job.get(timeout=40)
                else:
                    assert job.get(timeout=40) == n
            assert lines_of(jobs[7].logs()) == ["attempt 1:", "INFO    shop.mail: to 7"]
        assert worker.stop() == 0
        assert broker.stop() == 0
        # The manager, the process that forks others, and those; each handler in each once.
        assert 1 <= broker.text.count("RuntimeError: no such file") <= 2
        assert 2 <= worker.text.count("this is reported once: RuntimeError: no such file") <= 6
        assert 1 <= worker.text.count("this is reported once: OSError: [Errno 28]") <= 4
        assert "Logging error" not in worker.text + broker.text
        assert worker.text.count("INFO:shop.mail:to 49") == 1
    finally:
        shell.close()
