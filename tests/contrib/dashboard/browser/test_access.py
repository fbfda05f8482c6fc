"""Everybody can use the pages: on a phone, by keyboard, with a screen reader, in the dark."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest

from tests.contrib.dashboard.browser.driving import OLGA, expect

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.contrib.dashboard.browser.driving import Shop, Tab

# The first test of a process starts the shop.
pytestmark = pytest.mark.timeout(180)

#: Pages, and the status of each that is an error.
PATHS = {
    "": 200, "queues": 200, "queues/default": 200, "workers": 200, "jobs": 200, "failed": 200,
    "failed?list=1": 200, "schedules": 200, "jobs/{failed}": 200, "jobs/{last}": 200,
    "confirm/bulk-drop?task=shop.mend": 200, "bulk/{bulk}?total=0&back=failed": 200,
    "jobs/nothing": 404, "jobs?since=x": 400,
}  # fmt: skip


@pytest.fixture
def paths(shop: Shop) -> dict[str, int]:
    bulk = uuid.uuid4().hex
    shop.app.ask("bulk", {"id": bulk, "action": "drop", "task": "none"})
    names = {"failed": shop.failed.id, "last": shop.last.id, "bulk": bulk}
    return {path.format(**names): status for path, status in PATHS.items()}


def test_axe_finds_nothing(tab: Tab, paths: dict[str, int], axe: str) -> None:
    """In light and in dark colours."""
    for path, status in paths.items():
        tab.open(path)
        assert [] == tab.obstacles(axe), path
        tab.forgive(status != 200, f"{status}")


def test_axe_finds_nothing_on_the_page_for_who_is_not_known(
    shop: Shop, open_tab: Callable[..., Tab], axe: str
) -> None:
    tab = open_tab(token="", viewport={"width": 390, "height": 844})
    for path in ("/", "/?token=wrong"):
        tab.page.goto(f"{shop.url}{path}")
        expect(tab.page.get_by_label("Token")).to_be_visible()
        assert [] == tab.obstacles(axe)
        assert width_of(tab.page) <= 390
    tab.forgive(2, "401|403")


def width_of(page: Any) -> int:
    """Return the width that a page needs."""
    return int(page.evaluate("document.documentElement.scrollWidth"))


def test_a_scheme_is_the_one_of_the_system(tab: Tab) -> None:
    page = tab.open()
    sums = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        sums.append(sum(map(int, colour[4:-1].split(","))))
    page.emulate_media(color_scheme="light")
    light, dark = sums
    assert dark < 200
    assert light > 600


def test_a_phone_scrolls_in_one_direction(
    open_tab: Callable[..., Tab], paths: dict[str, int]
) -> None:
    """Tables scroll in themselves, and buttons can be reached."""
    tab = open_tab(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    for path in paths:
        page = tab.open(path, live=False)
        assert width_of(page) <= 390, path
    tab.forgive(2, "40[04]")
    page = tab.open("confirm/bulk-drop?task=shop.mend")
    page.get_by_role("button", name="Drop all that match").tap(trial=True)
    page.get_by_role("link", name="No, go back").tap()
    expect(page.get_by_role("heading", level=1)).to_have_text("Failed jobs")


def focused(page: Any) -> str:
    """Return the text of what has the focus."""
    return str(page.evaluate("document.activeElement.textContent.trim()"))


def test_all_is_done_by_keyboard(shop: Shop, open_tab: Callable[..., Tab]) -> None:
    """From the token, over the link that skips the head, to an action, in the order of the page."""
    shop.app.wait([shop.app.send("shop.pack", queue="quick")])
    tab = open_tab(token="")
    page = tab.page
    page.goto(f"{shop.url}/")
    page.get_by_label("Token").focus()
    page.keyboard.type(OLGA)
    page.keyboard.press("Enter")
    expect(page.locator(".who")).to_contain_text("olga, operator")
    tab.forgive(1, "401")
    tab.open("queues/quick")
    page.keyboard.press("Tab")
    assert "Skip to the content" == focused(page)
    expect(page.get_by_role("link", name="Skip to the content")).to_be_in_viewport()
    seen = []
    for _ in range(7):
        page.keyboard.press("Tab")
        seen.append(focused(page))
    assert ["EventMQ", "Overview", "Queues", "Workers", "Jobs", "Failed", "Schedules"] == seen
    for _ in range(7):
        page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert "Pause" == focused(page)
    assert "solid" == page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Pause the queue?")
    page.locator("main").focus()
    page.keyboard.press("Tab")
    assert "Pause the queue" == focused(page)
    page.keyboard.press("Enter")
    expect(page.locator(".note")).to_have_text("Queue quick is paused.")
    assert shop.queue("quick")["paused"]
    tab.open("confirm/resume?queue=quick").get_by_role("button").press("Enter")
    expect(page.locator(".note")).to_have_text("Queue quick is resumed.")
    assert not shop.queue("quick")["paused"]


def test_a_bulk_operation_is_followed_by_keyboard(shop: Shop, tab: Tab) -> None:
    """What is done is said in a region that screen readers announce."""
    job = shop.app.send("shop.pack", queue="keys", countdown=3600)
    page = tab.open("confirm/purge?queue=keys")
    page.locator("main").focus()
    page.keyboard.press("Tab")
    assert "Purge the queue" == focused(page)
    page.keyboard.press("Tab")
    assert "No, go back" == focused(page)
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("main").get_by_role("status")).to_have_text("1 of 1 job cancelled.")
    assert "cancelled" == job.state
    page.locator("main").focus()
    page.keyboard.press("Tab")
    assert "Back" == focused(page)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Queue keys")
