"""Failing system calls below the real store: no receipt without its sync, and no error overlooked.

A broker survives no error but a full disk. ``python -m benchmarks.faults injected`` fails every
call of a longer script; here are some, spread evenly.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from eventmq import EventMQ
from eventmq.broker.limits import Limits
from eventmq.broker.runner import BrokerRunner
from eventmq.clock import SystemClock
from eventmq.errors import BrokerUnavailable, QueueFull, StoreError
from eventmq.job import IdFactory, JobRecord
from eventmq.plugins.queue_stores.sqlite import wal
from eventmq.plugins.queue_stores.sqlite.store import SqliteStore
from eventmq.plugins.routing import LeastRecentlyUsed, WeightedFair
from eventmq.store.writes import Admit
from tests.faults.injected import Early, Injected, calls_of, once, run_with_fault, shimmed
from tests.faults.script import finish, run_script
from tests.faults.shim import Call, Shim, can_fail
from tests.support.broker_harness import SWIFT, FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


#: Jobs of the script.
JOBS = 20

#: Of so many calls one is failed.
EVERY = 4

#: Seconds after which what should have happened has failed.
DEADLINE = 30.0

#: Faults that SQLite reports as a full disk.
FULL = {"ENOSPC", "short, then ENOSPC"}


class NormalStore(SqliteStore):
    """Planted bug: commits are not synced."""

    def open(self) -> Any:
        recovered = super().open()
        assert self._db is not None
        self._db.execute("PRAGMA synchronous = NORMAL")
        return recovered


class AlwaysFullStore(SqliteStore):
    """Planted bug: any error is taken for a full disk."""

    def _failure(self, error: Exception) -> Exception:
        return QueueFull("the disk is full")


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=SWIFT) as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def calls() -> tuple[Sequence[Call], int]:
    """Return the calls of a run without a failure, and how many opened the store."""
    with tempfile.TemporaryDirectory(dir=SWIFT) as folder:
        return calls_of(Path(folder), JOBS)


# Each call


def fail_each(
    folder: Path,
    calls: Sequence[Call],
    indexes: Sequence[int],
    fault: str,
    store: Any = SqliteStore,
) -> list[bool]:
    """Fail several calls, each in a run of its own; return whether the brokers ended."""
    ended = []
    for index in indexes:
        run = folder / "run"
        outcome = run_with_fault(run, JOBS, once(index, fault), store)
        assert [calls[index].kind] == [call.kind for call in outcome.failed]
        ended.append(bool(outcome.ended))
        shutil.rmtree(run)
    return ended


def _places(calls: Sequence[Call], fault: str, first: int = 0) -> list[int]:
    return [n for n, call in enumerate(calls) if n >= first and can_fail(call, fault)][::EVERY]


def test_all_kinds_of_calls_are_tried(calls: tuple[Sequence[Call], int]) -> None:
    """The log is written, synced and moved; the database is written, synced and truncated."""
    every, opening = calls
    kinds = {(call.kind, call.file) for call in every[opening:]}
    expected = {("write", "log"), ("sync", "log"), ("write", "database"), ("sync", "database")}
    assert expected | {("truncate", "database"), ("read", "log"), ("size", "database")} <= kinds


@pytest.mark.parametrize("fault", ["EIO", "short"])
def test_an_error_ends_the_broker_and_nothing_is_lost(
    folder: Path, calls: tuple[Sequence[Call], int], fault: str
) -> None:
    """An error of any read, write, sync or truncate, while the store is opened and later."""
    every, _ = calls
    positions = _places(every, fault)
    assert len(positions) > 30
    assert all(fail_each(folder, every, positions, fault))


@pytest.mark.parametrize("kind", ["sync", "truncate", "size", "delete"])
def test_an_error_of_a_rare_call_ends_the_broker_too(
    folder: Path, calls: tuple[Sequence[Call], int], kind: str
) -> None:
    every, _ = calls
    positions = [n for n, call in enumerate(every) if call.kind == kind and can_fail(call, "EIO")]
    assert all(fail_each(folder, every, positions[:: 1 + len(positions) // 8], "EIO"))


@pytest.mark.parametrize("fault", sorted(FULL))
def test_a_broker_survives_a_full_disk(
    folder: Path, calls: tuple[Sequence[Call], int], fault: str
) -> None:
    """Jobs that do not fit are refused and sent again, and the broker runs on."""
    every, opening = calls
    positions = _places(every, fault, opening)
    assert len(positions) > 20
    assert not any(fail_each(folder, every, positions, fault))


def test_a_broker_survives_a_disk_that_stays_full_for_a_while(
    folder: Path, calls: tuple[Sequence[Call], int]
) -> None:
    every, opening = calls
    for start in range(opening, len(every) - 60, 40):

        def fault(number: int, call: Call, start: int = start) -> str:
            return "ENOSPC" if start <= number < start + 60 and call.kind == "write" else ""

        outcome = run_with_fault(folder / "run", JOBS, fault)
        assert (len(outcome.failed) > 1, outcome.ended) == (True, "")
        shutil.rmtree(folder / "run")


def test_a_store_that_takes_any_error_for_a_full_disk_is_found(
    folder: Path, calls: tuple[Sequence[Call], int]
) -> None:
    """Its broker runs on after a failed sync."""
    every, opening = calls
    sync = Call("sync", "log", moves=False)
    positions = [n for n, call in enumerate(every) if n >= opening and call == sync][:5]
    assert fail_each(folder, every, positions, "EIO") == [True] * 5
    assert not all(fail_each(folder, every, positions, "EIO", AlwaysFullStore))


# The order of sync and receipt


def receipts(folder: Path, store: type[SqliteStore]) -> tuple[int, int]:
    """Run a script of 100 jobs; return how many had a receipt, and how many syncs there were.

    Raises:
        Early: A message left before the log was synced.
    """
    with shimmed() as shim:
        script = Injected(folder, shim, store)
        try:
            run_script(script, 100)
            finish(script)
            syncs = sum(call[:2] == ("sync", "log") for call in shim.calls)
            return len(script.promises.confirmed), syncs
        finally:
            script.close()


def test_no_receipt_leaves_before_its_sync(folder: Path) -> None:
    confirmed, syncs = receipts(folder, SqliteStore)
    assert confirmed > 90
    assert syncs > 20


def test_a_store_that_does_not_sync_is_found(folder: Path) -> None:
    """As with ``PRAGMA synchronous = NORMAL`` instead of FULL."""
    with pytest.raises(Early, match="before the log was synced"):
        receipts(folder, NormalStore)


class WatchedLink:
    """Socket of a broker that counts messages, and those sent before the log was synced."""

    def __init__(self, link: Any, shim: Shim) -> None:
        self._link, self._shim = link, shim
        self.sent = self.early = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    def send(self, frames: Sequence[bytes]) -> bool:
        self.sent += 1
        self.early += self._shim.unsynced
        return self._link.send(frames)


class Server:
    """Broker with its real runner and sockets, in a thread of its own."""

    def __init__(self, folder: Path, shim: Shim, store: type[SqliteStore] = SqliteStore) -> None:
        clock = SystemClock()
        self.shim = shim
        self.error: Exception | None = None
        self.runner = BrokerRunner(
            store=store(folder, clock, reserve=0, vfs=shim.name),
            limits=Limits(),
            routing=LeastRecentlyUsed(),
            queue_order=WeightedFair,
            binds={"main": "tcp://127.0.0.1:*"},
            clock=clock,
            version="test",
        )
        self.runner.bind()
        self.link: Any = WatchedLink(self.runner._links["main"], shim)
        self.runner._links["main"] = self.link
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.runner.run()
        except StoreError as error:
            self.error = error

    def app(self, submit_timeout: float = DEADLINE) -> EventMQ:
        address = self.runner.addresses["main"]
        return EventMQ(broker=address, submit_timeout=submit_timeout)

    def stop(self) -> None:
        self.runner.stop()
        self.thread.join(DEADLINE)
        assert not self.thread.is_alive()


def _submit(app: EventMQ, jobs: int) -> int:
    """Submit jobs one by one; return how many had a receipt."""
    task = app.task(name="t")(lambda number: number)
    confirmed = 0
    try:
        for number in range(jobs):
            task.delay(number)
            confirmed += 1
    except BrokerUnavailable:
        pass
    finally:
        app.close()
    return confirmed


@pytest.mark.parametrize("store", [SqliteStore, NormalStore])
def test_no_socket_gets_a_receipt_before_its_sync(folder: Path, store: type[SqliteStore]) -> None:
    """The same with the real runner; a store that does not sync is found here too."""
    shim = Shim()
    server = Server(folder, shim, store)
    try:
        assert _submit(server.app(), 100) == 100
    finally:
        server.stop()
        shim.unregister()
    assert server.link.sent > 100
    if store is SqliteStore:
        assert server.link.early == 0
    else:
        assert server.link.early > 90


def test_a_failed_sync_ends_a_broker_before_the_receipt(folder: Path) -> None:
    shim = Shim()
    server = Server(folder, shim)
    syncs = iter(range(1000))

    def fault(_: int, call: Call) -> str:
        return "EIO" if call[:2] == ("sync", "log") and next(syncs) == 10 else ""

    shim.fault = fault
    try:
        confirmed = _submit(server.app(submit_timeout=2.0), 30)
        server.thread.join(DEADLINE)
    finally:
        server.stop()
        shim.unregister()
    assert str(server.error).endswith("cannot be written: disk I/O error")
    assert confirmed < 11
    with shimmed() as after:
        second = Injected(folder, after, clock=FakeClock(SystemClock().now()))
        waiting = [queue.counts.queued for queue in second.core.state.queues.values()]
        second.close()
    assert confirmed <= sum(waiting) <= confirmed + 1, "the last one was written, not promised"


# The thread that moves the log


@pytest.mark.parametrize(("fault", "ends"), [("EIO", True), ("ENOSPC", False)])
def test_an_error_of_the_checkpoint_thread_reaches_the_next_commit(
    folder: Path, fault: str, ends: bool
) -> None:
    """An error ends the broker; missing space does not."""
    shim = Shim()
    shim.fault = lambda _, call: (
        fault if call.moves and call.kind == "write" and len(shim.failed) < 4 else ""
    )
    with patch.object(wal, "NOTIFY_FRAMES", 4):
        store = SqliteStore(folder, FakeClock(), reserve=0, vfs=shim.name)
        store.open()
        new_id = IdFactory(FakeClock()).new
        number, error = 0, None
        try:
            while error is None and number < 5000 and len(shim.failed) < 3:
                number += 1
                job = JobRecord(new_id(), "q", "task:t", bytes(5000), number, number, created=1.0)
                try:
                    store.submit([Admit([job])])
                except StoreError as raised:
                    error = raised
                assert store.finished() == [[{}]]
        finally:
            store.close()
            shim.unregister()
    assert shim.failed
    assert all(call.moves for call in shim.failed)
    assert (error is not None) == ends


@pytest.mark.parametrize("planted", [False, True])
def test_the_log_is_restarted_only_after_a_sync_of_the_database(
    folder: Path, planted: bool
) -> None:
    """Else a crash of the machine would lose the moved pages; a thread that does not sync is
    found.
    """
    shim = Shim()
    with patch.object(wal, "NOTIFY_FRAMES", 4):
        store = SqliteStore(folder, FakeClock(), reserve=0, vfs=shim.name)
        store.open()
        mover: Any = store._checkpointer
        if planted:
            mover._db.execute("PRAGMA synchronous = OFF")
        shim.restarts = shim.early_restarts = 0
        new_id = IdFactory(FakeClock()).new
        try:
            for number in range(1, 3000):
                job = JobRecord(new_id(), "q", "task:t", bytes(5000), number, number, created=1.0)
                store.submit([Admit([job])])
                assert store.finished() == [[{}]]
                if shim.restarts >= 10:
                    break
                with mover._checkpointing:  # it finishes its work before the next commit
                    pass
        finally:
            store.close()
            shim.unregister()
    assert shim.restarts >= 10
    assert (shim.early_restarts > 0) == planted
