"""A shop with a broker and a worker, and the page of ``eventmq top`` as its user has it."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from eventmq import EventMQ
from tests.support.emqp_broker import BrokerProcess
from tests.support.system import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from textual.pilot import Pilot

__all__ = ["DEADLINE", "HOSTILE", "SHOWN", "Page", "Shop"]

#: Timeout of every wait, in seconds.
DEADLINE = 20.0

#: A worker that is gone is missed soon.
LIMITS = {"heartbeat_interval": 0.25, "lease_interval": 0.25, "heartbeat_timeout": 3.0}

#: Everything that a terminal, Textual or Rich could take for more than text.
HOSTILE = "[red]x[/red][/] \x1b[31m\x07 \u202e [link=a:b]"

#: The same as the page shows it.
SHOWN = r"[red]x[/red][/] \x1b[31m\x07 \u202e [link=a:b]"


class Shop:
    """A broker, a worker, and an app whose tasks wait, fail and succeed."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.broker = BrokerProcess(folder, LIMITS)
        self.broker.start()
        self.release = threading.Event()
        self.app = self.client()
        self._ends: list[Callable[[], object]] = []

        @self.app.task(name="good")
        def good() -> None:
            pass

        @self.app.task(name="bad")
        def bad(text: str = "no luck") -> None:
            raise ValueError(text)

        @self.app.task(name=HOSTILE)
        def hostile(_: str) -> None:
            raise ValueError(HOSTILE)

        @self.app.task(name="hold")
        def hold() -> None:
            self.release.wait(DEADLINE)

    def client(self, **settings: Any) -> EventMQ:
        """Return a client of the broker."""
        chosen = {"actor": "anna@desk", "submit_timeout": 1.0, **settings}
        return EventMQ("shop", broker=self.broker["main"], **chosen)

    def work(self) -> None:
        """Start a worker of the queue ``default``, with two slots."""
        ready = threading.Event()
        worker = self.app.make_worker(pool="threads", concurrency=2, on_ready=ready.set)
        thread = threading.Thread(target=worker.run)
        thread.start()
        self._ends += [lambda: worker.stop(now=True), lambda: thread.join(DEADLINE)]
        assert ready.wait(DEADLINE)

    def state_is(self, job: Any, state: str) -> None:
        """Wait until a job is in a state."""
        until(lambda: job.state == state, f"the job is {state}", DEADLINE)

    def close(self) -> None:
        self.release.set()
        for end in self._ends:
            end()
        self.app.close()
        self.broker.stop()


class Page:
    """The page as its user has it: the text of the screen, and keys."""

    def __init__(self, pilot: Pilot[None]) -> None:
        self.pilot = pilot

    @property
    def text(self) -> str:
        """The lines of the screen."""
        lines = self.pilot.app.screen._compositor.render_strips()
        return "\n".join("".join(part.text for part in line).rstrip() for line in lines)

    def has(self, text: str) -> bool:
        """Return whether the screen has a text, which may go on in the next line."""
        return text in self.text or text in " ".join(self.text.split())

    async def shows(self, *texts: str, without: str = "\0") -> None:
        """Wait until the screen has all texts, and not another one."""
        end = time.monotonic() + DEADLINE
        while not all(map(self.has, texts)) or self.has(without):
            assert time.monotonic() < end, f"no {texts}, or {without!r}, on\n{self.text}"
            await self.pilot.pause(0.02)

    async def press(self, *keys: str) -> None:
        """Press keys."""
        await self.pilot.press(*keys)

    async def types(self, text: str) -> None:
        """Press the key of each character, and enter."""
        await self.press(*({" ": "space", "=": "equals_sign"}.get(each, each) for each in text))
        await self.press("enter")
