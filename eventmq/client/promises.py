"""Ends of jobs that a broker sends by itself, since their REQUEST asked for them.

A REQUEST with ``reply-requested`` spares the CALL ``get`` of whoever waits for the job as soon as
it is submitted: one message, and one turn of the broker. What came and was not asked for yet is
kept for a while; whatever was not promised, or not in time, is asked for by a CALL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq.client.templates import BOTH, END, RECEIPT

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventmq.client.errands import Question

__all__ = ["Habit", "Promises"]

#: Promises that nobody has asked for yet; then the oldest are forgotten.
MOST = 100

#: Jobs in a row that were waited for at once, after which the next one is expected to be.
ENOUGH = 2

#: Seconds after its receipt in which somebody waits for a job who had nothing else to do: the
#: receipt need not come before the end then.
PROMPT = 0.001


class Habit:
    """Guesses whether the next job is waited for at once, as the last ones were.

    Threads may share it: a wrong guess costs a message, or 10 ms, nothing else.

    Args:
        monotonic: Reads the time.
    """

    __slots__ = ("_last", "_monotonic", "_prompt", "_streak", "_submitted")

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._last = ""
        self._submitted = 0.0
        #: How many jobs in a row were waited for, and by whom had nothing else to do first.
        self._streak = self._prompt = 0

    def begins(self, job_id: str) -> str:
        """Note that a job is submitted; return what should be asked for with it."""
        if self._last:
            self._streak = self._prompt = 0
        self._last = job_id
        if self._streak < ENOUGH:
            return RECEIPT
        return END if self._prompt >= ENOUGH else BOTH

    def submitted(self) -> None:
        """Note that the caller goes on: it has the receipt."""
        self._submitted = self._monotonic()

    def waits(self, job_id: str) -> None:
        """Note that somebody waits for a job."""
        if job_id == self._last:
            self._last = ""
            self._streak += 1
            prompt = self._monotonic() - self._submitted < PROMPT
            self._prompt = self._prompt + 1 if prompt else 0


class _Promise(NamedTuple):
    broker: int
    since: float
    row: list[Any] | None = None


class Promises:
    """What brokers have promised.

    Args:
        patience: Seconds in which somebody has to ask. A broker that hears nothing of a client
            for longer may forget it, with what it promised.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        #: Job -> what nobody has asked for.
        self._idle: dict[str, _Promise] = {}
        #: Job -> broker, and who waits for it.
        self._awaited: dict[str, tuple[int, Question]] = {}

    def made(self, job_id: str, broker: int, now: float) -> None:
        """Note that a broker will send the end of a job."""
        if len(self._idle) >= MOST:
            del self._idle[next(iter(self._idle))]
        self._idle[job_id] = _Promise(broker, now)

    def await_(self, question: Question, broker: int, now: float) -> bool:
        """Let a ``get`` of one job wait for a promise; say whether there is one.

        A row that is here already is among its answers then.
        """
        if question.name != "get" or len(question.ids) != 1:
            return False
        (job_id,) = question.ids
        promise = self._idle.pop(job_id, None)
        if promise is None or promise.broker != broker:
            return False
        if promise.row is not None:
            question.ids.clear()
            question.add(promise.row)
        elif now - promise.since > self._patience:
            return False
        else:
            self._awaited[job_id] = (broker, question)
        return True

    def kept(self, row: list[Any]) -> Question | None:
        """Take the end of a job; return who waits for it."""
        job_id: str = row[0]
        _, question = self._awaited.pop(job_id, (0, None))
        if question is not None and not question.over:
            return question
        promise = self._idle.get(job_id)
        if promise is not None:
            self._idle[job_id] = promise._replace(row=row)
        return None

    def broken(self, broker: int) -> None:
        """Forget what a broker has promised: it is away, or was."""
        self._idle = {i: promise for i, promise in self._idle.items() if promise.broker != broker}
        self._awaited = {i: each for i, each in self._awaited.items() if each[0] != broker}
