"""Middleware ``log-context``: log records made inside a task say which job they belong to.

Every record of the process gets ``eventmq_job``, ``eventmq_task``, ``eventmq_queue`` and
``eventmq_attempt``, empty outside of jobs, so one format serves clients and workers::

    logging.basicConfig(format="%(message)s [%(eventmq_task)s %(eventmq_job)s]")

The names have a prefix because logging refuses an ``extra=`` of a name that a record has already.
It costs nothing per job: the record factory reads the running job when a record is made.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from eventmq.sdk import current, factory, hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from eventmq.sdk import Factory, Middleware

__all__ = ["LogContext", "eventmq_middleware"]


class _RecordFactory:
    """Makes log records with the fields of the running job."""

    def __init__(self, make: Callable[..., logging.LogRecord]) -> None:
        self._make = make

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self._make(*args, **kwargs)
        job = current.get(None)
        record.eventmq_job = job.id if job else ""
        record.eventmq_task = job.task if job else ""
        record.eventmq_queue = job.queue if job else ""
        record.eventmq_attempt = job.attempt if job else ""
        return record


class LogContext:
    """A `Middleware` without calls around jobs: it works where records are made.

    The factory of log records belongs to the process, so making several of these, in one app or
    many, changes nothing after the first.
    """

    def __init__(self) -> None:
        make = logging.getLogRecordFactory()
        if not isinstance(make, _RecordFactory):
            logging.setLogRecordFactory(_RecordFactory(make))


make_middleware = factory(LogContext)


@hookimpl
def eventmq_middleware() -> Mapping[str, Factory[Middleware]]:
    """Provide ``log-context``."""
    return {"log-context": make_middleware}
