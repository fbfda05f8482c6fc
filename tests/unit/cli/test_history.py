"""What ``eventmq job`` makes of what the broker says."""

from __future__ import annotations

import pytest

from eventmq.cli.inspect import progress_of


@pytest.mark.parametrize(
    ("done", "total", "note", "text"),
    [
        (3, 10, "rows", "3/10 rows"),
        (3, None, "", "3"),
        (0.5, 1.0, "", "0.5/1"),
        (0, 0, "x", "0/0 x"),
    ],
)
def test_progress_is_one_text(done, total, note, text):
    assert progress_of({"done": done, "total": total, "note": note, "at": 1.0}) == text


def test_no_progress_is_nothing():
    assert progress_of(None) is None
