"""The owner of a store in PostgreSQL reads the outbox table in its database, without a relay."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import psycopg
import pytest

from eventmq_contrib import outbox
from eventmq_contrib.outbox.relay import POLL
from tests.support.system import System, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from eventmq import EventMQ
    from tests.support.system import Process


class Brokers(System):
    """Brokers on a store in PostgreSQL that read its outbox table."""

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder)
        self.url = url
        self.database = psycopg.connect(url, autocommit=True)

    def start_broker(self, *options: str) -> Process:
        """Start a broker, whose address peers know then as well."""
        process, line = self.start(
            "broker", "--store", self.url, "--store-option", "inbox=true", "--bind",
            "tcp://127.0.0.1:0", "--data-dir", str(self.folder / f"data{len(self.processes)}"),
            *options,
        )  # fmt: skip
        address = next(w for w in line.split() if "tcp://" in w).partition("=")[2]
        self.address = ",".join(filter(None, [self.address, address]))
        return process

    def make_table(self) -> None:
        for statement in outbox.DDL["postgresql"]:
            self.database.execute(statement)

    def write(self, app: EventMQ, numbers: range) -> list[str]:
        """Write a job for each number, in one transaction; return their ids."""
        with psycopg.connect(self.url) as connection:
            task = "survivor.work"
            return [outbox.send(connection, app.signature(task, number)).id for number in numbers]

    def rows(self) -> list[tuple[str, str]]:
        """Return id and error of the rows."""
        return self.database.execute("SELECT job_id, error FROM eventmq_outbox").fetchall()

    def readers(self) -> int:
        """Return the number of sessions that read the table."""
        sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'eventmq outbox' "
        found = self.database.execute(f"{sql} AND datname = current_database()").fetchone()
        assert found is not None
        return int(found[0])


@pytest.fixture
def brokers(tmp_path: Path, database_url: str) -> Iterator[Brokers]:
    system = Brokers(tmp_path, database_url)
    with closing(system.database):
        yield system
        system.stop()


def test_the_owner_reads_the_table_and_its_successor_after_a_kill(brokers):
    """No row is lost, and no job is submitted twice, whatever the owner was doing."""
    brokers.make_table()
    owner = brokers.start_broker()
    brokers.start_broker()
    brokers.worker()
    app = brokers.app()
    for first in range(0, 500, 50):
        brokers.write(app, range(first, first + 50))
    until(lambda: not brokers.rows(), "the rows are sent")
    assert 1 == brokers.readers()  # the standby has none
    written = threading.Event()

    def write() -> None:
        for first in range(500, 2500, 50):
            brokers.write(app, range(first, first + 50))
        written.set()

    threading.Thread(target=write).start()
    until(lambda: len(brokers.executed()) > 600, "rows of the second part are sent")
    owner.kill9()
    until(written.is_set, "the application does not wait for a broker")
    until(lambda: not brokers.rows(), "the successor has sent the rest")
    until(lambda: len(brokers.executed()) >= 2500, "all have run")
    assert {str(n): 1 for n in range(2500)} == brokers.executed()
    assert 1 == brokers.readers()


def test_a_broker_goes_on_without_the_table_and_with_rows_that_cannot_be_read(brokers):
    broker = brokers.start_broker()
    app = brokers.app()
    log = brokers.folder / "broker.log"
    until(lambda: "make the table with: eventmq outbox init" in log.read_text(), "it says so")
    assert "queued" == app.signature("survivor.work", 1).delay().state
    brokers.make_table()
    brokers.write(app, range(2, 4))
    until(lambda: not brokers.rows(), "the rows are sent")
    assert "the outbox continues" in log.read_text()
    with brokers.database.transaction():
        bad = outbox.send(brokers.database, app.signature("survivor.work", 4))
        brokers.database.execute("UPDATE eventmq_outbox SET headers = 'priority:much'")
        outbox.send(brokers.database, app.signature("survivor.work", 5))
    until(lambda: len(brokers.rows()) == 1, "the other row is sent")
    [(job_id, error)] = brokers.rows()
    assert bad.id == job_id
    assert error.startswith("ProtocolError: the broker refused: header 'priority' has the value")
    until(lambda: f"job {job_id} is kept in the outbox" in log.read_text(), "the log says it")
    [queue] = app.ask("queues")
    assert 4 == queue["waiting"]
    broker.terminate()
    assert 0 == broker.wait(20)


def test_with_keys_the_settings_of_the_broker_name_that_of_a_client(brokers, monkeypatch):
    keys = brokers.folder / "keys"
    for arguments in (
        "new --broker --keys-dir keys", "new inbox",
        "authorize inbox.key --role client --keys-dir keys",
    ):  # fmt: skip
        subprocess.run(
            [sys.executable, "-m", "eventmq", "keys", *arguments.split()],
            cwd=brokers.folder, check=True, timeout=50, stdout=subprocess.DEVNULL,
        )  # fmt: skip
    monkeypatch.setenv("EVENTMQ_KEY_FILE", str(brokers.folder / "inbox.key_secret"))
    monkeypatch.setenv("EVENTMQ_BROKER_KEY_FILE", str(keys / "broker.key"))
    brokers.make_table()
    brokers.start_broker("--keys-dir", str(keys))
    app = brokers.app()
    ids = brokers.write(app, range(3))
    until(lambda: not brokers.rows(), "the rows are sent")
    assert ["queued"] * 3 == [app.job(job_id).state for job_id in ids]


def test_a_relay_that_is_not_active_does_not_read(shop, app):
    connection = shop.connect()
    outbox.send(connection, app.tasks["keep"].s(1))
    connection.commit()
    asked = threading.Event()
    active = False

    def is_active() -> bool:
        asked.set()
        return active

    relay = shop.relay(app, active=is_active)
    thread = threading.Thread(target=relay.run)
    thread.start()
    try:
        for _ in range(3):
            asked.clear()
            assert asked.wait(20 * POLL + 10)
        assert 1 == len(shop.rows())
        active = True
        until(lambda: not shop.rows(), "the row is sent")
    finally:
        relay.stop()
        thread.join(20)
