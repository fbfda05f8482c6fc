"""Databases with an outbox table, and a broker with a worker in this process."""

from __future__ import annotations

import sqlite3
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from eventmq import EventMQ
from eventmq_contrib import outbox
from eventmq_contrib.outbox.database import connect
from eventmq_contrib.outbox.relay import Relay
from tests.contrib.outbox.mariadb import MariaDB
from tests.support.postgres import Unavailable
from tests.support.postgres_fixtures import database_url, postgres

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from eventmq_contrib.outbox.database import Database

__all__ = ["Shop", "app", "database_url", "mariadb", "postgres", "shop"]

DAY = 86_400.0

#: Seconds for a receipt of a broker in this process, which may take long on a busy machine.
SUBMIT_TIMEOUT = 60.0


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDB]:
    """The server of this process."""
    try:
        server = MariaDB()
    except Unavailable as error:
        pytest.skip(str(error))
    yield server
    server.close()


@pytest.fixture(scope="module")
def app() -> Iterator[EventMQ]:
    """An app with its broker and worker in this process, and with the tasks of the tests."""
    app = EventMQ("outbox", broker="memory://", submit_timeout=SUBMIT_TIMEOUT)

    @app.task(name="add")
    def add(a: int, b: int) -> int:
        return a + b

    @app.task(name="note")
    def note(number: int) -> None:
        app.noted.append(number)  # type: ignore[attr-defined]

    @app.task(name="keep")
    def keep(value: Any) -> None:
        """Do nothing."""

    app.noted = []  # type: ignore[attr-defined]
    with app:
        yield app


class Shop:
    """An application's database: its outbox table, and a table of orders.

    Attributes:
        url: URL of the database, as for the commands.
        database: The database, as the relay uses it.
        open: Returns the database with a connection of its own.
        connect: Opens a connection of the application, whose first statement begins a transaction.
    """

    def __init__(self, url: str, connect_: Callable[[], Any], stack: ExitStack) -> None:
        self.url = url
        self.open = lambda: stack.enter_context(closing(connect(url)))
        self.connect = lambda: stack.enter_context(closing(connect_()))
        self.database: Database = stack.enter_context(closing(connect(url, create=True)))
        for statement in outbox.DDL[self.database.vendor]:
            self.database.execute(statement)
        self.database.execute("CREATE TABLE orders (number INTEGER PRIMARY KEY)")

    def order(self, connection: Any, number: int) -> None:
        """Insert an order, in the transaction of a connection."""
        connection.cursor().execute(f"INSERT INTO orders VALUES ({number})")

    def rows(self) -> list[Any]:
        """Return id and error of the committed rows, in their order."""
        sql = "SELECT job_id, error FROM eventmq_outbox ORDER BY seq"
        return [tuple(row) for row in self.database.execute(sql)]

    def relay(self, app: EventMQ, **options: Any) -> Relay:
        """Return a relay with a connection of its own."""
        return Relay(self.open(), app, **{"window": DAY, **options})


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    """A database of each kind."""
    with ExitStack() as stack:
        if request.param == "sqlite":
            path = tmp_path / "shop.db"
            yield Shop(f"sqlite:///{path}", lambda: sqlite3.connect(path), stack)
        elif request.param == "postgresql":
            url = request.getfixturevalue("database_url")
            yield Shop(url, lambda: psycopg.connect(url), stack)
        else:
            server = request.getfixturevalue("mariadb")
            name = stack.enter_context(server.database())
            url = f"mysql://root@127.0.0.1:{server.port}/{name}"
            yield Shop(url, lambda: server.connect(name), stack)
