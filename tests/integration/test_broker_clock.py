"""A running broker on a machine whose clocks a test sets: its state, log and answers."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

import pytest

from eventmq.broker.limits import Limits
from eventmq.broker.runner import KEEP_TIME, BrokerRunner
from eventmq.engine.identity import read_clock
from eventmq.plugins.database import SqliteRows, connect
from eventmq.plugins.queue_stores.sqlite.disk import FILE_NAME
from eventmq.plugins.queue_stores.sqlite.store import SqliteStore
from eventmq.plugins.routing import LeastRecentlyUsed, WeightedFair
from eventmq.testing import FakeClock
from eventmq.timekeeping import AT_ONCE, SETTLED, ClockRecord
from tests.support.cli_harness import Cli, open_cli

DAY, WEEK = 86_400.0, 7 * 86_400.0

#: Seconds within which a broker must act.
DEADLINE = 20.0


class Running:
    """A broker in a thread."""

    def __init__(self, folder: Path, clock: FakeClock) -> None:
        self.folder, self.clock = folder, clock
        self.start()

    def start(self) -> None:
        self.runner = BrokerRunner(
            store=SqliteStore(self.folder, self.clock, reserve=0, durability="relaxed"),
            limits=Limits(), routing=LeastRecentlyUsed(), queue_order=WeightedFair,
            binds={"main": "tcp://127.0.0.1:0"}, clock=self.clock,
        )  # fmt: skip
        self.runner.bind()
        self._thread = threading.Thread(target=self.runner.run)
        self._thread.start()

    @property
    def address(self) -> str:
        return self.runner.addresses["main"]

    def stop(self) -> None:
        self.runner.stop()
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive()

    def stored(self) -> ClockRecord:
        """Return the clocks stored in the file."""
        db = connect(self.folder / FILE_NAME, busy=5.0, read_only=True)
        try:
            clock = read_clock(SqliteRows(db, ()).values().get("clock"))
        finally:
            db.close()
        assert clock is not None
        return clock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1_800_000_000.0)


@pytest.fixture
def broker(tmp_path: Path, clock: FakeClock):
    broker = Running(tmp_path / "data", clock)
    yield broker
    broker.stop()


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    return open_cli(tmp_path, monkeypatch)


@pytest.fixture
def logged():
    """The log of the broker: commands redirect the logs of their process."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("eventmq.broker")
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    yield lines
    logger.setLevel(logging.NOTSET)
    logger.removeHandler(handler)


def until(condition) -> None:
    """Wait until something is so."""
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, "it never came to be so"
        time.sleep(0.02)


def test_an_idle_broker_stores_its_clocks(broker: Running, clock: FakeClock) -> None:
    until(lambda: broker.stored().store == 1_800_000_000.0)
    clock.advance(KEEP_TIME + 1)
    until(lambda: broker.stored().store == 1_800_000_000.0 + KEEP_TIME + 1)


def test_a_broker_that_ends_stores_its_clocks(broker: Running, clock: FakeClock) -> None:
    clock.advance(3.0)
    broker.stop()
    assert broker.stored().store == 1_800_000_003.0
    broker.start()


def test_a_step_is_logged_shown_and_accepted(
    broker: Running, clock: FakeClock, cli: Cli, logged: list[str]
) -> None:
    assert "clock.step" not in cli.run("status", "--broker", broker.address).stdout
    clock.set_now(clock.now() + 2 * DAY)
    clock.advance(60.0)
    until(lambda: "the wall clock steps by +2.0 days" in " ".join(logged))
    shown = cli.json("status", "--json", "--broker", broker.address)
    assert shown["clock"]["step"] == 2 * DAY
    assert 0.0 < shown["clock"]["counts_in"] <= SETTLED
    assert shown["now"] == pytest.approx(1_800_000_060.0)
    lines = cli.run("status", "--broker", broker.address).stdout.splitlines()
    (line,) = (line for line in lines if "clock" in line)
    assert line.startswith("attention: clock: step 172800 s, counts_in ")
    answer = cli.json("clock", "accept", "--json", "--broker", broker.address)
    assert answer == {"unconfirmed": 0.0, "step": 2 * DAY}
    until(lambda: "+2.0 days, and that counts now" in " ".join(logged))
    assert broker.stored().guarded == clock.now()
    assert not any(cli.json("status", "--json", "--broker", broker.address)["clock"].values())


def test_a_week_off_is_shown_and_accepted_and_no_peer_is_declared_dead(
    broker: Running, clock: FakeClock, cli: Cli, logged: list[str]
) -> None:
    broker.stop()
    clock.reboot(WEEK)
    broker.start()
    shown = cli.json("status", "--json", "--broker", broker.address)
    assert shown["clock"]["unconfirmed"] == WEEK - AT_ONCE
    assert "7.0 days of that do not count yet" in " ".join(logged)
    output = cli.run("clock", "accept", "--broker", broker.address).stdout
    assert [line.split()[0] for line in output.splitlines()] == ["unconfirmed", "step"]
    shown = cli.json("status", "--json", "--broker", broker.address)
    assert not any(shown["clock"].values())
    assert shown["now"] == pytest.approx(clock.now())
    assert broker.stored().store == pytest.approx(clock.now())


def test_a_damaged_record_of_the_clocks_is_refused(broker: Running, clock: FakeClock) -> None:
    """A flipped bit of it would let everything become old at once."""
    broker.stop()
    db = connect(broker.folder / FILE_NAME, busy=5.0)
    [(packed,)] = db.execute("SELECT value FROM meta WHERE key = 'clock'").fetchall()
    damaged = bytearray(packed)
    damaged[6] ^= 1
    db.execute("UPDATE meta SET value = ? WHERE key = 'clock'", (bytes(damaged),))
    db.close()
    with pytest.raises(Exception, match=r"record of the clocks .* eventmq fsck"):
        broker.start()
    db = connect(broker.folder / FILE_NAME, busy=5.0)
    db.execute("UPDATE meta SET value = ? WHERE key = 'clock'", (packed,))
    db.close()
    broker.start()
