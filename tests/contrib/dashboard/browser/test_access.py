"""Everybody can use the pages: on a phone, by keyboard, with a screen reader, in the dark."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

import pytest

from tests.contrib.dashboard.browser.driving import expect

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.contrib.dashboard.browser.driving import Shop, Tab

PATHS = (
    "", "queues", "queues/default", "workers", "jobs", "failed", "failed?list=1", "schedules",
    "jobs/{failed}", "jobs/{last}", "confirm/bulk-drop?task=shop.mend",
)  # fmt: skip


def paths(shop: Shop) -> list[str]:
    return [path.format(failed=shop.failed.id, last=shop.last.id) for path in PATHS]


@pytest.fixture(scope="module")
def axe() -> str:
    """The program that looks for obstacles on a page."""
    try:
        return (files("axe_playwright_python") / "axe.min.js").read_text("utf-8")
    except ModuleNotFoundError:
        pytest.skip("needs axe: axe-playwright-python is not installed")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(shop: Shop, open_tab: Callable[..., Tab], axe: str, scheme: str) -> None:
    tab = open_tab(color_scheme=scheme)
    for path in paths(shop):
        page = tab.open(path)
        page.evaluate(axe)
        rules = {"runOnly": ["color-contrast"]} if scheme == "dark" else {}
        found = page.evaluate("(rules) => axe.run(rules).then((all) => all.violations)", rules)
        assert [] == [(each["id"], [x["html"] for x in each["nodes"]]) for each in found], path


def test_a_scheme_is_the_one_of_the_system(open_tab: Callable[..., Tab]) -> None:
    colours = []
    for scheme in ("light", "dark"):
        page = open_tab(color_scheme=scheme).open()
        colours.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    light, dark = (sum(map(int, each[4:-1].split(","))) for each in colours)
    assert dark < 200
    assert light > 600


def test_a_phone_scrolls_in_one_direction(shop: Shop, open_tab: Callable[..., Tab]) -> None:
    """Tables scroll in themselves, and buttons can be reached."""
    tab = open_tab(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    for path in paths(shop):
        page = tab.open(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
    page.get_by_role("button", name="Drop all that match").tap(trial=True)
    page.get_by_role("link", name="No, go back").tap()
    expect(page.get_by_role("heading", level=1)).to_have_text("Failed jobs")


def test_all_is_done_by_keyboard(shop: Shop, tab: Tab) -> None:
    """From the link that skips the head to an action, in the order of the page."""
    shop.app.wait([shop.app.send("shop.pack", queue="quick")])
    page = tab.open("queues/quick")

    def focused() -> str:
        return str(page.evaluate("document.activeElement.textContent.trim()"))

    page.keyboard.press("Tab")
    assert "Skip to the content" == focused()
    expect(page.get_by_role("link", name="Skip to the content")).to_be_in_viewport()
    seen = []
    for _ in range(7):
        page.keyboard.press("Tab")
        seen.append(focused())
    assert ["EventMQ", "Overview", "Queues", "Workers", "Jobs", "Failed", "Schedules"] == seen
    for _ in range(7):
        page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert "Pause" == focused()
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert "solid" == outline
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Pause the queue?")
    page.locator("main").focus()
    page.keyboard.press("Tab")
    assert "Pause the queue" == focused()
    page.keyboard.press("Enter")
    expect(page.locator(".note")).to_have_text("Queue quick is paused.")
    tab.open("confirm/resume?queue=quick").get_by_role("button").press("Enter")
    expect(page.locator(".note")).to_have_text("Queue quick is resumed.")
