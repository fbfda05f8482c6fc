"""The simulation finds bugs that are put in on purpose."""

from __future__ import annotations

import pytest

from tests.simulation.teeth import BUGS
from tests.support.programs import run


@pytest.fixture(scope="module")
def found() -> dict[str, int]:
    """Return which seed found which bug."""
    done = run(module="tests.simulation.teeth")
    assert done.returncode == 0, done.stderr
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    return {name: int(seed) for seed, name, _ in rows}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_found(found: dict[str, int], name: str) -> None:
    """Within a few hundred seeds."""
    assert found[name] > 0, f"no seed finds that {name}"
