"""Fields of log records: every record has those of a job, empty until a plugin fills them.

A format of the user's own that names ``eventmq_job`` must do for lines from before the app has
started, and where the middleware ``log-context`` is not in use.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["add_fields"]

_EMPTY = dict.fromkeys(("eventmq_job", "eventmq_task", "eventmq_queue", "eventmq_attempt"), "")


class _RecordFactory:
    """Makes log records with empty fields of a job."""

    def __init__(self, make: Callable[..., logging.LogRecord]) -> None:
        self._make = make

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self._make(*args, **kwargs)
        record.__dict__.update(_EMPTY)
        return record


def add_fields() -> None:
    """Add the fields to all records of this process that are made from now on."""
    logging.setLogRecordFactory(_RecordFactory(logging.getLogRecordFactory()))
