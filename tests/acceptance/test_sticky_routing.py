"""Jobs of a key meet the same worker, with real brokers and workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.acceptance.system import DEADLINE, System, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    system = System(tmp_path)
    (tmp_path / "eventmq.toml").write_text('[queue_routing]\ndefault = "sticky"\n')
    yield system
    system.stop()


def run_all(system: System, numbers: range) -> dict[str, list[str]]:
    """Run one job after the other, with keys in turn; return who ran which."""
    app = system.app()
    for number in numbers:
        headers = {"routing-key": f"tenant-{number % 8}"}
        app.send("survivor.work", (number,), headers=headers).get(timeout=DEADLINE)
    return system.executed_by()


def test_a_tenant_stays_with_its_worker_and_moves_when_that_is_gone(system: System) -> None:
    system.broker()
    first, second = system.worker(), system.worker()
    ran = run_all(system, range(40))
    owners = [{ran[str(number)][0] for number in range(k, 40, 8)} for k in range(8)]
    assert all(len(owner) == 1 for owner in owners)
    assert {owner for pair in owners for owner in pair} == {first.who, second.who}
    first.kill9()
    ran = run_all(system, range(40, 56))
    until(lambda: len(system.executed()) == 56, "everything ran")
    assert {who for number in range(40, 56) for who in ran[str(number)]} == {second.who}
