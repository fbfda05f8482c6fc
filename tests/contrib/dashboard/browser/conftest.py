"""One browser and one shop of processes for all tests of this folder, and tabs per test."""

from __future__ import annotations

from importlib.resources import files
from itertools import count
from typing import TYPE_CHECKING

import pytest

from tests.contrib.dashboard.browser.driving import OLGA, RITA, Hold, Shop, Tab, browsers
from tests.support.postgres_fixtures import database_url, postgres

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser

__all__ = ["database_url", "postgres"]

_numbers = count()


# No test here runs an event loop in its thread, which Playwright has for as long as this.
@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    yield from browsers()


@pytest.fixture(scope="package")
def _shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    shop = Shop(tmp_path_factory.mktemp("shop"))
    yield shop
    shop.close()


@pytest.fixture
def shop(chromium: Browser, _shop: Shop) -> Iterator[Shop]:
    """The shop; nothing is started where there is no browser."""
    yield _shop
    _shop.start_again()


@pytest.fixture(scope="session")
def axe() -> str:
    """The program that looks for obstacles on a page."""
    try:
        return (files("axe_playwright_python") / "axe.min.js").read_text("utf-8")
    except ModuleNotFoundError:
        pytest.skip("needs axe: axe-playwright-python is not installed")


@pytest.fixture
def hold(shop: Shop) -> Iterator[Hold]:
    """Jobs that run until the test releases them, or ends."""
    hold = Hold(shop, f"hold-{next(_numbers)}")
    yield hold
    hold.release()


@pytest.fixture
def open_tab(chromium: Browser, shop: Shop) -> Iterator[Callable[..., Tab]]:
    """Call it for a browser of its own with one tab; options are those of the browser."""
    tabs: list[Tab] = []

    def open_tab(token: str = OLGA, url: str = "", **options: object) -> Tab:
        tabs.append(new_tab(chromium, url or shop.url, token, **options))
        return tabs[-1]

    yield open_tab
    complaints = [each for tab in tabs for each in tab.complaints()]
    for tab in tabs:
        tab.page.context.close()
    assert [] == complaints


def new_tab(chromium: Browser, url: str, token: str, **options: object) -> Tab:
    """Return a tab of a new browser, signed in if there is a token."""
    context = chromium.new_context(**{"reduced_motion": "reduce", **options})
    tab = Tab(context.new_page(), url)
    if token:
        tab.sign_in(token)
    return tab


@pytest.fixture(scope="package")
def _kept_tabs(chromium: Browser, _shop: Shop) -> dict[str, Tab]:
    """Tabs by token: most tests need no new one."""
    return {token: new_tab(chromium, _shop.url, token) for token in (OLGA, RITA)}


def kept_tab(tab: Tab) -> Iterator[Tab]:
    yield tab
    complaints = tab.complaints()
    tab.problems.clear()
    assert [] == complaints


@pytest.fixture
def tab(shop: Shop, _kept_tabs: dict[str, Tab]) -> Iterator[Tab]:
    """A tab of an operator."""
    yield from kept_tab(_kept_tabs[OLGA])


@pytest.fixture
def reader(shop: Shop, _kept_tabs: dict[str, Tab]) -> Iterator[Tab]:
    """A tab of a user who only reads."""
    yield from kept_tab(_kept_tabs[RITA])
