"""Slot of the pool ``spark`` in the job manager; a Spark task on an executor serves it."""

from __future__ import annotations

import hmac
import secrets
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq.sdk import JobsEnded, Running, SlotDied
from eventmq_contrib.spark.pool.frames import read_event

if TYPE_CHECKING:
    from eventmq.sdk import PoolEvent
    from eventmq_contrib.spark.pool.link import SlotLink

__all__ = ["SparkSlot"]


class _Assigned(NamedTuple):
    chunk: int
    jobs: int
    body: bytes


class SparkSlot:
    """One slot. Each Spark task that serves it has an identity of its own.

    Attributes:
        number: Number of the slot.
        identity: Identity of the task that serves the slot or is to, "" for none.
        up: The task has connected.
        unused: The slot is not used.
        ended: Why the task cannot go on, "" while it can.
        started: Monotonic time at which the task was asked for.
        last_seen: Monotonic time at which its last message came.
        served: The task has answered a job.
        pid: Id of the process of the task, on its machine.
    """

    def __init__(self, number: int, link: SlotLink) -> None:
        self.number = number
        self.unused = False
        self.served = False
        self._link = link
        self._generation = 0
        self.identity = ""
        #: Chunks that were assigned before the task had connected.
        self._waiting: list[_Assigned] = []
        self._reset()

    def _reset(self) -> None:
        self.up = False
        self.ended = ""
        self.pid = 0
        self.token = ""
        self.started = self.last_seen = time.monotonic()
        self.bye = False
        self._deaths = 0
        self._running: Running | None = None
        self._answered = (0, -1)
        self._requests = 0
        self.withdrawn: int | None = None

    def begin(self) -> tuple[str, str]:
        """Return identity and token for the next task."""
        self._reset()
        self._generation += 1
        self.served = False
        self.identity = f"slot-{self.number}.{self._generation}"
        self.token = secrets.token_hex(16)
        return self.identity, self.token

    def clear(self) -> None:
        """Remove the task and the chunks that were assigned."""
        self._waiting.clear()
        self._link.peers.discard(self.identity)
        self._reset()
        self.identity = ""

    # To the task

    def send(self, *message: object) -> None:
        """Send a message to the task, if it has connected."""
        if self.up:
            self._link.send(self.identity, *message)

    def assign(self, chunk: int, body: bytes, count: int) -> None:
        """Assign a chunk to the task, or keep it until the task has connected."""
        if self.up:
            self.send("assign", self._deaths, chunk, count, body)
        else:
            self._waiting.append(_Assigned(chunk, count, body))

    def request_withdrawal(self) -> None:
        """Ask the task to withdraw the jobs that have not started."""
        self._requests += 1
        self.withdrawn = None
        self.send("take", self._requests)

    def cancel_withdrawal(self) -> None:
        """Stop waiting for the answer: the task keeps its jobs."""
        self.withdrawn = 0
        self.send("keep", self._requests)

    @property
    def silence(self) -> float:
        """Seconds since the last message of the task."""
        return time.monotonic() - self.last_seen

    @property
    def withdrawing(self) -> bool:
        """Whether the task has not answered a request to withdraw."""
        return self.up and self.withdrawn is None

    def withdraw(self) -> int:
        """Withdraw the chunks that are kept; return how many jobs they have."""
        waiting, self._waiting = self._waiting, []
        return sum(assigned.jobs for assigned in waiting)

    # From the task

    def receive(self, name: str, about: list[Any]) -> PoolEvent | None:
        """Handle a message of the task; return the pool event of it, if it has one."""
        self.last_seen = time.monotonic()
        if name in {"hello", "failed"}:
            self._hello(name, *about)
        elif not self.up:  # it has not shown its token
            pass
        elif name == "note":
            chunk, position, seconds = about
            runs = position >= 0
            self._running = Running(chunk, position, self.last_seen - seconds) if runs else None
        elif name == "taken":
            self._withdrawn(*about)
        elif name == "bye":
            self.bye = True
        elif name == "event":
            return self._event(read_event(self.number, about[0], about[1:]))
        return None

    def _withdrawn(self, request: int, count: int) -> None:
        if request == self._requests and self.withdrawn is None:
            self.withdrawn = count
        elif count:  # these jobs are lost
            self.ended = "it was asked too late to keep its jobs"

    def _hello(self, name: str, token: str, about: Any) -> None:
        if not hmac.compare_digest(token.encode(), self.token.encode()) or self.up:
            return
        if name == "failed":
            self.ended = str(about)
            return
        self.up, self.pid = True, about
        self._link.peers.add(self.identity)
        waiting, self._waiting = self._waiting, []
        for assigned in waiting:
            self.assign(assigned.chunk, assigned.body, assigned.jobs)

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
        """Return the running job, as far as it is known here: its records travel."""
        running = self._running
        return None if running is not None and running[:2] <= self._answered else running

    def death(self, reason: str) -> SlotDied:
        """Return the death of the slot, with the job that ran as far as it is known."""
        running = self.running()
        chunk, position = (0, -1) if running is None else running[:2]
        return SlotDied(self.number, chunk, position, reason)
