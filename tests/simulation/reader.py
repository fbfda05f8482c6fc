"""Stream reader: reads the parts of a job with the client's real `JobStream`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from eventmq.client.handle import _NO_PART, JobStream
from eventmq.client.requests import PendingCall
from eventmq.errors import EventMQError, StreamRestarted
from eventmq.wire.outcomes import EndRow

if TYPE_CHECKING:
    from tests.simulation.client import ClientProcess

__all__ = ["Reader"]


class Ended(EventMQError):
    """The job did not succeed."""


class Reader:
    """Reader of one job; plays the client that its `JobStream` calls, and never blocks.

    Args:
        client: Client that reads.
        job_id: Id of the streaming job.
    """

    def __init__(self, client: ClientProcess, job_id: str) -> None:
        self.client = client
        self.job_id = job_id
        self.runner = self.reader = self
        self.parts: list[bytes] = []
        self.over = ""
        origin = SimpleNamespace(task="", results=None)
        self._job: Any = SimpleNamespace(id=job_id, row=None, origin=origin)
        self._stream: JobStream[Any] = JobStream(self._job, self, 60.0)  # type: ignore[arg-type]
        self._life = client._life
        self._stream._ask()

    def notify(self) -> None:
        """Read all parts that have come."""
        while not self.over and self._life == self.client._life:
            try:
                part = self._stream._pop()
            except StreamRestarted:
                self.parts.clear()
                continue
            except EventMQError as error:
                self._end(f"{type(error).__name__}: {error}")
                return
            if part is _NO_PART:
                if self._stream._done:
                    self._end("done")
                return
            self.parts.append(part)
            self.client.auditor.part(self.job_id, self.parts)

    def _end(self, why: str) -> None:
        self.over = why
        state = self._job.row.state if self._job.row else ""
        self.client.world.trace(self.client.name, "has read the stream of", self.job_id[-6:], why)
        self.client.auditor.streamed(self.job_id, self.parts, state if why == "done" else "")

    # Client of a `JobStream`

    def new_call(self, name: str, about: dict[str, Any], **more: Any) -> PendingCall:
        client = self.client
        client._calls += 1
        message = f"{client.name}.{client._life}.ask{client._calls}"
        return PendingCall([], id=message, name=name, arguments=about)

    def begin(self, call: PendingCall) -> None:
        call.notify = self.notify
        self.client.begin(call)

    def forget(self, call: PendingCall) -> None:
        if self._life == self.client._life:
            self.client.machine.forget(call)
            self.client.wake()

    def credit(self, call: PendingCall) -> None:
        self.client.machine.credit(call)
        self.client.wake()

    def timeout(self, seconds: Any) -> Any:
        return seconds

    def sent(self, job: Any) -> Any:
        return SimpleNamespace(broker=0, store="")

    def record(self, job: Any, row: Any) -> None:
        job.row = EndRow(*row)

    def content(self, name: str, payload: bytes, envelope: Any) -> bytes:
        return payload

    def value(self, row: EndRow) -> None:
        raise Ended(row.state)
