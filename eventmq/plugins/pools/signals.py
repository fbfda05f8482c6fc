"""How a child's main thread is interrupted in the middle of a task: by SIGALRM and SIGTERM.

SIGALRM comes from the child's own timer, at the task's soft limit. SIGTERM means something only
where the manager's order in shared memory names the job that runs: a SIGTERM for the whole process
group ends no job. Both raise only inside the task's own code; a cancel before that is noted. A task
that waits in a library written in C hears of them when that returns; the hard limit and the end of
the grace do not wait.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from eventmq.plugins.pools.pipes import NOTE, ORDER, ORDER_OFFSET
from eventmq.worker.context import current
from eventmq.worker.stopsign import cancelled

if TYPE_CHECKING:
    import mmap

    from eventmq.worker.execution import Executor
    from eventmq.worker.stopsign import StopSign

__all__ = ["SignalAlarm", "obey_cancels"]


class SignalAlarm:
    """An `eventmq.worker.stopsign.Alarm` by setitimer. A task that uses SIGALRM itself loses it.

    Args:
        stop: Says whether the task's own code runs.
    """

    def __init__(self, stop: StopSign) -> None:
        self._stop = stop
        self._seconds = 0.0

    def arm(self, seconds: float) -> None:
        """Raise `SoftTimeLimitExceeded` in the main thread after so many seconds."""
        self._seconds = seconds
        signal.signal(signal.SIGALRM, self._ring)
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def disarm(self) -> None:
        """Raise nothing any more."""
        self._seconds = 0.0
        signal.setitimer(signal.ITIMER_REAL, 0.0)

    def _ring(self, *_: object) -> None:
        seconds, self._seconds = self._seconds, 0.0
        if seconds and self._stop.inside:
            raise self._stop.overdue()


def obey_cancels(executor: Executor, notes: mmap.mmap, offset: int) -> None:
    """Let SIGTERM cancel the job that the manager's order names.

    Args:
        executor: Of this process.
        notes: Shared with the manager.
        offset: Where in it this child's note is.
    """
    own = os.getpid()

    def on_sigterm(*_: object) -> None:
        chunk, position, start = NOTE.unpack_from(notes, offset)
        order = ORDER.unpack_from(notes, offset + ORDER_OFFSET)
        if not start or order != (chunk, position) or os.getpid() != own:
            return
        if current.get(None) is None:  # it has ended, and the next one is not noted yet
            return
        told = executor.cancel()
        if executor.stop.inside and not told:
            raise cancelled()

    signal.signal(signal.SIGTERM, on_sigterm)
