"""Logging of commands: lines go to stderr, with time, level, logger, and inside a task the job.

An app that configures handlers of the root logger keeps them.

Also here: the warning of misspelt environment variables, once per command.
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

#: Called by child processes of a pool to load the app.
LOADER = f"{__name__}:load_executor"

_FORMAT = "%(asctime)s %(levelname)-7s %(name)s%(eventmq_where)s: %(message)s"

#: Fields of a job in a JSON line, beside its id.
_JOB_FIELDS = ("task", "queue", "attempt")

#: Loggers whose lines name the job themselves.
_NAME_JOBS = frozenset({"eventmq.broker", "eventmq.execution.joblog", "eventmq.scheduler"})

#: Names of a JSON line that are not those of the app's fields.
_RESERVED = frozenset(
    ("time", "level", "logger", "message", "exception", "stack", "job_id", *_JOB_FIELDS)
)

#: Attributes of every record, which are no fields of the app.
_STANDARD = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"))

#: Logger of exceptions that no code caught.
_UNCAUGHT = "eventmq.uncaught"

#: Logger of lines that a process of ``dev`` wrote to its stderr by itself.
_STDERR = "eventmq.stderr"

#: Logger that warns of misspelt environment variables, whenever settings are read.
_SETTINGS = "eventmq.settings.sources"

#: Levels, as ``-v`` and ``-q`` step through them.
_LEVELS = ("debug", "info", "warning", "error", "critical")


def shift_level(level: str, verbosity: int) -> str:
    """Return the level so many steps towards debug."""
    place = _LEVELS.index(level) - verbosity
    return _LEVELS[min(max(place, 0), len(_LEVELS) - 1)]


class _JobFormatter(LineFormatter):
    """Adds task, job and attempt to lines that are logged inside a task.

    The middleware ``log-context`` provides them; it is in use unless it is switched off.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        job = getattr(record, "eventmq_job", "")
        where = ""
        if job and record.name not in _NAME_JOBS:
            task = getattr(record, "eventmq_task", "") or "(legacy)"
            where = f" [{task} {job} attempt {getattr(record, 'eventmq_attempt', '')}]"
        record.eventmq_where = where
        return super().format(record)


class _JsonFormatter(logging.Formatter):
    """Writes a record as one JSON object on one line.

    It has ``time`` (RFC 3339, UTC), ``level``, ``logger`` and ``message``; inside a job ``job_id``,
    ``task``, ``queue`` and ``attempt``; ``exception`` with the traceback, where there is one; and
    the fields that the app gave by ``extra=``.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        moment = datetime.fromtimestamp(record.created, timezone.utc)
        line = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
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
        line: From its stderr; one that is none of the log becomes the message of one.
        process: The name.
    """
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        given = {"name": _STDERR, "levelname": "INFO", "msg": line.rstrip("\n")}
        fields = json.loads(_JsonFormatter().format(logging.makeLogRecord(given)))
    text = json.dumps({**fields, "process": process}, ensure_ascii=False)
    return printable(text, escape=json.dumps)


def _extra_fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return what the app gave by ``extra=``; a reserved name gets an underscore at its end."""
    return {
        f"{name}_" if name in _RESERVED else name: _json_value(value)
        for name, value in vars(record).items()
        if _is_extra(name)
    }


def _is_extra(name: str) -> bool:
    return name not in _STANDARD and not name.startswith("eventmq_")


def _json_value(value: object) -> object:
    """Return a value as it is where JSON has it, else its text."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return str(value)
    return value


class _Handler(logging.StreamHandler):  # type: ignore[type-arg]  # none at run time in Python 3.10
    """EventMQ's handler; the others are those of the app."""


class _EarlyHandler(logging.Handler):
    """Keeps what is logged before there is a log; see `early_lines`."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record."""
        self.records.append(record)


class _JsonHandler(_Handler):
    """Writes JSON; also of a record that cannot be formatted."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - of the base class
        """Write why a record could not be written, and where it was made."""
        if not logging.raiseExceptions:
            return
        where = f"{record.pathname}, line {record.lineno}"
        what = f"{_shown(record.msg)} with the arguments {_shown(record.args)}"
        kept = {name: vars(record)[name] for name in vars(record) if not _is_extra(name)}
        kept |= {"msg": f"cannot log {what} ({where})", "args": None, "levelname": "ERROR"}
        kept |= {"exc_info": sys.exc_info(), "exc_text": None, "stack_info": None}
        with suppress(Exception):  # such as a closed stderr
            self.stream.write(self.format(logging.makeLogRecord(kept)) + self.terminator)
            self.flush()


def _shown(value: object) -> str:
    """Return what a value looks like, also where its own code raises."""
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - of the app's class
        return object.__repr__(value)


class _Guard:
    """Calls a handler of the app; an error of it ends neither a job nor the process, and is said.

    Once for each handler: what raises, or cannot write, mostly does so with every line.

    Args:
        handler: Its ``handle`` and ``handleError`` are replaced.
    """

    def __init__(self, handler: logging.Handler) -> None:
        self._handler, self._handle, self._tell = handler, handler.handle, handler.handleError
        self._said = False
        handler.handle = self.handle  # type: ignore[method-assign]
        handler.handleError = self.fail  # type: ignore[method-assign]

    def handle(self, record: logging.LogRecord) -> Any:
        """Do what the handler does with a record."""
        try:
            return self._handle(record)
        except Exception as error:  # noqa: BLE001 - code of the app
            self._say(error)
            return False

    def fail(self, record: logging.LogRecord) -> None:
        """Report the error that the handler has caught; one of writing once."""
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            self._say(error)
        else:
            self._tell(record)

    def _say(self, error: BaseException) -> None:
        if self._said:
            return
        self._said = True
        text = printable(f"{type(error).__name__}: {_text(error)}")
        with suppress(Exception):  # such as a closed stderr
            sys.stderr.write(
                f"error: the log handler {printable(_shown(self._handler))} fails, and lines that "
                f"it should write are lost; it says so once: {text}\n"
            )


def _guard_handlers() -> None:
    """Let no handler that there is end a job or this process."""
    loggers = [logging.getLogger(), *logging.getLogger().manager.loggerDict.values()]
    for logger in loggers:
        for handler in logger.handlers if isinstance(logger, logging.Logger) else ():
            guarded = isinstance(getattr(handler.handle, "__self__", None), _Guard)
            if not guarded and not isinstance(handler, _Handler):
                _Guard(handler)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - of the app's class
        return "(no text)"


def _log_uncaught(what: str, error: BaseException | None) -> None:
    """Log an exception that no code caught."""
    info = error and (type(error), error, error.__traceback__)
    logging.getLogger(_UNCAUGHT).error("uncaught exception%s", what, exc_info=info or None)


def _in_program(_: object, error: BaseException, __: object) -> None:
    _log_uncaught("", error)


def _in_thread(args: threading.ExceptHookArgs) -> None:
    if not issubclass(args.exc_type, SystemExit):
        thread = args.thread
        _log_uncaught(f" in thread {thread.name}" if thread else " in a thread", args.exc_value)


def _ignored(args: Any) -> None:
    _log_uncaught(f", ignored: {args.err_msg or 'in'} {args.object!r}", args.exc_value)


def _set_hooks(*, ours: bool) -> None:
    """Log exceptions that no code caught, or let Python print them. Hooks of the app are kept."""
    hooks: tuple[tuple[object, str, object, object], ...] = (
        (sys, "excepthook", sys.__excepthook__, _in_program),
        (threading, "excepthook", threading.__excepthook__, _in_thread),
        (sys, "unraisablehook", sys.__unraisablehook__, _ignored),
    )
    for owner, name, of_python, own in hooks:
        if getattr(owner, name) in (of_python, own):
            setattr(owner, name, own if ours else of_python)


def start_logging(
    level: str, *, form: str = "text", handlers: str = "keep", warned: bool = False
) -> None:
    """Send log lines of ``level`` and above to stderr; warnings of Python are among them.

    Where the root logger has handlers of the app these are kept, and get the lines of EventMQ's
    own loggers of ``level`` and above; all else is as the app has configured it.

    A handler of the app that raises fails nothing: that is said once.

    Args:
        level: The lowest level.
        form: ``text`` or ``json``.
        handlers: ``keep`` those of the app, or ``replace`` them.
        warned: The parent process has said what does not go together.
    """
    root, own = logging.getLogger(), logging.getLogger("eventmq")
    for name, logger in root.manager.loggerDict.items():
        if name.split(".")[0] == "eventmq" and isinstance(logger, logging.Logger):
            # logging.config disables existing loggers by default.
            logger.disabled = False
    _guard_handlers()
    if handlers == "keep" and not all(isinstance(handler, _Handler) for handler in root.handlers):
        own.setLevel(own.level or level.upper())
        if form != "text" and not warned:
            own.warning(
                "log_format is %s, but the app has configured handlers of its own, which are kept; "
                "set log_handlers to 'replace'", form,
            )  # fmt: skip
        return
    as_json = form == "json"
    handler = (_JsonHandler if as_json else _Handler)(sys.stderr)
    handler.setFormatter(_JsonFormatter() if as_json else _JobFormatter(_FORMAT))
    root.handlers[:] = [handler]
    _set_hooks(ours=as_json)
    root.setLevel(level.upper())
    logging.captureWarnings(capture=True)


@contextmanager
def early_lines() -> Iterator[None]:
    """Hold lines back that are logged in a ``with`` block before `start_logging` is called in it.

    An app is loaded before its settings say what lines look like, and what is logged meanwhile by
    loggers without handlers Python itself would print, control characters included. These lines
    are logged at the end of the block; where it has set up no log, they go to stderr as text.
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
    from eventmq.app import load_app, load_executor

    logging.getLogger(_SETTINGS).addFilter(_no_warning)  # the worker has warned
    with early_lines():
        executor = load_executor(path=path, overrides=overrides, spool=spool)
        settings = load_app(path).settings
        form, handlers = settings.log_format, settings.log_handlers
        start_logging(settings.log_level, form=form, handlers=handlers, warned=True)
    return executor
