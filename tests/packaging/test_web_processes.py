"""Web processes submit jobs: the lines of the page, with the real gunicorn and uvicorn."""

from __future__ import annotations

import re
import shlex
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from eventmq import EventMQ
from tests.support.page_files import write_files
from tests.support.shell import Program, Shell, free_port
from tests.support.system import until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.timeout(120)

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "operate" / "production-workers.rst"
PROGRAMS = Path(sys.executable).parent

LINES = re.findall(r"^    \$ ((?:gunicorn|uvicorn) .*)$", PAGE.read_text("utf-8"), re.MULTILINE)

#: The module that the page imports. A job returns the process in which it was submitted.
SHOP = """
import os

from eventmq import EventMQ, current_job, hookimpl


class From:
    def submit(self, submission, proceed):
        submission.headers["from"] = str(os.getpid())
        return proceed(submission)


class Plugin:
    @hookimpl
    def eventmq_middleware(self):
        return {"from": lambda context: From()}


app = EventMQ("shop", plugins=[Plugin()], middleware=["from"])


@app.task
def total(prices):
    return [sum(prices), current_job().header("from")]
"""

#: Uses the client in the process that forks the others.
GUNICORN = """
def when_ready(server):
    import shop

    assert shop.total.delay([]).get(timeout=30)[0] == 0
    server.log.info("a job was submitted here")
"""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    assert write_files("howto/operate/production-workers.rst", tmp_path) == ["web.py"]
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "gunicorn.conf.py").write_text(GUNICORN)
    # A home, for the socket by which gunicorn is controlled.
    shell = Shell(tmp_path, HOME=str(tmp_path), PYTHONPATH=str(tmp_path))
    try:
        broker = shell.start("broker", "--bind", "tcp://127.0.0.1:0", "--store", "memory")
        shell.environ["EVENTMQ_BROKER"] = broker.ready()["main"]
        shell.start("worker", "-A", "shop", "--pool", "threads", "-c", "1").ready()
        yield shell
    finally:
        for program in reversed(shell.programs):  # killed, a server would leave its processes
            program.stop()


def serve(shell: Shell, line: str) -> tuple[Program, str]:
    """Start a server by a line of the page; return it and its URL."""
    name, *arguments = shlex.split(line)
    port = str(free_port())
    bind = ["--bind", f"127.0.0.1:{port}"] if name == "gunicorn" else ["--port", port]
    return shell.launch(str(PROGRAMS / name), *bind, *arguments), f"http://127.0.0.1:{port}/"


def test_all_lines_are_found() -> None:
    assert [line.split()[0] for line in LINES] == ["gunicorn", "gunicorn", "uvicorn"]
    assert "--preload" in LINES[0]


@pytest.mark.parametrize("line", LINES)
def test_each_process_submits_jobs(shell: Shell, line: str) -> None:
    """Two of the four at least; gunicorn forks them from one that has used the client."""
    server, url = serve(shell, line)

    def ask() -> str:
        try:
            with urllib.request.urlopen(url, timeout=20) as answer:
                assert answer.status == 202
                return str(answer.read().decode())
        except urllib.error.URLError as error:  # it does not listen yet
            if isinstance(error.reason, ConnectionRefusedError):
                return ""
            raise AssertionError(f"{error.reason}; it said: {server.text}") from error

    with EventMQ("client", broker=shell.environ["EVENTMQ_BROKER"]) as app:
        until(ask, "it serves")
        processes = set()

        def in_two_processes() -> bool:
            total, process = app.job(ask()).get(timeout=30)
            assert total == 25.0
            processes.add(process)
            return len(processes) > 1

        until(in_two_processes, "two processes have answered")
        assert str(server.process.pid) not in processes
    assert server.stop() == 0, server.text
    assert "Traceback" not in server.text
    assert ("a job was submitted here" in server.text) is line.startswith("gunicorn")
