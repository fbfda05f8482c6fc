"""Where log lines go: stderr, with time, level and origin."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq.worker.execution import Executor

__all__ = ["LOADER", "load_executor", "moved", "start_logging"]

#: What the processes of a pool call to get at the app.
LOADER = f"{__name__}:load_executor"

_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"

#: What ``-v`` and ``-q`` move along.
_LEVELS = ("debug", "info", "warning", "error", "critical")


def moved(level: str, louder: int) -> str:
    """Return a level of the setting ``log_level``, so many steps towards debug."""
    place = _LEVELS.index(level) - louder
    return _LEVELS[min(max(place, 0), len(_LEVELS) - 1)]


def start_logging(level: str) -> None:
    """Send log lines of ``level`` and above to stderr; warnings of Python are among them."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(_FORMAT))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(capture=True)


def load_executor(*, path: str, overrides: Mapping[str, Any]) -> Executor:
    """Do what `eventmq.app.loading.load_executor` does, with log lines as in the worker."""
    from eventmq.app.loading import load_executor

    start_logging("info")
    executor = load_executor(path=path, overrides=overrides)
    start_logging(str(overrides.get("log_level", "info")))
    return executor
