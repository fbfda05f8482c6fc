"""Each planted fault makes the test fail that guards against it."""

from __future__ import annotations

import pytest

from tests.faults.planted import FAULTS
from tests.support.programs import run

#: Exceptions of a test that finds a fault; ValueError comes from unpacking.
EXPECTED = {"AssertionError", "Failed", "ValueError"}


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    """Return the outcome of the test of each fault, all of them run by one process."""
    done = run(module="tests.faults.planted")
    assert done.returncode == 0, done.stderr
    return dict(line.split("\t") for line in done.stdout.splitlines())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_caught(outcomes: dict[str, str], name: str) -> None:
    """Its test fails, and not because the patch itself is broken."""
    assert outcomes[name] in {f"call failed {error}" for error in EXPECTED}, FAULTS[name].test
