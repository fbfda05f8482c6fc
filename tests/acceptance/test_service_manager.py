"""Broker, worker, scheduler and gateway under a service manager: their notifications and times."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.service_manager import ServiceManager
from tests.support.shell import DEADLINE, Shell

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.shell import Program

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="abstract names are Linux's")

SHOP = """
from eventmq import EventMQ

app = EventMQ("shop")


@app.task
def add(a, b):
    return a + b
"""

#: Seconds of the watchdog.
WATCHDOG = 0.4

COMMANDS = {
    "broker": (),
    "worker": ("-A", "shop", "-c", "1"),
    "beat": ("-A", "shop"),
    "gateway": ("majordomo", "-A", "shop", "--bind", "tcp://127.0.0.1:0"),
}


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    (tmp_path / "shop.py").write_text(SHOP)
    yield shell
    shell.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[ServiceManager]:
    manager = ServiceManager(tmp_path / "notify", abstract=True)
    yield manager
    manager.close()


def start(shell: Shell, manager: ServiceManager, name: str) -> Program:
    """Start a broker, and a second process if the service manager watches another one."""
    broker = shell.start("broker", "--bind", "tcp://127.0.0.1:0") if name != "broker" else None
    if broker is not None:
        shell.environ["EVENTMQ_BROKER"] = broker.ready()["main"]
    shell.environ |= manager.environ(WATCHDOG)
    bind = () if broker is not None else ("--bind", "tcp://127.0.0.1:0")
    return shell.start(name, *COMMANDS[name], *bind)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_service_tells_its_manager_how_it_is(
    shell: Shell, manager: ServiceManager, name: str
) -> None:
    """READY after its line, signs of life, RELOADING and READY again at SIGHUP, STOPPING."""
    program = start(shell, manager, name)
    ready = manager.until("READY", DEADLINE)
    assert program.line().startswith("ready")
    assert ready["STATUS"]
    for _ in range(3):
        manager.until("WATCHDOG", DEADLINE)
    program.process.send_signal(signal.SIGHUP)
    assert manager.until("RELOADING", DEADLINE)["MONOTONIC_USEC"].isdigit()
    manager.until("READY", DEADLINE)
    manager.until("WATCHDOG", DEADLINE)
    program.process.send_signal(signal.SIGTERM)
    manager.until("STOPPING", DEADLINE)
    assert program.wait() == 0


def test_a_worker_whose_new_code_is_broken_is_ready_with_the_old_one(
    shell: Shell, manager: ServiceManager
) -> None:
    """Its status has the reason."""
    program = start(shell, manager, "worker")
    manager.until("READY", DEADLINE)
    (shell.folder / "shop.py").write_text("raise ImportError('half of it is missing')")
    program.process.send_signal(signal.SIGHUP)
    manager.until("RELOADING", DEADLINE)
    status = manager.until("READY", DEADLINE)["STATUS"]
    assert "half of it is missing" in status
    manager.until("WATCHDOG", DEADLINE)


def test_a_frozen_broker_gives_no_sign_of_life(shell: Shell, manager: ServiceManager) -> None:
    program = start(shell, manager, "broker")
    manager.until("WATCHDOG", DEADLINE)
    program.process.send_signal(signal.SIGSTOP)
    while manager.notifications(5 * WATCHDOG):  # datagrams that were in flight
        pass
    program.process.send_signal(signal.SIGCONT)
    manager.until("WATCHDOG", DEADLINE)
