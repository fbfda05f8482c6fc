from __future__ import annotations

from pathlib import Path

from eventmq.cli.page import document

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "cli.rst"


def test_the_reference_page_is_what_the_commands_say() -> None:
    """After a change: ``Path("docs/reference/cli.rst").write_text(document())``."""
    assert document() == PAGE.read_text(encoding="utf-8")
