"""A hundred thousand jobs in one click, while the broker and the dashboard are killed."""

from __future__ import annotations

import re
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.contrib.dashboard.browser.driving import expect
from tests.support.system import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.contrib.dashboard.browser.driving import Shop, Tab

# The first test of a process starts the shop.
pytestmark = pytest.mark.timeout(180)

MANY = 100_000

#: Jobs that failed: a worker has to run each of them first.
FAILED = 20_000


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


@pytest.fixture
def broken(shop: Shop) -> Iterator[str]:
    """A queue with jobs that failed, which is paused, so that those to retry stay there."""
    # The broker refuses a client more than it can hold at once.
    for _ in range(10):
        jobs = shop.app.send_many("shop.fail", [((), {})] * (FAILED // 10), queue="broken")
    until(lambda: shop.queue("broken")["failed"] == FAILED, f"{jobs[-1]} and all others failed", 60)
    shop.app.ask("pause", {"queue": "broken"})
    yield "broken"
    shop.start_again()
    bulk = {"id": "clear", "action": "cancel", "queue": "broken"}
    until(lambda: shop.app.ask("bulk", bulk)["done"], "nothing waits any more")
    shop.app.ask("resume", {"queue": "broken"})


class Operation:
    """A bulk operation that begins on a page, and is followed while its broker and page are killed.

    Args:
        shop: The shop.
        tab: A tab of an operator.
        number: Number of jobs that match.
        title: What the page says of the operation.
        done: What it says of a job with which it is done.
    """

    def __init__(self, shop: Shop, tab: Tab, number: int, title: str, done: str) -> None:
        self.shop, self.tab, self.number, self.title, self.done = shop, tab, number, title, done
        self.id = ""

    def count(self) -> int:
        """Return with how many jobs the broker is done."""
        return int(self.shop.app.ask("bulk", {"id": self.id})["count"])

    def begin(self, path: str, button: str) -> None:
        """Begin it with one click; return when some jobs are done."""
        page = self.tab.open(path)
        expect(page.locator("main")).to_contain_text(f"{self.number:,} jobs match now.")
        action = page.locator("form.actions").get_attribute("action") or ""
        (self.id,) = re.findall("bulk_id=([0-9a-f]{32})", action)
        page.get_by_role("button", name=button).click()
        until(self.count, "the first of them are done")

    def kill_broker(self) -> int:
        """Kill the broker while the page is loaded; return the number that the page shows."""
        # Killed as soon as it has answered the page: what the page shows is certain.
        page = self.tab.page
        address = f"{self.tab.url}/b/broker/bulk/{self.id}?total={self.number}&back=queues"
        page.goto(address, wait_until="commit")
        self.shop.broker.stop(signal.SIGKILL)
        assert f"{self.id} is done" not in self.shop.broker.text
        expect(page.get_by_role("heading", level=1)).to_have_text(f"{self.title}: in progress")
        expect(status_of(self.tab)).to_have_text(
            re.compile(rf"^[1-9][\d,]* of {self.number:,} jobs\s+{self.done} so far\.$")
        )
        shown = int(page.get_by_role("progressbar").get_attribute("value") or 0)
        assert 0 < shown < self.number
        expect(page.locator("main")).to_contain_text("The broker is missing")
        return shown

    def kill_dashboard(self, shown: int) -> None:
        """Kill the dashboard as well, start both, and see on the page that all jobs are done."""
        page, shop = self.tab.page, self.shop
        page.evaluate("window.loaded = true")
        shop.dashboard.stop(signal.SIGKILL)
        expect(page.locator("#connection")).to_have_attribute("aria-label", "not live")
        shop.start_dashboard()
        shop.start_broker()
        assert self.count() >= shown, "nothing that the page has shown is lost"
        expect(page.get_by_role("heading", level=1)).to_have_text(f"{self.title}: done")
        all_of_them = f"{self.number:,} of {self.number:,} jobs {self.done}."
        expect(status_of(self.tab)).to_have_text(all_of_them)
        expect(page.locator("main")).not_to_contain_text("The broker is missing")
        assert page.evaluate("window.loaded"), "the page was not loaded again"
        assert f"{self.id} is done: {self.number} jobs" in shop.broker.text
        assert self.number == self.count()
        # What was asked for while either was away.
        expected = re.compile("503|ERR_|^htmx:(afterRequest|sendError|responseError)")
        self.tab.problems[:] = [x for x in self.tab.problems if not expected.search(x)]


def test_one_click_outlives_the_broker_and_the_dashboard(
    shop: Shop, tab: Tab, reader: Tab, many: str, axe: str
) -> None:
    """The page of the operation shows how far it is, what is missing, and then that it is done."""
    purge = Operation(shop, tab, MANY, "Cancel", "cancelled")
    purge.begin(f"confirm/purge?queue={many}", "Purge the queue")
    shown, page = purge.kill_broker(), tab.page
    assert [] == tab.obstacles(axe)
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.set_viewport_size({"width": 1280, "height": 720})
    purge.kill_dashboard(shown)
    assert 0 == shop.queue(many)["delayed"]
    assert "purge" == shop.acts_of("olga")[-1]
    page.get_by_role("link", name="Back").click()
    expect(page.locator('[data-cell="broker:queue/many/delayed"]')).to_have_text("0")
    only = reader.open(f"bulk/{purge.id}?total={MANY}")
    expect(only.get_by_role("heading", level=1)).to_have_text("Cancel: done")
    only.goto("about:blank")  # else it would complain of what the next test kills


def test_failed_jobs_that_match_are_retried_once_whatever_is_killed(
    shop: Shop, tab: Tab, broken: str
) -> None:
    """Each of them is queued for its second attempt."""
    retry = Operation(shop, tab, FAILED, "Retry", "queued again")
    retry.begin(f"confirm/bulk-retry?queue={broken}", "Retry all that match")
    retry.kill_dashboard(retry.kill_broker())
    queue = shop.queue(broken)
    assert (FAILED, 0) == (queue["waiting"], queue["failed"])
    attempts, cursor = Counter[int](), ""
    while cursor or not attempts:
        answer = shop.app.ask("jobs", {"queue": broken, "cursor": cursor, "limit": 1000})
        attempts.update(row["attempt"] for row in answer["jobs"])
        cursor = answer["cursor"]
    assert {2: FAILED} == attempts
    assert "retry" == shop.acts_of("olga")[-1]
