"""The examples of the pages in servers with several processes, beside a real broker and worker."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from eventmq import EventMQ
from tests.contrib.web.conftest import Event
from tests.support.page_files import ROOT
from tests.support.system import until

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.contrib.web.conftest import Server, Site

pytestmark = pytest.mark.timeout(120)


def progress(pages: int, first: int = 1) -> list[Event]:
    """Return the events of a report, from a page on."""
    parts = [Event("part", {"done": n, "total": pages}) for n in range(first, pages + 1)]
    return [*parts, Event("result", f"{pages} pages")]


def processes(server: Server, method: str, path: str) -> set[str]:
    """Return the processes that are done with such requests."""
    return set(re.findall(rf"^done {method} {path} (\d+)$", server.program.text, re.MULTILINE))


def test_each_process_submits_jobs_and_any_waits_for_them(server: Server) -> None:
    """With gunicorn the client was used in the process that was forked."""

    def two_processes() -> bool:
        job = server.start(1)
        until(lambda: server.ask(f"/reports/{job}") == (200, {"result": "1 pages"}), "its result")
        return len(processes(server, "POST", "/reports")) > 1

    until(two_processes, "two processes have submitted jobs")


def test_progress_is_sent_as_it_is_made_and_the_result_behind_it(server: Server) -> None:
    job = server.start(10)
    with server.events(job) as events:
        assert events.response.headers["content-type"].startswith("text/event-stream")
        assert events.response.headers["x-accel-buffering"] == "no"
        assert list(events) == progress(10)
    with server.events(job) as events:
        assert list(events) == progress(10, first=11)


def test_a_reader_that_left_is_noticed_and_the_next_one_goes_on(server: Server) -> None:
    job = server.start(20)
    with server.events(job) as events:
        for event in events:
            if event == Event("part", {"done": 3, "total": 20}):
                break
    until(lambda: processes(server, "GET", f"/reports/{job}/events"), "the request has ended")
    with server.events(job) as events:
        seen = list(events)
    assert seen == progress(20, first=seen[0].data["done"])
    assert 3 < seen[0].data["done"] < 20


def test_a_reader_of_a_quiet_stream_is_noticed_too(server: Server, site: Site) -> None:
    with EventMQ("test", broker=site.address) as app:
        job = app.send("shop.report", (1,), queue="served-by-none")
        with server.events(job.id):
            pass
        until(lambda: processes(server, "GET", f"/reports/{job.id}/events"), "its end")
        job.cancel()
    with server.events(job.id) as events:
        assert list(events) == [Event("failed", "JobCancelled")]
    assert server.ask(f"/reports/{job.id}") == (500, {"error": "JobCancelled"})


def test_a_result_that_does_not_come_is_a_timeout(server: Server, site: Site) -> None:
    with EventMQ("test", broker=site.address) as app:
        job = app.send("shop.report", (1,), queue="served-by-none")
        assert server.ask(f"/reports/{job.id}?wait=1") == (504, {"error": "ResultTimeout"})
        job.cancel()


def test_a_browser_shows_progress_by_the_script_of_the_page(
    servers: dict[str, Server], chromium: Browser
) -> None:
    page = (ROOT / "docs" / "howto" / "web" / "fastapi.rst").read_text("utf-8")
    [script] = re.findall(r"^\.\. code-block:: js\n\n((?:(?: {3}.*)?\n)+)", page, re.MULTILINE)
    server = servers["starlette"]
    tab = chromium.new_page()
    tab.goto(f"http://127.0.0.1:{server.port}/reports/none")  # any page of this server
    promise = """job => new Promise(resolve => {
        const parts = [];
        const draw = part => parts.push(part.done);
        const finish = (end, value) => resolve([parts, end, value]);
        SCRIPT
    })"""
    seen = tab.evaluate(promise.replace("SCRIPT", script), server.start(5))
    tab.close()
    assert seen == [[1, 2, 3, 4, 5], "result", "5 pages"]


def test_without_a_broker_requests_fail_soon_and_streams_go_on_later(
    servers: dict[str, Server], site: Site
) -> None:
    with ExitStack() as stack:
        streams = {}
        for framework, server in servers.items():
            streams[framework] = stack.enter_context(server.events(server.start(30)))
            assert next(iter(streams[framework])) == progress(30)[0]
        site.stop_broker()
        began = time.monotonic()
        with ThreadPoolExecutor(2 * len(servers)) as threads:
            asked = [(each, "/reports?pages=1", "POST") for each in servers.values()]
            asked += [(each, "/reports/none", "GET") for each in servers.values()]
            for answer in threads.map(lambda each: each[0].ask(*each[1:]), asked):
                assert answer == (503, {"error": "BrokerUnavailable"})
        assert 2.0 < time.monotonic() - began < 10.0  # the example's submit_timeout is 2 s
        site.start_broker()
        for server in servers.values():
            until(lambda server=server: server.ask("/reports?pages=1", "POST")[0] == 202, "submits")
        for framework, events in streams.items():
            assert list(events) == progress(30, first=2), framework
