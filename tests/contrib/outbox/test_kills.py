"""Kills of the application, the relays and the broker lose nothing and send nothing too much."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.contrib.outbox.kills import run

if TYPE_CHECKING:
    from tests.support.postgres import Server


def test_after_twelve_kills_each_order_has_run_and_no_order_that_was_rolled_back(
    postgres: Server,
) -> None:
    """With a thousand: ``python -m tests.contrib.outbox.kills --kills 1000``."""
    outcome = run(12, 7, postgres)
    assert outcome.orders > 100
    assert [] == outcome.lost
    assert [] == outcome.rolled_back
    assert 0 == outcome.kept
