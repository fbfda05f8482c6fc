"""A shop of processes (broker, worker and dashboard), and tabs of a browser that look at it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from eventmq import EventMQ, chain, cron
from tests.support.shell import Program, Shell
from tests.support.system import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

__all__ = ["PATIENCE", "Shop", "Tab", "browsers", "expect"]

#: Seconds that the browser waits for what a test expects.
PATIENCE = 15.0

#: Tokens of an operator and of a user who only reads.
OLGA, RITA = "olga" * 8, "rita" * 8

#: Tasks: `hold` and `mend` depend on files, which a test makes.
APP = """
import logging
import os
import time

from eventmq import EventMQ

app = EventMQ("shop")


@app.task(name="shop.pack")
def pack(number=1):
    return number


@app.task(name="shop.mend", keep_logs=True)
def mend(path):
    logging.getLogger("shop").warning("looks for a file")
    if not os.path.exists(path):
        raise ConnectionError("no answer from 10.0.0.8")


@app.task(name="shop.hold")
def hold(path):
    while not os.path.exists(path):
        time.sleep(0.02)


@app.task(name="<i>task</i>")
def markup(text):
    raise ValueError(text)
"""

#: Kept by a page from its beginning: violations of its policy.
VIOLATIONS = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) =>
  window.violations.push(`${event.violatedDirective} ${event.blockedURI}`));
"""


def expect(what: Any) -> Any:
    """Return Playwright's assertions about a page or a part of it, which wait."""
    from playwright.sync_api import expect as expected

    expected.set_options(timeout=PATIENCE * 1000)
    return expected(what)


def browsers() -> Iterator[Browser]:
    """Yield Debian's Chromium; skip the test if it or Playwright is missing."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("needs chromium: none is installed")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.skip("needs chromium: its driver, playwright, is not installed")
    with sync_playwright() as playwright:
        # Without a sandbox, which needs a user that is not root.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


class Shop:
    """Broker, worker and dashboard as processes, with some jobs of every kind.

    Attributes:
        app: A client.
        url: Address of the dashboard, without a slash at the end.
        ended: A job that succeeded.
        failed: A job that failed, and whose task looks for the file ``mended``.
        last: Last job of a chain.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.shell = folder, Shell(folder)
        (folder / "shop.py").write_text(APP)
        tokens = folder / "tokens"
        tokens.write_text(f"{OLGA} operator olga\n{RITA} read-only rita\n")
        tokens.chmod(0o600)
        self.address, self.bind = "tcp://127.0.0.1:0", "127.0.0.1:0"
        self.app: Any = None
        try:
            self.broker = self.start_broker()
            self.app = EventMQ("client", broker=self.address)
            self.worker = self.shell.start(
                "worker", "-A", "shop", "--broker", self.address, "--pool", "threads", "-c", "4",
                "-Q", "default,quick,slow",
            )  # fmt: skip
            self.worker.ready()
            self.dashboard = self.start_dashboard()
            self.fill()
        except BaseException:
            self.close()
            raise

    def start_broker(self) -> Program:
        """Start the broker, at the address of before if there was one."""
        data = str(self.folder / "data")
        program = self.shell.start("broker", "--bind", self.address, "--data-dir", data)
        self.address = next(x for x in program.ready().values() if x.startswith("tcp://"))
        return program

    def start_dashboard(self) -> Program:
        """Start the dashboard, at the address of before if there was one."""
        program = self.shell.start(
            "dashboard", "--bind", self.bind, "--broker", self.address,
            "--token-file", str(self.folder / "tokens"),
        )  # fmt: skip
        self.url = program.ready()["bind"].rstrip("/")
        self.bind = self.url.removeprefix("http://")
        return program

    def fill(self) -> None:
        """Make a job of every kind, and wait for those that end."""
        app = self.app
        self.ended = app.send("shop.pack", (1,))
        self.failed = app.send("shop.mend", (str(self.folder / "mended"),))
        pack = app.signature("shop.pack", 3, immutable=True)
        self.last = chain(pack, pack, pack).delay()
        app.send("shop.pack", (2,), countdown=3600)
        app.schedule("nightly", pack, cron("0 3 * * *", tz="Europe/Paris"))
        until(lambda: self.failed.state == "failed", "a job has failed")
        until(lambda: self.ended.state == "succeeded", "a job has ended")

    def file(self, name: str) -> Path:
        """Return the path of a file for which a task looks."""
        return self.folder / name

    def close(self) -> None:
        """End all."""
        try:
            if self.app is not None:
                self.app.close()
        finally:
            self.shell.close()


class Tab:
    """A tab of a browser that has signed in.

    Attributes:
        page: The page, as Playwright has it.
        problems: What the console and the policy of pages complained about.
    """

    def __init__(self, page: Page, url: str) -> None:
        self.page, self.url = page, url
        self.problems: list[str] = []
        page.set_default_timeout(PATIENCE * 1000)
        page.add_init_script(VIOLATIONS)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", lambda message: self._say(message.type, message.text))

    def _say(self, kind: str, text: str) -> None:
        if kind in {"error", "warning"}:
            self.problems.append(text)

    def sign_in(self, token: str) -> None:
        """Exchange a token for the cookie."""
        # Beside the page: that would load the overview too, each time.
        self.page.context.request.get(f"{self.url}/?token={token}", max_redirects=0)

    def open(self, path: str = "", *, live: bool = True) -> Page:
        """Open a page of the broker; return when it is live."""
        self.page.goto(f"{self.url}/b/broker/{path}")
        if live:
            self.is_live()
        return self.page

    def is_live(self) -> None:
        """Wait until the page has live figures."""
        expect(self.page.locator("#connection")).to_have_attribute("aria-label", "live")

    def cell(self, key: str) -> Any:
        """Return a live figure."""
        return self.page.locator(f'[data-cell="broker:{key}"]').first

    def complaints(self) -> list[str]:
        """Return what the console and the policy of the open page complained about."""
        return [*self.problems, *self.page.evaluate("window.violations || []")]
