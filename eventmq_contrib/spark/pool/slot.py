"""The job manager's side of one slot, which a Spark task serves on some executor."""

from __future__ import annotations

import hmac
import secrets
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq.interfaces import JobsEnded, Running, SlotDied
from eventmq_contrib.spark.pool.frames import read_event

if TYPE_CHECKING:
    from eventmq.interfaces import PoolEvent
    from eventmq_contrib.spark.pool.link import Link

__all__ = ["Slot"]


class _Given(NamedTuple):
    chunk: int
    jobs: int
    body: bytes


class Slot:
    """One slot. Each Spark task that serves it has an identity of its own.

    Attributes:
        number: Of the slot.
        identity: Of the task that serves it or is to, "" for none.
        up: The task is there.
        unused: It is not used.
        ended: Why the task cannot go on, "" while it can.
        started: Monotonic time at which the task was asked for.
        heard: Monotonic time at which something was heard.
        served: It has answered something.
        pid: Of the process of the task, on its machine.
    """

    def __init__(self, number: int, link: Link) -> None:
        self.number = number
        self.unused = False
        self.served = False
        self._link = link
        self._turn = 0
        self.identity = ""
        #: What was given before there was a task.
        self._waiting: list[_Given] = []
        self._reset()

    def _reset(self) -> None:
        self.up = False
        self.ended = ""
        self.pid = 0
        self.token = ""
        self.started = self.heard = time.monotonic()
        self.bye = False
        self._deaths = 0
        self._running: Running | None = None
        self._answered = (0, -1)
        self._asked = 0
        self.taken: int | None = None

    def begin(self) -> tuple[str, str]:
        """Return identity and token for the next task."""
        self._reset()
        self._turn += 1
        self.served = False
        self.identity = f"slot-{self.number}.{self._turn}"
        self.token = secrets.token_hex(16)
        return self.identity, self.token

    def quit(self) -> None:
        """Have no task any more, and nothing that it was given."""
        self._waiting.clear()
        self._link.peers.discard(self.identity)
        self._reset()
        self.identity = ""

    # To the slot

    def send(self, *message: object) -> None:
        """Tell it something, if it is there."""
        if self.up:
            self._link.send(self.identity, *message)

    def assign(self, chunk: int, body: bytes, count: int) -> None:
        """Give it a chunk, or keep that until it is there."""
        if self.up:
            self.send("assign", self._deaths, chunk, count, body)
        else:
            self._waiting.append(_Given(chunk, count, body))

    def ask(self) -> None:
        """Ask what it withdraws."""
        self._asked += 1
        self.taken = None
        self.send("take", self._asked)

    def waive(self) -> None:
        """Wait for its answer no more: it is to keep what it has."""
        self.taken = 0
        self.send("keep", self._asked)

    @property
    def quiet(self) -> float:
        """Seconds since something was heard of it."""
        return time.monotonic() - self.heard

    @property
    def silent(self) -> bool:
        """It was asked what it withdraws, and has not said so."""
        return self.up and self.taken is None

    def withdraw(self) -> int:
        """Withdraw what is kept; return how many jobs these are."""
        waiting, self._waiting = self._waiting, []
        return sum(given.jobs for given in waiting)

    # From it

    def hear(self, name: str, about: list[Any]) -> PoolEvent | None:
        """Take note of what it said; return what the pool tells of it."""
        self.heard = time.monotonic()
        if name in {"hello", "failed"}:
            self._hello(name, *about)
        elif not self.up:  # nobody that has shown its token
            pass
        elif name == "note":
            chunk, position, seconds = about
            known = position >= 0
            self._running = Running(chunk, position, self.heard - seconds) if known else None
        elif name == "taken":
            self._taken(*about)
        elif name == "bye":
            self.bye = True
        elif name == "event":
            return self._event(read_event(self.number, about[0], about[1:]))
        return None

    def _taken(self, asked: int, count: int) -> None:
        if asked == self._asked and self.taken is None:
            self.taken = count
        elif count:  # nobody knows of these jobs any more
            self.ended = "it was told too late to keep its jobs"

    def _hello(self, name: str, token: str, about: Any) -> None:
        if not hmac.compare_digest(token.encode(), self.token.encode()) or self.up:
            return
        if name == "failed":
            self.ended = str(about)
            return
        self.up, self.pid = True, about
        self._link.peers.add(self.identity)
        waiting, self._waiting = self._waiting, []
        for given in waiting:
            self.assign(given.chunk, given.body, given.jobs)

    def _event(self, event: PoolEvent) -> PoolEvent:
        if isinstance(event, JobsEnded):
            self.served = True
            chunk, before = self._answered
            self._answered = (event.chunk, event.count + (before if chunk == event.chunk else -1))
        elif isinstance(event, SlotDied):
            self._deaths += 1
            self._running = None
        return event

    def running(self) -> Running | None:
        """Return the job that runs, as far as is known: news of it travels."""
        running = self._running
        return None if running is not None and running[:2] <= self._answered else running

    def death(self, reason: str) -> SlotDied:
        """Return the end of the slot's task, with the job that ran for all that is known."""
        running = self.running()
        chunk, position = (0, -1) if running is None else running[:2]
        return SlotDied(self.number, chunk, position, reason)
