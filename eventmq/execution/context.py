"""Current job: the job that is being executed, for the code that runs inside it.

The executor sets `current` before the call and resets it afterwards. Tasks call `current_job`; log
records, middlewares and the client read `current`. A context variable follows the job through the
threads and the coroutines of a pool, and costs 0.1 microseconds to set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.errors import EventMQError
from eventmq.interfaces import current

if TYPE_CHECKING:
    from eventmq.interfaces import JobContext

__all__ = ["current", "current_job"]


def current_job() -> JobContext:
    """Return the job that is being executed here.

    Raises:
        EventMQError: The caller is not inside a task.
    """
    job = current.get(None)
    if job is None:
        msg = "there is no current job: current_job() works only inside a task that a worker runs"
        raise EventMQError(msg)
    return job
