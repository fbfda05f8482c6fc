"""Every page loads in a browser, signed in once, without a complaint of console or policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.contrib.dashboard.browser.driving import OLGA, expect

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.contrib.dashboard.browser.driving import Shop, Tab


def test_every_page_loads(shop: Shop, tab: Tab) -> None:
    """The complaints of all of them are compared when the tab is closed."""
    pages = {
        "": "broker", "queues": "Queues", "queues/default": "Queue default",
        "workers": "Workers", "jobs": "Jobs", "jobs?state=failed&task=shop.mend": "Jobs",
        f"jobs/{shop.failed.id}": "shop.mend failed", f"jobs/{shop.last.id}": "shop.pack succeeded",
        "failed": "Failed jobs", "failed?list=1": "Failed jobs", "schedules": "Schedules",
        "confirm/pause?queue=quick": "Pause the queue?",
        "confirm/bulk-drop?task=shop.mend": "Drop all that match?",
    }  # fmt: skip
    for path, heading in pages.items():
        page = tab.open(path)
        expect(page.get_by_role("heading", level=1)).to_have_text(heading)
        assert [] == page.evaluate("window.violations"), path


def test_a_token_is_exchanged_for_a_cookie(shop: Shop, open_tab: Callable[..., Tab]) -> None:
    """Typed into the form that whoever is not known gets."""
    tab = open_tab(token="")
    page = tab.page
    page.goto(f"{shop.url}/")
    expect(page.get_by_role("heading", level=1)).to_have_text("Who are you?")
    page.get_by_label("Token").fill("not a token")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_have_text("This token is not valid.")
    page.get_by_label("Token").fill(OLGA)
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(f"{shop.url}/b/broker/")
    expect(page.locator(".who")).to_contain_text("olga, operator")
    (cookie,) = page.context.cookies()
    assert (True, "Strict") == (cookie["httpOnly"], cookie["sameSite"])
    assert OLGA not in cookie["value"]
    assert 2 == len([x for x in tab.problems if "401" in x or "403" in x])
    tab.problems.clear()


def test_a_token_leaves_the_address(shop: Shop, open_tab: Callable[..., Tab]) -> None:
    tab = open_tab(token="")
    tab.page.goto(f"{shop.url}/?token={OLGA}")
    expect(tab.page).to_have_url(f"{shop.url}/b/broker/")
    assert "token" not in tab.page.evaluate("document.cookie + location.href")
