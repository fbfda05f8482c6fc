"""Peers that leave at any moment are removed, and do not affect others.

``python -m benchmarks.faults connections descriptors`` runs more of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.faults.load import Load
from tests.faults.shortage import FewDescriptors, descriptors
from tests.faults.visitors import KINDS, Visitors
from tests.support.system import System, until

if TYPE_CHECKING:
    from pathlib import Path

#: Visitors of each kind.
VISITS = 40


def test_peers_that_come_and_go_leave_nothing_behind(tmp_path: Path) -> None:
    """With all kinds of visitors jobs still run, and all descriptors are closed in the end."""
    system = System(tmp_path)
    try:
        broker = system.broker()
        system.worker()
        load = Load(system, part=20, ahead=100, submit_timeout=30.0)
        load.start()
        before = descriptors(broker.pid)
        with Visitors(system.address) as visitors:
            for _ in range(VISITS):
                for kind in KINDS:
                    visitors.come(kind)
            assert descriptors(broker.pid) >= before + 3 * VISITS
            load.wait_for_progress("among visitors")
        until(lambda: descriptors(broker.pid) <= before, "their descriptors come back")
        load.stop()
        done = {str(number) for number in load.confirmed}
        until(lambda: done <= system.executed().keys(), "every confirmed job was executed")
        assert load.compare(system.executed()) == (set(), 0)
    finally:
        system.stop()


def test_a_broker_without_a_free_descriptor_serves_those_it_has(tmp_path: Path) -> None:
    """Even while its store moves its log; when the others leave, new peers can connect."""
    with FewDescriptors(tmp_path) as system:
        system.inject(0.5)
        lost, twice = system.finish()
    assert (lost, twice) == (set(), 0)
    assert "only 256 descriptors are allowed, but 10000 peers may connect" in system.log()
