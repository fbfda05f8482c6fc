"""The command ``eventmq journal``: on a store, on a broker, on neither."""

from __future__ import annotations

import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from eventmq import EventMQ
from eventmq.errors import BrokerUnavailable, StoreError
from eventmq.plugins.database import connect
from eventmq.plugins.queue_stores.sqlite.reading import SqliteEventLogReader
from eventmq.plugins.queue_stores.sqlite.schema import SCHEMA_VERSION
from eventmq_contrib.journal.command import run
from eventmq_contrib.journal.drain import Drain
from eventmq_contrib.journal.folder import JournalFolder
from eventmq_contrib.journal.sources import BrokerSource, StoreSource
from tests.support.broker_harness import Broker
from tests.support.journal_harness import command, failure, names_of, rows_in
from tests.support.system import System, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path / "data")
    yield broker
    broker.close()


# On a store


@pytest.mark.usefixtures("quiet_signals", "impatient")
def test_the_journal_takes_what_a_stopped_broker_has(broker: Broker, tmp_path: Path) -> None:
    """It prints its results; a second run finds no new events."""
    broker.submit()
    broker.submit()
    expected = broker.events()
    broker.close()
    data, out = str(tmp_path / "data"), tmp_path / "journal"
    result = command("journal", "--data-dir", data, "--out", str(out), "--once")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"ready broker={broker.core.state.store_id} out={out} after=0\n"
    assert "sealed 2 events in 1 files, up to 2" in result.stderr
    assert [row["job_id"] for row in rows_in(out)] == [row["job_id"] for row in expected]
    again = command("journal", "--data-dir", data, "--out", str(out), "--once")
    assert "after=2" in again.stdout
    assert names_of(out) == [(1, 2)]


def test_a_store_is_read_while_its_broker_writes(broker: Broker, tmp_path: Path) -> None:
    reader = SqliteEventLogReader(tmp_path / "data")
    assert reader.store_id == broker.core.state.store_id
    for n in range(1, 4):
        broker.submit()
        rows, head = reader.read(n - 1, 1 << 20)
        assert [row.first for row in rows] == [n]
        assert head.next == n + 1
    assert reader.addresses() == {}
    reader.close()


def test_a_store_without_a_broker_is_read_and_not_written(broker: Broker, tmp_path: Path) -> None:
    broker.submit()
    broker.close()
    data = tmp_path / "data"
    before = {path.name: path.read_bytes() for path in data.iterdir()}
    reader = SqliteEventLogReader(data)
    assert len(reader.read(0, 1 << 20)[0]) == 1
    reader.close()
    assert (data / "queue.sqlite").read_bytes() == before["queue.sqlite"]


def spoil(data: Path, *statements: str) -> None:
    db = connect(data / "queue.sqlite", busy=5.0)
    for statement in statements:
        db.execute(statement)
    db.close()


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        (
            f"PRAGMA user_version = {SCHEMA_VERSION + 1}",
            "work off its jobs with the EventMQ that made it",
        ),
        ("PRAGMA application_id = 7", "is not a store of EventMQ"),
    ],
)
def test_a_store_that_cannot_be_read_is_named(
    broker: Broker, tmp_path: Path, statement: str, text: str
) -> None:
    broker.close()
    spoil(tmp_path / "data", statement)
    out = tmp_path / "journal"
    code, message = failure(
        "journal", "--data-dir", str(tmp_path / "data"), "--out", str(out), "--once"
    )
    assert code == 1
    assert text in message
    assert not out.exists()


def test_a_folder_without_a_store_is_named(tmp_path: Path) -> None:
    code, message = failure("journal", "--data-dir", str(tmp_path), "--once")
    assert (code, message) == (
        1, f"error: there is no store in {tmp_path}: name the data directory of a broker\n",
    )  # fmt: skip


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "queue.sqlite").write_bytes(b"not a database" * 100)
    with pytest.raises(StoreError, match=r"cannot read the store .*queue\.sqlite: file is not"):
        SqliteEventLogReader(tmp_path)


def test_without_pyarrow_one_sentence_names_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    code, message = failure("journal", "--data-dir", str(tmp_path), "--once")
    assert (code, message) == (1, "error: eventmq journal needs pyarrow: pip install '.[spark]'\n")


def test_a_broker_that_is_not_there_has_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENTMQ_SUBMIT_TIMEOUT", "0.3")
    code, message = failure(
        "journal", "--broker", "tcp://127.0.0.1:9", "--out", str(tmp_path / "j"), "--once"
    )
    assert code == 3
    assert "--broker" in message


# On a broker


@pytest.fixture
def app() -> Iterator[EventMQ]:
    app = EventMQ("shop", broker="memory://")

    @app.task(name="add")
    def add(x: int) -> int:
        return x + 1

    yield app
    app.close()


def test_a_broker_is_asked_where_there_is_no_store(app: EventMQ, tmp_path: Path) -> None:
    jobs = [app.send("add", (n,)) for n in range(5)]
    app.wait(jobs, timeout=20)
    with_folder(app, tmp_path / "journal")
    rows = rows_in(tmp_path / "journal")
    assert [row["kind"] for row in rows].count("succeeded") == 5
    assert [row["seq"] for row in rows] == list(range(1, 11))
    assert app.ask("events.read", {"after": 0})["sealed"] == 10


def with_folder(app: EventMQ, out: Path) -> None:
    folder = JournalFolder(out)
    folder.open()
    drain = Drain(BrokerSource(app), folder, app.clock)
    drain.start()
    run(drain, threading.Event().wait, once=True)
    folder.close()


def test_two_journals_of_one_broker_are_refused(app: EventMQ, tmp_path: Path) -> None:
    app.wait([app.send("add", (1,))], timeout=20)
    with_folder(app, tmp_path / "one")
    with pytest.raises(StoreError, match="stop one of the two, and wait for half a minute"):
        with_folder(app, tmp_path / "two")


def test_an_unavailable_broker_gets_the_report_later_and_is_warned_about_once(
    broker: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing else stops: the events are sealed all the same."""
    reports: list[dict[str, Any]] = []

    class Away:
        answers = False

        def ask(self, _: str, arguments: dict[str, Any]) -> dict[str, Any]:
            if not self.answers:
                raise BrokerUnavailable("nobody is there")
            reports.append(arguments)
            return {"store": broker.core.state.store_id, "first": 1, "next": 2, "journal": "j",
                    "sealed": 1}  # fmt: skip

    app: Any = Away()
    reader = SqliteEventLogReader(tmp_path / "data")
    source = StoreSource(reader, app, broker.clock)
    for _ in range(3):
        assert not source.seal("j", 1)
        broker.clock.time += 11.0
    app.answers = True
    assert source.seal("j", 1)
    reader.close()
    assert reports == [{"journal": "j", "sealed": 1}]
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    assert [record.getMessage() for record in warnings] == [
        "the broker keeps sealed events until it answers: nobody is there"
    ]


def test_the_wrong_broker_gets_no_report(app: EventMQ, broker: Broker, tmp_path: Path) -> None:
    """The store in the data directory is another one's."""
    broker.submit()
    reader = SqliteEventLogReader(tmp_path / "data")
    source = StoreSource(reader, app, app.clock)
    with pytest.raises(StoreError, match="name the right one with --broker"):
        source.seal("j", 0)
    reader.close()


def test_a_broker_that_is_away_is_waited_for(tmp_path: Path) -> None:
    """Once it is back, the journal continues; with --once that is an error."""

    class Away:
        sealed = 0
        steps = iter([BrokerUnavailable("gone"), True, False])

        def step(self) -> bool:
            value = next(self.steps)
            if isinstance(value, Exception):
                raise value
            return value

        def finish(self) -> None:
            self.sealed = 1

    drain: Any = Away()
    pauses: list[float] = []

    def wait(pause: float) -> bool:
        pauses.append(pause)
        return len(pauses) > 3

    run(drain, wait, once=False)
    assert pauses == [0.0, 2.0, 0.0, 0.2]
    assert drain.sealed == 1
    drain.steps = iter([BrokerUnavailable("gone")])
    with pytest.raises(BrokerUnavailable):
        run(drain, lambda _: False, once=True)


# Processes


def test_no_event_is_lost_or_doubled_where_processes_are_killed(tmp_path: Path) -> None:
    """The journal three times, the broker once; every job has its first event."""
    system = System(tmp_path)
    out = tmp_path / "journal"
    journal = (
        "-p", "eventmq_contrib.journal", "journal", "--data-dir", str(tmp_path / "data"),
        "--out", str(out),
    )  # fmt: skip
    try:
        broker = system.broker()
        app = system.app()
        ids = []
        for part in range(4):
            second, _ = system.start(*journal)
            sent = [app.send("nobody.knows", (n,), queue="parked") for n in range(50)]
            ids += [job.id for job in sent]
            if part == 2:
                broker.kill9()
                broker = system.broker()
            second.kill9()
        last, _ = system.start(*journal)
        until(lambda: list(tmp_path.glob("journal/_lock")), "the lock of the journal")
        last.terminate()
        assert last.wait(20) == 0
        end, _ = system.start(*journal, "--once")
        assert end.wait(20) == 0
        state = app.ask("events.read", {"after": 0})
    finally:
        system.stop()
    rows = rows_in(out)
    assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
    assert [row["job_id"] for row in rows if row["kind"] == "enqueued"] == ids
    assert state["sealed"] == len(rows)


def test_files_are_sealed_as_often_as_wanted(tmp_path: Path) -> None:
    """Also where there is next to nothing in them, and behind a SIGHUP, which changes nothing."""
    system = System(tmp_path)
    out = tmp_path / "journal"
    try:
        system.broker()
        system.app().send("nobody.knows", (1,), queue="parked")
        journal, _ = system.start(
            "-p", "eventmq_contrib.journal", "journal", "--data-dir", str(tmp_path / "data"),
            "--out", str(out), "--seal-after", "0.2",
        )  # fmt: skip
        journal.send_signal(signal.SIGHUP)
        until(lambda: names_of(out), "a sealed file", 20.0)
        journal.send_signal(signal.SIGTERM)
        assert journal.wait(20.0) == 0
    finally:
        system.stop()
    assert names_of(out) == [(1, 1)]
