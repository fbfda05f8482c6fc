"""The clock of a beat: the wall clock of its machine, guarded (`eventmq.timekeeping`)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from eventmq.timekeeping import SETTLED, STEP, GuardedWall, Reading, say_seconds

if TYPE_CHECKING:
    from eventmq.clock import Clock

__all__ = ["GuardedClock"]

logger = logging.getLogger("eventmq.scheduler")


class GuardedClock:
    """Guarded wall time; logs the steps of the wall clock.

    Args:
        clock: The clock that is guarded.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._guarded = GuardedWall(Reading(clock.now(), clock.boottime()))
        #: Seconds of a step that was logged and does not count yet, 0.0 for none.
        self._logged = 0.0
        #: Seconds by which guarded time was put back since `take_back`.
        self._back = 0.0
        self.monotonic = clock.monotonic

    def now(self) -> float:
        """Return guarded wall time."""
        guarded, clock = self._guarded, self._clock
        counted = guarded.advance(clock.now(), clock.boottime())
        if counted or guarded.step or self._logged:
            self._log(counted)
        return guarded.now

    def expect(self, guarded: float) -> None:
        """Continue from the guarded time of the broker: a clock that differs has stepped."""
        clock = self._clock
        self._guarded.expect(guarded, clock.now(), clock.boottime())
        self._log(0.0)

    def take_back(self) -> float:
        """Return by how many seconds time was put back since the last call."""
        back, self._back = self._back, 0.0
        return back

    def _log(self, counted: float) -> None:
        step, logged = self._guarded.step, self._logged
        if counted:
            self._back += max(0.0, -counted)
            logger.warning("the clock has stepped by %s, and that counts now", say_seconds(counted))
        elif logged and not step:
            text = "the clock is back after a step of %s, which never counted"
            logger.warning(text, say_seconds(logged))
        elif step and (not logged or abs(step - logged) > STEP):
            text = (
                "the clock steps by %s, or is so far from the broker's: in %.0f minutes that counts"
            )
            logger.warning(text, say_seconds(step), SETTLED / 60)
        else:
            return
        self._logged = step
