"""The simulation finds bugs that are planted on purpose."""

from __future__ import annotations

import pytest

from tests.simulation.teeth import BUGS
from tests.support.programs import run


@pytest.fixture(scope="module")
def seeds_by_bug() -> dict[str, int]:
    """Return for each bug the seed that found it."""
    done = run(module="tests.simulation.teeth")
    assert done.returncode == 0, done.stderr
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    return {name: int(seed) for seed, name, _ in rows}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(seeds_by_bug: dict[str, int], name: str) -> None:
    """Within `SEEDS` seeds."""
    assert seeds_by_bug[name] > 0, f"no seed finds that {name}"
