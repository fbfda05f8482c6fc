"""Figures that change without a load, one stream for all tabs, and none for hidden ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.contrib.dashboard.browser.driving import Tab, expect

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.contrib.dashboard.browser.driving import Shop


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


def test_figures_change_while_jobs_run(shop: Shop, tab: Tab) -> None:
    page = tab.open()
    page.evaluate("window.loaded = true")
    running = tab.cell("running")
    expect(running).to_have_text("0")
    done = shop.file("done")
    jobs = [shop.app.send("shop.hold", (str(done),)) for _ in range(6)]
    expect(running).to_have_text("4")
    expect(tab.cell("waiting")).to_have_text("2")
    expect(tab.cell("slots")).to_have_text("4 of 4")
    done.touch()
    shop.app.wait(jobs)
    expect(running).to_have_text("0")
    assert page.evaluate("window.loaded")


def test_a_page_gets_the_row_of_a_new_queue(shop: Shop, tab: Tab) -> None:
    page = tab.open()
    page.evaluate("window.loaded = true")
    shop.app.send("shop.pack", queue="new", countdown=3600)
    expect(page.get_by_role("link", name="new", exact=True)).to_be_visible()
    assert page.evaluate("window.loaded")


def test_tabs_share_one_stream(shop: Shop, tab: Tab) -> None:
    """When the one that holds it is closed, the other goes on."""
    tab.open()
    second = Tab(tab.page.context.new_page(), tab.url)
    opened = streams_of(second.page)
    second.open()
    assert [] == opened
    done = shop.file("shared")
    job = shop.app.send("shop.hold", (str(done),))
    expect(second.cell("running")).to_have_text("1")
    assert [] == opened
    tab.page.goto("about:blank")
    expect(second.page.locator("#connection")).to_have_class("dot on")
    done.touch()
    shop.app.wait([job])
    expect(second.cell("running")).to_have_text("0")
    assert 1 == len(opened)
    assert [] == second.complaints()


def test_a_hidden_tab_holds_no_stream(shop: Shop, tab: Tab) -> None:
    page = tab.open()
    opened = streams_of(page)
    with page.expect_event("requestfailed", lambda request: request.url.endswith("/live")):
        hide(page, hidden=True)
    expect(page.locator("#connection")).to_have_attribute("aria-label", "not live")
    done = shop.file("hidden")
    job = shop.app.send("shop.hold", (str(done),))
    expect(tab.cell("running")).to_have_text("0")
    assert [] == opened
    hide(page, hidden=False)
    expect(tab.cell("running")).to_have_text("1")
    assert 1 == len(opened)
    done.touch()
    shop.app.wait([job])
    expect(tab.cell("running")).to_have_text("0")
