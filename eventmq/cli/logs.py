"""Logging of commands: lines go to stderr, with time, level, logger, and inside a task the job.

An app that configures handlers of the root logger keeps them.

This module also warns of misspelt environment variables, once per command.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from eventmq.text import LineFormatter, printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from eventmq.execution.executor import Executor

__all__ = [
    "LOADER",
    "early_lines",
    "load_executor",
    "name_process",
    "shift_level",
    "start_logging",
    "warn_of_variables",
]

#: Function that child processes of a pool call to load the app.
LOADER = f"{__name__}:load_executor"

_FORMAT = "%(asctime)s %(levelname)-7s %(name)s%(eventmq_where)s: %(message)s"

#: Fields of a job in a JSON line, in addition to its id.
_JOB_FIELDS = ("task", "queue", "attempt")

#: Loggers whose lines already name the job.
_NAME_JOBS = frozenset({"eventmq.broker", "eventmq.execution.joblog", "eventmq.scheduler"})

#: Names of a JSON line that fields of the app cannot have.
_RESERVED = frozenset(
    ("time", "level", "logger", "message", "exception", "stack", "job_id", *_JOB_FIELDS)
)

#: Attributes of every record, which are not fields of the app.
_STANDARD = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"))

#: Logger of uncaught exceptions.
_UNCAUGHT = "eventmq.uncaught"

#: Logger of lines that a process of ``dev`` wrote to its stderr outside the log.
_STDERR = "eventmq.stderr"

#: Logger of the warnings about misspelt environment variables, at each reading of settings.
_SETTINGS = "eventmq.settings.sources"

#: Levels in the order of ``-v`` and ``-q``.
_LEVELS = ("debug", "info", "warning", "error", "critical")


def shift_level(level: str, verbosity: int) -> str:
    """Return the level that many steps towards debug."""
    position = _LEVELS.index(level) - verbosity
    return _LEVELS[min(max(position, 0), len(_LEVELS) - 1)]


class _JobFormatter(LineFormatter):
    """Adds task, job and attempt to lines that are logged inside a task.

    The middleware ``log-context`` provides them unless it is switched off.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        job = getattr(record, "eventmq_job", "")
        context = ""
        if job and record.name not in _NAME_JOBS:
            task = getattr(record, "eventmq_task", "") or "(legacy)"
            context = f" [{task} {job} attempt {getattr(record, 'eventmq_attempt', '')}]"
        record.eventmq_where = context
        return super().format(record)


class _JsonFormatter(logging.Formatter):
    """Writes a record as one JSON object on one line.

    It has ``time`` (RFC 3339, UTC), ``level``, ``logger`` and ``message``; inside a job ``job_id``,
    ``task``, ``queue`` and ``attempt``; ``exception`` with the traceback, if there is one; and the
    fields that the app passed as ``extra=``.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        logged_at = datetime.fromtimestamp(record.created, timezone.utc)
        line = {
            "time": logged_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if job := getattr(record, "eventmq_job", ""):
            fields = {name: getattr(record, f"eventmq_{name}") for name in _JOB_FIELDS}
            line |= {"job_id": job, **fields}
        line |= _extra_fields(record)
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        if record.exc_text:
            line["exception"] = record.exc_text
        if record.stack_info:
            line["stack"] = record.stack_info
        return printable(json.dumps(line, ensure_ascii=False), escape=json.dumps)


def name_process(line: str, process: str) -> str:
    """Return a JSON line of the log with the name of the process that wrote it, as ``process``.

    Args:
        line: A line of its stderr; one that is not JSON becomes the message of a new line.
        process: Name of the process.
    """
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        attributes = {"name": _STDERR, "levelname": "INFO", "msg": line.rstrip("\n")}
        fields = json.loads(_JsonFormatter().format(logging.makeLogRecord(attributes)))
    text = json.dumps({**fields, "process": process}, ensure_ascii=False)
    return printable(text, escape=json.dumps)


def _extra_fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields passed as ``extra=``; a reserved name gets an underscore at its end."""
    return {
        f"{name}_" if name in _RESERVED else name: _json_value(value)
        for name, value in vars(record).items()
        if _is_extra(name)
    }


def _is_extra(name: str) -> bool:
    return name not in _STANDARD and not name.startswith("eventmq_")


def _json_value(value: object) -> object:
    """Return a value unchanged if JSON can express it, otherwise its text."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return str(value)
    return value


class _EventMQHandler(logging.StreamHandler):  # type: ignore[type-arg]  # none at run time in Python 3.10
    """EventMQ's handler, as opposed to those of the app."""


class _EarlyHandler(logging.Handler):
    """Keeps records that are logged before logging is set up; see `early_lines`."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record."""
        self.records.append(record)


class _JsonHandler(_EventMQHandler):
    """Writes JSON, even for a record that cannot be formatted."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - of the base class
        """Write the reason why a record could not be written, and its origin."""
        if not logging.raiseExceptions:
            return
        location = f"{record.pathname}, line {record.lineno}"
        description = f"{_shown(record.msg)} with the arguments {_shown(record.args)}"
        attributes = {name: vars(record)[name] for name in vars(record) if not _is_extra(name)}
        attributes |= {
            "msg": f"cannot log {description} ({location})",
            "args": None,
            "levelname": "ERROR",
        }
        attributes |= {"exc_info": sys.exc_info(), "exc_text": None, "stack_info": None}
        with suppress(Exception):  # for example a closed stderr
            self.stream.write(self.format(logging.makeLogRecord(attributes)) + self.terminator)
            self.flush()


def _shown(value: object) -> str:
    """Return the ``repr`` of a value, or its type if the ``repr`` raises."""
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - of the app's class
        return object.__repr__(value)


class _Guard:
    """Keeps errors of a handler of the app from ending a job or the process, and reports them.

    It reports once per handler, since a broken handler usually fails with every line.

    Args:
        handler: The handler; its ``handle`` and ``handleError`` are replaced.
    """

    def __init__(self, handler: logging.Handler) -> None:
        self._handler, self._handle, self._handle_error = (
            handler,
            handler.handle,
            handler.handleError,
        )
        self._reported = False
        handler.handle = self.handle  # type: ignore[method-assign]
        handler.handleError = self.fail  # type: ignore[method-assign]

    def handle(self, record: logging.LogRecord) -> Any:
        """Call the handler's ``handle``."""
        try:
            return self._handle(record)
        except Exception as error:  # noqa: BLE001 - code of the app
            self._report(error)
            return False

    def fail(self, record: logging.LogRecord) -> None:
        """Report an error that the handler has caught; an error of writing once."""
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            self._report(error)
        else:
            self._handle_error(record)

    def _report(self, error: BaseException) -> None:
        if self._reported:
            return
        self._reported = True
        text = printable(f"{type(error).__name__}: {_text(error)}")
        with suppress(Exception):  # for example a closed stderr
            sys.stderr.write(
                f"error: the log handler {printable(_shown(self._handler))} fails, and its lines "
                f"are lost; this is reported once: {text}\n"
            )


def _guard_handlers() -> None:
    """Guard all present handlers of the app."""
    loggers = [logging.getLogger(), *logging.getLogger().manager.loggerDict.values()]
    for logger in loggers:
        for handler in logger.handlers if isinstance(logger, logging.Logger) else ():
            guarded = isinstance(getattr(handler.handle, "__self__", None), _Guard)
            if not guarded and not isinstance(handler, _EventMQHandler):
                _Guard(handler)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - of the app's class
        return "(no text)"


def _log_uncaught(context: str, error: BaseException | None) -> None:
    """Log an uncaught exception."""
    info = error and (type(error), error, error.__traceback__)
    logging.getLogger(_UNCAUGHT).error("uncaught exception%s", context, exc_info=info or None)


def _in_program(_: object, error: BaseException, __: object) -> None:
    _log_uncaught("", error)


def _in_thread(args: threading.ExceptHookArgs) -> None:
    if not issubclass(args.exc_type, SystemExit):
        thread = args.thread
        _log_uncaught(f" in thread {thread.name}" if thread else " in a thread", args.exc_value)


def _ignored(args: Any) -> None:
    _log_uncaught(f", ignored: {args.err_msg or 'in'} {args.object!r}", args.exc_value)


def _set_hooks(*, log: bool) -> None:
    """Log uncaught exceptions, or let Python print them. Hooks of the app are kept."""
    hooks: tuple[tuple[object, str, object, object], ...] = (
        (sys, "excepthook", sys.__excepthook__, _in_program),
        (threading, "excepthook", threading.__excepthook__, _in_thread),
        (sys, "unraisablehook", sys.__unraisablehook__, _ignored),
    )
    for owner, name, of_python, replacement in hooks:
        if getattr(owner, name) in (of_python, replacement):
            setattr(owner, name, replacement if log else of_python)


def start_logging(
    level: str, *, form: str = "text", handlers: str = "keep", warned: bool = False
) -> None:
    """Send log lines of ``level`` and above to stderr, including warnings of Python.

    If the root logger has handlers of the app, these are kept, and get the lines of EventMQ's
    own loggers of ``level`` and above; all else remains as the app has configured it.

    An exception in a handler of the app is reported once and has no other effect.

    Args:
        level: The lowest level.
        form: ``text`` or ``json``.
        handlers: ``keep`` those of the app, or ``replace`` them.
        warned: The parent process has logged the warning about conflicting settings.
    """
    root, eventmq_logger = logging.getLogger(), logging.getLogger("eventmq")
    for name, logger in root.manager.loggerDict.items():
        if name.split(".")[0] == "eventmq" and isinstance(logger, logging.Logger):
            # logging.config disables existing loggers by default.
            logger.disabled = False
    _guard_handlers()
    if handlers == "keep" and not all(
        isinstance(handler, _EventMQHandler) for handler in root.handlers
    ):
        eventmq_logger.setLevel(eventmq_logger.level or level.upper())
        if form != "text" and not warned:
            eventmq_logger.warning(
                "log_format is %s, but the app has configured handlers of its own, which are kept; "
                "set log_handlers to 'replace'", form,
            )  # fmt: skip
        return
    as_json = form == "json"
    handler = (_JsonHandler if as_json else _EventMQHandler)(sys.stderr)
    handler.setFormatter(_JsonFormatter() if as_json else _JobFormatter(_FORMAT))
    root.handlers[:] = [handler]
    _set_hooks(log=as_json)
    root.setLevel(level.upper())
    logging.captureWarnings(capture=True)


@contextmanager
def early_lines() -> Iterator[None]:
    """Hold back lines that are logged in a ``with`` block before it calls `start_logging`.

    An app is loaded before its settings define the format of lines. Meanwhile Python itself would
    print what loggers without handlers log, control characters included. The held lines are logged
    at the end of the block, or go to stderr as text if the block has not set up logging.
    """
    early, last_resort = _EarlyHandler(), logging.lastResort
    logging.lastResort = early
    try:
        yield
    finally:
        logging.lastResort = last_resort
        formatter = _JobFormatter(_FORMAT)
        for record in early.records:
            logger = logging.getLogger(record.name)
            if not logger.hasHandlers():
                sys.stderr.write(f"{formatter.format(record)}\n")
            elif logger.isEnabledFor(record.levelno):
                logger.handle(record)


def _no_warning(record: logging.LogRecord) -> bool:
    return record.levelno < logging.WARNING


@contextmanager
def warn_of_variables(*, done: bool) -> Iterator[None]:
    """Warn once of misspelt variables on stderr; the log does not repeat it in a ``with`` block.

    A command reads settings several times, also before logging is set up.

    Args:
        done: The parent process has warned.
    """
    from eventmq.settings import misspelt_variables

    for warning in [] if done else misspelt_variables(os.environ):
        sys.stderr.write(f"warning: {warning}\n")
    logger = logging.getLogger(_SETTINGS)
    logger.addFilter(_no_warning)
    try:
        yield
    finally:
        logger.removeFilter(_no_warning)


def load_executor(*, path: str, overrides: Mapping[str, Any], spool: str = "") -> Executor:
    """Load an executor like `eventmq.app.load_executor`, with log lines as in the worker."""
    from eventmq.app import load_app, load_executor

    logging.getLogger(_SETTINGS).addFilter(_no_warning)  # the worker has warned
    with early_lines():
        executor = load_executor(path=path, overrides=overrides, spool=spool)
        settings = load_app(path).settings
        form, handlers = settings.log_format, settings.log_handlers
        start_logging(settings.log_level, form=form, handlers=handlers, warned=True)
    return executor
