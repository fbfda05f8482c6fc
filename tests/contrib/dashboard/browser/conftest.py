"""One shop of processes for all tests of this folder, a browser per file, and tabs per test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.contrib.dashboard.browser.driving import OLGA, RITA, Shop, Tab, browsers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser


# Per file: while Playwright runs no other event loop can run in this process.
@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    yield from browsers()


@pytest.fixture(scope="package")
def _shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    shop = Shop(tmp_path_factory.mktemp("shop"))
    yield shop
    shop.close()


@pytest.fixture
def shop(chromium: Browser, _shop: Shop) -> Shop:
    """The shop; nothing is started where there is no browser."""
    return _shop


@pytest.fixture
def open_tab(chromium: Browser, shop: Shop) -> Iterator[Callable[..., Tab]]:
    """Call it for a browser of its own with one tab; options are those of the browser."""
    tabs: list[Tab] = []

    def open_tab(token: str = OLGA, url: str = "", **options: object) -> Tab:
        context = chromium.new_context(**{"reduced_motion": "reduce", **options})
        tab = Tab(context.new_page(), url or shop.url)
        tabs.append(tab)
        if token:
            tab.sign_in(token)
        return tab

    yield open_tab
    complaints = [each for tab in tabs for each in tab.complaints()]
    for tab in tabs:
        tab.page.context.close()
    assert [] == complaints


@pytest.fixture
def tab(open_tab: Callable[..., Tab]) -> Tab:
    """A tab of an operator."""
    return open_tab()


@pytest.fixture
def reader(open_tab: Callable[..., Tab]) -> Tab:
    """A tab of a user who only reads."""
    return open_tab(RITA)
