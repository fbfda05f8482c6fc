"""What a generator task yields, as an iterator: ``job.stream()``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from eventmq.errors import ResultTimeout, ResultUnavailable, StreamRestarted
from eventmq.interfaces import Envelope
from eventmq.wire.streams import WINDOW, WINDOW_BYTES, PartHead, decode_parts

if TYPE_CHECKING:
    from typing_extensions import Self

    from eventmq.client.errands import Question
    from eventmq.client.handle import Default, Job
    from eventmq.client.results import Results

__all__ = ["Stream"]

T = TypeVar("T")

#: Parts and bytes after which the broker is told that they were taken, at the latest.
TELL_PARTS = WINDOW // 4
TELL_BYTES = WINDOW_BYTES // 4


class _Nothing:
    """There is no part now."""


_NOTHING = _Nothing()


class Stream(Generic[T]):
    """Iterates over the parts of a job, for ``for`` and ``async for``; made by `Job.stream`.

    Nothing is asked before the first part is wanted. Each part is taken once: who leaves a stream
    in the middle and asks for it again goes on with the next part. It goes on after a restart of
    the broker, too. Use it from one thread, or one coroutine.

    Args:
        job: The job.
        results: Asks the broker.
        timeout: As in `Job.stream`.
    """

    def __init__(self, job: Job[T], results: Results, timeout: float | Default | None) -> None:
        self._job = job
        self._results = results
        self._runner = results.runner
        self._timeout = timeout
        self._seconds = results.timeout(timeout)
        self._question: Question | None = None
        self._waiter: Any = None
        #: Which run, and the index of the next part of it.
        self._delivery = self._next = 0
        #: Index that follows the last part that was handed out, of any run.
        self._seen = 0
        self._replayable = False
        self._asked_again = False
        self._over = False
        #: Parts of the batch that is being handed out, the next one last.
        self._parts: list[bytes] = []
        self._content_type = ""
        self._told = self._untold_bytes = 0

    def close(self) -> None:
        """End it; what was not taken stays for whoever asks next. Idempotent."""
        self._over = True
        self._parts = []
        self._leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_question", None) is not None:
            self._leave()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        """Return the next part; raises what `Job.stream` says."""
        while True:
            part = self._take()
            if part is not _NOTHING:
                return part
            if self._over:
                raise StopIteration
            if self._question is None:
                self._waiter = self._runner.waiter()
                self._ask()
            if not self._waiter.wait(self._seconds) and not self._news:
                raise self._results.explained(self._job, self._timeout, self._late())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        """Return the next part in a coroutine."""
        while True:
            part = self._take()
            if part is not _NOTHING:
                return part
            if self._over:
                raise StopAsyncIteration
            if self._question is None:
                self._waiter = self._runner.async_waiter()
                self._ask()
            try:
                await self._waiter.wait(self._seconds)
            except TimeoutError:
                if not self._news:
                    late = self._late()
                    raise await self._results.aexplained(self._job, self._timeout, late) from None

    # Asking

    def _ask(self) -> None:
        origin = self._results.sent(self._job)
        about = {"id": self._job.id, "delivery": self._delivery, "taken": self._next}
        question = self._runner.question(
            "stream", about, timeout=None, home=origin.broker, store=origin.store
        )
        question.subject = self._job.id
        question.wake = self._waiter.wake
        self._question = question
        self._told, self._untold_bytes = self._next, 0
        self._runner.begin(question)

    @property
    def _news(self) -> bool:
        question = self._question
        return question is not None and (bool(question.answers) or question.over)

    def _leave(self) -> None:
        question, self._question = self._question, None
        if question is not None:
            question.arguments["taken"] = self._next
            self._runner.forget(question)

    def _late(self) -> ResultTimeout:
        text = f"no part of job {self._job.id} came in time"
        return ResultTimeout(text, job_id=self._job.id)

    # Taking

    # hot loop: benchmarks/stream.py
    def _take(self) -> Any:
        """Return the next part that is there, or `_NOTHING`."""
        parts = self._parts
        while not parts:
            question = self._question
            if question is None:
                return _NOTHING
            if not question.answers:
                self._tell(question)
                if question.over and not question.answers:
                    self._end()
                    raise question.error or ResultUnavailable("the stream has ended too early")
                return _NOTHING
            answer = question.answers.popleft()
            if isinstance(answer, tuple):
                self._hear(question, answer)
            else:
                self._welcome(answer)
            parts = self._parts
        payload = parts.pop()
        index = self._next
        value = self._decode(index, payload)
        self._next = self._seen = index + 1
        self._untold_bytes += len(payload)
        if index + 1 - self._told >= TELL_PARTS or self._untold_bytes >= TELL_BYTES:
            self._tell(self._question)
        return value

    def _tell(self, question: Question | None) -> None:
        """Let the broker know what was taken."""
        if question is not None and self._next > self._told and not question.over:
            self._told, self._untold_bytes = self._next, 0
            question.arguments["taken"] = self._next
            self._runner.credit(question)

    def _decode(self, index: int, payload: bytes) -> Any:
        name, _, rest = self._content_type.partition(";")
        signature, _, created = rest.partition(";")
        envelope = Envelope(
            f"{self._job.id}.{index}", name, created=float(created or 0.0), signature=signature
        )
        return self._results.reader.content(name, payload, envelope)

    def _welcome(self, about: dict[str, Any]) -> None:
        """Take what the broker says of the stream at first."""
        self._replayable = bool(about.get("replayable"))
        if not self._delivery:
            self._delivery, self._next = int(about["delivery"]), int(about["base"])
            self._told = self._seen = self._next
            self._know(self._delivery)

    def _know(self, delivery: int) -> None:
        if self._question is not None:
            self._question.arguments["delivery"] = delivery
            self._question.arguments["taken"] = self._next

    def _hear(self, question: Question, answer: tuple[Any, Any]) -> None:
        """Take a batch, or the end."""
        head, body = answer
        if head.delivery < self._delivery:
            if not isinstance(body, bytes):  # a restarted broker has seen no part of it
                self._finish(body)
            return
        if head.delivery > self._delivery:
            fresh, self._delivery = not self._delivery, head.delivery
            self._next = head.first if fresh and isinstance(body, bytes) else 0
            self._told = self._next
            self._know(head.delivery)
            if self._seen and not self._replayable:
                self._seen = 0
                question.answers.appendleft(answer)
                msg = f"job {self._job.id} is run again: its parts start again from the first"
                raise StreamRestarted(msg)
        if not isinstance(body, bytes):
            self._hear_end(head, body)
        elif head.first > self._next:
            self._miss(head.first)
        elif head.end > self._next:
            self._asked_again = False
            self._content_type, parts = decode_parts(body)
            self._parts = parts[self._next - head.first :][::-1]
            self._skip()

    def _skip(self) -> None:
        """Pass over what an earlier run has yielded already, where both yield the same."""
        while self._parts and self._next < self._seen:
            self._parts.pop()
            self._next += 1

    def _hear_end(self, head: PartHead, row: list[Any]) -> None:
        if head.first > self._next:
            self._miss(head.first)
        else:
            self._finish(row)

    def _finish(self, row: list[Any]) -> None:
        self._end()
        self._results.note(self._job, row)
        assert self._job.row is not None  # noqa: S101 - noted
        if self._job.row.state != "succeeded":
            self._results.reader.value(self._job.row)  # raises

    def _miss(self, index: int) -> None:
        """Ask again, once, for parts that were lost on their way here."""
        missed = f"parts {self._next} to {index - 1} of job {self._job.id} were lost"
        if self._asked_again:
            self._end()
            raise ResultUnavailable(f"{missed}; get() has its result")
        self._asked_again = True
        self._leave()
        self._ask()

    def _end(self) -> None:
        self._over = True
        self._leave()
