"""Runs the code of guides, block by block, as a reader would type it."""

from __future__ import annotations

import re
import sys
from textwrap import dedent
from types import ModuleType

import pytest

from tests.support.page_files import ROOT

BLOCK = re.compile(r"^\.\. code-block:: python\n\n((?:(?: {3}.*)?\n)+)", re.MULTILINE)

#: Page -> how many blocks it has. Each page has assertions of its own.
PAGES = {
    "explanation/architecture.rst": 1,
    "explanation/performance.rst": 1,
    "howto/tasks/arguments-and-results.rst": 14,
    "howto/tasks/order-jobs.rst": 3,
    "howto/operate/replay-failed-jobs.rst": 2,
    "howto/tasks/retries.rst": 5,
    "howto/operate/several-brokers.rst": 1,
    "howto/tasks/stop-jobs.rst": 5,
    "howto/operate/troubleshooting.rst": 5,
    "howto/operate/upgrade.rst": 1,
    "index.rst": 1,
    "overview.rst": 1,
}


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_guide_does_what_the_guide_says(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    blocks = list(BLOCK.finditer(text))
    assert len(blocks) == PAGES[page]
    module = sys.modules["guide"] = ModuleType("guide")
    try:
        for block in blocks:
            padding = "\n" * text[: block.start(1)].count("\n")
            exec(compile(padding + dedent(block[1]), page, "exec"), vars(module))
    finally:
        if "app" in vars(module):
            vars(module)["app"].close()
        del sys.modules["guide"]
