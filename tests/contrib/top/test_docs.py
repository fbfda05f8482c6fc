"""The page of the documentation about ``eventmq top`` agrees with the program."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.support.page_files import ROOT, write_files
from tests.support.system import System

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.contrib.top.driving import Page

PAGE = (ROOT / "docs" / "howto" / "operate" / "dashboard.rst").read_text("utf-8")


def test_the_table_has_the_keys_of_the_program() -> None:
    """``enter`` is a key of Textual's table."""
    from textual.binding import Binding

    from eventmq_contrib.top.page import Top

    _, _, rest = PAGE.partition("\nKeys\n~~~~\n")
    table = rest[: rest.index("\n``p``")]
    named = set(re.findall(r"``([\w+]+|/)``", table)) | set("2345")
    keys = {each.key for each in Top.BINDINGS if isinstance(each, Binding)}
    assert (keys - {"slash"}) | {"/", "enter"} == named


def test_the_program_on_the_page_fills_the_page(tmp_path: Path, drive: Callable[..., None]) -> None:
    """With a broker and a worker as its commands start them; the overview is as shown there."""
    assert ["ops.py", "shop.py"] == write_files("howto/operate/dashboard.rst", tmp_path)
    block = PAGE[PAGE.index("     figure ") : PAGE.index("\nRates are")]
    figures = [line.strip()[:16].split("  ")[0].strip() for line in block.splitlines()[1:] if line]
    system = System(tmp_path)
    try:
        system.broker()
        system.start("worker", "-A", "shop", "--broker", system.address, "-c", "4")
        (tmp_path / "eventmq.toml").write_text(f'broker = "{system.address}"\n')
        app = system.app()

        async def story(page: Page) -> None:
            await page.shows("figure", "workers           1")
            for number in range(200):
                app.send("shop.send", (number,))
            await page.shows(*figures, "start delay 50 %  ≤")
            await page.press("5")
            await page.shows("shop.send", "succeeded")
            await page.press("6")
            await page.shows("shop.send", "ConnectionError: no answer")

        drive({"shop": system.app()}, story)
    finally:
        system.stop()
