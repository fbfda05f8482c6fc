"""Logging of commands: lines go to stderr, with time, level, logger, and inside a task the job.

Also here: the warning of misspelt environment variables, once per command.
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

__all__ = ["LOADER", "load_executor", "shift_level", "start_logging", "warn_of_variables"]

#: Called by child processes of a pool to load the app.
LOADER = f"{__name__}:load_executor"

_FORMAT = "%(asctime)s %(levelname)-7s %(name)s%(eventmq_where)s: %(message)s"

#: Logger whose lines name the job themselves.
_NAMES_JOBS = "eventmq.execution.joblog"

#: Logger that warns of misspelt environment variables, whenever settings are read.
_SETTINGS = "eventmq.settings.sources"

#: Levels, as ``-v`` and ``-q`` step through them.
_LEVELS = ("debug", "info", "warning", "error", "critical")


def shift_level(level: str, verbosity: int) -> str:
    """Return the level so many steps towards debug."""
    place = _LEVELS.index(level) - verbosity
    return _LEVELS[min(max(place, 0), len(_LEVELS) - 1)]


class _JobFormatter(logging.Formatter):
    """Adds task, job and attempt to lines that are logged inside a task.

    The middleware ``log-context`` provides them; it is in use unless it is switched off.
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
    handler.setFormatter(_JobFormatter(_FORMAT))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(capture=True)
    for name, logger in root.manager.loggerDict.items():
        if name.split(".")[0] == "eventmq" and isinstance(logger, logging.Logger):
            # logging.config disables existing loggers by default.
            logger.disabled = False


def _no_warning(record: logging.LogRecord) -> bool:
    return record.levelno < logging.WARNING


@contextmanager
def warn_of_variables(*, done: bool) -> Iterator[None]:
    """Warn once of misspelt variables on stderr; the log does not repeat it in a ``with`` block.

    A command reads settings several times, also before there is a log.

    Args:
        done: The parent process has warned.
    """
    from eventmq.settings import misspelt_variables

    for sentence in [] if done else misspelt_variables(os.environ):
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

    logging.getLogger(_SETTINGS).addFilter(_no_warning)  # the worker has warned
    start_logging("info")
    executor = load_executor(path=path, overrides=overrides, spool=spool)
    start_logging(str(overrides.get("log_level", "info")))
    return executor
