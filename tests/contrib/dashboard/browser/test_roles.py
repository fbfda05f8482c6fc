"""Who only reads cannot act, and what others name their things is text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from eventmq import every
from tests.contrib.dashboard.browser.driving import OLGA, REBOUND, expect
from tests.support.system import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.contrib.dashboard.browser.driving import Shop, Tab

#: What would run, load or send something if it were not text.
EVIL = "<script>window.evil=1</script><img src=x onerror=window.evil=1>'\"&\x1b[31m\u202e"


def test_who_only_reads_sees_no_action_and_no_arguments(shop: Shop, reader: Tab) -> None:
    paths = (
        "", "queues/default", "jobs?task=shop.mend", f"jobs/{shop.failed.id}", "failed",
        "failed?list=1", "schedules",
    )  # fmt: skip
    for path in paths:
        page = reader.open(path)
        expect(page.locator(".who")).to_contain_text("rita, read-only")
        assert 0 == page.locator('form[method="post"], a[href*="/confirm/"]').count(), path
        assert 0 == page.locator("[formaction], [name=chosen]").count(), path
    main = reader.open(f"jobs/{shop.failed.id}").locator("main")
    expect(main).to_contain_text("Users who only read do not see arguments here")
    expect(main).not_to_contain_text("mended")


@pytest.mark.parametrize("action", ["pause?queue=default", "bulk-drop?bulk_id={}", "drop?id={}"])
def test_a_forged_form_is_refused(shop: Shop, tab: Tab, reader: Tab, action: str) -> None:
    """With the token of an operator's form and the cookie of one who only reads, and without."""
    page = tab.open("confirm/pause?queue=default")
    token = page.locator('[name="form_token"]').input_value()
    path = f"/b/broker/act/{action.format(shop.failed.id)}"
    reader.open()
    for form in ({"form_token": token}, {}):
        status = reader.page.evaluate(
            """([path, form]) => fetch(path, {method: "POST", body: new URLSearchParams(form)})
              .then((answer) => answer.status)""",
            [path, form],
        )
        assert 403 == status
    answer = reader.page.goto(f"{shop.url}/b/broker/confirm/pause?queue=default")
    assert answer is not None
    assert 403 == answer.status
    assert "failed" == shop.failed.state
    assert not [row["name"] for row in shop.app.ask("queues") if row["paused"]]
    reader.forgive(3, "403")


def test_a_form_of_another_site_is_refused(shop: Shop, open_tab: Callable[..., Tab]) -> None:
    """One that a page elsewhere sends, with the cookie in the browser and the right token."""
    page = open_tab().open("confirm/pause?queue=default")
    token = page.locator('[name="form_token"]').input_value()
    other = page.context.new_page()
    other.route(
        "http://elsewhere.test/",
        lambda route: route.fulfill(
            content_type="text/html",
            body=f"""<form method="post" action="{shop.url}/b/broker/act/pause?queue=default">
              <input name="form_token" value="{token}"><button>Win</button></form>""",
        ),
    )
    other.goto("http://elsewhere.test/")
    other.get_by_role("button").click()
    expect(other.locator("main")).to_contain_text("sent by another site. Nothing was done.")
    assert not [row["name"] for row in shop.app.ask("queues") if row["paused"]]


def test_a_name_that_was_pointed_here_gets_nothing(
    shop: Shop, open_tab: Callable[..., Tab]
) -> None:
    """Its page could otherwise read this one (DNS rebinding)."""
    tab = open_tab()
    answer = tab.page.goto(f"{shop.url.replace('127.0.0.1', REBOUND)}/b/broker/?token={OLGA}")
    assert answer is not None
    assert 421 == answer.status
    expect(tab.page.locator("main")).to_contain_text(f"not served as '{REBOUND}'")
    expect(tab.page.locator("main")).not_to_contain_text("Waiting")
    assert {"127.0.0.1"} == {each["domain"] for each in tab.page.context.cookies()}
    assert [each for each in tab.problems if "Refused to execute script" in each]
    tab.problems.clear()  # which are of its files: they get nothing as well


@pytest.mark.parametrize("user", ["tab", "reader"])
def test_markup_and_control_characters_are_text(
    shop: Shop, request: pytest.FixtureRequest, user: str
) -> None:
    """In names of queues, tasks and schedules, in arguments, errors, filters and ids."""
    tab: Tab = request.getfixturevalue(user)
    job = shop.app.send("<i>task</i>", (EVIL,))
    shop.app.send("shop.pack", queue=EVIL, countdown=3600)
    shop.app.schedule(EVIL, shop.app.signature("<i>task</i>", "x"), every(seconds=86_400))
    until(lambda: job.state == "failed", "it has failed")
    paths = (
        "", "queues", "jobs", f"jobs/{job.id}", "failed", "failed?list=1", "failed?text=<i>",
        "schedules",
    )  # fmt: skip
    for path in paths:
        page = tab.open(path)
        assert 0 == page.locator("main i, main img, main script").count(), path
        assert "\x1b" not in page.locator("main").inner_text()
        assert page.evaluate("window.evil === undefined")
    shown = f"{EVIL[:-6]}\\x1b[31m\\u202e"
    expect(page.locator("main")).to_contain_text(shown)
    main = tab.open(f"jobs/{job.id}").locator("main")
    expect(main).to_contain_text(f"ValueError: {shown}")
    expect(main.get_by_role("heading", level=1)).to_have_text("<i>task</i> failed")
    page = tab.open("queues")
    page.get_by_role("link", name=re.compile("onerror")).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Queue <script>window.evil=1")
    expect(page.locator('[data-cell$="/delayed"]')).not_to_have_text("0")
    assert page.evaluate("window.evil === undefined")


def test_actions_reach_what_has_markup_in_its_name(shop: Shop, tab: Tab) -> None:
    """And say its name as text."""
    shop.app.send("shop.pack", queue=EVIL, countdown=3600)
    page = tab.open("queues")
    page.get_by_role("link", name=re.compile("onerror")).click()
    page.get_by_role("link", name="Purge").click()
    page.get_by_role("button", name="Purge the queue").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Cancel: done")
    assert 0 == shop.queue(EVIL)["delayed"]
    shop.app.schedule(EVIL, shop.app.signature("shop.pack", 1), every(seconds=86_400))
    row = tab.open("schedules").get_by_role("row", name=re.compile("onerror"))
    row.get_by_role("link", name="Disable").click()
    page.get_by_role("button", name="Disable").click()
    expect(page.locator(".note")).to_contain_text("Schedule <script>window.evil=1</script>")
    (stored,) = [each for each in shop.app.schedules.list() if each.name == EVIL]
    assert not stored.enabled
    assert page.evaluate("window.evil === undefined")
    shop.app.schedules.remove(EVIL)
