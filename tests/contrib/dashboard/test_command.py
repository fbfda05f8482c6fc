"""The command ``eventmq dashboard``, as a process, over a broker and a worker of their own."""

from __future__ import annotations

import re
import signal
import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import httpx2 as httpx
import pytest
from click.testing import CliRunner

from eventmq.cli import FAILED, WRONG_USAGE
from eventmq_contrib.dashboard.access import hash_password
from eventmq_contrib.dashboard.command import dashboard
from eventmq_contrib.dashboard.live import MAX_STREAMS
from tests.support.shell import DEADLINE, Shell
from tests.support.system import System, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    yield shell
    shell.close()


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    system = System(tmp_path)
    yield system
    system.stop()


def client_of(address: str, **options: Any) -> httpx.Client:
    return httpx.Client(base_url=address.partition("?")[0], timeout=DEADLINE, **options)


def private(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_the_page_of_a_broker_and_a_worker(system: System, shell: Shell) -> None:
    """From the line with ready to a retried job, and to the end by SIGTERM."""
    system.broker()
    system.worker()
    app = system.app()
    job = app.send("survivor.work", ("not", "these"))
    until(lambda: job.state == "failed", "the job has failed")
    program = shell.start("dashboard", "--bind", "127.0.0.1:0", "--broker", system.address)
    address = program.ready()["bind"]
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{43}", address)
    with client_of(address, follow_redirects=True) as client:
        assert 401 == client.get("/").status_code
        page = client.get(address)
        assert 200 == page.status_code
        assert "token=" not in str(page.url)
        assert "1 failed job to retry or drop" in page.text
        assert "survivor.work" in client.get("/b/broker/failed").text
        until(lambda: " MiB<" in client.get("/b/broker/workers").text, "its memory is known")
        question = client.get("/b/broker/confirm/bulk-retry?task=survivor.work").text
        action = re.search(r'method="post" action="([^"]*)"', question)
        token = re.search(r'form_token" value="(\w+)"', question)
        assert action is not None
        assert token is not None
        port = page.url.port
        headers = {"Origin": f"http://127.0.0.1:{port}"}
        form = {"form_token": token[1]}
        done = client.post(action[1].replace("&amp;", "&"), data=form, headers=headers)
        assert 200 == done.status_code
        until(lambda: job.info()["attempt"] == 2, "the job ran again")
    assert 0 == program.stop(signal.SIGTERM)


def test_it_ends_at_once_while_a_stream_is_open(system: System, shell: Shell) -> None:
    system.broker()
    program = shell.start("dashboard", "--bind", "127.0.0.1:0", "--broker", system.address)
    address = program.ready()["bind"]
    with client_of(address, follow_redirects=True) as client:
        client.get(address)
        with client.stream("GET", "/live") as stream:
            lines = stream.iter_lines()
            assert "event: snapshot" == next(lines)
            assert 0 == program.stop(signal.SIGTERM)
            assert [] == [line for line in lines if line.startswith("event: nothing")]


def test_more_browsers_than_streams(system: System, shell: Shell) -> None:
    """Those that come late poll, until another stream ends; pages are served all the while."""
    system.broker()
    program = shell.start("dashboard", "--bind", "127.0.0.1:0", "--broker", system.address)
    address = program.ready()["bind"]
    limits = httpx.Limits(max_connections=None)
    with client_of(address, follow_redirects=True, limits=limits) as client, ExitStack() as streams:
        client.get(address)
        for _ in range(MAX_STREAMS):
            stream = client.stream("GET", "/live")
            assert 200 == streams.enter_context(stream).status_code
        for _ in range(2 * MAX_STREAMS):
            assert 503 == client.get("/live").status_code
        assert "broker:shape" in client.get("/live.json").json()
        assert 200 == client.get("/b/broker/").status_code
        streams.close()

        def is_free() -> bool:
            with client.stream("GET", "/live") as again:
                return bool(again.status_code == 200)

        until(is_free, "the ended streams are free")


def test_a_broker_that_is_away_is_shown_missing_and_comes_back(
    system: System, shell: Shell
) -> None:
    broker = system.broker()
    program = shell.start("dashboard", "--bind", "127.0.0.1:0", "--broker", f"eu={system.address}")
    address = program.ready()["bind"]
    with client_of(address, follow_redirects=True) as client:
        assert "Nothing" not in client.get(address).text
        broker.kill9()
        until(lambda: "The broker is missing" in client.get("/b/eu/").text, "it is missing")
        system.broker()
        until(lambda: "The broker is missing" not in client.get("/b/eu/").text, "it is back")


def test_several_brokers_and_one_that_never_answers(system: System, shell: Shell) -> None:
    system.broker()
    program = shell.start(
        "dashboard", "--bind", "127.0.0.1:0", "--broker", f"eu={system.address}",
        "--broker", "us=tcp://127.0.0.1:9",
    )  # fmt: skip
    address = program.ready()["bind"]
    with client_of(address, follow_redirects=True) as client:
        client.get(address)
        assert "The broker is missing" not in client.get("/b/eu/").text
        page = client.get("/b/us/").text
        assert "The broker is missing: " in page
        assert ':state">missing</span>' in page


def test_files_are_read_again_at_hangup(shell: Shell, tmp_path: Path) -> None:
    one, two = "o" * 30, "t" * 30
    path = private(tmp_path / "tokens", one)
    program = shell.start("dashboard", "--bind", "127.0.0.1:0", "--token-file", str(path))
    address = program.ready()["bind"]
    assert "token" not in address
    with client_of(address) as client:
        assert 303 == client.get(f"/?token={one}").status_code
        private(path, f"{two}\nshort")
        program.process.send_signal(signal.SIGHUP)
        while "remain in use" not in program.line(err=True):
            pass
        assert 303 == client.get(f"/?token={one}").status_code
        private(path, two)
        program.process.send_signal(signal.SIGHUP)
        while "were read again" not in program.line(err=True):
            pass
        assert 403 == client.get(f"/?token={one}").status_code
        assert 303 == client.get(f"/?token={two}").status_code
    assert 0 == program.stop(signal.SIGINT)


def test_behind_a_proxy_with_a_path(shell: Shell) -> None:
    """Whether the proxy passes the path on or strips it."""
    program = shell.start("dashboard", "--bind", "127.0.0.1:0", "--root-path", "/ops/dash/")
    address = program.ready()["bind"]
    assert "/ops/dash/?token=" in address
    with client_of(address) as client:
        query = address.partition("?")[2]
        base = re.sub(r"/ops/dash/.*", "", address)
        for path in ("/ops/dash/", "/"):
            answer = client.get(f"{base}{path}?{query}")
            assert (303, "/ops/dash/") == (answer.status_code, answer.headers["location"])
        answer = client.get(f"{base}/ops/dash")
        assert "/ops/dash/b/broker/" == answer.headers["location"]


def run(*arguments: str) -> tuple[int, str]:
    """Run the command in this process, where it ends before it serves."""
    done = CliRunner().invoke(dashboard, arguments, standalone_mode=False)
    code = getattr(done.exception, "exit_code", FAILED)
    return code, str(getattr(done.exception, "message", done.exception))


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--bind", "0.0.0.0:0"], FAILED, "say who may look, with --token-file"),
        (["--bind", "0.0.0.0:0", "--basic-auth", "x"], FAILED, "nothing would be encrypted"),
        (["--bind", "[::]:0", "--basic-auth", "x", "--insecure"], FAILED, "name it with --host"),
        (["--bind", "http://"], WRONG_USAGE, "is not an address such as http://127.0.0.1"),
        (["--bind", "ftp://127.0.0.1"], WRONG_USAGE, "is not an address"),
        (["--bind", "127.0.0.1:x"], WRONG_USAGE, "is not an address"),
        (["--token-file", "x", "--basic-auth", "y"], FAILED, "only one access is allowed"),
        (["--user-header", "X-User"], WRONG_USAGE, "belong together"),
        (["--token-file", "/nowhere"], FAILED, "cannot be read"),
        (["--trusted-proxy", "nginx", "--user-header", "X-User"], FAILED, "name addresses"),
    ],
)
def test_what_is_wrong_is_said(arguments: list[str], code: int, text: str) -> None:
    found, message = run(*arguments)
    assert text in message
    assert code == found


def test_a_taken_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        _, message = run("--bind", f"127.0.0.1:{taken.getsockname()[1]}")
    assert "cannot bind 127.0.0.1" in message
    assert "name another with --bind" in message


def test_a_password_is_hashed_for_the_file(tmp_path: Path) -> None:
    done = CliRunner().invoke(dashboard, ["--hash-password"], input="secret\nsecret\n")
    assert 0 == done.exit_code
    assert re.search(
        r"^pbkdf2_sha256\$600000\$[0-9a-f]{32}\$[0-9a-f]{64}$", done.stdout, re.MULTILINE
    )
    assert hash_password("secret") != hash_password("secret")
