"""The backend keeps EventMQ's contract, and its own promises."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from eventmq import EventMQ
from eventmq.sdk import PluginError, ResultUnavailable
from eventmq.testing import ResultBackendSuite

from eventmq_results_example import http


class Handler(BaseHTTPRequestHandler):
    """A server of files in memory."""

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.files[self.path] = body, self.server.now + float(self.headers["X-Expires-In"])
        self.answer(201, b"")

    def do_GET(self) -> None:
        body, until = self.server.files.get(self.path, (b"", 0.0))
        allowed = self.headers["Authorization"] == "Bearer secret"
        code = 401 if not allowed else 200 if until > self.server.now else 404
        self.answer(code, body if code == 200 else b"")

    def answer(self, code: int, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.files, server.now = {}, 1000.0
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def url(server) -> str:
    return f"http://127.0.0.1:{server.server_port}/results"


class TestContract(ResultBackendSuite):
    @pytest.fixture(autouse=True)
    def serve(self, server):
        self.server = server

    def make(self):
        return http.HttpResults(http.Options(url(self.server), token="secret"))

    def pass_time(self, seconds):
        self.server.now += seconds


def test_a_reference_cannot_leave_the_path(server) -> None:
    """It came over the wire: a broker must not choose another URL."""
    server.files["/secrets"] = b"secret", 2000.0
    with pytest.raises(ResultUnavailable, match="404"):
        http.HttpResults(http.Options(url(server), token="secret")).get(b"../secrets")


def test_a_server_that_is_away_is_no_result() -> None:
    with pytest.raises(ResultUnavailable, match="refused"):
        http.HttpResults(http.Options("http://127.0.0.1:1")).get(b"job-1")


def app(server, **options) -> EventMQ:
    return EventMQ(
        "test", broker="memory://", plugins=[http],
        result_backend=url(server), plugin_options={"http": options},
    )  # fmt: skip


def test_a_result_is_on_the_server(server) -> None:
    with app(server, token="secret") as shop:
        total = shop.task(name="total")(sum)
        job = total.delay([1, 2, 3])
        assert job.get(timeout=30) == 6
    assert [*server.files] == [f"/results/{job.id}"]


def test_a_wrong_option_is_an_error(server) -> None:
    with app(server, timeout=0) as shop, pytest.raises(PluginError, match="above 0, not 0"):
        shop.task(name="total")(sum).delay([1])
