"""The commands of the outbox, as processes, and the page of the documentation about them."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import psycopg
import pytest
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, insert
from sqlalchemy.orm import Session

from eventmq import EventMQ
from eventmq_contrib import outbox
from tests.support.page_files import ROOT, write_files
from tests.support.postgres import free_port
from tests.support.system import System, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGE = (ROOT / "docs" / "howto" / "tasks" / "outbox.rst").read_text("utf-8")


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    system = System(tmp_path)
    yield system
    system.stop()


def eventmq(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the outbox to its end."""
    return subprocess.run(
        [sys.executable, "-m", "eventmq", "outbox", *arguments], cwd=folder, timeout=50,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def rows(folder: Path) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(folder / "shop.db")) as connection:
        return connection.execute("SELECT job_id, error FROM eventmq_outbox").fetchall()


def test_a_database_without_its_table_names_the_command_that_makes_it(tmp_path, database_url):
    sqlite3.connect(tmp_path / "shop.db").close()
    for url in ("sqlite:///shop.db", database_url):
        done = eventmq(tmp_path, "relay", "--database", url, "--broker", "tcp://127.0.0.1:9")
        assert 1 == done.returncode
        assert not done.stdout
        line = done.stderr.strip()
        assert f"make the table with: eventmq outbox init --database {url}" in line
        assert "\n" not in line


def test_a_table_of_another_shape_or_without_rights_is_an_error_at_the_start(shop, tmp_path):
    shop.database.execute("DROP TABLE eventmq_outbox")
    shop.database.execute("CREATE TABLE eventmq_outbox (seq INTEGER, sends INTEGER)")
    done = eventmq(tmp_path, "relay", "--database", shop.url, "--broker", "tcp://127.0.0.1:9")
    assert (1, "") == (done.returncode, done.stdout)
    assert "ordering_key" in done.stderr or "sent" in done.stderr


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("oracle://host/name", "none of the forms postgresql://USER@HOST/NAME"),
        ("shop.db", "none of the forms"),
        ("mysql://host:port/name", "none of the forms"),
        ("sqlite:///missing.db", "sqlite:///missing.db: unable to open database file"),
        ("postgresql://u:secret@127.0.0.1:9/shop", "postgresql://u@127.0.0.1:9/shop"),
        ("mysql://u:secret@127.0.0.1:9/shop", "mysql://u@127.0.0.1:9/shop"),
    ],
)
def test_a_wrong_database_is_one_sentence_without_its_password(tmp_path, url, said):
    done = eventmq(tmp_path, "list", "--database", url)
    assert 1 == done.returncode
    assert said in done.stderr
    assert "secret" not in done.stderr
    assert 1 == done.stderr.count("\n")


def test_kept_rows_are_listed_and_retried(tmp_path):
    assert 0 == eventmq(tmp_path, "init", "--database", "sqlite:///shop.db").returncode
    again = eventmq(tmp_path, "init", "--database", "sqlite:///shop.db")
    assert "sqlite:///shop.db has the table eventmq_outbox\n" == again.stdout
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, EventMQ("shop") as app:
        for name, error in (("a", "ProtocolError: bad"), ("b", "too old"), ("c", "")):
            outbox.send(connection, app.signature("t", options={"job_id": name}))
            connection.execute(
                "UPDATE eventmq_outbox SET error = ? WHERE job_id = ?", (error, name)
            )
        connection.execute("UPDATE eventmq_outbox SET sends = 2, sent = 5")
        connection.commit()
        connection.execute("UPDATE eventmq_outbox SET created = 1.8e12 WHERE job_id = 'a'")  # ms
        connection.commit()
    listed = eventmq(tmp_path, "list", "--database", "sqlite:///shop.db")
    assert (0, "") == (listed.returncode, listed.stderr)
    listed = eventmq(tmp_path, "list", "--database", "sqlite:///shop.db", "--json")
    assert [("a", "ProtocolError: bad"), ("b", "too old")] == [
        (row["id"], row["error"]) for row in json.loads(listed.stdout)
    ]
    done = eventmq(tmp_path, "retry", "--database", "sqlite:///shop.db", "a", "c")
    assert (4, "1 rows will be sent\n") == (done.returncode, done.stdout)
    assert "no row of job c is kept" in done.stderr
    assert [("a", ""), ("b", "too old"), ("c", "")] == rows(tmp_path)
    done = eventmq(tmp_path, "retry", "--database", "sqlite:///shop.db", "all", "d")
    assert (4, "1 rows will be sent\n") == (done.returncode, done.stdout)
    done = eventmq(tmp_path, "retry", "--database", "sqlite:///shop.db", "all")
    assert (0, "0 rows will be sent\n") == (done.returncode, done.stdout)
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        found = connection.execute("SELECT job_id, sends, sent FROM eventmq_outbox").fetchall()
    assert [("a", 0, None), ("b", 0, None), ("c", 2, 5.0)] == found


def test_the_page_works_and_the_relay_waits_for_a_broker_that_is_away(system):
    """The relay comes first: it logs once that it waits, and once that it goes on."""
    folder = system.folder
    assert ["shop.py"] == write_files("howto/tasks/outbox.rst", folder)
    url = ["--database", "sqlite:///shop.db"]
    assert 0 == eventmq(folder, "init", *url).returncode
    system.address = f"tcp://127.0.0.1:{free_port()}"
    (folder / "eventmq.toml").write_text(f'broker = "{system.address}"\nsubmit_timeout = 0.3\n')
    relay, line = system.start("outbox", "relay", *url)
    assert "ready database=sqlite:///shop.db\n" == line
    shop = [sys.executable, "shop.py"]
    subprocess.run(shop, cwd=folder, check=True, timeout=50)
    log = folder / "outbox.log"
    until(lambda: "the outbox waits, and keeps its rows" in log.read_text(), "it waits")
    assert 1 == len(rows(folder))
    system.broker()
    until(lambda: not rows(folder), "the row is sent")
    until(lambda: "the outbox continues" in log.read_text(), "it goes on")
    assert 1 == log.read_text().count("the outbox waits")
    worker, _ = system.start("worker", "-A", "shop")
    assert "order 1 is confirmed\n" in worker.stdout
    again = subprocess.run(shop, cwd=folder, check=False, timeout=50, capture_output=True)
    assert b"IntegrityError" in again.stderr
    assert [] == rows(folder)
    relay.send_signal(signal.SIGTERM)
    assert 0 == relay.wait(20)


def test_the_table_may_be_in_the_database_of_the_store_of_the_broker(system, database_url):
    """It is no table of the broker: the relay submits its rows like any client."""
    line = system.start("broker", "--bind", "tcp://127.0.0.1:0", "--store", database_url)[1]
    system.address = next(w for w in line.split() if "tcp://" in w).partition("=")[2]
    url = ["--database", database_url]
    assert 0 == eventmq(system.folder, "init", *url).returncode
    app = system.app()
    with psycopg.connect(database_url) as connection:
        job = outbox.send(connection, app.signature("shop.confirm", 1))
    relay, _ = system.start("outbox", "relay", *url, "--broker", system.address)
    with psycopg.connect(database_url, autocommit=True) as connection:
        sql = "SELECT count(*) FROM eventmq_outbox"
        until(lambda: connection.execute(sql).fetchone() == (0,), "the row is sent")
    assert "queued" == job.state
    # The user has the name of the store's schema, where its tables are made then.
    checked = subprocess.run(
        [sys.executable, "-m", "eventmq", "store", "check", "--store", database_url],
        timeout=50, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (0, "") == (checked.returncode, checked.stderr)
    relay.send_signal(signal.SIGTERM)
    assert 0 == relay.wait(20)


def block(begin: str) -> str:
    """Return the block of code of the page that begins with a line."""
    text = PAGE[PAGE.index(f"    {begin}") :]
    lines = []
    for line in text.splitlines():
        if line and not line.startswith("    "):
            break
        lines.append(line[4:])
    return "\n".join(lines)


def test_the_examples_of_sqlalchemy_and_of_an_order_work(shop, app):
    """Both blocks of the page, on each kind of database, but the lock of the rows of SQLite."""
    url = shop.url.replace("postgresql:", "postgresql+psycopg:").replace("mysql:", "mysql+pymysql:")
    engine = create_engine(url)
    table = Table("orders", MetaData(), Column("number", Integer, primary_key=True))

    class Adding(Session):
        """A session that adds an order without a mapped class."""

        def add(self, order):
            self.execute(insert(table).values(order))

    names = {
        "Session": Adding, "engine": engine, "outbox": outbox, "order": 7, "Order": dict,
        "confirm": app.tasks["keep"],
    }  # fmt: skip
    exec(block("with Session(engine)"), names)
    assert [(7,)] == [tuple(row) for row in shop.database.execute("SELECT number FROM orders")]
    assert 1 == len(shop.rows())
    engine.dispose()
    if shop.database.vendor == "postgresql":
        shop.database.execute("ALTER TABLE orders ADD state text")
        names |= {"connection": shop.connect(), "export": app.tasks["keep"]}
        exec(block("with connection.transaction()"), names)
        found = shop.database.execute("SELECT ordering_key FROM eventmq_outbox ORDER BY seq")
        assert [("",), ("order:7",)] == found
        assert [("paid",)] == shop.database.execute("SELECT state FROM orders")
