"""PostgreSQL for tests: a private server on a free port of loopback, in a folder of its own.

Every process that runs tests has one server, started at its first use, with fsync on. The program
is from Debian's package, in ``/usr/lib/postgresql/*/bin``, or from PATH. If the tests run as root,
it runs as another user, as it must. Servers, poolers and the folder are removed at the end, even if
the tests are killed: the *keeper*, a process that waits for the end of the tests, stops and removes
the rest.

This file, run as a program, is the keeper.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import psycopg

    from tests.support.machines import ServerClock

__all__ = [
    "USER",
    "Home",
    "Server",
    "SmallDisk",
    "Unavailable",
    "close_shared_server",
    "pgbouncer",
    "program",
    "shared_server",
    "until",
]

#: Owner of the databases, which needs no password.
USER = "eventmq"

#: Seconds within which a server must answer, or end.
TIMEOUT = 60.0

#: Range of the ports of servers: below the ports of connections, which could occupy the port of a
#: stopped server.
PORTS = range(20_000, 32_000)

LIBFAKETIME = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))

FOLDERS = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: -int(path.parent.name))

#: Default settings: those of production, except for sizes.
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "on",
    "shared_buffers": "32MB",
    "max_wal_size": "256MB",
    "wal_level": "replica",
    "max_wal_senders": "4",
    # Files of the data folder, of which nothing is left with it.
    "dynamic_shared_memory_type": "mmap",
    "lc_messages": "C",
}

#: Access rules: all users but the owner need a password.
HBA = f"""\
host all,replication {USER} 127.0.0.1/32 trust
host all all 127.0.0.1/32 scram-sha-256
"""


class Unavailable(Exception):
    """A program is not installed; the text is the reason of a skip."""


def program(name: str, service: str = "postgresql") -> str:
    """Return the path of a program.

    Raises:
        Unavailable: It is not installed.
    """
    folders = [*map(str, FOLDERS), os.environ.get("PATH", ""), "/usr/sbin"]
    path = shutil.which(name, path=os.pathsep.join(folders))
    if path is None:
        raise Unavailable(f"needs {service}: {name} is not installed; on Debian it is in {service}")
    return path


def other_user() -> list[str]:
    """Return the prefix of a command that refuses to run as root."""
    if os.geteuid():
        return []
    owner = unprivileged()
    return ["setpriv", f"--reuid={owner.pw_uid}", f"--regid={owner.pw_gid}", "--clear-groups"]


def unprivileged() -> pwd.struct_passwd:
    """Return the user that runs servers for root."""
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")


def free_port() -> int:
    """Return a free port."""
    while True:
        port = random.choice(PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def until(ready: Callable[[], Any], what: str) -> None:
    """Wait until a condition is true."""
    end = time.monotonic() + TIMEOUT
    while not ready():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {TIMEOUT:.0f} s: {what}")
        time.sleep(0.02)


class Home:
    """The folder of the servers of a process, and the keeper that removes it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="eventmq-postgresql-"))
        if not os.geteuid():
            os.chown(self.folder, unprivileged().pw_uid, unprivileged().pw_gid)
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._names = itertools.count()
        # In a session of its own: Ctrl-C ends the tests first.
        self._keeper = subprocess.Popen(
            [sys.executable, __file__, str(self.folder)], stdin=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip

    def new_folder(self, name: str) -> Path:
        """Return the path of a new folder, which does not exist."""
        return self.folder / f"{name}{next(self._names)}"

    def run(self, *command: str) -> None:
        """Run a command as the user of the servers."""
        done = subprocess.run(
            [*other_user(), *command], cwd=self.folder, capture_output=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]}: {done.stderr.decode(errors='replace')}")

    def start(self, log: Path, *command: str) -> subprocess.Popen[bytes]:
        """Start a process that the keeper ends at the latest."""
        with log.open("ab") as file:
            process = subprocess.Popen(
                [*other_user(), *command], cwd=self.folder, stdin=subprocess.DEVNULL,
                stdout=file, stderr=file, start_new_session=True,
            )  # fmt: skip
        self._running[process.pid] = process
        self._tell(f"+{process.pid}")
        return process

    def ended(self, process: subprocess.Popen[bytes]) -> None:
        """Wait for the end of a process that was signalled."""
        # The id is forgotten before it can be another's.
        self._tell(f"-{process.pid}")
        self._running.pop(process.pid, None)
        try:
            process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        forget_clock(process.pid)

    def close(self) -> None:
        """End all processes and remove the folder."""
        for process in list(self._running.values()):
            process.send_signal(signal.SIGQUIT)
            self.ended(process)
        self._keeper.communicate()

    def _tell(self, line: str) -> None:
        self._keeper.stdin.write(f"{line}\n".encode())
        self._keeper.stdin.flush()


class Server:
    """A server of PostgreSQL, not started.

    Args:
        home: Parent of its folder.
        name: Name of the server, for replication.
    """

    def __init__(self, home: Home, name: str = "primary") -> None:
        self.home = home
        self.name = name
        self.port = free_port()
        self.folder = home.new_folder(name)
        self.log = home.folder / f"{self.folder.name}.log"
        self.settings = {**SETTINGS, "cluster_name": name}
        #: Prefix of its command: a fake clock.
        self.under: Sequence[str] = ()
        self._process: subprocess.Popen[bytes] | None = None
        self._names = itertools.count()

    @classmethod
    def make(cls, home: Home, name: str = "primary") -> Server:
        """Return a new server, started.

        Raises:
            Unavailable: No PostgreSQL is installed.
        """
        server = cls(home, name)
        # Locale C, so that tests that depend on the order of text name another one.
        how = ["-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        home.run(program("initdb"), *how, "-D", str(server.folder))
        (server.folder / "pg_hba.conf").write_text(HBA)
        server.start()
        return server

    def make_clock(self) -> ServerClock:
        """Give it a settable clock, from the next start on.

        Raises:
            Unavailable: libfaketime is not installed.
        """
        if not LIBFAKETIME:
            raise Unavailable("needs libfaketime: it is not installed; Debian has it by that name")
        from tests.support.machines import ServerClock

        clock = ServerClock(LIBFAKETIME[0], self.home.new_folder("clock"))
        self.under = clock.command
        return clock

    # Process

    @property
    def pid(self) -> int:
        """The process id, 0 if the server does not run."""
        return self._process.pid if self._process else 0

    def configure(self, **settings: str) -> None:
        """Change settings; they apply from the next `reload` or `start` on."""
        self.settings |= settings
        lines = [f"{name} = '{value}'" for name, value in self.settings.items()]
        (self.folder / "postgresql.conf").write_text("\n".join([*lines, f"port = {self.port}", ""]))

    def reload(self) -> None:
        """Reload the settings that need no restart."""
        before = self.sql("SELECT pg_conf_load_time()")
        self.sql("SELECT pg_reload_conf()")
        until(lambda: self.sql("SELECT pg_conf_load_time()") != before, "settings are read")

    def start(self) -> None:
        """Start it and wait until it answers."""
        assert self._process is None, "it runs"
        while True:
            self.configure()
            shown = self.log.stat().st_size if self.log.exists() else 0
            command = [*self.under, program("postgres"), "-D", str(self.folder)]
            self._process = self.home.start(self.log, *command)
            if self._answers():
                return
            self.home.ended(self._process)
            self._process = None
            text = self.log.read_bytes()[shown:].decode(errors="replace")
            if shown or "could not bind" not in text:
                raise RuntimeError(f"PostgreSQL does not start: {text}")
            self.port = free_port()  # taken meanwhile, and no test knows it yet

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it: SIGINT ends sessions first, SIGQUIT leaves recovery to the next start."""
        assert self._process is not None, "it does not run"
        self._process.send_signal(how)
        self.home.ended(self._process)
        self._process = None

    def kill(self) -> None:
        """Kill all of its processes, like a power failure."""
        assert self._process is not None, "it does not run"
        self._process.send_signal(signal.SIGSTOP)  # otherwise it would notice the deaths
        others = self.backends()
        for pid in others:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.stop(signal.SIGKILL)
        until(lambda: not any(map(alive, others)), "all processes have ended")

    def restart(self) -> None:
        """Stop it and start it on the same port."""
        self.stop()
        self.start()

    def backends(self) -> list[int]:
        """Return the ids of its processes except the first (on Linux)."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return list(map(int, children.split()))

    def _answers(self) -> bool:
        """Wait until it answers; return False if it has ended."""
        import psycopg

        def ready() -> bool:
            with contextlib.suppress(psycopg.OperationalError), self.connect():
                return True
            return self._process.poll() is not None

        until(ready, f"PostgreSQL answers on port {self.port}")
        return self._process.poll() is None

    # Databases

    def url(self, database: str = "postgres", user: str = USER, password: str = "") -> str:
        """Return the URL of a database."""
        secret = f":{password}" if password else ""
        return f"postgresql://{user}{secret}@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str = "postgres") -> psycopg.Connection:
        """Return a connection that commits each statement."""
        import psycopg

        return psycopg.connect(self.url(database), autocommit=True, connect_timeout=5)

    def sql(self, statement: str, *values: object, database: str = "postgres") -> list[tuple]:
        """Run a statement; return its rows."""
        with self.connect(database) as connection:
            cursor = connection.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []

    def new_database(self, options: str = "") -> str:
        """Create an empty database, with English sort order if possible; return its name.

        Args:
            options: Options of ``CREATE DATABASE``, instead of the defaults.
        """
        name = f"test{next(self._names)}"
        defaults = "TEMPLATE template0"
        if self.sql("SHOW server_version_num")[0][0] >= "150000":
            defaults += " LOCALE_PROVIDER icu ICU_LOCALE 'en-US'"
        self.sql(f"CREATE DATABASE {name} {options or defaults}")
        return name

    def drop_database(self, name: str) -> None:
        """Remove a database, even if it is in use."""
        self.sql(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    @contextlib.contextmanager
    def database(self) -> Iterator[str]:
        """Yield the URL of an empty database, which is removed afterwards."""
        name = self.new_database()
        try:
            yield self.url(name)
        finally:
            self.drop_database(name)

    @contextlib.contextmanager
    def small_disk(self, size: int) -> Iterator[SmallDisk]:
        """Yield a database on a small disk of its own; the log is on another disk.

        Args:
            size: Bytes; an empty database has about eight million.

        Raises:
            Unavailable: No disk can be mounted.
        """
        folder = self.home.new_folder("disk")
        with contextlib.ExitStack() as stack:
            disk = SmallDisk(folder, size)
            stack.callback(disk.unmount)
            self.sql(f"CREATE TABLESPACE {folder.name} LOCATION '{folder}'")
            stack.callback(self.sql, f"DROP TABLESPACE {folder.name}")
            database = self.new_database(f"TEMPLATE template0 TABLESPACE {folder.name}")
            stack.callback(self.drop_database, database)
            disk.url = self.url(database)
            yield disk

    # Replication

    def replica(self, name: str, *, synchronous: bool = False) -> Server:
        """Return a physical replica, started and up to date.

        Args:
            name: Name of the replica.
            synchronous: Whether commits wait for it from now on.
        """
        other = Server(self.home, name)
        where = f"host=127.0.0.1 port={self.port} user={USER} application_name={name}"
        self.home.run(
            program("pg_basebackup"), "-d", where, "-D", str(other.folder),
            "--checkpoint=fast", "--wal-method=stream", "--no-sync",
        )  # fmt: skip
        (other.folder / "standby.signal").touch()
        other.configure(primary_conninfo=where, hot_standby="on")
        other.start()
        if synchronous:
            self.configure(synchronous_standby_names=name)
            self.reload()
        state = "sync" if synchronous else "async"
        query = "SELECT 1 FROM pg_stat_replication WHERE (application_name, sync_state) = (%s, %s)"
        until(lambda: self.sql(query, name, state), f"{name} replicates")
        return other

    def promote(self) -> None:
        """Promote a replica to primary; return when it accepts writes."""
        assert self.sql("SELECT pg_promote(true, %s)", int(TIMEOUT)) == [(True,)]


class SmallDisk:
    """A disk in memory, mounted.

    Args:
        folder: Mount point.
        size: Bytes.

    Raises:
        Unavailable: It cannot be mounted.
    """

    def __init__(self, folder: Path, size: int) -> None:
        self.folder = folder
        #: URL of the database on it.
        self.url = ""
        folder.mkdir()
        owner = os.geteuid() or unprivileged().pw_uid
        self._mount(f"size={size},mode=0700,uid={owner}")

    def grow(self, size: int) -> None:
        """Make it larger."""
        self._mount(f"remount,size={size}")

    def unmount(self) -> None:
        """Remove it."""
        subprocess.run(["umount", "-l", str(self.folder)], check=True)

    def _mount(self, options: str) -> None:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.folder)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            raise Unavailable("there is no mount command") from error
        if done.returncode:
            raise Unavailable(f"no disk can be mounted ({done.stderr.strip()})")


@contextlib.contextmanager
def pgbouncer(server: Server, pool_mode: str = "transaction") -> Iterator[int]:
    """Run a pooler before a server; yield its port.

    Raises:
        Unavailable: PgBouncer is not installed.
    """
    command = program("pgbouncer", "pgbouncer")
    port, settings = free_port(), server.home.new_folder("pgbouncer")
    settings.write_text(
        f"[databases]\n* = host=127.0.0.1 port={server.port} user={USER}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
        f"auth_type = any\npool_mode = {pool_mode}\n"
    )
    process = server.home.start(settings.with_suffix(".log"), command, str(settings))
    try:

        def ready() -> bool:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5):
                return True
            assert process.poll() is None, settings.with_suffix(".log").read_text()
            return False

        until(ready, "pgbouncer answers")
        yield port
    finally:
        process.terminate()
        server.home.ended(process)


_shared: list[Server] = []


def shared_server() -> Server:
    """Return the server of this process; the caller that makes it first must close its home.

    Raises:
        Unavailable: No PostgreSQL is installed.
    """
    if not _shared:
        program("initdb")
        home = Home()
        try:
            _shared.append(Server.make(home))
        except BaseException:
            home.close()
            raise
    return _shared[0]


def close_shared_server() -> None:
    """End the server of this process, if there is one."""
    while _shared:
        _shared.pop().home.close()


def keep(folder: Path, lines: Iterator[str]) -> None:
    """Wait for the end of the tests; end the remaining processes, and remove the folder."""
    running: set[int] = set()
    for line in lines:
        pid = int(line[1:])
        (running.add if line[0] == "+" else running.discard)(pid)
    end_all(sorted(running))
    for pid in running:
        forget_clock(pid)
    # Of a server that was killed: the key of its shared memory.
    for path in folder.glob("*/postmaster.pid"):
        with contextlib.suppress(IndexError, FileNotFoundError):
            segment = path.read_text().splitlines()[6].split()[1]
            subprocess.run(["ipcrm", "-m", segment], check=False, capture_output=True)
    for disk in filter(os.path.ismount, folder.iterdir()):
        subprocess.run(["umount", "-l", str(disk)], check=False, capture_output=True)
    shutil.rmtree(folder, ignore_errors=True)


def end_all(pids: Sequence[int]) -> None:
    """End processes that are not children of this one."""
    for how in (signal.SIGQUIT, signal.SIGKILL):
        for pid in filter(alive, pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, how)
        with contextlib.suppress(TimeoutError):
            until(lambda: not any(map(alive, pids)), "servers end")
            return


def forget_clock(pid: int) -> None:
    """Remove the files that libfaketime leaves for a process."""
    for path in Path("/dev/shm").glob(f"*faketime_s*_{pid}"):
        path.unlink(missing_ok=True)


def alive(pid: int) -> bool:
    """Return whether a process runs; one that ended and was not waited for does not."""
    try:
        os.kill(pid, 0)
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except ProcessLookupError:
        return False
    except OSError:  # no /proc, or it has ended now
        return not Path("/proc/self").exists()


if __name__ == "__main__":
    keep(Path(sys.argv[1]), iter(sys.stdin))
