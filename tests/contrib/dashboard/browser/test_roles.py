"""Who only reads cannot act, and what others name their things is text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.contrib.dashboard.browser.driving import RITA, expect
from tests.support.system import until

if TYPE_CHECKING:
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
    refused = [each for each in reader.problems if "403" in each]
    assert 3 == len(refused)
    reader.problems.clear()


def test_a_form_of_another_site_is_refused(shop: Shop, tab: Tab) -> None:
    """One that a page elsewhere sends, with the cookie in the browser and the right token."""
    page = tab.open("confirm/pause?queue=default")
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


@pytest.mark.parametrize("token", ["", RITA])
def test_markup_and_control_characters_are_text(shop: Shop, tab: Tab, token: str) -> None:
    """In names of queues, tasks and schedules, in arguments, errors, filters and ids."""
    job = shop.app.send("<i>task</i>", (EVIL,))
    shop.app.send("shop.pack", queue=EVIL, countdown=3600)
    until(lambda: job.state == "failed", "it has failed")
    if token:
        tab.sign_in(token)
    paths = ("", "queues", "jobs", f"jobs/{job.id}", "failed", "failed?list=1", "failed?text=<i>")
    for path in paths:
        page = tab.open(path)
        assert 0 == page.locator("main i, main img, main script").count(), path
        assert "\x1b" not in page.locator("main").inner_text()
        assert page.evaluate("window.evil === undefined")
    main = tab.open(f"jobs/{job.id}").locator("main")
    expect(main).to_contain_text(f"ValueError: {EVIL[:-6]}\\x1b[31m\\u202e")
    expect(main.get_by_role("heading", level=1)).to_have_text("<i>task</i> failed")
    page = tab.open("queues")
    page.get_by_role("link", name=re.compile("onerror")).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Queue <script>window.evil=1")
    expect(page.locator('[data-cell$="/delayed"]')).not_to_have_text("0")
    assert page.evaluate("window.evil === undefined")
