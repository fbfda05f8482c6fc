"""Messages to a service manager: over a real socket, at a path and at an abstract name."""

from __future__ import annotations

import _socket
import errno
import logging
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from eventmq.app import EventMQ
from eventmq.cli import gateway
from eventmq.notify import NEVER, Notifier
from tests.support.service_manager import ServiceManager

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="abstract names are Linux's")

#: Seconds that anything may take.
DEADLINE = 20.0


@pytest.fixture(params=[False, True], ids=["path", "abstract"])
def manager(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ServiceManager]:
    manager = ServiceManager(tmp_path / "notify", abstract=request.param)
    yield manager
    manager.close()


def test_ready_reloading_and_stopping_are_told(manager: ServiceManager) -> None:
    notifier = Notifier(manager.environ())
    notifier.ready("serves\ntwo lines")
    notifier.reloading("reads")
    notifier.stopping("ends")
    assert manager.notifications(0.0) == {"READY": "1", "STATUS": "serves two lines"}
    reloading = manager.notifications(0.0)
    assert (reloading["RELOADING"], reloading["MONOTONIC_USEC"].isdigit()) == ("1", True)
    assert manager.notifications(0.0) == {"STOPPING": "1", "STATUS": "ends"}


def test_without_a_descriptor_nothing_is_told_and_nothing_raised(
    manager: ServiceManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Peers of a broker may have all that it may have: it goes on."""

    def full(*_: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    notifier = Notifier(manager.environ(watchdog=10.0))
    with monkeypatch.context() as patch:
        patch.setattr(_socket, "socket", full)
        notifier.turn(100.0)
    notifier.turn(105.0)
    assert manager.notifications(0.0) == {"WATCHDOG": "1"}


def test_a_sign_of_life_comes_at_half_of_the_time(manager: ServiceManager) -> None:
    notifier = Notifier(manager.environ(watchdog=10.0))
    assert notifier.every == 5.0
    messages = []
    for now in (100.0, 104.9, 105.0, 109.0, 110.5, 115.4, 115.5):
        notifier.turn(now)
        messages.append(manager.notifications(0.0))
    sign = {"WATCHDOG": "1"}
    assert messages == [sign, {}, sign, {}, sign, {}, sign]


@pytest.mark.parametrize(
    "environ",
    [
        {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "soon"}, {},
        {"WATCHDOG_USEC": "1000", "WATCHDOG_PID": str(os.getpid() + 1)},
    ],
    ids=["none", "no number", "not set", "of another process"],
)  # fmt: skip
def test_without_a_watchdog_there_are_no_signs_of_life(
    manager: ServiceManager, environ: dict[str, str]
) -> None:
    notifier = Notifier({**manager.environ(), **environ})
    notifier.turn(1e9)
    assert (notifier.every, manager.notifications(0.0)) == (NEVER, {})


def test_what_reads_nothing_is_never_waited_for(manager: ServiceManager) -> None:
    """A full socket, and one that is gone, cost nothing but the message."""
    notifier = Notifier(manager.environ())
    for _ in range(5000):
        notifier.tell(status="x" * 200)
    manager.drain()
    manager.close()
    notifier.ready("nobody hears it")


@pytest.mark.parametrize("address", ["vsock:2:1234", "relative"])
def test_an_address_that_cannot_be_used_is_said_once(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1000"})
    notifier.ready("fine")
    notifier.turn(1.0)
    [record] = caplog.records
    assert (record.levelno, address in record.getMessage()) == (logging.WARNING, True)


def test_a_broker_whose_loop_is_stuck_gives_no_sign_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other threads do not count; it resumes when the loop does."""
    manager = ServiceManager(tmp_path / "notify")
    app = EventMQ("shop", bind="tcp://127.0.0.1:0", data_dir=str(tmp_path / "data"))
    runner = app.make_broker()
    runner.notifier = Notifier(manager.environ(watchdog=0.1))
    stuck, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        stuck.set()
        assert go_on.wait(DEADLINE)

    runner.bind()
    thread = threading.Thread(target=runner.run)
    thread.start()
    manager.until("WATCHDOG", DEADLINE)
    monkeypatch.setattr(runner, "_verify", hang)
    assert stuck.wait(DEADLINE)
    manager.drain()
    assert manager.notifications(0.5) == {}  # ten times as long as it usually takes
    go_on.set()
    manager.until("WATCHDOG", DEADLINE)
    runner.stop()
    assert manager.until("STOPPING", DEADLINE)["STATUS"] == "ending"
    thread.join(DEADLINE)
    manager.close()
    app.close()


class StuckGateway:
    """Has two loops, of which the second one stops after some turns."""

    def __init__(self, ended: threading.Event) -> None:
        self._ended, self._calls = ended, 0

    def running(self) -> bool:
        return True

    def turns(self) -> Any:
        self._calls += 1
        if self._calls == 30:
            self._ended.set()
        return self._calls, min(self._calls, 10)


def test_a_gateway_with_one_stuck_loop_gives_no_more_signs_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = ServiceManager(tmp_path / "notify")
    monkeypatch.setattr(gateway, "CHECK_INTERVAL", 0.001)
    notifier = Notifier(manager.environ(watchdog=0.000_002))
    ended = threading.Event()
    gateway._serve(StuckGateway(ended), ended, notifier)  # type: ignore[arg-type]
    signs = 0
    while manager.notifications(0.0):
        signs += 1
    manager.close()
    assert signs == 10
