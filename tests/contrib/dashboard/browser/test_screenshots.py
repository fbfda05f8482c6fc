"""The command takes the screenshots that the documentation shows; no pixels are compared."""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING

from tests.contrib.dashboard.browser.screenshots import FOLDER, MAX_SIZE, SHOTS, take
from tests.support.page_files import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser


def size_of(path: Path) -> tuple[int, int]:
    """Return width and height of a PNG."""
    head = path.read_bytes()[:24]
    assert head.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", head[16:])
    return width, height


def test_the_screenshots_are_taken(chromium: Browser, tmp_path: Path) -> None:
    take(chromium, tmp_path)
    for name, (*_, width, height) in SHOTS.items():
        assert (width, height) == size_of(tmp_path / name)
        assert (tmp_path / name).stat().st_size <= MAX_SIZE


def test_the_documentation_shows_them() -> None:
    page = (ROOT / "docs" / "howto" / "operate" / "dashboard.rst").read_text("utf-8")
    named = re.findall(r"_static/dashboard/([\w.]+)", page)
    assert sorted(SHOTS) == sorted(named) == sorted(path.name for path in FOLDER.iterdir())
    for name, (*_, width, height) in SHOTS.items():
        assert (width, height) == size_of(FOLDER / name), "take them again"
        assert (FOLDER / name).stat().st_size <= MAX_SIZE
