"""Figures that change without a load, one stream for all tabs, and none for hidden ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.contrib.dashboard.browser.driving import Tab, expect
from tests.support.system import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page, Route

    from tests.contrib.dashboard.browser.driving import Hold, Shop


def streams_of(page: Page) -> list[str]:
    """Return the list of the streams that a page opens from now on."""
    opened: list[str] = []
    page.on("request", lambda request: request.url.endswith("/live") and opened.append(request.url))
    return opened


def hide(page: Page, *, hidden: bool) -> None:
    """Hide a tab, or show it again, as far as it can know."""
    page.evaluate(
        """(hidden) => {
          Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
          document.dispatchEvent(new Event("visibilitychange"));
        }""",
        hidden,
    )


def test_figures_change_while_jobs_run(shop: Shop, tab: Tab, hold: Hold) -> None:
    page = tab.open()
    page.evaluate("window.loaded = true")
    running = tab.cell("running")
    expect(running).to_have_text("0")
    jobs = hold.jobs(6)
    expect(running).to_have_text("4")
    expect(tab.cell("waiting")).to_have_text("2")
    expect(tab.cell("slots")).to_have_text("4 of 4")
    queue = shop.queue("default")
    assert (4, 2) == (queue["running"], queue["waiting"])
    hold.release()
    shop.app.wait(jobs)
    expect(running).to_have_text("0")
    assert page.evaluate("window.loaded")


def test_a_page_gets_the_row_of_a_new_queue(shop: Shop, tab: Tab) -> None:
    page = tab.open()
    page.evaluate("window.loaded = true")
    shop.app.send("shop.pack", queue="new", countdown=3600)
    expect(page.get_by_role("link", name="new", exact=True)).to_be_visible()
    assert page.evaluate("window.loaded")


def test_tabs_share_one_stream(shop: Shop, open_tab: Callable[..., Tab], hold: Hold) -> None:
    """When the one that holds it is closed, the other goes on."""
    tab = open_tab()
    tab.open()
    second = Tab(tab.page.context.new_page(), tab.url)
    opened = streams_of(second.page)
    second.open()
    assert [] == opened
    jobs = hold.jobs(1)
    expect(second.cell("running")).to_have_text("1")
    assert [] == opened
    tab.page.goto("about:blank")
    expect(second.page.locator("#connection")).to_have_class("dot on")
    hold.release()
    shop.app.wait(jobs)
    expect(second.cell("running")).to_have_text("0")
    assert 1 == len(opened)
    assert [] == second.complaints()


@pytest.mark.timeout(180)
def test_many_tabs_share_one_stream(open_tab: Callable[..., Tab], hold: Hold) -> None:
    """A hundred of them. A host has six connections: with a stream each, the seventh would wait."""
    first = open_tab()
    first.open("queues/default")
    context, url = first.page.context, f"{first.url}/b/broker/queues/default"
    asked: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    first.page.evaluate("(url) => { for (let n = 1; n < 100; n++) window.open(url) }", url)
    until(lambda: first.page.title() and len(context.pages) == 100, "all tabs are open", 60)
    tabs = [page.locator("#connection") for page in context.pages]
    for mark in tabs:
        expect(mark).to_have_attribute("aria-label", "live")
    hold.jobs(1)
    for page in context.pages:
        expect(page.locator('[data-cell="broker:queue/default/running"]')).to_have_text("1")
    assert [] == [each for each in asked if each.endswith(("/live", "/live.json"))]
    first.page.goto("about:blank")
    hold.release()
    for page in context.pages[1:]:
        expect(page.locator('[data-cell="broker:queue/default/running"]')).to_have_text("0")
    assert [f"{first.url}/live"] == [
        each for each in asked if each.endswith(("/live", "/live.json"))
    ]


def test_a_hidden_tab_holds_no_stream(
    shop: Shop, tab: Tab, open_tab: Callable[..., Tab], hold: Hold
) -> None:
    page, witness = tab.open(), open_tab()
    witness.open()
    opened = streams_of(page)
    with page.expect_event("requestfailed", lambda request: request.url.endswith("/live")):
        hide(page, hidden=True)
    expect(page.locator("#connection")).to_have_attribute("aria-label", "not live")
    jobs = hold.jobs(1)
    expect(witness.cell("running")).to_have_text("1")
    assert "0" == tab.cell("running").inner_text()
    assert [] == opened
    hide(page, hidden=False)
    expect(tab.cell("running")).to_have_text("1")
    assert 1 == len(opened)
    hold.release()
    shop.app.wait(jobs)
    expect(tab.cell("running")).to_have_text("0")


def test_a_page_that_is_loading_a_part_does_not_ask_again(shop: Shop, tab: Tab, hold: Hold) -> None:
    """Htmx would keep the second request, and nobody would catch that it fails."""
    page = tab.open()
    asked: list[Route] = []

    def hold_back(route: Route) -> None:
        asked.append(route)

    page.route(page.url, hold_back)
    page.evaluate("window.now = Date.now; window.ahead = 0; Date.now = () => now() + ahead")
    jobs = []
    for number in (1, 2):
        page.evaluate("ahead += 10_000")  # no request was made lately
        shop.app.send("shop.pack", queue=f"loading{number}", countdown=3600)
        jobs += hold.jobs(1)
        expect(tab.cell("running")).to_have_text(str(number))
    until(lambda: page.evaluate("1") and asked, "the page asks for the rows of the queues")
    for route in asked:
        route.abort()
    page.evaluate("Date.now = now")
    page.unroute(page.url)
    page.reload()
    assert "undefined" not in tab.problems
    assert len(asked) == 1
    tab.forgive(3, "ERR_FAILED|^htmx:(afterRequest|sendError)")
    hold.release()
    shop.app.wait(jobs)
