"""Crashes at any byte that a broker writes: every job with a receipt is there.

``python -m benchmarks.faults crashes`` tries each byte; here are some, spread evenly.
"""

from __future__ import annotations

import pytest

from tests.faults.crashes import Lost, Tape


@pytest.fixture(scope="module")
def tape(tmp_path_factory: pytest.TempPathFactory) -> Tape:
    """Return the run of a script of 500 jobs, about a hundred commits."""
    return Tape(tmp_path_factory.mktemp("tape"), 500)


def test_a_log_cut_anywhere_has_its_complete_commits(tape: Tape) -> None:
    """Cut at the end or in the middle of a page: no commit is read in part, and none is missing."""
    points = list(tape.points())
    assert len(points) > 1500
    assert tape.check_cuts(points[::15]) > 100


def test_a_missing_page_undoes_its_commit(tape: Tape) -> None:
    """The pages of the last commit may be written in any order before its sync."""
    assert tape.holes(seed=1, number=15) == 15


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 1.0])
def test_a_broker_continues_after_a_crash(tape: Tape, share: float) -> None:
    """Jobs with a receipt end once; the others are sent again, and end too."""
    commits = int(share * (len(tape.ends) - 1))
    counted = tape.resume(commits)
    assert counted["confirmed"] == sum(n <= commits for n in tape.promises.confirmed.values())
    assert counted["twice"] <= 40, "no more than two chunks of 20 were in flight"


def test_a_crash_while_the_log_is_moved_loses_nothing(tape: Tape) -> None:
    """Some pages of the database are new, others old; the log has all of them."""
    assert tape.resume_torn(seed=1)["confirmed"] == len(tape.promises.confirmed)


def test_an_early_receipt_would_be_found(tape: Tape) -> None:
    """Test of the test: with receipts one commit earlier, jobs are missing."""
    commits = min(tape.promises.confirmed.values()) - 1
    confirmed = dict(tape.promises.confirmed)
    tape.promises.confirmed = {job_id: n - 1 for job_id, n in confirmed.items()}
    with pytest.raises(Lost, match="confirmed jobs are lost"):
        tape.resume(commits)
    tape.promises.confirmed = confirmed
