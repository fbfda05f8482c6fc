"""Calls the function of a task: within its limits, to the end of its coroutine or generator."""

from __future__ import annotations

from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any

from eventmq.errors import EventMQError
from eventmq.worker import joblog
from eventmq.worker.context import current
from eventmq.worker.coroutines import CoroutineRunner
from eventmq.worker.stopsign import StopSign, cancelled
from eventmq.worker.streaming import adrive, drive

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from eventmq.interfaces import JobContext
    from eventmq.worker.stopsign import Alarm
    from eventmq.worker.streaming import Encode, Sink

__all__ = ["Caller"]

#: What a function may return that is not its result yet.
_UNFINISHED = frozenset({CoroutineType, GeneratorType, AsyncGeneratorType})


class Caller:
    """Calls one function after the other; `eventmq.worker.execution.Executor` is one.

    Args:
        monotonic: Reads the time.

    Attributes:
        stop: Whether the job that runs is to stop.
        alarm: Raises in blocking code at its soft limit; None where nothing can.
        sink: Takes the parts of generators; None where nobody does.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._coroutines = CoroutineRunner()
        self.stop = StopSign(monotonic)
        self.alarm: Alarm | None = None
        self.sink: Sink | None = None

    def close(self) -> None:
        """End the event loop of the slot, if a task needed one. Idempotent."""
        self._coroutines.close()

    def set_sink(self, sink: Sink) -> None:
        """Let a pool take what jobs yield, and how far they are."""
        self.sink = sink
        self.stop.report = sink.progress

    def _part_encoder(self, job: JobContext) -> Encode:
        raise NotImplementedError

    def _call(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Any, soft: float
    ) -> Any:
        stop = self.stop
        stop.inside = True
        try:
            if stop.requested:  # before it began
                raise cancelled()
            if soft:
                return self._call_limited(function, args, kwargs, soft)
            value = function(*args, **kwargs)
            if type(value) in _UNFINISHED:
                return self._finish(value, 0.0)
            return value
        finally:
            stop.inside = False

    def _call_limited(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Any, soft: float
    ) -> Any:
        """Call what has a soft limit: coroutines end by their loop, blocking code by an alarm."""
        alarm, stop = self.alarm, self.stop
        stop.limit(soft)
        try:
            if alarm is not None:
                alarm.arm(soft)
            value = function(*args, **kwargs)
            if type(value) is GeneratorType:
                return self._finish(value, soft)
            if alarm is not None:
                alarm.disarm()
            if type(value) in _UNFINISHED:
                return self._finish(value, soft)
            if alarm is None and stop.late:
                joblog.not_kept(current.get())
            return value
        finally:
            if alarm is not None:
                alarm.disarm()
            stop.limit(0.0)

    def cancel(self) -> bool:
        """Cancel the job that runs; say whether its coroutine hears of it by itself.

        From any thread or signal handler. Blocking code hears of it where it checks.
        """
        self.stop.requested = True
        return self._coroutines.cancel()

    def _finish(self, value: Any, soft: float) -> Any:
        """Return the result of what is a coroutine or generator."""
        if type(value) is CoroutineType:
            return self._coroutines.run(value, soft, self.stop)
        sink, encode = self._sink(), self._part_encoder(current.get())
        if type(value) is GeneratorType:
            return drive(value, sink, encode, self.stop)
        return self._coroutines.run(adrive(value, sink, encode), soft, self.stop)

    def _sink(self) -> Sink:
        if self.sink is None:
            raise EventMQError("this worker pool takes no parts: it cannot run a generator")
        return self.sink
