"""The pool ``asyncio``: coroutines of thousands of jobs in one event loop, in one thread.

The loop has a thread of its own, so that the job manager answers the broker whatever a job does.
Blocking functions run in threads beside it.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from eventmq.interfaces import Died, Running
from eventmq.plugins.pools.loopslot import LoopChunk, LoopSlot, Run
from eventmq.plugins.pools.loopwatch import LoopWatch
from eventmq.plugins.pools.sidethreads import SideThreads
from eventmq.wire.bulk import decode_chunk
from eventmq.worker.async_execution import AsyncExecutor, is_coroutine_task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq.interfaces import PoolEvent
    from eventmq.wire.bulk import OutcomeRow
    from eventmq.worker.execution import Executor
    from eventmq.worker.stopsign import StopSign

__all__ = ["AsyncioPool"]

#: Seconds that coroutines get to end after they were cancelled for good.
END_TIMEOUT = 1.0

#: Seconds between two measurements of how late the loop is.
LAG_EVERY = 0.5


class AsyncioPool:
    """Implements `eventmq.interfaces.WorkerPool` with coroutines.

    Args:
        concurrency: Number of slots.
        executor: Runs the jobs.
        threads: Blocking jobs that run at once.
    """

    interrupts = False

    def __init__(self, *, concurrency: int, executor: Executor, threads: int) -> None:
        self.slots = concurrency
        self.watch = LoopWatch()
        self._executor = AsyncExecutor.of(executor, self.watch.body)
        self._lock = threading.Lock()
        self._side = SideThreads(executor, threads, self._lock, self._settle)
        self._slots = [LoopSlot(number) for number in range(concurrency)]
        self._events: list[PoolEvent] = []
        #: Slots with answers, by number.
        self._ready: dict[int, LoopSlot] = {}
        self._lost: list[Run] = []
        self._awake = False
        self._state = "new"

    # Start and stop

    def start(self) -> None:
        """Start the loop."""
        self._executor.start()
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)  # noqa: FBT003 - positional only
        self._wake.setblocking(False)  # noqa: FBT003 - positional only
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="eventmq-loop", daemon=True)
        self._state = "running"
        self._thread.start()

    def _serve(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        loop.call_soon(self._measure, loop.time())
        try:
            loop.run_forever()
            loop.run_until_complete(self._end_all())
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            loop.close()

    async def _end_all(self) -> None:
        """Cancel what is left, and wait a little for it."""
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=END_TIMEOUT)

    def _measure(self, due: float) -> None:
        now = self._loop.time()
        self.watch.measure(due, now)
        self._loop.call_at(now + LAG_EVERY, self._measure, now + LAG_EVERY)

    def stop(self, grace: float) -> None:
        """Let running jobs finish within ``grace`` seconds, then cancel. Idempotent."""
        if self._state != "running":
            return
        self._state = "stopped"
        deadline = time.monotonic() + grace
        for slot in self._slots:
            slot.take_back()
        while any(slot.run for slot in self._slots) and time.monotonic() < deadline:
            time.sleep(0.005)
        with self._lock:
            for slot in self._slots:
                if slot.run is not None:
                    slot.run.lost = True
        self._side.end()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(2 * END_TIMEOUT)
        self._woken.close()
        self._wake.close()

    # Work, in the manager's thread

    def filenos(self) -> Sequence[int]:
        """Return the descriptor of a socket that the loop and its threads write to."""
        return [self._woken.fileno()]

    def assign(self, slot: int, chunk: int, body: bytes, count: int) -> None:
        """Give a slot a chunk."""
        given = LoopChunk(chunk, body, count)
        target = self._slots[slot]
        target.jobs.extend((given, position) for position in range(count))
        self._loop.call_soon_threadsafe(self._advance, target)

    def take_back(self, slot: int) -> int:
        """Withdraw what has not started; return how many jobs, counted from the last given."""
        return self._slots[slot].take_back()

    def running_since(self, slot: int) -> float | None:
        """Return the monotonic start of the job that runs in the slot, None if none does."""
        running = self.running(slot)
        return None if running is None else running.since

    def running(self, slot: int) -> Running | None:
        """Return the job that runs in the slot, None if none does."""
        return self._slots[slot].running()

    def interrupt(self, slot: int, chunk: int, position: int) -> None:
        """Cancel the job's coroutine; where it is a blocking function, its next check raises."""
        run = self._slots[slot].run
        if run is not None and run.is_job(chunk, position):
            self._cancel_soon(run)

    def scale(self, slots: int) -> None:
        """Do nothing: an idle slot costs next to nothing."""

    def kill(self, slot: int) -> None:
        """Give up what a slot runs: it is cancelled, and its outcome dropped, whenever it comes."""
        old = self._slots[slot]
        with self._lock:
            old.jobs.clear()
            run, running = old.run, old.running()
            if run is not None:
                run.lost = True
                run.lost_at = time.monotonic()
                blocking = run.executor is not None
            self._ready.pop(slot, None)
        self._events += old.answers()
        self._slots[slot] = LoopSlot(slot)
        chunk, position = running[:2] if running is not None else (0, -1)
        self._events.append(Died(slot, chunk, position, "its job was given up"))
        if run is not None:
            self._lost.append(run)
            if blocking:
                self._side.replace()
            self._cancel_soon(run)
        self._notify()

    def _cancel_soon(self, run: Run) -> None:
        with self._lock:
            run.cancelled = True
            if run.executor is not None:
                run.executor.cancel()
                return
        self._loop.call_soon_threadsafe(self._cancel, run)

    @property
    def abandoned(self) -> int:
        """How many jobs were given up and still run: threads, and coroutines that will not end."""
        if not self._lost:
            return 0
        self._lost = [run for run in self._lost if not run.over]
        patience = time.monotonic() - END_TIMEOUT
        return sum(run.executor is not None or run.lost_at < patience for run in self._lost)

    def poll(self) -> list[PoolEvent]:
        """Return what happened since the last call, per slot in order."""
        if self._state == "running":
            with suppress(BlockingIOError):
                self._woken.recv(4096)
            self.watch.look(time.monotonic())
        with self._lock:
            self._awake = False
            ready, self._ready = self._ready, {}
        events, self._events = self._events, []
        for slot in ready.values():
            events += slot.answers()
        return events

    def _notify(self) -> None:
        with suppress(OSError):  # full: it is awake; closed: nobody is there
            self._wake.send(b"!")

    # In the thread of the loop

    def _advance(self, slot: LoopSlot) -> None:
        """Start the next job of a slot, if it is free."""
        if slot.run is not None:
            return
        with self._lock:
            try:
                chunk, position = slot.jobs.popleft()
            except IndexError:
                return
            run = slot.run = Run(slot, chunk, position)
        if chunk.read is None:
            chunk.read = decode_chunk(chunk.body)
            chunk.routes = self._executor.routes(chunk.index.queue, chunk.index.templates)
        route = chunk.routes[run.entry.template]
        if route.refusal is None and (route.plain or not is_coroutine_task(route)):
            self._side.submit(run)
            return
        stop = run.stop = self._executor.new_stop()
        run.since = time.monotonic()
        run.task = self._loop.create_task(self._run(run, stop))

    async def _run(self, run: Run, stop: StopSign) -> None:
        route = run.chunk.routes[run.entry.template]
        row = await self._executor.arun(route, run.position, run.entry, run.payload, stop)
        run.over = True
        self._settle(run, row)

    def _cancel(self, run: Run) -> None:
        if run.stop is not None and run.task is not None and not run.over:
            run.stop.requested = True
            self._loop.call_soon(run.task.cancel)  # not before its first step

    # In any thread

    def _settle(self, run: Run, row: OutcomeRow) -> None:
        """Keep an outcome for the manager, and let the slot go on."""
        slot = run.slot
        with self._lock:
            if run.lost:
                return
            slot.rows.append((run.chunk.number, row))
            slot.run = None
            self._ready[slot.number] = slot
            wake, self._awake = not self._awake, True
        if wake:
            self._notify()
        if run.task is not None:
            self._advance(slot)
        else:
            with suppress(RuntimeError):  # the loop was closed
                self._loop.call_soon_threadsafe(self._advance, slot)
