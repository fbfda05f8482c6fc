"""Looks at built pages as readers do: nothing is too wide, and the search finds the page.

``python -m tests.support.built_pages HTML`` prints what is wrong, and ends with 1 then.
"""

from __future__ import annotations

import functools
import http.server
import shutil
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from playwright.sync_api import sync_playwright

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

#: Widths of windows, in pixels.
WIDTHS = (1280, 400)

#: Pages without text of ours.
GENERATED = {"genindex.html", "search.html", "py-modindex.html"}

#: What a reader types -> the page that has to be among the first two results.
QUERIES = {
    "retry": "retries",
    "how do I retry": "retries",
    "is it idempotent": "retries",
    "visibility timeout": "retries",
    "why is my job stuck": "troubleshooting",
    "job stuck": "troubleshooting",
    "lost job": "troubleshooting",
    "how do I upgrade": "upgrade",
    "dead letter": "replay-failed-jobs",
    "result of a job": "arguments-and-results",
    "cancel a job": "stop-jobs",
    "time limit": "stop-jobs",
    "memory leak": "stop-jobs",
    "rate limit": "limit-jobs",
    "tenant": "limit-jobs",
    "oom": "stop-jobs",
    "big arguments": "arguments-and-results",
    "monitoring": "metrics",
    "broker dies": "several-brokers",
    "debounce": "unique-jobs",
    "cron": "schedules",
    "progress": "streams",
    "chord": "compose-jobs",
    "priority": "order-jobs",
    "test tasks": "test-your-tasks",
    "systemd": "production-workers",
    "autoscale": "production-workers",
    "docker": "containers",
    "kubernetes": "containers",
    "dashboard": "dashboard",
    "logs": "read-the-log",
    "sentry": "metrics",
    "opentelemetry": "metrics",
    "backup": "look-after-the-store",
    "failover": "several-brokers",
    "fastapi": "fastapi",
    "flask": "flask",
    "django transaction": "django",
    "starlette": "fastapi",
    "litestar": "fastapi",
    "celery": "coming-from-celery",
    "kombu": "coming-from-celery",
    "dramatiq": "migrate-from-dramatiq-rq-and-huey",
    "pydantic": "arguments-and-results",
    "result backend": "arguments-and-results",
    "middleware": "write-a-plugin",
    "plugin": "write-a-plugin",
    "gateway": "gateways",
    "javascript": "clients-in-other-languages",
    "windows": "overview",
    "exactly once": "overview",
    "install": "quickstart",
    "getting started": "quickstart",
    "hello world": "quickstart",
    "tutorial": "quickstart",
    "run it in Docker": "containers",
    "helm": "containers",
    "graceful shutdown": "production-workers",
    "deploy without losing jobs": "production-workers",
    "how do I see failed jobs": "replay-failed-jobs",
    "failed jobs": "replay-failed-jobs",
    "schedule a cron job": "schedules",
    "delay": "schedules",
    "eta": "schedules",
    "countdown": "schedules",
    "run job later": "schedules",
    "send later": "schedules",
    "rate limit per customer": "limit-jobs",
    "set a timeout": "stop-jobs",
    "cancel a running job": "stop-jobs",
    "revoke": "stop-jobs",
    "revoke task": "stop-jobs",
    "kill a task": "stop-jobs",
    "stop a job": "stop-jobs",
    "worker memory leak": "stop-jobs",
    "priorities": "order-jobs",
    "multiple queues": "order-jobs",
    "pass a database object as argument": "arguments-and-results",
    "ORM object": "arguments-and-results",
    "pass a django model to a task": "arguments-and-results",
    "get the result": "arguments-and-results",
    "progress bar": "streams",
    "django transactions": "django",
    "use with FastAPI": "fastapi",
    "metrics and alerts": "metrics",
    "grafana": "metrics",
    "back up the broker": "look-after-the-store",
    "high availability": "several-brokers",
    "two brokers": "several-brokers",
    "cluster of brokers": "several-brokers",
    "postgres": "several-brokers",
    "migrate from Celery": "coming-from-celery",
    "who may connect": "secure-a-broker",
    "security TLS": "secure-a-broker",
    "password": "secure-a-broker",
    "authentication": "secure-a-broker",
    "authentication password": "secure-a-broker",
    "permissions": "secure-a-broker",
    "write a plugin": "write-a-plugin",
    "test tasks without broker": "test-your-tasks",
    "unit test": "test-your-tasks",
    "unit tests": "test-your-tasks",
    "duplicate": "unique-jobs",
    "duplicate job": "unique-jobs",
    "job not running": "troubleshooting",
    "spark cluster": "spark-cluster",
    "WorkerLost": "api",
    "queue_window": "settings",
    "max_jobs_per_child": "stop-jobs",
}

#: Names of tables and images that stick out of their page.
_WIDER = """() => {
    const right = document.querySelector("article").getBoundingClientRect().right + 8;
    const wider = (e) =>
        e.getBoundingClientRect().right > right || e.scrollWidth > e.clientWidth + 2;
    const names = [...document.querySelectorAll("article :is(.table-wrapper, img)")]
        .filter(wider)
        .map((e) => e.src || e.innerText.slice(0, 40));
    if (document.documentElement.scrollWidth > innerWidth + 1) names.push("the page");
    return names;
}"""

#: Words that are broken within, in tables of up to five columns.
_BROKEN = """() => {
    const broken = [];
    for (const cell of document.querySelectorAll("article table.docutils :is(td, th)")) {
        if (cell.parentElement.children.length > 5) continue;
        const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
        while (texts.nextNode()) {
            for (const word of texts.currentNode.data.matchAll(/[a-z]{2,}/gi)) {
                const range = document.createRange();
                range.setStart(texts.currentNode, word.index);
                range.setEnd(texts.currentNode, word.index + word[0].length);
                const tops = [...range.getClientRects()].map((box) => Math.round(box.top));
                if (new Set(tops).size > 1) broken.push(word[0]);
            }
        }
    }
    return broken;
}"""

_RESULTS = '[...document.querySelectorAll("#search-results li > a")].slice(0, 4).map((a) => a.href)'


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


class _Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """A browser that has left does not matter."""


def wide(browser: Browser, folder: Path) -> Iterator[str]:
    """Yield what is wider than its page, and words in tables that were broken to avoid it."""
    paths = sorted(set(folder.rglob("*.html")) - set((folder / "_static").rglob("*.html")))
    paths = [path for path in paths if path.name not in GENERATED]
    assert len(paths) > 50, f"{folder} has only {len(paths)} pages"
    for width in WIDTHS:
        tab = browser.new_page(viewport={"width": width, "height": 900})
        for path in paths:
            tab.goto(path.as_uri())
            for name in tab.evaluate(_WIDER):
                yield f"{path.relative_to(folder)}, {width} pixels: {name!r} is too wide"
            for name in tab.evaluate(_BROKEN):
                yield f"{path.relative_to(folder)}, {width} pixels: {name!r} is broken in a table"
        tab.close()


def astray(browser: Browser, folder: Path) -> Iterator[str]:
    """Yield the queries whose page is not among the first results."""
    server = _Server(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    tab = browser.new_page()
    for query, name in QUERIES.items():
        tab.goto(f"http://127.0.0.1:{server.server_port}/search.html?q={quote(query)}")
        tab.wait_for_selector("#search-results .search-summary:not(:empty)")
        found = tab.evaluate(_RESULTS)
        pages = [Path(address.partition("#")[0]).stem for address in found]
        if name not in pages[:2] or "lab/" in "".join(found):
            yield f"search for {query!r}: {name} is not among the first two of {pages}"
    server.shutdown()
    server.server_close()


def main(folder: Path) -> int:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        wrong = [*wide(browser, folder), *astray(browser, folder)]
        browser.close()
    for line in wrong:
        print(line)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
