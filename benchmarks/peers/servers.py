"""The servers of the peers, from Debian's packages, started privately on free ports of loopback."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from functools import partial
from pathlib import Path
from subprocess import DEVNULL
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["SERVERS", "Missing", "Server", "free_port", "server_versions"]

#: Seconds within which a server must answer.
_PATIENCE = 60.0


class Missing(Exception):
    """A server is not installed; the text says which package has it."""


class Server:
    """A running server: its address, and its processes for measuring memory.

    Args:
        url: Address for clients.
        pid: Process of the server.
        others: Processes of the servers that it needs.
    """

    def __init__(self, url: str, pid: int, *others: int) -> None:
        self.url = url
        self.pid = pid
        self.pids = [pid, *others]


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def program(name: str, package: str, *folders: str, first: bool = False) -> str:
    """Return the path of a program, searched in the usual folders and some others, first or last.

    Raises:
        Missing: The program is not installed.
    """
    usual = [os.environ.get("PATH", "")]
    searched = [*folders, *usual] if first else [*usual, *folders]
    path = shutil.which(name, path=os.pathsep.join(searched))
    if path is None:
        raise Missing(f"{name} is not installed; on Debian: apt-get install {package}")
    return path


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def _until(ready: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + _PATIENCE
    while not ready():
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"{process.args!r} does not start:\n{log.read_text()[-2000:]}")
        time.sleep(0.05)


@contextlib.contextmanager
def _running(
    command: list[str], folder: Path, ready: Callable[[], bool], **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    log = folder / "server.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, cwd=folder, start_new_session=True,
            env={**os.environ, **environment},
        )  # fmt: skip
    try:
        _until(ready, process, log)
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(20)


@contextlib.contextmanager
def redis(folder: Path, fsync: str = "") -> Iterator[Server]:
    """Redis with its defaults: data is not synced when a call returns; or with ``appendfsync``."""
    port = free_port()
    command = [program("redis-server", "redis-server"), "--port", str(port), "--bind", "127.0.0.1",
               "--dir", str(folder)]  # fmt: skip
    if fsync:
        command += ["--save", "", "--appendonly", "yes", "--appendfsync", fsync]
    with _running(command, folder, lambda: _answers(port)) as process:
        yield Server(f"redis://127.0.0.1:{port}/0", process.pid)


@contextlib.contextmanager
def rabbitmq(folder: Path) -> Iterator[Server]:
    """RabbitMQ with its defaults."""
    port, distribution, names = free_port(), free_port(), str(free_port())
    home = folder / "home"
    home.mkdir()
    # Not the wrapper in /usr/sbin, which would change the user.
    server = program("rabbitmq-server", "rabbitmq-server", "/usr/lib/rabbitmq/bin", first=True)
    cookie = home / ".erlang.cookie"
    cookie.write_text("benchmarks")
    cookie.chmod(0o400)
    # A node of its own, with a name mapper of its own.
    more = {
        "HOME": str(home),
        "RABBITMQ_NODENAME": f"bench{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(distribution),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_FEATURE_FLAGS_FILE": str(folder / "feature_flags"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": names,
    }
    try:
        with _running([server], folder, lambda: _answers(port), **more) as process:
            yield Server(f"amqp://guest:guest@127.0.0.1:{port}/%2F", process.pid)
    finally:  # the mapper is a daemon, which outlives its node
        mapper = program("epmd", "erlang-base")
        subprocess.run([mapper, "-port", names, "-kill"], check=False, capture_output=True)


@contextlib.contextmanager
def postgresql(folder: Path) -> Iterator[Server]:
    """PostgreSQL with its defaults: a commit is synced."""
    folders = [str(path) for path in Path("/usr/lib/postgresql").glob("*/bin")]
    initdb = program("initdb", "postgresql", *folders)
    server = program("postgres", "postgresql", *folders)
    user = (
        []
        if os.geteuid()
        else ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    )
    if user:
        shutil.chown(folder, "postgres", "postgres")
    data, port = folder / "data", free_port()
    subprocess.run(
        [*user, initdb, "-D", str(data), "-U", "bench", "-A", "trust", "-E", "UTF8"],
        check=True, capture_output=True, cwd=folder,
    )  # fmt: skip
    command = [
        *user,
        server,
        "-D",
        str(data),
        "-p",
        str(port),
        "-h",
        "127.0.0.1",
        "-k",
        str(folder),
    ]
    with _running(command, folder, lambda: _answers(port)) as process:
        yield Server(f"postgresql://bench@127.0.0.1:{port}/postgres", process.pid)


@contextlib.contextmanager
def none(folder: Path) -> Iterator[Server]:
    """No server: the peer keeps its jobs in a file of the folder."""
    yield Server(str(folder / "jobs.db"), 0)


@contextlib.contextmanager
def eventmq(folder: Path, durability: str = "durable") -> Iterator[Server]:
    """EventMQ's own broker: the receipt comes after the sync, by default."""
    from benchmarks.system import System

    system = System(folder)
    system.start_broker("--durability", durability)
    try:
        assert system.broker is not None
        yield Server(system.address, system.broker.pid)
    finally:
        system.stop()


@contextlib.contextmanager
def eventmq_on_postgresql(folder: Path) -> Iterator[Server]:
    """EventMQ's own broker with its jobs in PostgreSQL."""
    from benchmarks.system import System

    (folder / "postgresql").mkdir()
    with postgresql(folder / "postgresql") as database:
        system = System(folder)
        system.start_broker("--store", database.url)
        try:
            assert system.broker is not None
            yield Server(system.address, system.broker.pid, database.pid)
        finally:
            system.stop()


#: Name -> context manager that starts the server in a folder.
SERVERS: dict[str, Callable[[Path], contextlib.AbstractContextManager[Server]]] = {
    **{server.__name__: server for server in (redis, rabbitmq, postgresql, none, eventmq)},
    **{f"eventmq-{name}": partial(eventmq, durability=name) for name in ("relaxed", "memory")},
    "eventmq-postgresql": eventmq_on_postgresql,
    **{f"redis-{fsync}": partial(redis, fsync=fsync) for fsync in ("always", "everysec")},
}

#: Debian's package of a server.
_PACKAGES = {
    "redis": "redis-server",
    "rabbitmq": "rabbitmq-server",
    "postgresql": "postgresql",
    "eventmq-postgresql": "postgresql",
}


def server_versions(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of the Debian packages of servers."""
    versions = {}
    for package in sorted({_PACKAGES[name] for name in names if name in _PACKAGES}):
        query = ["dpkg-query", "-W", "-f", "${Version}", package]
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            versions[package] = subprocess.check_output(query, text=True, stderr=DEVNULL).strip()
    return versions
