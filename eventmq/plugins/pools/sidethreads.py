"""Threads for blocking jobs of the asyncio pool. One that must be given up is replaced."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventmq.plugins.pools.looprun import Run
    from eventmq.plugins.pools.partsink import PartSink
    from eventmq.wire.bulk import OutcomeRow
    from eventmq.worker.execution import Executor

__all__ = ["SideThreads"]


class SideThreads:
    """Runs jobs one per thread; starts threads as they are needed.

    Args:
        executor: Runs the jobs; each thread has its own copy.
        most: Threads that work at once.
        lock: Guards what is decided about runs.
        done: Called in the thread with each outcome that counts.
        sink: Makes what takes the parts of the run that is under way.
    """

    def __init__(
        self,
        executor: Executor,
        most: int,
        lock: threading.Lock,
        done: Callable[[Run, OutcomeRow], None],
        sink: Callable[[Callable[[], Run]], PartSink],
    ) -> None:
        self._executor = executor
        self._most = most
        self._lock = lock
        self._done = done
        self._sink = sink
        self._runs: queue.SimpleQueue[Run | None] = queue.SimpleQueue()
        self._threads = 0
        self._idle = 0

    def submit(self, run: Run) -> None:
        """Run a job as soon as a thread is free."""
        with self._lock:
            more = self._idle <= self._runs.qsize() and self._threads < self._most
            if more:
                self._threads += 1
        self._runs.put(run)
        if more:
            self._start()

    def replace(self) -> None:
        """Start a thread instead of one that was given up, and ends with its job."""
        self._start()

    def end(self) -> None:
        """Let the threads end when they are free."""
        for _ in range(self._threads):
            self._runs.put(None)

    def _start(self) -> None:
        threading.Thread(target=self._serve, name="eventmq-blocking", daemon=True).start()

    def _serve(self) -> None:
        executor = self._executor.for_slot()
        runs: list[Run] = []
        executor.set_sink(self._sink(lambda: runs[-1]))
        try:
            while (run := self._next()) is not None:
                runs[:] = [run]
                if not self._work(run, executor):
                    return
        finally:
            executor.close()

    def _next(self) -> Run | None:
        with self._lock:
            self._idle += 1
        run = self._runs.get()
        with self._lock:
            self._idle -= 1
        return run

    def _work(self, run: Run, executor: Executor) -> bool:
        """Run a job; say whether the thread goes on."""
        with self._lock:
            if not run.begin(executor):  # given up before it began
                return True
        index = run.chunk.index
        routes = executor.routes(index.queue, index.templates)
        entry = index.entries[run.position]
        payload = index.payload(run.chunk.body, entry)
        row = executor.run(routes[entry.template], run.position, entry, payload)
        with self._lock:
            executor.stop.requested = False
            run.executor = None
            run.over = True
            lost = run.lost
        if not lost:
            self._done(run, row)
        return not lost
