"""Scheduler of an app, and the submission of its jobs: what ``eventmq beat`` runs."""

from __future__ import annotations

import logging
import os
import socket
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from eventmq.app.wiring import Triggers
from eventmq.client.bulk import EncodedSource
from eventmq.client.handle import Job, JobOrigin
from eventmq.client.requests import OneWayMessage
from eventmq.client.templates import EncodedJob
from eventmq.errors import (
    BatchError,
    BrokerUnavailable,
    DuplicateJob,
    EventMQError,
    ProtocolError,
    QueueFull,
    RateLimited,
)
from eventmq.job import TERMINAL
from eventmq.scheduler.runner import BeatRunner
from eventmq.text import log_about
from eventmq.wire.commands import MAX_IDS, Request
from eventmq.wire.schedules import read_schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from eventmq.app.schedules import Schedules
    from eventmq.app.wiring import Components
    from eventmq.schedule import Schedule
    from eventmq.scheduler.runner import ScheduledJob

__all__ = ["BrokerBeatClient", "make_beat"]

logger = logging.getLogger("eventmq.scheduler")

T = TypeVar("T")

#: Maximum number of unread messages from a broker.
MAX_RECEIVED = 100_000

#: Errors after which a job is submitted again.
_TEMPORARY = (BrokerUnavailable, QueueFull, RateLimited)

_ENDED = frozenset({"", *TERMINAL})


class BrokerBeatClient:
    """A `BeatClient` that uses the app's client.

    Args:
        app: Components of the app.
    """

    def __init__(self, app: Components) -> None:
        self._app = app
        self._legacy = False

    def received_schedules(self) -> Sequence[tuple[Schedule, bool]]:
        """Return schedules that the broker received; one with a schedule store returns none."""
        if self._app.settings.schedule_store == "broker":
            return ()
        messages = self._app.client.runner.listen(MAX_RECEIVED)
        received = []
        while messages:
            message = messages.popleft()
            try:
                received.append((read_schedule(message), message.remove))
            except EventMQError as error:
                logger.error("a schedule of the broker is refused: %s", error)  # noqa: TRY400
        return received

    def submit(self, jobs: Sequence[ScheduledJob]) -> Callable[[], Sequence[bool | None]]:
        """Submit jobs, many in one message if the broker accepts that."""
        if self._legacy:
            return partial(self._send_unconfirmed, jobs)
        client = self._app.client
        entries: list[tuple[Job[Any], EncodedJob]] = [
            (Job(job.id, client.results, JobOrigin(job.task, sent=False)), self._encoded(job))
            for job in jobs
        ]
        finish = client.submitter.send_bulk(EncodedSource(entries)).wait
        return partial(
            self._extended,
            partial(_submit_results, jobs, finish),
            partial(self._send_unconfirmed, jobs),
        )

    def _extended(self, call: Callable[[], T], otherwise: Callable[[], T]) -> T:
        """Return the broker's answer; ``otherwise`` if it is a legacy one without the call."""
        if not self._legacy:
            try:
                return call()
            except ProtocolError as error:
                if error.code != "no-extension":
                    raise
                self._legacy = True
        return otherwise()

    def _encoded(self, job: ScheduledJob) -> EncodedJob:
        queue = job.queue or self._app.settings.default_queue
        return EncodedJob(job.id, queue, job.headers, job.body)

    def _send_unconfirmed(self, jobs: Sequence[ScheduledJob]) -> Sequence[bool | None]:
        """Submit jobs one by one to a legacy broker, which sends no receipts for them."""
        return [self._send_one_way(self._encoded(job), job) for job in jobs]

    def _send_one_way(self, encoded: EncodedJob, job: ScheduledJob) -> bool | None:
        runner = self._app.client.runner
        frames = Request(job.id, encoded.queue, job.headers, job.body).frames()
        deadline = runner.deadline(self._app.settings.submit_timeout)
        try:
            runner.send(OneWayMessage(frames, id=job.id, deadline=deadline)).wait()
        except EventMQError as error:
            return _submit_result(job, error)
        return True

    def now(self) -> float | None:
        """Return the broker's time, None from a legacy broker, which does not send it."""
        return self._extended(self._now, lambda: None)

    def _now(self) -> float | None:
        return float(self._ask("ping", {})["now"])

    def _ask(self, name: str, arguments: Mapping[str, Any]) -> Any:
        return self._app.ask(name, arguments).wait()

    def unfinished(self, ids: Sequence[str]) -> Mapping[str, bool]:
        """Return the states of jobs; a legacy broker does not know them."""
        return self._extended(partial(self._unfinished, ids), dict)

    def _unfinished(self, ids: Sequence[str]) -> Mapping[str, bool]:
        unfinished: dict[str, bool] = {}
        for first in range(0, len(ids), MAX_IDS):
            rows = self._ask("state", {"ids": list(ids[first : first + MAX_IDS])})
            unfinished.update((job_id, state not in _ENDED) for job_id, state in rows)
        return unfinished


def _submit_results(
    jobs: Sequence[ScheduledJob], finish: Callable[[], object]
) -> Sequence[bool | None]:
    """Wait for the receipts of jobs, and return the submit result of each."""
    try:
        finish()
    except BatchError as error:
        return [
            True if status == "confirmed" else _submit_result(job, cause)
            for job, (_, status, cause) in zip(jobs, error.jobs, strict=True)
        ]
    return [True] * len(jobs)


def _submit_result(job: ScheduledJob, cause: Exception | None) -> bool | None:
    """Return False for a job to submit again, None for one that is dropped; log the reason."""
    if cause is None or isinstance(cause, _TEMPORARY):
        return False
    if isinstance(cause, ProtocolError) and cause.code == "no-extension":
        raise cause
    about = job.id, job.task, job.queue, 1
    level, text = logging.ERROR, "job %s of task %r is refused: %s"
    if isinstance(cause, DuplicateJob):
        level, text = logging.INFO, "job %s of task %r is not needed: %s"
    log_about(logger, level, about, text, job.id, job.task, cause)
    return None


def make_beat(
    app: Components, schedules: Schedules, *, on_ready: Callable[[], None] | None = None
) -> BeatRunner:
    """Return a scheduler of an app; see `EventMQ.make_beat`.

    Args:
        app: Components of the app.
        schedules: Schedules of the app.
        on_ready: Called once, in its thread, when it has read the schedules.
    """
    in_memory = app.settings.schedule_store == "memory"
    return BeatRunner(
        open_store=lambda: schedules.store if in_memory else schedules.open_store(),
        client=BrokerBeatClient(app),
        make_trigger=Triggers(app.plugins),
        declared=schedules.in_code,
        app=app.name,
        owner=f"{socket.gethostname()}:{os.getpid()}:{os.urandom(4).hex()}"[-200:],
        clock=app.clock,
        on_ready=on_ready,
    )
