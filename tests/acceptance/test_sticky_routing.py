"""Jobs of a key meet the same worker, with real brokers and workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.system import DEADLINE, System, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: So many that it is next to impossible that one of two workers gets all of them.
KEYS = 20


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    system = System(tmp_path)
    (tmp_path / "eventmq.toml").write_text('[queue_routing_strategies]\ndefault = "sticky"\n')
    yield system
    system.stop()


def run_all(system: System, numbers: range) -> dict[str, list[str]]:
    """Run jobs one by one, with keys in turn; return the worker of each."""
    app = system.app()
    for number in numbers:
        headers = {"routing-key": f"tenant-{number % KEYS}"}
        app.send("survivor.work", (number,), headers=headers).get(timeout=DEADLINE)
    return system.executed_by()


def test_a_tenant_stays_with_its_worker_and_moves_when_that_is_gone(system: System) -> None:
    system.broker()
    first, second = system.worker(), system.worker()
    ran = run_all(system, range(3 * KEYS))
    owners = [{ran[str(number)][0] for number in range(k, 3 * KEYS, KEYS)} for k in range(KEYS)]
    assert all(len(owner) == 1 for owner in owners)
    assert {owner for pair in owners for owner in pair} == {first.who, second.who}
    first.kill9()
    again = range(3 * KEYS, 4 * KEYS)
    ran = run_all(system, again)
    until(lambda: len(system.executed()) == 4 * KEYS, "everything ran")
    assert {who for number in again for who in ran[str(number)]} == {second.who}
