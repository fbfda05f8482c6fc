"""An open page outlives its broker and its dashboard, and works below a path."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from tests.contrib.dashboard.browser.driving import expect

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.contrib.dashboard.browser.driving import Shop, Tab

#: An application that has the dashboard below a path.
OPS = """
import socket
import sys

import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from eventmq import EventMQ
from eventmq_contrib.dashboard import application

app = EventMQ("ops", broker=sys.argv[1])
web = Starlette(routes=[
    Mount("/ops", application(app, token_file=sys.argv[2])),
    Route("/{rest:path}", lambda request: PlainTextResponse("of another application", 404)),
])
listener = socket.create_server(("127.0.0.1", 0))
print(f"ready bind=http://127.0.0.1:{listener.getsockname()[1]}/ops", flush=True)
uvicorn.Server(uvicorn.Config(web, log_level="warning")).run(sockets=[listener])
"""


def test_below_a_path(shop: Shop, open_tab: Callable[..., Tab]) -> None:
    """Every address of every page is below it: links, files, forms, streams and the cookie."""
    program = shop.file("ops.py")
    program.write_text(OPS)
    tokens = str(shop.file("tokens"))
    url = shop.shell.launch(sys.executable, str(program), shop.address, tokens).ready()["bind"]
    tab = open_tab(url=url)
    asked: list[str] = []
    tab.page.on("request", lambda request: asked.append(request.url))
    for path in ("", "queues", "queues/default", "workers", "jobs", "failed", "schedules"):
        page = tab.open(path)
        links = page.locator("a[href]").evaluate_all("(all) => all.map((each) => each.href)")
        assert [] == [each for each in links if not each.startswith(f"{url}/")]
    page = tab.open("confirm/pause?queue=default")
    page.get_by_role("button").click()
    expect(page.locator(".note")).to_have_text("Queue default is paused.")
    page.get_by_role("link", name="Resume").click()
    page.get_by_role("button").click()
    expect(page.locator(".note")).to_have_text("Queue default is resumed.")
    done = shop.file("below")
    job = shop.app.send("shop.hold", (str(done),))
    tab.open()
    expect(tab.cell("running")).to_have_text("1")
    done.touch()
    expect(tab.cell("running")).to_have_text("0")
    shop.app.wait([job])
    assert f"{url}/live" in asked
    assert [] == [each for each in asked if not each.startswith(f"{url}/")]
    assert ["/ops"] == [each["path"] for each in page.context.cookies()]


def test_an_open_page_outlives_the_broker(shop: Shop, tab: Tab) -> None:
    """It says that the broker is missing, and goes on when that is back."""
    page = tab.open()
    shop.broker.stop()
    expect(page.locator("main")).to_contain_text("The broker is missing")
    shop.start_broker()
    expect(page.locator("main")).not_to_contain_text("The broker is missing")
    done = shop.file("again")
    job = shop.app.send("shop.hold", (str(done),))
    expect(tab.cell("running")).to_have_text("1")
    done.touch()
    shop.app.wait([job])
    expect(tab.cell("running")).to_have_text("0")


def test_an_open_page_outlives_the_dashboard(shop: Shop, tab: Tab) -> None:
    """Nobody has to sign in again."""
    page = tab.open("queues/default")
    shop.dashboard.stop()
    expect(page.locator("#connection")).to_have_attribute("aria-label", "not live")
    shop.dashboard = shop.start_dashboard()
    tab.is_live()
    page.get_by_role("link", name="Purge").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Purge the queue?")
    expected = re.compile("ERR_(CONNECTION_REFUSED|INCOMPLETE_CHUNKED_ENCODING)")
    tab.problems = [each for each in tab.problems if not expected.search(each)]
