"""A hundred thousand jobs in one click, while the broker and the dashboard are killed."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.contrib.dashboard.browser.driving import expect
from tests.support.system import until

if TYPE_CHECKING:
    from tests.contrib.dashboard.browser.driving import Shop, Tab

# The first test of a process starts the shop.
pytestmark = pytest.mark.timeout(180)

MANY = 100_000


@pytest.fixture
def many(shop: Shop) -> str:
    """A queue with so many delayed jobs."""
    queues = {row["name"]: row["delayed"] for row in shop.app.ask("queues")}
    missing = MANY - queues.get("many", 0)
    shop.app.send_many("shop.pack", [((), {})] * missing, queue="many", countdown=3600)
    return "many"


def status_of(tab: Tab) -> Any:
    """Return the sentence that says how far a bulk operation is."""
    return tab.page.get_by_role("main").locator("#live").get_by_role("status")


def test_many_jobs_are_paged(tab: Tab, many: str) -> None:
    page = tab.open(f"jobs?queue={many}")
    expect(page.get_by_role("row")).to_have_count(51)
    seen = set(page.locator("th a.id").evaluate_all("(all) => all.map((each) => each.title)"))
    page.get_by_role("link", name="Older").click()
    expect(page.get_by_role("link", name="Newest")).to_be_visible()
    expect(page.get_by_role("row")).to_have_count(51)
    seen |= set(page.locator("th a.id").evaluate_all("(all) => all.map((each) => each.title)"))
    assert 100 == len(seen)


def test_a_search_in_many_jobs_says_how_far_it_is(tab: Tab, many: str) -> None:
    """And goes on where it was when it is asked to."""
    page = tab.open(f"jobs?queue={many}&key=none")
    expect(page.locator("main")).to_contain_text("Searched back to")
    address = page.url
    page.get_by_role("link", name="Search on").click()
    expect(page).not_to_have_url(address)
    expect(page.locator("main")).to_contain_text(re.compile("Searched back to|No jobs match"))


def test_a_filter_that_matches_many_is_asked_with_their_least_number(
    shop: Shop, tab: Tab, many: str
) -> None:
    """And with their number where that is kept. Whoever says no does nothing."""
    page = tab.open(f"jobs?queue={many}&task=shop.pack&state=delayed")
    page.get_by_role("link", name="Cancel all that match and wait").click()
    expect(page.locator("main")).to_contain_text(re.compile(r"At least [\d,]+ jobs\s+match now"))
    page.get_by_role("link", name="No, go back").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")
    tab.open(f"confirm/bulk-cancel?queue={many}&from=jobs")
    expect(page.locator("main")).to_contain_text("100,000 jobs match now.")
    assert MANY == shop.queue(many)["delayed"]


def test_one_click_outlives_the_broker_and_the_dashboard(
    shop: Shop, tab: Tab, reader: Tab, many: str, axe: str
) -> None:
    """The page of the operation shows how far it is, what is missing, and then that it is done."""
    page = tab.open(f"confirm/purge?queue={many}")
    action = page.locator("form.actions").get_attribute("action") or ""
    (bulk_id,) = re.findall("bulk_id=([0-9a-f]{32})", action)

    def count() -> int:
        return int(shop.app.ask("bulk", {"id": bulk_id})["count"])

    page.get_by_role("button", name="Purge the queue").click()
    until(count, "the first of them are cancelled")
    # Killed as soon as it has answered the page: what the page shows is certain.
    page.goto(f"{tab.url}/b/broker/bulk/{bulk_id}?total={MANY}&back=queues", wait_until="commit")
    shop.broker.stop(signal.SIGKILL)
    assert f"{bulk_id} is done" not in shop.broker.text
    expect(page.get_by_role("heading", level=1)).to_have_text("Cancel: in progress")
    expect(status_of(tab)).to_have_text(
        re.compile(r"^[1-9][\d,]* of 100,000 jobs\s+cancelled so far\.$")
    )
    shown = int(page.get_by_role("progressbar").get_attribute("value") or 0)
    assert 0 < shown < MANY
    expect(page.locator("main")).to_contain_text("The broker is missing")
    assert [] == tab.obstacles(axe)
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.set_viewport_size({"width": 1280, "height": 720})

    page.evaluate("window.loaded = true")
    shop.dashboard.stop(signal.SIGKILL)
    expect(page.locator("#connection")).to_have_attribute("aria-label", "not live")
    shop.start_dashboard()
    shop.start_broker()
    assert count() >= shown, "nothing that the page has shown is lost"
    expect(page.get_by_role("heading", level=1)).to_have_text("Cancel: done")
    expect(status_of(tab)).to_have_text("100,000 of 100,000 jobs cancelled.")
    expect(page.locator("main")).not_to_contain_text("The broker is missing")
    assert page.evaluate("window.loaded"), "the page was not loaded again"
    assert f"{bulk_id} is done: {MANY} jobs" in shop.broker.text
    assert MANY == count()
    assert 0 == shop.queue(many)["delayed"]
    assert "purge" == shop.acts_of("olga")[-1]
    page.get_by_role("link", name="Back").click()
    expect(page.locator('[data-cell="broker:queue/many/delayed"]')).to_have_text("0")
    only = reader.open(f"bulk/{bulk_id}?total={MANY}")
    expect(only.get_by_role("heading", level=1)).to_have_text("Cancel: done")
    # What was asked for while either was away.
    expected = re.compile("503|ERR_|^htmx:(afterRequest|sendError|responseError)")
    tab.problems[:] = [each for each in tab.problems if not expected.search(each)]
