"""Seeds of the simulation: what is promised is kept, whatever goes wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.programs import run

#: Seeds that found a bug once, when the workload was as it was then, and new ones like them: the
#: distilled cases are in tests/unit/broker/test_faults.py and tests/unit/broker/test_events.py.
SEEDS = 1000

#: Seeds of longer runs that have failed once.
FOUND = (121_817, 135_429, 1_795_344_131, 1_795_346_627_692, 1_795_348_208_351)


@pytest.mark.timeout(300)
def test_a_thousand_seeds_keep_what_is_promised() -> None:
    """No job is lost, none is made up, and all is done soon after the last fault."""
    done = run("--seeds", str(SEEDS), "--workers", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(rf"{SEEDS} seeds from 1: 0 failed; .*\n", done.stdout)


@pytest.mark.parametrize("seed", FOUND)
def test_what_a_seed_has_found_stays_mended(seed: int) -> None:
    """The page "What was tried" says what it was."""
    done = run("--first", str(seed), "--seeds", "1")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_seed_is_always_the_same() -> None:
    """What it prints can be followed line by line, on any machine."""
    first, second = run("--explain", "7"), run("--explain", "7")
    assert first.stdout == second.stdout
    assert "nothing was found" in first.stdout


def test_a_run_goes_on_where_it_was(tmp_path: Path) -> None:
    """Seeds that were run are not run again, and count."""
    note = tmp_path / "note.json"
    whole = run("--seeds", "6", "--resume", str(note)).stdout
    kept = json.loads(note.read_text())
    assert kept["next"] == 7
    again = run("--seeds", "6", "--resume", str(note)).stdout
    assert whole.rsplit(" in ", 1)[0] == again.rsplit(" in ", 1)[0]
    assert run("--seeds", "7", "--resume", str(note)).returncode != 0, "it is of other seeds"
