"""Actions, as a user clicks them: each asks, is done, and says so."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from eventmq import chain, every
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


def fire_times(page: Any) -> Any:
    """Return the rows with the next fire times of a schedule."""
    return page.get_by_role("region", name="Next fire times").locator("tbody tr")


def fired_jobs(page: Any) -> Any:
    """Return the rows of the jobs that a schedule fired."""
    return page.get_by_role("region", name="Jobs that it fired").locator("tbody tr")


def test_one_schedule_shows_its_next_five_fire_times(shop: Shop, tab: Tab) -> None:
    """In UTC and in its zone: the next five nights."""
    page = tab.open("schedules")
    page.get_by_role("link", name="nightly", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Schedule nightly")
    expect(page.locator("main")).to_contain_text("cron 0 3 * * *, zone Europe/Paris")
    expect(fire_times(page)).to_have_count(5)
    zone = ZoneInfo("Europe/Paris")
    first = datetime.now(zone).replace(hour=3, minute=0, second=0, microsecond=0)
    nights = [first + timedelta(days=n) for n in range(7)]
    local = [each.strftime("%Y-%m-%d %H:%M:%S %Z") for each in nights]
    shown = [row.split("\t") for row in fire_times(page).all_inner_texts()]
    assert [row[2] for row in shown] in [local[:5], local[1:6]]
    at = nights[local.index(shown[0][2])].astimezone(timezone.utc)
    assert at.strftime("%Y-%m-%d %H:%M:%S") == shown[0][1]


def test_one_schedule_shows_the_jobs_that_it_fired_until_it_is_switched_off(
    shop: Shop, tab: Tab
) -> None:
    """By itself; a job of "run now" is not among them."""
    shop.app.schedule("often", shop.app.signature("shop.pack", 3), every(seconds=1))
    beat = shop.shell.start("beat", "-A", "shop", "--broker", shop.address)
    page = tab.open("schedules/often")
    page.evaluate("window.loaded = true")
    until(lambda: fired_jobs(page).filter(has_text="succeeded").count() >= 2, "two ran")
    assert page.evaluate("window.loaded")
    page.get_by_role("link", name="Disable").click()
    page.get_by_role("button", name="Disable the schedule").click()
    expect(page.locator(".note")).to_have_text("Schedule often is disabled.")
    assert not shop.app.schedules.get("often").enabled
    page = tab.open("schedules/often")
    expect(page.get_by_role("heading", level=1)).to_have_text("Schedule often disabled")
    expect(page.locator("main")).to_contain_text("None while it is disabled.")
    expect(fired_jobs(page).filter(has_text=re.compile("queued|running"))).to_have_count(0)
    fired = fired_jobs(page).locator("a.id").evaluate_all("(all) => all.map((x) => x.title)")
    assert {"succeeded"} == {shop.app.job(job_id).state for job_id in fired}
    page.get_by_role("link", name="Run now").first.click()
    page.get_by_role("button", name="Run now").click()
    expect(page.locator(".note")).to_have_text(re.compile(r"Schedule often was run: job \w+\."))
    job = shop.app.job(page.locator(".note").inner_text().split()[-1].rstrip("."))
    until(lambda: job.state == "succeeded", "its job ran")
    assert job.id not in fired
    page = tab.open("schedules/often")
    expect(fired_jobs(page)).to_have_count(len(fired))
    page.get_by_role("link", name="jobs of the task").click()
    expect(page.locator(f'a[title="{job.id}"]')).to_be_visible()
    shop.app.schedules.remove("often")
    beat.stop()


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
