"""A worker's runner over real sockets; the test is the broker."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace

import pytest
import zmq

from eventmq.errors import PluginError
from eventmq.execution.processes.pool import ProcessPool
from eventmq.job import OutcomeKind
from eventmq.plugins.pools.threads import ThreadsPool
from eventmq.wire import commands
from eventmq.wire.batches import OutcomeRow, decode_outcomes
from eventmq.wire.features import Features, Status
from eventmq.wire.owner import ACTIVE, STANDBY, OwnerInfo
from eventmq.wire.sockets import NoConnection, open_router
from eventmq.worker.runner import WorkerRunner
from eventmq.worker.session import SessionInfo
from tests.support.worker_harness import OK, TIMEOUT, call, load, make_chunk, wait_for

BACK = OutcomeKind.HANDED_BACK


class Broker:
    """A ROUTER that knows its worker from `welcome` on and shows that it lives."""

    def __init__(self, context, address="tcp://127.0.0.1:0"):
        self.link = open_router(context)
        # The address of one that was just closed is not free at once.
        wait_for(lambda: self.bind(address))
        self.identity = b""
        self.messages = []
        self.features = None

    def bind(self, address):
        try:
            self.address = self.link.bind(address)
        except zmq.ZMQError:
            return False
        return True

    def expect(self, kind, seconds=TIMEOUT):
        """Return the next message of a kind."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for message in self.messages:
                if isinstance(message, kind):
                    self.messages.remove(message)
                    return message
            self.listen()
        raise AssertionError(f"no {kind.__name__}, but {self.messages}")

    def listen(self):
        self.link.socket.poll(50)
        while (frames := self.link.receive()) is not None:
            self.identity = frames[0]
            message = commands.decode(frames[1:])
            self.messages.append(message)
            if self.features and isinstance(message, commands.Inform):
                self.send(commands.Ack("a", message.id, self.features.format().encode()))
        if self.features and self.identity:
            owner = self.features.owner
            self.send(commands.Heartbeat("h", "1", owner and owner.format()))

    def send(self, message):
        with suppress(NoConnection):  # a worker that has ended, or comes back
            self.link.send([self.identity, *message.frames()])

    def welcome(self, epoch=1, owner=None):
        self.features = Features(epoch=epoch, store="x", max_frame=1 << 20, owner=owner)
        return Features.parse(self.expect(commands.Inform).features)

    def chunk(self, number, *calls, epoch=None):
        body, _ = make_chunk(*calls)
        headers = f"chunk:{number}" + (f",epoch:{epoch}" if epoch else "")
        self.send(commands.Request(f"m{number}", "default", headers, body))

    def answers(self, count):
        """Return position and kind of the next answers."""
        rows = []
        while len(rows) < count:
            reply = self.expect(commands.Reply)
            self.send(commands.Ack("a", reply.id))
            rows += [OutcomeRow(*row) for row in decode_outcomes(reply.result)]
        return [(row.position, OutcomeKind(row.kind)) for row in rows]

    def close(self):
        self.link.close(0)


def threads():
    return ThreadsPool(concurrency=2, executor=load())


def processes():
    return ProcessPool(concurrency=2, loader="tests.support.worker_harness:load", arguments={})


class Worker:
    """A runner in a thread."""

    def __init__(self, pool, brokers, context=None, **info):
        self.ready = threading.Event()
        info = SessionInfo(session="", queues=((10, "default"),), tasks=("echo",), **info)
        self.runner = WorkerRunner(
            pool, brokers=brokers, info=info, context=context, on_ready=self.ready.set
        )
        self.thread = threading.Thread(target=self.runner.run)
        self.thread.start()

    def join(self):
        self.thread.join(TIMEOUT)
        assert not self.thread.is_alive()


@pytest.fixture
def context():
    context = zmq.Context()
    yield context
    context.term()


@pytest.fixture
def make_broker(context):
    brokers = []

    def make_broker(*args):
        brokers.append(Broker(context, *args))
        return brokers[-1]

    yield make_broker
    for broker in brokers:
        broker.close()


@pytest.fixture
def broker(make_broker):
    return make_broker()


@pytest.fixture
def start():
    workers = []

    def start(*args, **options):
        workers.append(Worker(*args, **options))
        return workers[-1]

    yield start
    for worker in workers:
        worker.runner.stop(now=True)
    for worker in workers:
        worker.join()


@pytest.mark.parametrize("pool", [threads, processes])
def test_jobs_go_in_and_outcomes_come_out(broker, start, pool):
    worker = start(pool(), [broker.address])
    features = broker.welcome()
    assert features.tasks == ("echo",)
    assert features.name.endswith(f":{os.getpid()}")
    assert Status.parse(broker.expect(commands.Ready).status).window == 2
    assert worker.ready.wait(TIMEOUT)
    broker.chunk(1, call("echo", 1), call("echo", 2))
    assert broker.answers(2) == [(0, OK), (1, OK)]
    worker.runner.stop()
    assert broker.expect(commands.Kbai)
    worker.join()


def test_it_works_in_one_process_with_its_broker(context, make_broker, start):
    broker = make_broker("inproc://broker")
    start(threads(), ["inproc://broker"], context=context)
    broker.welcome()
    broker.expect(commands.Ready)
    broker.chunk(1, call("echo", 1))
    assert broker.answers(1) == [(0, OK)]


def test_what_waits_behind_a_long_job_comes_back(broker, start, tmp_path):
    start(processes(), [broker.address])
    broker.welcome()
    broker.expect(commands.Ready)
    broker.chunk(1, call("hold", str(tmp_path / "gate")), call("echo", 1), call("echo", 2))
    assert broker.answers(2) == [(1, BACK), (2, BACK)]
    (tmp_path / "gate").touch()
    assert broker.answers(1) == [(0, OK)]


def test_a_killed_child_is_answered_for(broker, start):
    start(processes(), [broker.address])
    broker.welcome()
    broker.expect(commands.Ready)
    broker.chunk(1, call("shoot_self"), call("echo", 2))
    assert sorted(broker.answers(2)) == [(0, OutcomeKind.DIED), (1, BACK)]
    broker.chunk(2, call("echo", 1))
    assert broker.answers(1) == [(0, OK)]


def test_a_silent_broker_is_left_for_the_next_one(make_broker, broker, start):
    silent = make_broker()
    brokers = [silent.address, broker.address]
    worker = start(threads(), brokers, heartbeat=0.1, heartbeat_timeout=1.0)
    assert broker.welcome().session
    broker.expect(commands.Ready)
    assert worker.ready.wait(TIMEOUT)


def test_a_broker_that_comes_back_gets_the_answers_of_the_same_session(
    make_broker, start, tmp_path
):
    first = make_broker()
    start(threads(), [first.address], heartbeat=0.1, heartbeat_timeout=1.0)
    before = first.welcome()
    first.expect(commands.Ready)
    first.chunk(1, call("hold", str(tmp_path / "gate")))
    wait_for((tmp_path / "gate.runs").exists)
    first.close()
    (tmp_path / "gate").touch()
    second = make_broker(first.address)
    after = second.welcome(epoch=2)
    assert (after.session, after.received, after.held) == (before.session, 1, (1,))
    assert second.answers(1) == [(0, OK)]


class Store:
    """Two brokers, ``a`` and ``b``, that share a store."""

    def __init__(self, make_broker):
        self.a, self.b = self.brokers = make_broker(), make_broker()
        self.owner = self.a
        self.epoch = 3
        self.set_owner()

    def set_owner(self, *brokers):
        """Send the owner from some brokers, or from all of them."""
        info = OwnerInfo(self.epoch, STANDBY, self.owner.address, "", "x")
        for broker in brokers or self.brokers:
            role = ACTIVE if broker is self.owner else STANDBY
            features = Features(epoch=self.epoch, store="x", max_frame=1 << 20)
            broker.features = replace(features, owner=info._replace(role=role))

    def until(self, condition):
        """Serve both until a condition is true; return its value."""
        deadline = time.monotonic() + TIMEOUT
        while not (result := condition()):
            assert time.monotonic() < deadline, [broker.messages for broker in self.brokers]
            for broker in self.brokers:
                broker.listen()
        return result

    def served(self, broker):
        """Wait until the worker takes jobs of a broker; return its last INFORM as a worker."""
        self.until(lambda: any(isinstance(m, commands.Ready) for m in broker.messages))
        informs = [m for m in broker.messages if isinstance(m, commands.Inform)]
        return Features.parse([m for m in informs if m.role == "worker"][-1].features)

    def roles(self, broker):
        """Return the roles that the worker informed a broker as."""
        return {m.role for m in broker.messages if isinstance(m, commands.Inform)}

    def answered(self, broker):
        """Return the jobs that were answered to a broker; confirm them."""
        replies = [m for m in broker.messages if isinstance(m, commands.Reply)]
        for reply in replies:
            broker.send(commands.Ack("a", reply.id))
        return {
            (reply.request, row[0]) for reply in replies for row in decode_outcomes(reply.result)
        }


@pytest.fixture
def store(make_broker):
    return Store(make_broker)


QUICK = {"heartbeat": 0.1, "heartbeat_timeout": 3.0}


@pytest.mark.parametrize("first", [0, 1])
def test_of_brokers_that_share_a_store_the_owner_gives_the_jobs(store, start, first):
    """The others are asked for the owner, at any position among the addresses."""
    brokers = [store.brokers[first], store.brokers[1 - first]]
    start(threads(), [broker.address for broker in brokers], **QUICK)
    store.served(store.a)
    store.a.chunk(1, call("echo", 1), epoch=3)
    store.until(lambda: store.answered(store.a) == {("m1", 0)})
    store.until(lambda: "client" in store.roles(store.b))
    assert not any(isinstance(m, commands.Ready) for m in store.b.messages)


def test_the_session_goes_on_with_the_next_owner(store, start, tmp_path, caplog):
    """Running jobs continue, and are answered there; the old owner's chunks are ignored."""
    start(processes(), [broker.address for broker in store.brokers], **QUICK)
    before = store.served(store.a)
    store.a.chunk(1, call("hold", str(tmp_path / "gate")), epoch=3)
    wait_for((tmp_path / "gate.runs").exists)
    store.until(lambda: store.roles(store.b))
    store.owner, store.epoch = store.b, 4
    store.set_owner(store.b)  # the other one was stopped, and does not know it
    after = store.served(store.b)
    assert (after.session, after.received, after.held) == (before.session, 1, (1,))
    store.a.chunk(2, call("hold", str(tmp_path / "old")), epoch=3)
    store.until(lambda: "messages of a broker that does not own the store" in caplog.text)
    store.b.chunk(2, call("echo", 1), epoch=4)
    (tmp_path / "gate").touch()
    store.until(lambda: store.answered(store.b) == {("m1", 0), ("m2", 0)})
    assert not (tmp_path / "old.runs").exists()
    # And back again, over the first link.
    store.owner, store.epoch = store.a, 5
    store.a.messages.clear()
    store.set_owner()
    assert store.served(store.a).session == before.session
    store.a.chunk(3, call("echo", 1), epoch=5)
    store.until(lambda: store.answered(store.a) == {("m3", 0)})


def test_answers_are_kept_while_there_is_no_owner(store, start, tmp_path):
    start(processes(), [broker.address for broker in store.brokers], **QUICK)
    store.served(store.a)
    store.a.chunk(1, call("hold", str(tmp_path / "gate")), epoch=3)
    wait_for((tmp_path / "gate.runs").exists)
    store.until(lambda: store.roles(store.b))
    store.a.close()
    store.brokers = [store.b]
    (tmp_path / "gate").touch()
    store.owner, store.epoch = store.b, 4
    store.set_owner(store.b)
    store.until(lambda: store.answered(store.b) == {("m1", 0)})


def test_an_owner_at_another_address_gives_the_jobs(store, start, caplog):
    """A standby names its address."""
    caplog.set_level(logging.INFO, "eventmq.worker")
    start(threads(), [store.b.address], **QUICK)
    store.served(store.a)
    assert f"the owner of the store is {store.a.address}" in caplog.text
    store.a.chunk(1, call("echo", 1), epoch=3)
    store.until(lambda: store.answered(store.a) == {("m1", 0)})
    store.owner, store.epoch = store.b, 4
    store.set_owner()
    store.served(store.b)


def test_an_owner_whose_key_is_not_known_is_not_connected_to(store, start, caplog):
    info = OwnerInfo(4, STANDBY, store.a.address, "k" * 40, "x")
    store.b.features = replace(store.b.features, owner=info)
    start(threads(), [store.b.address], **QUICK)
    store.until(lambda: "but it has a CURVE key and this peer has none: set key_f" in caplog.text)
    store.until(lambda: len([m for m in store.b.messages if isinstance(m, commands.Inform)]) > 3)
    assert store.a.messages == []


def test_a_worker_starts_while_its_first_broker_is_away(store, start):
    """It tries the next broker soon, which names the owner."""
    store.owner = store.b
    store.set_owner()
    worker = start(threads(), ["tcp://127.0.0.1:9", store.b.address])
    began = time.monotonic()
    store.served(store.b)
    assert time.monotonic() - began < 10.0  # it waits for 15 s for a broker that it knows
    wait_for(worker.ready.is_set)


def test_it_logs_that_it_is_connected_was_disconnected_and_is_connected_again(
    make_broker, start, caplog
):
    """Each of these once."""

    def log_lines():
        lines = [r.getMessage() for r in caplog.records if r.name == "eventmq.worker.runner"]
        return [line for line in lines if "no broker answers" not in line]  # after 2 s

    caplog.set_level(logging.INFO, "eventmq.worker")
    first = make_broker()
    start(threads(), [first.address], heartbeat=0.1, heartbeat_timeout=1.0)
    first.welcome()
    first.expect(commands.Ready)
    first.close()
    wait_for(lambda: len(log_lines()) == 2)
    second = make_broker(first.address)
    second.welcome(epoch=2)
    second.expect(commands.Ready)
    wait_for(lambda: len(log_lines()) == 3)
    connected, lost, back = log_lines()
    assert connected == f"connected to the broker at {first.address}"
    assert lost.startswith(f"the connection to the broker at {first.address} was lost")
    assert back.startswith(f"connected to the broker at {first.address}, after ")


def told_to_end(broker):
    """Wait until the worker announces that it accepts no more jobs."""
    wait_for(lambda: Status.parse(broker.expect(commands.Ready).status).window == 0)


def test_stop_lets_a_running_job_end(broker, start, tmp_path):
    worker = start(processes(), [broker.address])
    broker.welcome()
    broker.expect(commands.Ready)
    broker.chunk(1, call("hold", str(tmp_path / "gate")))
    wait_for((tmp_path / "gate.runs").exists)
    worker.runner.stop()
    told_to_end(broker)
    (tmp_path / "gate").touch()
    assert broker.answers(1) == [(0, OK)]
    assert broker.expect(commands.Kbai)
    worker.join()


def test_stop_at_once_hands_back_what_it_killed(broker, start, tmp_path):
    worker = start(processes(), [broker.address])
    broker.welcome()
    broker.expect(commands.Ready)
    broker.chunk(1, call("hold", str(tmp_path / "never")))
    wait_for((tmp_path / "never.runs").exists)
    worker.runner.stop()
    worker.runner.stop(now=True)
    assert broker.answers(1) == [(0, BACK)]
    worker.join()


def test_after_the_grace_it_ends_all_the_same(broker, start, tmp_path):
    worker = start(processes(), [broker.address], shutdown_grace=0.2)
    broker.welcome()
    broker.expect(commands.Ready)
    broker.chunk(1, call("hold", str(tmp_path / "never")))
    wait_for((tmp_path / "never.runs").exists)
    worker.runner.stop()
    assert broker.answers(1) == [(0, BACK)]
    assert broker.expect(commands.Kbai)
    worker.join()


def test_an_app_that_cannot_be_loaded_ends_the_worker_with_one_error():
    pool = ProcessPool(
        concurrency=2, loader="tests.support.worker_harness:load", arguments={"fail": "import"}
    )
    info = SessionInfo(session="")
    runner = WorkerRunner(pool, brokers=["tcp://127.0.0.1:1"], info=info)
    with pytest.raises(PluginError, match="the tasks cannot be imported"):
        runner.run()


PROGRAM = """
import sys
from tests.integration.test_worker_runner import SessionInfo, WorkerRunner, processes
runner = WorkerRunner(processes(), brokers=[sys.argv[1]], info=SessionInfo(session=""),
                      on_ready=lambda: print("ready", flush=True))
runner.install_signal_handlers()
runner.run()
print("ended", flush=True)
"""


@pytest.fixture
def program(broker):
    """A worker in a process of its own."""
    command = [sys.executable, "-c", PROGRAM, broker.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        broker.welcome()
        assert worker.stdout.readline() == "ready\n"
        yield worker
        worker.kill()


def test_sigterm_ends_the_process(program):
    program.send_signal(signal.SIGTERM)
    assert program.stdout.read() == "ended\n"
    assert program.wait(TIMEOUT) == 0


def test_a_second_signal_ends_it_at_once(program, broker, tmp_path):
    broker.chunk(1, call("hold", str(tmp_path / "never")))
    wait_for((tmp_path / "never.runs").exists)
    program.send_signal(signal.SIGINT)
    told_to_end(broker)
    program.send_signal(signal.SIGINT)
    assert program.stdout.read() == "ended\n"
    assert program.wait(TIMEOUT) == 0
