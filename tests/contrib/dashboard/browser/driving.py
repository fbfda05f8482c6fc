"""A shop of processes (broker, worker and dashboard), and tabs of a browser that look at it."""

from __future__ import annotations

import re
import shutil
import socket
from typing import TYPE_CHECKING, Any

import pytest

from eventmq import EventMQ, chain, cron
from eventmq.events import rows_of
from tests.support.shell import Shell
from tests.support.system import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

__all__ = ["OLGA", "PATIENCE", "REBOUND", "RITA", "Hold", "Shop", "Tab", "browsers", "expect"]

#: Seconds that the browser waits for what a test expects.
PATIENCE = 15.0

#: Tokens of an operator and of a user who only reads.
OLGA, RITA = "olga" * 8, "rita" * 8

#: A name that leads to this machine in the tests' browser alone.
REBOUND = "rebound.test"

#: Tasks: `mend` looks for a file, and `hold` ends when the listener of a path is closed.
APP = """
import logging
import os
import socket

from eventmq import EventMQ

app = EventMQ("shop")


@app.task(name="shop.pack")
def pack(number=1):
    return number


@app.task(name="shop.mend", keep_logs=True)
def mend(path):
    logging.getLogger("shop").critical("looks for a file")
    if not os.path.exists(path):
        raise ConnectionError("no answer from 10.0.0.8")


@app.task(name="shop.hold")
def hold(path):
    try:
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(path)
            link.recv(1)
    except OSError:  # the listener is closed
        pass


@app.task(name="shop.fail")
def fail():
    raise ValueError("it never works")


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
        arguments = ["--no-sandbox", f"--host-resolver-rules=MAP {REBOUND} 127.0.0.1"]
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


class Hold:
    """Jobs that run until they are released.

    Args:
        shop: The shop whose worker runs them.
        name: Name of the socket that they listen to, in the folder of the worker.
    """

    def __init__(self, shop: Shop, name: str) -> None:
        self._app, self.name = shop.app, name
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(shop.folder / name))
        self._listener.listen(64)

    def jobs(self, number: int, **options: Any) -> list[Any]:
        """Submit jobs."""
        return [self._app.send("shop.hold", (self.name,), **options) for _ in range(number)]

    def release(self) -> None:
        """Let all of them end, also those that start later."""
        self._listener.close()


class Shop:
    """Broker, worker and dashboard as processes, with some jobs of every kind.

    Attributes:
        app: A client.
        broker: The broker.
        dashboard: The dashboard.
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
        self._events: list[dict[str, Any]] = []
        self._read_to = 0
        try:
            self.start_broker()
            self.app = EventMQ("client", broker=self.address)
            self.worker = self.shell.start(
                "worker", "-A", "shop", "--broker", self.address, "--pool", "threads", "-c", "4",
                "-Q", "default,quick,slow,broken", "-qqq",
            )  # fmt: skip
            self.start_dashboard()
            self.worker.ready()
            self.fill()
        except BaseException:
            self.close()
            raise

    def start_broker(self) -> None:
        """Start the broker, at the address of before if there was one."""
        data = str(self.folder / "data")
        self.broker = self.shell.start("broker", "--bind", self.address, "--data-dir", data)
        self.address = next(x for x in self.broker.ready().values() if x.startswith("tcp://"))

    def start_dashboard(self) -> None:
        """Start the dashboard, at the address of before if there was one."""
        self.dashboard = self.shell.start(
            "dashboard", "--bind", self.bind, "--broker", self.address,
            "--token-file", str(self.folder / "tokens"),
        )  # fmt: skip
        self.url = self.dashboard.ready()["bind"].rstrip("/")
        self.bind = self.url.removeprefix("http://")

    def start_again(self) -> None:
        """Start what has ended."""
        if self.broker.process.poll() is not None:
            self.start_broker()
        if self.dashboard.process.poll() is not None:
            self.start_dashboard()

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

    def queue(self, name: str) -> dict[str, Any]:
        """Return what the broker says of a queue."""
        return next(row for row in self.app.ask("queues") if row["name"] == name)

    def acts_of(self, user: str) -> list[str]:
        """Return the actions of a user in the broker's events, the earliest first."""
        while rows := self.app.ask("events.read", {"after": self._read_to})["rows"]:
            for first, number, body in rows:
                self._events += [
                    dict(event)
                    for event in rows_of("b", first, body)
                    if event["kind"] == "operation"
                ]
                self._read_to = first + number - 1
        return [event["operation"] for event in self._events if event.get("actor") == user]

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
        page.on("console", lambda message: self._record(message.type, message.text))

    def _record(self, kind: str, text: str) -> None:
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

    def forgive(self, number: int, expected: str) -> None:
        """Take away complaints that a test expects, of which there are as many."""
        others = [each for each in self.problems if not re.search(expected, each)]
        assert number == len(self.problems) - len(others), self.problems
        self.problems[:] = others

    def obstacles(self, axe: str) -> list[tuple[str, list[str]]]:
        """Return what keeps people from using the open page, in light and in dark colours."""
        found = []
        self.page.evaluate(axe)
        for scheme, rules in (("light", {}), ("dark", {"runOnly": ["color-contrast"]})):
            self.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            found += self.page.evaluate(
                "(rules) => axe.run(rules).then((all) => all.violations)", rules
            )
        self.page.emulate_media(color_scheme="light")
        return [(each["id"], [node["html"] for node in each["nodes"]]) for each in found]
