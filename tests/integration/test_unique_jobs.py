"""Unique keys from end to end: the page about them, and an app whose broker goes and comes."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "tasks" / "unique-jobs.rst"


def test_the_examples_of_the_page_do_what_they_say() -> None:
    """All blocks, one after the other, as a reader would type them."""
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^\.\. code-block:: python\n\n((?:(?: {3}.*)?\n)+)", text, re.MULTILINE)
    assert len(blocks) == 7
    names: dict[str, object] = {"__name__": "shop"}
    for block in blocks:
        exec(compile(dedent(block), str(PAGE), "exec"), names)
