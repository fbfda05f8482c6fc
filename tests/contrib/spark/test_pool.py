"""The pool ``spark``: as every worker pool, and what becomes of executors that are lost."""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from eventmq.errors import PluginError
from eventmq.interfaces import JobsEnded, PluginContext
from eventmq.job import OutcomeKind
from eventmq.testing import FakeClock, WorkerPoolSuite
from eventmq.testing.suites.pool_tasks import LOADER
from eventmq_contrib.spark.pool import make_spark_pool
from eventmq_contrib.spark.pool import pool as module
from eventmq_contrib.spark.pool.pool import SparkPool, _end_text
from eventmq_contrib.spark.pool.remote import Remote, pack, pack_event, unpack
from eventmq_contrib.spark.pool.slot import SlotLink, SparkSlot
from tests.support.system import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from eventmq.interfaces import WorkerPool


def context(**options: Any) -> PluginContext:
    options = {"concurrency": 1, "loader": LOADER, **options}
    return PluginContext("spark", options, FakeClock())


def spark_pool(slots: int, **options: Any) -> SparkPool:
    pool = make_spark_pool(context(concurrency=slots, **{"start_timeout": 60.0, **options}))
    assert isinstance(pool, SparkPool)
    return pool


def pids_of(pool: SparkPool) -> list[int]:
    """Return the process id of each slot, 0 for none."""
    return [slot.pid for slot in pool._slots]


class TestSparkPool(WorkerPoolSuite):
    """On the session that all tests share: two cores, so two slots at most."""

    @pytest.fixture(autouse=True)
    def _session(self, spark: SparkSession) -> None:
        """Have Spark."""

    def make(self, slots: int) -> WorkerPool:
        """Return a pool."""
        return spark_pool(slots)

    def lost(self, pool: SparkPool, signum: signal.Signals) -> None:
        """Run a job, and send a signal to the process of the slot's Spark task; check the end."""
        self.pools.append(pool)
        pool.start()
        pipe = self.block(pool, 0, 1, ("add", (1, 1)))
        (pid,) = pids_of(pool)
        os.kill(pid, signum)
        self.pump(pool, lambda: bool(self.died()))
        died = self.died()[0]
        assert (died.slot, died.chunk, died.position) == (0, 1, 0)
        assert died.reason
        assert self.run(pool, 0, 2, ("add", (2, 2)))[0].kind == OutcomeKind.SUCCEEDED
        assert pids_of(pool) != [pid]
        assert (self.rows(0, 1), len(self.died())) == ([], 1)
        assert Path(pipe).exists()

    def test_the_end_of_a_task_is_the_death_of_the_job_that_ran(self) -> None:
        """Chunks assigned before are not answered; the slot is restarted."""
        self.lost(spark_pool(1), signal.SIGKILL)

    def test_silence_is_as_good_as_an_end(self) -> None:
        """A machine that is cut off sends nothing; Spark may notice minutes later."""
        self.lost(spark_pool(1, link_timeout=2.0), signal.SIGSTOP)

    def test_no_caller_waits_long_for_a_silent_slot(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It keeps its jobs after any number of requests; no job is lost by a pause."""
        monkeypatch.setattr(module, "SILENCE", 1.7)
        pool = spark_pool(1)
        self.pools.append(pool)
        pool.start()
        pipe = self.block(pool, 0, 1, ("add", (1, 1)), ("add", (2, 2)))
        (pid,) = pids_of(pool)
        os.kill(pid, signal.SIGSTOP)
        begin = time.monotonic()
        assert [pool.take_back(0) for _ in range(5)] == [0] * 5
        assert time.monotonic() - begin < 3.4
        os.kill(pid, signal.SIGCONT)
        self.release(pipe)
        self.pump(pool, lambda: len(self.rows(0, 1)) == 3)
        assert self.died() == []

    def test_slots_that_are_not_used_give_their_cores_back(self) -> None:
        """And are there again when they are."""
        pool = spark_pool(2, initial=1)
        self.pools.append(pool)
        pool.start()
        assert [bool(pid) for pid in pids_of(pool)] == [True, False]
        pool.scale(2)
        assert self.run(pool, 1, 1, ("add", (1, 1)))[0].kind == OutcomeKind.SUCCEEDED
        pool.scale(1)
        assert [bool(pid) for pid in pids_of(pool)] == [True, False]
        assert self.run(pool, 0, 2, ("add", (1, 1)))[0].kind == OutcomeKind.SUCCEEDED
        assert self.died() == []

    def test_an_app_that_the_executors_do_not_have_is_named(self) -> None:
        pool = spark_pool(1, loader="nowhere.at.all:make")
        with pytest.raises(PluginError, match=r"slot 0 of the pool 'spark': .*nowhere"):
            pool.start()

    def test_more_slots_than_cores_are_named(self) -> None:
        """Nothing is left of those that were there."""
        pool = spark_pool(3, start_timeout=2.0)
        with pytest.raises(PluginError, match=r"[012] of 3 slots connected within 2 s .*see -c"):
            pool.start()
        assert self.run(self.begin(2), 0, 1, ("add", (1, 1)))


# Without Spark


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"start_timeout": 0}, "option 'start_timeout' of 'spark' must be a number above 0"),
        ({"link_timeout": "inf"}, "option 'link_timeout' of 'spark' must be a number above 0"),
        ({"master": "sc://host"}, "name the master itself, such as spark://host:7077"),
        ({"arguments": {"path": ""}}, "name it as path='module:attribute'"),
        ({"concurrency": 0}, "needs a concurrency from 1"),
        ({"mastre": "local"}, "has no option 'mastre'; .*master"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], text: str) -> None:
    with pytest.raises(PluginError, match=text):
        make_spark_pool(context(**options))


def test_the_options_reach_the_pool() -> None:
    pool = make_spark_pool(context(master="local[1]", concurrency=3))
    assert (pool.slots, pool.interrupts, pool.shared) == (3, True, False)
    pool.stop(0.0)


class Silent:
    """A link that records sent messages."""

    def __init__(self) -> None:
        self.sent: list[tuple[object, ...]] = []
        self.peers: set[str] = set()

    def send(self, identity: str, *message: object) -> None:
        self.sent.append((identity, *message))


def test_only_who_has_the_token_of_a_slot_is_believed() -> None:
    """And only once: a Spark task that is tried again finds its place taken."""
    link: Any = Silent()
    slot = SparkSlot(0, link)
    identity, token = slot.begin()
    slot.assign(1, b"body", 2)
    slot.receive("hello", ["guess", 7])
    slot.receive("taken", [0, 9])
    assert (slot.up, slot.withdrawn, link.sent) == (False, None, [])
    slot.receive("hello", [token, 7])
    slot.receive("hello", [token, 8])
    assert (slot.up, slot.pid) == (True, 7)
    assert link.sent == [(identity, "assign", 0, 1, 2, b"body")]


def test_the_last_note_of_a_slot_does_not_hide_later_answers() -> None:
    """News of what runs may be older than an answer."""
    link: Any = Silent()
    slot = SparkSlot(3, link)
    _, token = slot.begin()
    slot.receive("hello", [token, 7])
    slot.receive("note", [1, 0, 0.5])
    running = slot.running()
    assert running is not None
    assert running[:2] == (1, 0)
    name, *about = unpack(pack_event(JobsEnded(0, 1, 2, 0.1, b"x")))
    assert slot.receive(name, about) == JobsEnded(3, 1, 2, 0.1, b"x")
    assert slot.running() is None
    slot.receive("note", [1, 2, 0.5])
    assert slot.death("gone").position == 2


class Words:
    """Replaces the socket of a slot: received and sent messages."""

    def __init__(self, *incoming: bytes) -> None:
        self.incoming = deque(incoming)
        self.sent: list[list[Any]] = []

    def poll(self, _: int, __: int) -> bool:
        return bool(self.incoming)

    def recv(self) -> bytes:
        return self.incoming.popleft()

    def send(self, data: bytes) -> None:
        self.sent.append(unpack(data))

    def fileno(self) -> int:
        return self.pipe[0]

    pipe = os.pipe()


class Idle:
    """A pool that runs nothing and records assigned chunks."""

    def __init__(self) -> None:
        self.given: list[int] = []
        self.events: list[Any] = []

    def filenos(self) -> list[int]:
        return []

    def poll(self) -> list[Any]:
        events, self.events = self.events, []
        return events

    def running(self, _: int) -> None:
        return None

    def assign(self, _: int, chunk: int, __: bytes, ___: int) -> None:
        self.given.append(chunk)

    def take_back(self, _: int) -> int:
        return len(self.given)

    def stop(self, _: float) -> None:
        self.events = ["stopped"]


def test_a_slot_whose_manager_is_gone_ends() -> None:
    """No manager would read its answers."""
    pool: Any = Idle()
    words: Any = Words(pack("ping"))
    before = time.monotonic()
    assert Remote(pool, words, 0.2).run() == 0
    assert 0.2 <= time.monotonic() - before < 10.0


def test_a_chunk_assigned_before_a_death_was_known_is_lost_with_it() -> None:
    """The manager has handed its jobs back; the ones after it are run."""
    from eventmq.interfaces import SlotDied

    pool: Any = Idle()
    pool.events = [SlotDied(0, 1, 0, "signal 9")]
    words: Any = Words()
    remote = Remote(pool, words, 0.1)
    remote._send_events()
    words.incoming += [pack("assign", 0, 2, 1, b""), pack("assign", 1, 3, 1, b""), pack("take", 1)]
    remote._receive()
    assert pool.given == [3]
    assert [message[0] for message in words.sent if message[0] != "note"] == ["event", "taken"]


def test_a_question_that_is_taken_back_is_not_answered() -> None:
    """After a pause its answer is delayed: jobs that it withdraws now would be lost."""
    pool: Any = Idle()
    words: Any = Words(pack("take", 1))
    remote = Remote(pool, words, 9.0)
    remote._last_seen -= 2.0
    remote._receive()
    words.incoming += [pack("keep", 1), pack("assign", 0, 2, 1, b"")]
    remote._receive()
    assert (pool.given, words.sent) == ([2], [])
    remote._last_seen -= 2.0
    words.incoming += [pack("take", 2)]
    until(lambda: remote._receive() or bool(words.sent), "the answer")
    words.incoming += [pack("take", 3)]
    remote._receive()
    assert words.sent == [["taken", 2, 1], ["taken", 3, 1]]


def test_what_is_withdrawn_too_late_ends_the_slot() -> None:
    """Its manager thinks that the slot has these jobs; they go back with it."""
    link: Any = Silent()
    slot = SparkSlot(0, link)
    identity, token = slot.begin()
    slot.receive("hello", [token, 7])
    for answer in (0, 2):
        slot.request_withdrawal()
        assert slot.withdrawing
        slot.cancel_withdrawal()
        assert not slot.withdrawing
        assert slot.ended == ""
        slot.receive("taken", [1 + bool(answer), answer])
    assert slot.ended
    assert [words[1:] for words in link.sent] == [
        ("take", 1), ("keep", 1), ("take", 2), ("keep", 2),
    ]  # fmt: skip
    assert {words[0] for words in link.sent} == {identity}


@pytest.fixture
def link() -> Iterator[SlotLink]:
    link = SlotLink("127.0.0.1", lambda: None)
    yield link
    link.close()
    link.close()


def test_the_link_takes_encrypted_words_only(link: SlotLink) -> None:
    """Messages without the key are ignored; malformed ones with the key do no harm."""
    import zmq

    with zmq.Context() as context:
        plain, right = context.socket(zmq.DEALER), context.socket(zmq.DEALER)
        for number, sock in enumerate((plain, right)):
            sock.linger = 0
            sock.routing_id = f"slot-{number}".encode()
        right.curve_serverkey = link.public_key
        right.curve_publickey, right.curve_secretkey = zmq.curve_keypair()
        for sock in (plain, right):
            sock.connect(link.endpoint)
        plain.send(pack("hello", "t", 1))
        right.send(b"\xc1")
        right.send(pack("hello", "t", 2))
        until(lambda: bool(link.inbox), "a word")
        link.send("slot-1", "stop", 1.0)
        link.send("nobody", "stop", 1.0)
        assert right.poll(10_000)
        assert unpack(right.recv()) == ["stop", 1.0]
        assert list(link.inbox) == [("slot-1", ["hello", "t", 2])]
        plain.close()
        right.close()


def test_the_reason_of_an_end_in_spark_is_cut_to_the_exception() -> None:
    trace = "An exception was thrown:\n  File x\nModuleNotFoundError: No module named 'm'\n\tat org"
    assert _end_text(RuntimeError(trace)) == "ModuleNotFoundError: No module named 'm'"
    assert _end_text(RuntimeError("Job aborted\norg.apache.X: y")) == "Job aborted"
    assert _end_text(RuntimeError()) == "RuntimeError"
