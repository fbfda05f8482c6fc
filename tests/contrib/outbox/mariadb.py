"""MariaDB for tests: a private server on a free port of loopback, with databases of its own.

It is Debian's package ``mariadb-server``. The keeper of `tests.support.postgres` stops it if the
tests are killed.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import signal
from typing import TYPE_CHECKING

import pymysql

from tests.support.postgres import Home, Unavailable, free_port, until

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["MariaDB"]


def program(name: str) -> str:
    """Return the path of a program of the server."""
    path = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if path is None:
        raise Unavailable(f"needs mariadb: {name} is not installed; Debian's package is "
                          "mariadb-server")  # fmt: skip
    return path


class MariaDB:
    """A server, started."""

    def __init__(self) -> None:
        server, install = program("mariadbd"), program("mariadb-install-db")
        self.port = free_port()
        self._names = itertools.count()
        self._home = Home()
        self._folder = self._home.new_folder("mariadb")
        try:
            self._home.run(
                install, "--no-defaults", f"--datadir={self._folder}", "--skip-test-db",
                "--auth-root-authentication-method=normal",
            )  # fmt: skip
            self._process = self._home.start(
                self._home.folder / "mariadb.log", server, "--no-defaults",
                f"--datadir={self._folder}", f"--port={self.port}", "--bind-address=127.0.0.1",
                f"--socket={self._folder}/socket", f"--pid-file={self._folder}/pid",
                "--innodb-buffer-pool-size=32M",
            )  # fmt: skip
            until(self._answers, "MariaDB answers")
        except BaseException:
            self._home.close()
            raise

    def _answers(self) -> bool:
        assert self._process.poll() is None, (self._home.folder / "mariadb.log").read_text()
        with contextlib.suppress(pymysql.OperationalError):
            self.connect("mysql").close()
            return True
        return False

    def connect(self, database: str) -> pymysql.Connection:
        """Return a connection, which begins a transaction with its first statement."""
        return pymysql.connect(
            host="127.0.0.1", port=self.port, user="root", database=database, charset="utf8mb4"
        )

    @contextlib.contextmanager
    def database(self) -> Iterator[str]:
        """Yield the name of an empty database, which is removed afterwards."""
        name = f"test{next(self._names)}"
        with contextlib.closing(self.connect("mysql")) as connection:
            cursor = connection.cursor()
            cursor.execute(f"CREATE DATABASE {name}")
            try:
                yield name
            finally:
                cursor.execute(f"DROP DATABASE {name}")

    def close(self) -> None:
        """End the server."""
        self._process.send_signal(signal.SIGTERM)
        self._home.ended(self._process)
        self._home.close()
