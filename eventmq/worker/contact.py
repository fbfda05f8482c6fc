"""What a worker says about its way to the broker: each fact once, and an absence ever more seldom.

The runner tells it in every turn how things stand; it knows no socket, and ``now`` is monotonic
seconds.
"""

from __future__ import annotations

import logging

from eventmq.settings import Settings

__all__ = ["Contact"]

_log = logging.getLogger(__name__)

#: Seconds of absence before it is spoken of: a broker that starts beside us takes as long.
FIRST = 2.0

#: Longest time in seconds between two warnings of one absence.
LONGEST = 60.0

_LOOPBACK = ("tcp://127.", "tcp://localhost:", "tcp://[::1]:", "ipc://")


def _hint(address: str) -> str:
    """Return what to type for a broker at an address."""
    other = address.startswith(_LOOPBACK) and address not in Settings().broker
    return "eventmq broker" + (f" --bind {address}" if other else "")


class Contact:
    """Logs that a broker is absent, there, lost, and back."""

    def __init__(self) -> None:
        self._absent_since: float | None = None
        self._never = True
        self._told = False
        self._heard = False
        self._step = FIRST
        self._due = 0.0
        self._trouble = ""

    def trouble(self, address: str, why: str) -> None:
        """Log why a handshake with the broker fails, when it fails for a new reason."""
        if why != self._trouble:
            self._trouble = why
            _log.warning("the broker at %s cannot be used: %s", address, why)

    def note(self, now: float, address: str, *, online: bool, broken: bool, heard: bool) -> None:
        """Take note of how things stand, and log what is new. In every turn.

        Args:
            now: The time.
            address: Of the broker.
            online: The broker has acknowledged us.
            broken: There was a connection, and it was lost.
            heard: The broker said something in this turn.
        """
        if online and not broken:
            self._trouble = ""
            if self._absent_since is not None or self._never:
                self._back(now, address)
            return
        if self._absent_since is None:
            self._absent_since = now
            self._told = self._heard = False
            self._step = FIRST
            self._due = now + FIRST
        if broken and not self._told and not self._never:
            self._told = True
            _log.warning(
                "the connection to the broker at %s was lost; what runs goes on, and is answered "
                "when the broker is back", address,
            )  # fmt: skip
        self._heard = heard or (self._heard and not broken)
        if now >= self._due:
            self._complain(now, address, now - self._absent_since)

    def _complain(self, now: float, address: str, seconds: float) -> None:
        self._step = min(LONGEST, 2 * self._step)
        self._due = now + self._step
        if self._heard or self._trouble:  # it is there; the session says why it does not take us
            return
        self._told = True
        _log.warning(
            "no broker answers at %s for %.0f s; waiting for it; start one with: %s",
            address, seconds, _hint(address),
        )  # fmt: skip

    def _back(self, now: float, address: str) -> None:
        since, self._absent_since = self._absent_since, None
        if self._never:
            _log.info("connected to the broker at %s", address)
        elif self._told and since is not None:
            _log.info("connected to the broker at %s, after %.1f s", address, now - since)
        self._never = False
