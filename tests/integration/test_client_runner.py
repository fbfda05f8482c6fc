"""The client's thread against a broker behind a real ROUTER: threads, forks, restarts, exits."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from eventmq.client.client import ClientRunner, Transport
from eventmq.client.requests import News, OneWayMessage, PendingSubmit
from eventmq.clock import SystemClock
from eventmq.errors import BrokerUnavailable, QueueFull, ResultTimeout
from eventmq.wire.commands import Publish, Request
from eventmq.wire.owner import ACTIVE, STANDBY, OwnerInfo
from tests.support.client_harness import DEADLINE, FakeBroker, RouterBroker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from eventmq.client.client import Steps

    MakeRunner = Callable[..., ClientRunner]


@pytest.fixture
def broker() -> Iterator[RouterBroker]:
    broker = RouterBroker()
    yield broker
    broker.stop()


@pytest.fixture
def make_runner() -> Iterator[MakeRunner]:
    runners = []

    def make(*addresses: str, **options: Any) -> ClientRunner:
        runner = ClientRunner(lambda: Transport(addresses), clock=SystemClock(), **options)
        runners.append(runner)
        return runner

    yield make
    for runner in runners:
        runner.close(DEADLINE)


def submit(runner: ClientRunner, job_id: str, timeout: float = DEADLINE) -> PendingSubmit:
    frames = Request(job_id, "default", "ack-requested", b"body").frames()
    return PendingSubmit(frames, id=job_id, deadline=runner.deadline(timeout))


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


def test_nothing_runs_before_the_first_use(make_runner: MakeRunner) -> None:
    before = threads()
    runner = make_runner("tcp://127.0.0.1:1")
    assert threads() == before
    runner.close()
    assert threads() == before


def test_a_job_gets_its_receipt(make_runner: MakeRunner, broker: RouterBroker) -> None:
    runner = make_runner(broker.address)
    job = submit(runner, "j1")
    runner.send(job).wait()
    assert job.store == "s1"
    assert list(broker.broker.jobs) == ["j1"]


def test_an_error_names_the_host_that_cannot_be_resolved(
    make_runner: MakeRunner, caplog: pytest.LogCaptureFixture
) -> None:
    """The log does so once, however many sockets are made for it."""
    caplog.set_level(logging.DEBUG, "eventmq.client.io_loop")
    runner = make_runner("tcp://no-such-host.invalid:47291")
    job = submit(runner, "j1")
    job.deadline = runner.deadline(3.0)
    with pytest.raises(BrokerUnavailable) as caught:
        runner.send(job).wait()
    assert "(the host 'no-such-host.invalid' cannot be resolved: " in str(caught.value)
    lines = [(each.levelname, each.getMessage()) for each in caplog.records]
    assert ["WARNING"] == [level for level, _ in lines if level != "DEBUG"]
    assert any("cannot be resolved" in text and "a new socket" in text for _, text in lines)


def test_a_refusal_is_raised(make_runner: MakeRunner, broker: RouterBroker) -> None:
    broker.broker.refuse["j1"] = ("queue-full", "no room")
    runner = make_runner(broker.address)
    with pytest.raises(QueueFull, match="no room"):
        runner.send(submit(runner, "j1")).wait()


def test_eight_threads_submit_and_wait_at_the_same_time(
    make_runner: MakeRunner, broker: RouterBroker
) -> None:
    runner = make_runner(broker.address)
    answers: list[list[Any]] = []
    errors: list[BaseException] = []

    def work(name: int) -> None:
        try:
            for n in range(50):
                job_id = f"{name}.{n}"
                runner.send(submit(runner, job_id)).wait()
                broker.finish(job_id, "succeeded", "msgpack", job_id.encode())
                answers.append(
                    runner.ask(runner.new_call("get", ids=[job_id], timeout=DEADLINE)).wait()
                )
        except BaseException as error:  # noqa: BLE001 - shown below
            errors.append(error)

    workers = [threading.Thread(target=work, args=(name,)) for name in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(DEADLINE)
    assert errors == []
    assert {row[0] for row in answers} == {f"{a}.{b}" for a in range(8) for b in range(50)}
    assert all(row[3] == row[0].encode() for row in answers)
    assert threads().count("eventmq-client") <= 1


def test_a_thread_that_is_alone_needs_no_other(
    make_runner: MakeRunner, broker: RouterBroker
) -> None:
    """Every thread that must be woken on the way costs time."""
    runner = make_runner(broker.address)
    for n in range(3):
        runner.send(submit(runner, f"j{n}")).wait()
        assert runner.ask(runner.new_call("state", {"ids": ["j1"]}, timeout=DEADLINE)).wait()
    assert "eventmq-client" not in threads()


def test_what_is_left_open_by_the_thread_that_drives_goes_on(
    make_runner: MakeRunner, broker: RouterBroker
) -> None:
    """The second job waits for its receipt when the first thread has left."""
    broker.broker.hold.update({"held", "first"})
    runner = make_runner(broker.address, heartbeat=0.1)
    first = threading.Thread(target=lambda: runner.send(submit(runner, "first")).wait())
    first.start()
    broker.wait_for(lambda fake: fake.kinds().count("Request") == 1)
    held = submit(runner, "held")
    runner.begin(held)
    broker.wait_for(lambda fake: fake.kinds().count("Request") == 2)
    with broker.lock:
        broker.broker.hold.discard("first")
        broker.broker.restart()
    first.join(DEADLINE)
    with broker.lock:
        broker.broker.hold.clear()
        broker.broker.restart()
    runner.wait(held)
    assert held.error is None


class Interrupt(BaseException):
    """Exception of a signal handler."""


@pytest.fixture
def signals() -> Iterator[Callable[[Callable[[], None]], None]]:
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda action: signal.signal(signal.SIGUSR1, lambda *_: action()) and None
    signal.signal(signal.SIGUSR1, before)


def signal_in_get(runner: ClientRunner, broker: RouterBroker) -> threading.Thread:
    """Send this thread a signal once it sleeps in a ``get``."""
    me = threading.get_ident()

    def send() -> None:
        broker.wait_for(lambda fake: fake.waits)
        loop, end = runner._loop, time.monotonic() + DEADLINE
        while loop is not None and not loop._sleeping and time.monotonic() < end:
            os.sched_yield()
        signal.pthread_kill(me, signal.SIGUSR1)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def test_an_interrupted_wait_leaves_everything_in_order(
    make_runner: MakeRunner, broker: RouterBroker, signals: Any
) -> None:
    """Ctrl-C in get(): the call is forgotten, and the client continues."""

    def interrupt() -> None:
        raise Interrupt

    signals(interrupt)
    runner = make_runner(broker.address)
    runner.send(submit(runner, "j1")).wait()
    loop = runner._loop
    thread = signal_in_get(runner, broker)
    with pytest.raises(Interrupt):
        runner.ask(runner.new_call("get", ids=["j1"], timeout=DEADLINE)).wait()
    thread.join(DEADLINE)
    broker.wait_for(lambda fake: not fake.waits)
    runner.send(submit(runner, "j2")).wait()
    assert runner._loop is loop


def test_a_signal_handler_may_submit_while_its_thread_waits(
    make_runner: MakeRunner, broker: RouterBroker, signals: Any
) -> None:
    runner = make_runner(broker.address)
    runner.send(submit(runner, "j1")).wait()

    def submit_from_handler() -> None:
        runner.send(submit(runner, "from-handler")).wait()
        broker.finish("j1", "succeeded", "msgpack", b"1")

    signals(submit_from_handler)
    thread = signal_in_get(runner, broker)
    row = runner.ask(runner.new_call("get", ids=["j1"], timeout=DEADLINE)).wait()
    thread.join(DEADLINE)
    assert row[3] == b"1"
    assert "from-handler" in broker.broker.jobs


def test_a_signal_handler_may_close_the_client_whose_thread_waits(
    make_runner: MakeRunner, broker: RouterBroker, signals: Any
) -> None:
    runner = make_runner(broker.address)
    runner.send(submit(runner, "j1")).wait()
    signals(runner.close)
    thread = signal_in_get(runner, broker)
    with pytest.raises(BrokerUnavailable, match="closed"):
        runner.ask(runner.new_call("get", ids=["j1"], timeout=DEADLINE)).wait()
    thread.join(DEADLINE)
    broker.wait_for(lambda fake: "Kbai" in fake.kinds())


def test_closing_ends_the_wait_of_another_thread(
    make_runner: MakeRunner, broker: RouterBroker
) -> None:
    runner = make_runner(broker.address)
    runner.send(submit(runner, "j1")).wait()
    errors: list[Exception] = []

    def wait() -> None:
        try:
            runner.ask(runner.new_call("get", ids=["j1"], timeout=None)).wait()
        except BrokerUnavailable as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    broker.wait_for(lambda fake: fake.waits)
    runner.close(DEADLINE)
    thread.join(DEADLINE)
    assert len(errors) == 1


def test_a_broker_that_comes_later_gets_the_job(make_runner: MakeRunner) -> None:
    """Unsent messages are kept until the deadline."""
    address = free_address()
    runner = make_runner(address)
    job = submit(runner, "j1")
    runner.begin(job)
    broker = RouterBroker(address=address)
    try:
        runner.wait(job)
        assert job.error is None
        assert list(broker.broker.jobs) == ["j1"]
    finally:
        broker.stop()


def test_a_broker_that_never_comes_is_unavailable_at_the_deadline(make_runner: MakeRunner) -> None:
    runner = make_runner(free_address())
    begin = time.monotonic()
    with pytest.raises(BrokerUnavailable) as caught:
        runner.send(submit(runner, "j1", timeout=0.3)).wait()
    assert 0.25 < time.monotonic() - begin < 5.0
    assert caught.value.job_id == "j1"
    assert not caught.value.maybe_accepted


def test_a_broker_that_does_not_answer_may_have_the_job(
    make_runner: MakeRunner, broker: RouterBroker
) -> None:
    broker.broker.hold.add("j1")
    runner = make_runner(broker.address)
    with pytest.raises(BrokerUnavailable) as caught:
        runner.send(submit(runner, "j1", timeout=0.3)).wait()
    assert caught.value.maybe_accepted


def test_waiting_goes_on_over_a_restart_of_the_broker(make_runner: MakeRunner) -> None:
    """The transport reports the lost connection: no interval has to pass."""
    first = RouterBroker()
    runner = make_runner(first.address, heartbeat=100.0, heartbeat_timeout=1000.0)
    runner.send(submit(runner, "j1")).wait()
    call = runner.new_call("get", ids=["j1"], timeout=DEADLINE)
    runner.begin(call)
    first.wait_for(lambda broker: broker.waits)
    first.stop()
    state = first.broker
    state.restart()
    state.finish("j1", "succeeded", "msgpack", b"1")
    second = RouterBroker(state, first.address)
    try:
        runner.wait(call)
        assert list(call.answers) == [["j1", "succeeded", "msgpack", b"1"]]
    finally:
        second.stop()


def test_a_silent_broker_gets_a_new_connection(
    make_runner: MakeRunner, broker: RouterBroker
) -> None:
    runner = make_runner(broker.address, heartbeat=0.1, heartbeat_timeout=0.3)
    runner.send(submit(runner, "j1")).wait()
    peers = len(broker.broker.peers)
    with broker.lock:
        broker.broker.silent = True
    job = submit(runner, "j2")
    runner.begin(job)
    broker.wait_for(lambda fake: fake.kinds().count("Inform") >= 2)
    with broker.lock:
        broker.broker.silent = False
    runner.wait(job)
    assert job.error is None
    assert len(broker.broker.peers) > peers


@pytest.fixture
def standby(broker: RouterBroker) -> Iterator[RouterBroker]:
    """A second broker of the store that ``broker`` owns, with the same jobs."""
    owner = OwnerInfo(1, ACTIVE, broker.address, "", "s1")
    shared = FakeBroker(jobs=broker.broker.jobs, results=broker.broker.results)
    broker.broker.owner, shared.owner = owner, owner._replace(role=STANDBY)
    standby = RouterBroker(shared)
    yield standby
    standby.stop()


def test_an_owner_that_a_standby_names_is_connected_to(
    make_runner: MakeRunner, broker: RouterBroker, standby: RouterBroker
) -> None:
    runner = make_runner(standby.address)
    runner.send(submit(runner, "j1")).wait()
    assert "Request" not in standby.broker.kinds()
    assert list(broker.broker.jobs) == ["j1"]


@pytest.mark.parametrize("known", [True, False])
def test_a_wait_goes_on_when_a_standby_takes_over(
    make_runner: MakeRunner, broker: RouterBroker, standby: RouterBroker, *, known: bool
) -> None:
    """The owner is silent, and its connection stays; known: as one of the addresses."""
    runner = make_runner(*([broker.address] if known else []), standby.address)
    runner.send(submit(runner, "j1")).wait()
    broker.broker.silent = True
    call = runner.new_call("get", ids=["j1"], timeout=DEADLINE)
    runner.begin(call)
    job = submit(runner, "j2")
    runner.begin(job)
    broker.wait_for(lambda silent: silent.kinds()[-1] == "Request")
    news = OwnerInfo(2, ACTIVE, standby.address, "", "s1")
    standby.do(lambda: standby.broker.own(news))
    runner.wait(job)
    assert job.error is None
    standby.finish("j1", "succeeded", "msgpack", b"1")
    assert runner.ask(call).wait() == ["j1", "succeeded", "msgpack", b"1"]


def test_a_result_that_is_late_is_a_timeout(make_runner: MakeRunner, broker: RouterBroker) -> None:
    runner = make_runner(broker.address)
    runner.send(submit(runner, "j1")).wait()
    with pytest.raises(ResultTimeout):
        runner.ask(runner.new_call("get", ids=["j1"], timeout=0.2)).wait()
    broker.wait_for(lambda fake: not fake.waits)


def test_a_call_left_early_is_forgotten_by_the_broker(
    make_runner: MakeRunner, broker: RouterBroker
) -> None:
    runner = make_runner(broker.address)
    runner.send(submit(runner, "j1")).wait()
    call = runner.new_call("get", ids=["j1", "nobody"], timeout=None)
    runner.begin(call)

    def first_answer() -> Steps[bool]:
        return (yield News([call], DEADLINE))

    assert runner.run(first_answer()).wait()
    assert [row[0] for row in call.answers] == ["nobody"]
    runner.forget(call)
    broker.wait_for(lambda fake: not fake.waits)


def test_a_notice_returns_when_it_was_sent(make_runner: MakeRunner, broker: RouterBroker) -> None:
    runner = make_runner(broker.address)
    frames = Publish("p1", "topic", None, b"x").frames()
    runner.send(OneWayMessage(frames, id="p1", deadline=runner.deadline(DEADLINE))).wait()
    broker.wait_for(lambda fake: "Publish" in fake.kinds())


# Coroutines


def test_coroutines_submit_and_wait(make_runner: MakeRunner, broker: RouterBroker) -> None:
    runner = make_runner(broker.address)

    async def one(n: int) -> bytes:
        await runner.send(submit(runner, f"j{n}"))
        broker.finish(f"j{n}", "succeeded", "msgpack", b"%d" % n)
        row = await runner.ask(runner.new_call("get", ids=[f"j{n}"], timeout=DEADLINE))
        return bytes(row[3])

    async def main() -> list[bytes]:
        return await asyncio.wait_for(asyncio.gather(*map(one, range(50))), DEADLINE)

    assert asyncio.run(main()) == [b"%d" % n for n in range(50)]


def test_a_cancelled_coroutine_forgets_its_call(
    make_runner: MakeRunner, broker: RouterBroker
) -> None:
    runner = make_runner(broker.address)
    runner.send(submit(runner, "j1")).wait()

    async def main() -> None:
        call = runner.new_call("get", ids=["j1"], timeout=None)
        task = asyncio.ensure_future(runner.ask(call))
        await asyncio.to_thread(broker.wait_for, lambda fake: fake.waits)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    broker.wait_for(lambda fake: not fake.waits)


def test_answers_come_one_by_one_to_a_coroutine(
    make_runner: MakeRunner, broker: RouterBroker
) -> None:
    runner = make_runner(broker.address)

    async def main() -> list[Any]:
        call = runner.new_call("subscribe", {"topics": ["a"]}, timeout=None)
        runner.begin(call)
        assert await runner.await_for(News([call], DEADLINE))
        confirmed = call.answers.popleft()
        frames = Publish("p1", "abc", None, b"x").frames()
        await runner.send(OneWayMessage(frames, id="p1", deadline=runner.deadline(DEADLINE)))
        assert await runner.await_for(News([call], DEADLINE))
        return [confirmed, call.answers.popleft()]

    assert asyncio.run(main()) == [None, ["abc", "", b"x"]]


# Ends


def test_closing_fails_what_is_open(make_runner: MakeRunner, broker: RouterBroker) -> None:
    broker.broker.hold.add("j1")
    runner = make_runner(broker.address)
    job = submit(runner, "j1")
    runner.begin(job)
    broker.wait_for(lambda fake: "Request" in fake.kinds())
    runner.close(DEADLINE)
    runner.wait(job)
    assert isinstance(job.error, BrokerUnavailable)
    assert job.error.maybe_accepted
    with pytest.raises(BrokerUnavailable, match="closed"):
        runner.send(submit(runner, "j2")).wait()
    broker.wait_for(lambda fake: "Kbai" in fake.kinds())


def test_closing_twice_and_unused_is_legal(make_runner: MakeRunner) -> None:
    runner = make_runner("tcp://127.0.0.1:1")
    runner.close()
    runner.close()


@pytest.mark.parametrize("alone", [True, False])
def test_an_error_inside_fails_what_is_open_and_the_next_use_starts_anew(
    alone: bool, make_runner: MakeRunner, broker: RouterBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = make_runner(broker.address)
    runner.send(submit(runner, "j1")).wait()

    def explode(*_: object) -> None:
        raise RuntimeError("a bug")

    loop = runner._loop
    assert loop is not None
    monkeypatch.setattr(loop.machine, "begin", explode)
    job = submit(runner, "j2")
    if alone:
        with pytest.raises(BrokerUnavailable):
            runner.send(job).wait()
    else:
        runner.begin(job)
        runner.wait(job)
        assert isinstance(job.error, BrokerUnavailable)
    runner.send(submit(runner, "j3")).wait()
    assert "j3" in broker.broker.jobs


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_parent_and_child_both_go_on_after_a_fork(broker: RouterBroker) -> None:
    """Pre-forking web servers: the child reconnects, the parent is not affected."""
    done = _run(_FORKING, broker.address)
    assert done.stdout.split() == ["child", "True", "parent", "True", "0"]
    assert {"before", "in-child", "in-parent"} <= set(broker.broker.jobs)
    assert done.stderr == ""


_PRELUDE = """
import os, sys, threading
from eventmq.client.requests import PendingSubmit
from eventmq.client.client import ClientRunner, Transport
from eventmq.clock import SystemClock
from eventmq.wire.commands import Request

runner = ClientRunner(lambda: Transport([sys.argv[1]]), clock=SystemClock())

def submit(job_id, timeout=20.0):
    frames = Request(job_id, "default", "ack-requested", b"body").frames()
    return PendingSubmit(frames, id=job_id, deadline=runner.deadline(timeout))
"""

_FORKING = """
runner.send(submit("before")).wait()
pid = os.fork()
if pid == 0:
    job = submit("in-child")
    runner.send(job).wait()
    print("child", job.done, flush=True)
    sys.exit(0)
_, status = os.waitpid(pid, 0)
job = submit("in-parent")
runner.send(job).wait()
print("parent", job.done, status, flush=True)
"""

_EXITING = """
def wait():
    try:
        runner.send(submit("held", 100.0)).wait()
    except Exception:
        pass

threading.Thread(target=wait, daemon=True).start()
runner.send(submit("sent")).wait()
runner.begin(submit("held-too", 100.0))
print("end", flush=True)
"""


def _run(program: str, address: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _PRELUDE + program, address],
        capture_output=True, text=True, timeout=DEADLINE, check=False,
    )  # fmt: skip


def test_a_process_with_open_requests_ends_promptly(broker: RouterBroker) -> None:
    broker.broker.hold.update({"held", "held-too"})
    begin = time.monotonic()
    done = _run(_EXITING, broker.address)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "end\n"
    assert done.stderr == ""
    assert time.monotonic() - begin < 10.0


def test_a_process_whose_broker_is_away_ends_promptly() -> None:
    begin = time.monotonic()
    done = _run("runner.begin(submit('never', 100.0))", free_address())
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert time.monotonic() - begin < 10.0


def test_a_client_that_is_dropped_does_no_io(broker: RouterBroker) -> None:
    """There is no I/O in finalisers: sockets close at the exit, or by close."""
    runner = ClientRunner(lambda: Transport([broker.address]), clock=SystemClock())
    runner.send(submit(runner, "j1")).wait()
    loop = runner._loop
    assert loop is not None
    del runner
    gc.collect()
    assert not loop.ended
    loop.stop(DEADLINE)
    assert loop.ended
