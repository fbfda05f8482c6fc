"""What commands of the journal change in a process, undone."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from eventmq_contrib.journal import command as journal_command

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def quiet_signals() -> Iterator[None]:
    """Give signals back that a command took."""
    taken = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    old = {number: signal.getsignal(number) for number in taken}
    yield
    for number, handler in old.items():
        signal.signal(number, handler)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a journal that reads a store wait for less for a broker that does not answer."""
    monkeypatch.setattr(journal_command, "TIMEOUT", 0.3)
