"""Fields of log records: every record has those of a job, empty unless a plugin fills them.

A user's format that names ``eventmq_job`` must also work for lines that are logged before the app
has started, and without the middleware ``log-context``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["add_fields"]

_EMPTY = dict.fromkeys(("eventmq_job", "eventmq_task", "eventmq_queue", "eventmq_attempt"), "")


class _EmptyJobFields:
    """Makes log records with empty fields of a job."""

    def __init__(self, make: Callable[..., logging.LogRecord]) -> None:
        self._make = make

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self._make(*args, **kwargs)
        record.__dict__.update(_EMPTY)
        return record


def add_fields() -> None:
    """Add the fields to all later records of this process."""
    logging.setLogRecordFactory(_EmptyJobFields(logging.getLogRecordFactory()))
