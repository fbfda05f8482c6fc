"""Seeds of the simulation: every guarantee holds, whatever the faults."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.programs import run

#: Seeds that are run. Bugs that earlier seeds found have tests of their own in
#: tests/unit/broker/test_faults.py and tests/unit/broker/test_events.py.
SEEDS = 1000

#: Seeds that are run with brokers that share a store.
SHARED_SEEDS = 300

#: Seeds of longer runs that failed once.
FOUND_SHARED = (2157, 8943)
FOUND = (121_817, 135_429, 1_795_344_131, 1_795_346_627_692, 1_795_348_208_351)


@pytest.mark.timeout(300)
def test_a_thousand_seeds_break_no_guarantee() -> None:
    """No job is lost, none appears from nowhere, and all end soon after the last fault."""
    done = run("--seeds", str(SEEDS), "--workers", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(rf"{SEEDS} seeds from 1: 0 failed; .*\n", done.stdout)


@pytest.mark.timeout(300)
def test_seeds_with_brokers_that_share_a_store_break_no_guarantee() -> None:
    """No two epochs store interleaved; no fault of brokers or database makes a job run twice."""
    done = run("--shared", "--seeds", str(SHARED_SEEDS), "--workers", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(rf"{SHARED_SEEDS} seeds from 1: 0 failed; .*\n", done.stdout)


@pytest.mark.parametrize("seed", FOUND_SHARED)
def test_a_shared_seed_that_failed_once_passes(seed: int) -> None:
    """2157: a sign that came late took the store from an owner that was there.

    8943: parts of a delivery by one owner were taken for those of another one's.
    """
    done = run("--shared", "--first", str(seed), "--seeds", "1")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("seed", FOUND)
def test_a_seed_that_failed_once_passes(seed: int) -> None:
    """The page docs/lab/reliability.rst says what each of them found."""
    done = run("--first", str(seed), "--seeds", "1")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_seed_gives_the_same_history_each_time() -> None:
    """So a failure can be followed line by line, on any machine."""
    first, second = run("--explain", "7"), run("--explain", "7")
    assert first.stdout == second.stdout
    assert "nothing was found" in first.stdout


def test_a_run_resumes_from_its_saved_progress(tmp_path: Path) -> None:
    """Seeds that were run are not run again, and still count in the closing line."""
    path = tmp_path / "note.json"
    whole = run("--seeds", "6", "--resume", str(path)).stdout
    saved = json.loads(path.read_text())
    assert saved["next"] == 7
    again = run("--seeds", "6", "--resume", str(path)).stdout
    assert whole.rsplit(" in ", 1)[0] == again.rsplit(" in ", 1)[0]
    assert run("--seeds", "7", "--resume", str(path)).returncode != 0, (
        "the file has the progress of other seeds"
    )
