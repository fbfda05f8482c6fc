"""Network faults while jobs are submitted and run: none is lost, and service resumes soon.

``python -m benchmarks.faults network`` repeats them, and for longer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.faults.network import FAULTS, SERVING, Network

if TYPE_CHECKING:
    from pathlib import Path


def test_nothing_is_lost_when_the_network_breaks(tmp_path: Path) -> None:
    """Each fault once, for longer than the heartbeat timeout; a new job is done soon after it."""
    with Network(tmp_path) as network:
        outcomes = [network.inject(fault, 0.7) for fault in FAULTS]
        lost, _ = network.finish()
    assert lost == set()
    slow = [outcome for outcome in outcomes if outcome.served > SERVING]
    assert slow == []
