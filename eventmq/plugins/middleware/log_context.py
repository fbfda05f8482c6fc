"""Middleware ``log-context``: adds the running job to log records.

Every record of the process gets ``eventmq_job``, ``eventmq_task``, ``eventmq_queue`` and
``eventmq_attempt``. They are empty outside of jobs, so one format works for clients and workers::

    logging.basicConfig(format="%(message)s [%(eventmq_task)s %(eventmq_job)s]")

The names have a prefix because logging refuses an ``extra=`` with a name that a record already has.
The middleware costs nothing per job: the record factory reads the running job when a record is
created.
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
    """Creates log records with the fields of the running job."""

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
    """A `Middleware` that wraps no calls: it replaces the factory of log records.

    The process has one such factory, so only the first of these objects, in one app or several, has
    an effect.
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
