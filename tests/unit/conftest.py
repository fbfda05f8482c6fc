"""What tests of one part share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.broker_harness import Broker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """Return a broker's core with a store of its own, and no socket."""
    broker = Broker(tmp_path)
    yield broker
    broker.close()
