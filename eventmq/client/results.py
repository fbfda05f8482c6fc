"""Asks brokers about jobs on behalf of their handles."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from eventmq.client.errands import NOWHERE
from eventmq.client.handle import DEFAULT, Job, Origin
from eventmq.client.outcomes import Row, with_errors
from eventmq.client.promises import Habit
from eventmq.client.standing import PATIENCE, describe
from eventmq.errors import (
    BrokerUnavailable,
    EventMQError,
    JobNotFound,
    NotAllowed,
    ResultTimeout,
)
from eventmq.wire.references import is_reference

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eventmq.client.errands import Question
    from eventmq.client.handle import Default
    from eventmq.client.outcomes import OutcomeReader
    from eventmq.client.runner import ClientRunner

__all__ = ["Results"]

#: Seconds that an answer takes at most, if the broker has it.
SHORTEST = 0.1


class Results:
    """States, infos and results of jobs.

    Args:
        runner: Talks to the brokers.
        reader: Reads outcomes.
        answer_timeout: Seconds to wait for what the broker knows now.
        result_timeout: Seconds to wait for the end of a job, unless told.
    """

    def __init__(
        self,
        runner: ClientRunner,
        reader: OutcomeReader,
        *,
        answer_timeout: float,
        result_timeout: float | None,
    ) -> None:
        self.runner = runner
        self.reader = reader
        self.habit = Habit(runner.clock.monotonic)
        self._answer_timeout = answer_timeout
        self._result_timeout = result_timeout

    def timeout(self, timeout: float | Default | None) -> float | None:
        """Return seconds for a caller's ``timeout``, None for no limit."""
        if timeout is DEFAULT:
            return self._result_timeout
        if timeout is None:
            return None
        seconds: object = timeout
        if type(seconds) not in {int, float} or not timeout >= 0:
            raise ValueError(f"timeout is {timeout!r}; allowed are seconds from 0, or None")
        return max(float(timeout), SHORTEST)

    # Results

    def get(self, job: Job[Any], timeout: float | Default | None) -> Any:
        """Return the result of a job, waiting for it."""
        if job.row is None:
            question = self._get_question(job, timeout)
            try:
                row = self.runner.ask(question)
            except ResultTimeout as error:
                raise self.explained(job, timeout, error) from None
            self.note(job, row)
        return self._value(job)

    async def aget(self, job: Job[Any], timeout: float | Default | None) -> Any:
        """Do the same as `get` in a coroutine."""
        if job.row is None:
            question = self._get_question(job, timeout)
            try:
                row = await self.runner.aask(question)
            except ResultTimeout as error:
                raise await self.aexplained(job, timeout, error) from None
            self.note(job, row)
        if job.row is not None and is_reference(job.row.content_type):
            from asyncio import to_thread

            return await to_thread(self._value, job)  # backends may block
        return self._value(job)

    def note(self, job: Job[Any], row: list[Any]) -> None:
        """Remember how a job ended; an unknown one may still come to be known."""
        if row[1]:
            job.row = Row(*row)
        else:
            raise JobNotFound(job.id)

    def end_of(self, job: Job[Any]) -> Question:
        """Return the question for a job's end, without a limit of time."""
        return self._get_question(job, None)

    def _get_question(self, job: Job[Any], timeout: float | Default | None) -> Question:
        self.habit.waits(job.id)
        origin = self.sent(job)
        return self.runner.question(
            "get",
            timeout=self.timeout(timeout),
            ids=[job.id],
            home=origin.broker,
            store=origin.store,
        )

    def _value(self, job: Job[Any]) -> Any:
        assert job.row is not None  # noqa: S101 - noted before
        return self.reader.value(job.row)

    # Why it takes so long

    def explained(
        self, job: Job[Any], timeout: float | Default | None, error: ResultTimeout
    ) -> ResultTimeout:
        """Return the error with where the job is, if the broker says so within `PATIENCE`."""
        answers: list[Any] = []
        with suppress(EventMQError):
            for question in self._where(job, error):
                answers.append(self.runner.ask(question))
        return self._explain(job, timeout, answers) or error

    async def aexplained(
        self, job: Job[Any], timeout: float | Default | None, error: ResultTimeout
    ) -> ResultTimeout:
        """Do the same as `explained` in a coroutine."""
        answers: list[Any] = []
        with suppress(EventMQError):
            for question in self._where(job, error):
                answers.append(await self.runner.aask(question))
        return self._explain(job, timeout, answers) or error

    def _where(self, job: Job[Any], error: ResultTimeout) -> Iterator[Question]:
        """Yield the questions where a job is, none if the error says so already."""
        if error.state:
            return
        deadline = self.runner.deadline(PATIENCE)
        for name, arguments in (("info", {"id": job.id}), ("queues", {}), ("workers", {})):
            question = self.question(job, name, arguments)
            question.deadline = deadline
            yield question

    def _explain(
        self, job: Job[Any], timeout: float | Default | None, answers: list[Any]
    ) -> ResultTimeout | None:
        if not answers:
            return None
        info, queues, workers = [*answers, None, None][:3]
        text = describe(info, queues, workers, f"{self.timeout(timeout):.1f} s")
        return ResultTimeout(text, job_id=job.id, state=info["state"])

    # What is known now

    def state(self, job: Job[Any]) -> str:
        """Return the state of a job."""
        return _state(job, self.runner.ask(self.question(job, "state", {"ids": [job.id]})))

    async def astate(self, job: Job[Any]) -> str:
        """Do the same as `state` in a coroutine."""
        question = self.question(job, "state", {"ids": [job.id]})
        return _state(job, await self.runner.aask(question))

    def info(self, job: Job[Any]) -> dict[str, Any]:
        """Return what the broker knows of a job."""
        return with_errors(self.runner.ask(self.question(job, "info", {"id": job.id})))

    async def ainfo(self, job: Job[Any]) -> dict[str, Any]:
        """Do the same as `info` in a coroutine."""
        return with_errors(await self.runner.aask(self.question(job, "info", {"id": job.id})))

    def cancel(self, job: Job[Any], reason: str) -> bool:
        """Cancel a job; return whether it is cancelled now."""
        arguments = {"ids": [job.id], "reason": reason}
        rows = self.runner.ask(self.question(job, "cancel", arguments))
        return _cancelled(job, rows)

    async def acancel(self, job: Job[Any], reason: str) -> bool:
        """Do the same as `cancel` in a coroutine."""
        arguments = {"ids": [job.id], "reason": reason}
        rows = await self.runner.aask(self.question(job, "cancel", arguments))
        return _cancelled(job, rows)

    def question(self, job: Job[Any], name: str, arguments: dict[str, Any]) -> Question:
        """Return a question about a job, for the broker that has it."""
        origin = self.sent(job)
        question = self.runner.question(
            name,
            arguments,
            timeout=self._answer_timeout,
            home=origin.broker,
            store=origin.store,
        )
        question.subject = job.id
        return question

    @staticmethod
    def sent(job: Job[Any]) -> Origin:
        """Return where a job is; raises `NotAllowed` if it was not sent."""
        origin = job.origin
        if not origin.sent:
            msg = f"job {job.id} is part of a batch that was not sent: leave app.batch() first"
            raise NotAllowed(msg)
        return origin

    # Handles from ids

    def find(self, job_id: str) -> Job[Any]:
        """Return a handle of a job that some broker knows.

        Raises:
            JobNotFound: None of them does.
            BrokerUnavailable: One that might did not answer.
        """
        away: BrokerUnavailable | None = None
        for job in self._candidates(job_id):
            try:
                self.state(job)
            except JobNotFound:
                continue
            except BrokerUnavailable as error:
                away = error
                continue
            return job
        raise away or JobNotFound(job_id)

    async def afind(self, job_id: str) -> Job[Any]:
        """Do the same as `find` in a coroutine."""
        away: BrokerUnavailable | None = None
        for job in self._candidates(job_id):
            try:
                await self.astate(job)
            except JobNotFound:
                continue
            except BrokerUnavailable as error:
                away = error
                continue
            return job
        raise away or JobNotFound(job_id)

    def _candidates(self, job_id: str) -> list[Job[Any]]:
        if not job_id:
            raise JobNotFound(job_id)
        count = self.runner.brokers
        places = range(count) if count > 1 else (NOWHERE,)
        return [Job(job_id, self, Origin(broker=place)) for place in places]


def _cancelled(job: Job[Any], rows: list[list[str]]) -> bool:
    return _state(job, [row[:2] for row in rows]) == "cancelled"


def _state(job: Job[Any], rows: list[list[str]]) -> str:
    for job_id, state in rows:
        if job_id == job.id and state:
            return state
    raise JobNotFound(job.id)
