"""A broker and a worker for the pages about web frameworks, and servers that run their examples."""

from __future__ import annotations

import http.client
import json
import re
import shlex
import shutil
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.support.page_files import ROOT, write_files
from tests.support.shell import DEADLINE, Program, Shell, free_port
from tests.support.system import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

PROGRAMS = Path(sys.executable).parent

#: Framework -> its page, and what a server is told to run.
PAGES = {
    "fastapi": ("fastapi", "progress:api"),
    "starlette": ("fastapi", "starlette_web:web"),
    "litestar": ("fastapi", "litestar_web:web"),
    "flask": ("flask", "web:create_app()"),
}

#: Prints when an ASGI application is done with a request.
WATCHED = """
import os

from {module} import {name} as inner


async def {name}(scope, receive, send):
    try:
        await inner(scope, receive, send)
    finally:
        if scope["type"] == "http":
            print("done", scope["method"], scope["path"], os.getpid(), flush=True)
"""

#: The same for WSGI; and the client is used in the process that forks the others.
GUNICORN = """
import shop


def post_request(worker, request, environ, response):
    print("done", request.method, request.path, worker.pid, flush=True)


def when_ready(server):
    assert shop.report.delay(1).get(timeout=30) == "1 pages"
"""


class Event(NamedTuple):
    """A server-sent event."""

    name: str
    data: Any


class Events:
    """The events of a response, as they come."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection
        self.response = connection.getresponse()
        assert self.response.status == 200, self.response.read()

    def __iter__(self) -> Iterator[Event]:
        name = ""
        for line in iter(self.response.readline, b""):
            field, _, value = line.decode().rstrip("\r\n").partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                yield Event(name, json.loads(value))

    def close(self) -> None:
        """Go away in the middle."""
        self.response.close()
        self._connection.close()


class Server:
    """A web server that runs an example of a page."""

    def __init__(self, program: Program, port: int) -> None:
        self.program, self.port = program, port

    def _ask(self, method: str, path: str) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE)
        connection.request(method, path)
        return connection

    def ask(self, path: str, method: str = "GET") -> tuple[int, Any]:
        """Return the status and the JSON of an answer."""
        connection = self._ask(method, path)
        try:
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    @contextmanager
    def events(self, job: str) -> Iterator[Events]:
        """Read the progress of a job."""
        events = Events(self._ask("GET", f"/reports/{job}/events"))
        try:
            yield events
        finally:
            events.close()

    def answers(self) -> bool:
        """Return whether it takes requests; it knows no such job."""
        assert self.program.process.poll() is None, self.program.text
        try:
            return self.ask("/reports/none") == (404, {"error": "JobNotFound"})
        except ConnectionError:
            return False

    def start(self, pages: int) -> str:
        """Submit a job; return its id."""
        status, answer = self.ask(f"/reports?pages={pages}", "POST")
        assert status == 202, answer
        return str(answer["job"])


class Site:
    """Servers of all pages, with a broker and a worker that they share."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self.address = ""
        self._broker: Program | None = None

    def start_broker(self) -> None:
        """Start the broker, after the first time at the same address."""
        self._broker = self.shell.start("broker", "--bind", self.address or "tcp://127.0.0.1:0")
        self.address = self.shell.environ["EVENTMQ_BROKER"] = self._broker.ready()["main"]

    def stop_broker(self) -> None:
        """Stop the broker."""
        assert self._broker is not None
        assert self._broker.stop() == 0, self._broker.text

    def folder(self, framework: str, name: str = "") -> Path:
        """Return a new folder with the files of a page, whose waits take a second."""
        folder = self.shell.folder / (name or framework)
        folder.mkdir()
        for file in write_files(f"howto/web/{PAGES[framework][0]}.rst", folder):
            text = (folder / file).read_text("utf-8")
            (folder / file).write_text(re.sub(r"(timeout|idle)=(15|20)\b", r"\1=1", text), "utf-8")
        (folder / "gunicorn.conf.py").write_text(GUNICORN)
        return folder

    def launch(self, framework: str, line: str) -> Server:
        """Start a server by a line of a page, with two processes."""
        folder, port = self.folder(framework), free_port()
        command, *words = shlex.split(line.replace("--workers 4", "--workers 2"))
        if not words[-1].endswith("()"):
            module, _, name = words[-1].partition(":")
            (folder / "watched.py").write_text(WATCHED.format(module=module, name=name))
            words[-1] = f"watched:{name}"
        bind = [f"--bind=127.0.0.1:{port}"] if command == "gunicorn" else [f"--port={port}"]
        environ = {**self.shell.environ, "PYTHONPATH": str(folder)}
        return Server(Program([str(PROGRAMS / command), *bind, *words], folder, environ), port)


def line_of(framework: str) -> str:
    """Return the line of a page that starts several processes."""
    page, target = PAGES[framework]
    [line] = re.findall(
        rf"^    \$ ((?:gunicorn|uvicorn) .*--workers 4.* '?{re.escape(target)}'?)$",
        (ROOT / "docs" / "howto" / "web" / f"{page}.rst").read_text("utf-8"),
        re.MULTILINE,
    )
    return line


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("web")
    shell = Shell(folder, HOME=str(folder))
    site = Site(shell)
    try:
        site.start_broker()
        shell.environ["PYTHONPATH"] = str(site.folder("flask", "worker"))
        shell.start("worker", "-A", "shop", "--pool", "threads", "-c", "8").ready()
        yield site
    finally:
        shell.close()


@pytest.fixture(scope="session")
def servers(site: Site) -> Iterator[dict[str, Server]]:
    """The servers by the names of their frameworks."""
    with ExitStack() as stack:
        servers = {}
        for framework in PAGES:
            servers[framework] = server = site.launch(framework, line_of(framework))
            stack.callback(server.program.stop)
        for server in servers.values():
            until(server.answers, "it serves")
        yield servers


@pytest.fixture(params=PAGES)
def server(request: pytest.FixtureRequest, servers: dict[str, Server]) -> Server:
    return servers[request.param]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("needs chromium: none is installed")
    api = pytest.importorskip("playwright.sync_api", reason="needs chromium: no playwright")
    with api.sync_playwright() as playwright:
        # Without a sandbox, which needs a user that is not root.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()
