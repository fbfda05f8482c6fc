"""Where log lines go: stderr, with time, level, origin, and inside a task which job it is for.

Also there: variables of the environment that look misspelt, once per command.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from eventmq.execution.executor import Executor

__all__ = ["LOADER", "load_executor", "moved", "start_logging", "variables_told"]

#: What the processes of a pool call to get at the app.
LOADER = f"{__name__}:load_executor"

_FORMAT = "%(asctime)s %(levelname)-7s %(name)s%(eventmq_where)s: %(message)s"

#: Its lines name the job themselves.
_NAMES_JOBS = "eventmq.execution.joblog"

#: Says which variables of the environment look misspelt, whenever settings are read.
_SETTINGS = "eventmq.settings.sources"

#: What ``-v`` and ``-q`` move along.
_LEVELS = ("debug", "info", "warning", "error", "critical")


def moved(level: str, louder: int) -> str:
    """Return a level of the setting ``log_level``, so many steps towards debug."""
    place = _LEVELS.index(level) - louder
    return _LEVELS[min(max(place, 0), len(_LEVELS) - 1)]


class _Lines(logging.Formatter):
    """Adds task, job and attempt to lines that are made inside a task.

    They are there where the middleware ``log-context`` is in use, as it is unless switched off.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        job = getattr(record, "eventmq_job", "")
        where = ""
        if job and record.name != _NAMES_JOBS:
            task = getattr(record, "eventmq_task", "") or "(legacy)"
            where = f" [{task} {job} attempt {getattr(record, 'eventmq_attempt', '')}]"
        record.eventmq_where = where
        return super().format(record)


def start_logging(level: str) -> None:
    """Send log lines of ``level`` and above to stderr; warnings of Python are among them."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines(_FORMAT))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(capture=True)
    for name, logger in root.manager.loggerDict.items():
        if name.split(".")[0] == "eventmq" and isinstance(logger, logging.Logger):
            # An app that calls logging.config switches off what was there before, unasked.
            logger.disabled = False


def _no_warning(record: logging.LogRecord) -> bool:
    return record.levelno < logging.WARNING


@contextmanager
def variables_told(*, already: bool) -> Iterator[None]:
    """Tell on stderr of variables that look misspelt; for the time of a ``with`` block nobody else.

    Settings are read several times in a command, also before there is a log.

    Args:
        already: The process that started this one has told.
    """
    from eventmq.settings import misspelt_variables

    for sentence in [] if already else misspelt_variables(os.environ):
        sys.stderr.write(f"warning: {sentence}\n")
    logger = logging.getLogger(_SETTINGS)
    logger.addFilter(_no_warning)
    try:
        yield
    finally:
        logger.removeFilter(_no_warning)


def load_executor(*, path: str, overrides: Mapping[str, Any], spool: str = "") -> Executor:
    """Do what `eventmq.app.load_executor` does, with log lines as in the worker."""
    from eventmq.app import load_executor

    logging.getLogger(_SETTINGS).addFilter(_no_warning)  # the worker has told
    start_logging("info")
    executor = load_executor(path=path, overrides=overrides, spool=spool)
    start_logging(str(overrides.get("log_level", "info")))
    return executor
