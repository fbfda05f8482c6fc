"""Actions, as a user clicks them: each asks, is done, and says so."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from eventmq import chain
from tests.contrib.dashboard.browser.driving import expect
from tests.support.system import until

if TYPE_CHECKING:
    from tests.contrib.dashboard.browser.driving import Hold, Shop, Tab


def test_a_queue_is_paused_and_resumed(shop: Shop, tab: Tab) -> None:
    shop.app.wait([shop.app.send("shop.pack", queue="quick")])
    page = tab.open("queues")
    page.get_by_role("link", name="quick").click()
    page.get_by_role("link", name="Pause").click()
    page.get_by_role("button", name="Pause the queue").click()
    expect(page.locator(".note")).to_have_text("Queue quick is paused.")
    expect(page.get_by_role("heading", level=1)).to_have_text("Queue quick paused")
    assert shop.queue("quick")["paused"]
    expect(page).not_to_have_url(re.compile("note="))
    page.get_by_role("link", name="Resume").click()
    page.get_by_role("button", name="Resume the queue").click()
    expect(page.locator(".note")).to_have_text("Queue quick is resumed.")
    expect(page.get_by_role("heading", level=1)).to_have_text("Queue quick")
    assert not shop.queue("quick")["paused"]
    assert ["pause", "resume"] == shop.acts_of("olga")[-2:]


def test_one_failed_job_is_retried(shop: Shop, tab: Tab) -> None:
    """The page follows it from failed to succeeded."""
    mended = shop.file("one")
    job = shop.app.send("shop.mend", (str(mended),))
    until(lambda: job.state == "failed", "it has failed")
    page = tab.open(f"jobs/{job.id}")
    expect(page.locator("summary")).to_contain_text("ConnectionError: no answer from 10.0.0.8")
    expect(page.locator("main")).to_contain_text("shop: looks for a file")
    mended.touch()
    page.get_by_role("link", name="Retry").click()
    page.get_by_role("button", name="Retry").click()
    expect(page.locator(".note")).to_have_text("1 job queued again.")
    expect(page.get_by_role("heading", level=1)).to_have_text("shop.mend succeeded")
    expect(page.locator(".timeline")).to_contain_text("attempt 1 failed")
    assert ("succeeded", 2) == (job.state, job.info()["attempt"])


def test_all_that_match_are_retried(shop: Shop, tab: Tab) -> None:
    """With their number before, and the progress afterwards; another that failed stays."""
    mended = shop.file("all")
    jobs = [shop.app.send("shop.mend", (str(mended),), queue="slow") for _ in range(120)]
    until(lambda: all(job.state == "failed" for job in jobs), "all have failed")
    mended.touch()
    page = tab.open("failed?queue=slow")
    page.get_by_role("link", name="Retry all that match").click()
    expect(page.locator("main")).to_contain_text("120 jobs match now.")
    page.get_by_role("button", name="Retry all that match").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Retry: done")
    expect(page.get_by_role("main").get_by_role("status")).to_have_text(
        "120 of 120 jobs queued again."
    )
    until(lambda: all(job.state == "succeeded" for job in jobs), "all ran again")
    page.get_by_role("link", name="Back").click()
    expect(page.locator("main")).to_contain_text("No failed jobs match.")
    assert "failed" == shop.failed.state


def test_chosen_jobs_are_dropped(shop: Shop, tab: Tab) -> None:
    jobs = [shop.app.send("shop.mend", ("/nowhere",), queue="quick") for _ in range(3)]
    until(lambda: all(job.state == "failed" for job in jobs), "all have failed")
    page = tab.open("failed?list=1&queue=quick")
    page.get_by_label("Choose all of this page").check()
    page.get_by_label(f"Choose job {jobs[1].id}").uncheck()
    page.get_by_role("button", name="Drop chosen").click()
    expect(page.locator("main")).to_contain_text("This cannot be undone.")
    page.get_by_role("button", name="Drop").click()
    expect(page.locator(".note")).to_have_text("2 jobs dropped.")
    expect(page.get_by_role("row")).to_have_count(2)
    expect(page.get_by_label(f"Choose job {jobs[1].id}")).to_be_visible()
    left = shop.app.ask("failed", {"queue": "quick", "limit": 10})["failed"]
    assert [jobs[1].id] == [row["id"] for row in left]


def test_a_schedule_is_run_now_and_switched_off(shop: Shop, tab: Tab) -> None:
    page = tab.open("schedules")
    page.get_by_role("link", name="Run now").click()
    page.get_by_role("button", name="Run now").click()
    note = page.locator(".note")
    expect(note).to_have_text(re.compile(r"Schedule nightly was run: job \w+\."))
    job = shop.app.job(note.inner_text().split()[-1].rstrip("."))
    until(lambda: job.state == "succeeded", "its job ran")
    for button, done in (("Disable", "disabled"), ("Enable", "enabled")):
        page.get_by_role("link", name=button, exact=True).click()
        page.get_by_role("button", name=button).click()
        expect(page.locator(".note")).to_have_text(f"Schedule nightly is {done}.")
        (stored,) = [each for each in shop.app.schedules.list() if each.name == "nightly"]
        assert (done == "enabled") == stored.enabled


def test_whoever_says_no_does_nothing(shop: Shop, tab: Tab) -> None:
    page = tab.open(f"jobs/{shop.failed.id}")
    page.get_by_role("link", name="Drop").click()
    page.get_by_role("link", name="No, go back").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("shop.mend failed")
    assert "failed" == shop.failed.state


def test_a_queue_is_purged_and_drained(shop: Shop, tab: Tab, hold: Hold) -> None:
    running = hold.jobs(4, queue="slow")
    until(lambda: all(job.state == "running" for job in running), "all slots are in use")
    waiting = shop.app.send("shop.pack", queue="slow")
    page = tab.open("queues/slow")
    page.get_by_role("link", name="Purge").click()
    expect(page.locator("main")).to_contain_text("1 job matches now.")
    page.get_by_role("button", name="Purge the queue").click()
    expect(page.get_by_role("main").get_by_role("status")).to_have_text("1 of 1 job cancelled.")
    assert "cancelled" == waiting.state
    page.get_by_role("link", name="Back").click()
    page.get_by_role("link", name="Drain").click()
    expect(page.locator(".note")).to_contain_text("Draining: 0 waiting and 4 running.")
    hold.release()
    expect(page.locator(".note")).to_contain_text("The queue is drained")
    shop.app.wait(running)


def test_a_running_job_is_cancelled(shop: Shop, tab: Tab, hold: Hold) -> None:
    """And so is what is left of a chain, on the pages of both."""
    step = shop.app.signature("shop.hold", hold.name, immutable=True)
    last = chain(step, step).delay()
    page = tab.open(f"jobs/{last.id}")
    expect(page.get_by_role("heading", level=1)).to_have_text("shop.hold blocked")
    page.get_by_role("link", name="Cancel the graph").click()
    page.get_by_role("button", name="Cancel the graph").click()
    expect(page.locator(".note")).to_have_text(re.compile("[12] jobs of the graph were cancelled."))
    expect(page.get_by_role("heading", level=1)).to_have_text("shop.hold cancelled")
    (job,) = hold.jobs(1)
    page = tab.open(f"jobs/{job.id}")
    expect(page.get_by_role("heading", level=1)).to_have_text("shop.hold running")
    page.get_by_role("link", name="Cancel", exact=True).click()
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".note")).to_contain_text("1 job cancelled.")
    expect(page.get_by_role("heading", level=1)).to_have_text("shop.hold cancelled")
    assert ["cancelled", "cancelled"] == [last.state, job.state]
