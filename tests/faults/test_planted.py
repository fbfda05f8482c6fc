"""Each fault that is planted in the code makes the test fail that guards against it."""

from __future__ import annotations

import pytest

from tests.faults.planted import FAULTS
from tests.support.programs import run

#: What a test raises that finds something else than it expects; ValueError where it unpacks.
EXPECTED = {"AssertionError", "Failed", "ValueError"}


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    """Return what became of the test of each fault, all of them tried by one process."""
    done = run(module="tests.faults.planted")
    assert done.returncode == 0, done.stderr
    return dict(line.split("\t") for line in done.stdout.splitlines())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_caught(outcomes: dict[str, str], name: str) -> None:
    """By the test that says so; not because what plants it is broken."""
    assert outcomes[name] in {f"call failed {error}" for error in EXPECTED}, FAULTS[name].test
