"""Before the first release the changelog is one entry; afterwards it is fragments."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
ENTRY = "+first.release.rst"
#: A version and its date, as towncrier writes them.
RELEASED = re.compile(r"^EventMQ \d+\.\d+", re.MULTILINE)


def test_one_entry_says_what_the_first_release_is() -> None:
    """Once there is a release, its entry and the page's reference to it are gone."""
    changes = {path.name for path in (ROOT / "changes").iterdir() if path.suffix == ".rst"}
    page = (ROOT / "docs" / "changelog.rst").read_text("utf-8")
    if RELEASED.search((ROOT / "CHANGELOG.rst").read_text("utf-8")):
        assert ENTRY not in changes
        assert ENTRY not in page
    else:
        assert {ENTRY} == changes
        assert f"../changes/{ENTRY}" in page
