"""The form of log lines."""

from __future__ import annotations

import json
import logging
import logging.config
import re
import sys
import threading
import uuid
from contextvars import copy_context

import pytest

from eventmq.cli.logs import early_lines, name_process, start_logging
from eventmq.interfaces import JobContext, current
from eventmq.plugins.middleware.log_context import LogContext


@pytest.fixture(autouse=True)
def root():
    """The root logger, as it was in the end."""
    root, own = logging.getLogger(), logging.getLogger("eventmq")
    before = root.handlers[:], root.level, own.level
    hooks = sys.excepthook, threading.excepthook, sys.unraisablehook
    # as in a program: pytest has hooks of its own
    sys.excepthook, threading.excepthook = sys.__excepthook__, threading.__excepthook__
    sys.unraisablehook = sys.__unraisablehook__
    yield root
    sys.excepthook, threading.excepthook, sys.unraisablehook = hooks
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    own.setLevel(before[2])
    logging.captureWarnings(capture=False)


def start(*arguments, **options):
    """Start logging where the root logger has these handlers: pytest has given it its own."""
    root = logging.getLogger()
    root.handlers[:] = arguments
    root.setLevel(logging.WARNING)
    start_logging(options.pop("level", "info"), **options)


def test_what_is_logged_while_an_app_is_loaded_gets_the_form_of_the_log(capsys, root):
    """The lines are written once the settings are known; levels that are not logged stay out."""
    root.handlers[:] = []
    with early_lines():
        logging.getLogger("shop").warning("colour \x1b[31m")
        logging.getLogger("shop").error("late")
        assert not capsys.readouterr().err
        start_logging("error", form="json")
    [line] = capsys.readouterr().err.splitlines()
    assert ("shop", "late") == (json.loads(line)["logger"], json.loads(line)["message"])


def test_what_is_logged_by_an_app_that_cannot_be_loaded_is_printed_escaped(capsys, root):
    root.handlers[:] = []
    with early_lines():  # and no `start_logging`
        logging.getLogger("shop").warning("colour \x1b[31m")
    line = capsys.readouterr().err
    assert line.endswith("WARNING shop: colour \\x1b[31m\n")
    assert logging.lastResort.__class__.__name__ == "_StderrHandler"


HEAD = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} "


@pytest.fixture
def log_lines(capsys):
    """Return what a line looks like that a logger writes inside a job, or outside."""
    factory = logging.getLogRecordFactory()

    def log_lines(name, *, task="shop.add"):
        start()
        logger = logging.getLogger(name)
        context = copy_context()
        if task is not None:
            context.run(current.set, JobContext("j1", task, "default", 2, 3, ""))
        context.run(logger.info, "hello")
        return capsys.readouterr().err

    yield log_lines
    logging.setLogRecordFactory(factory)


def test_a_line_has_time_level_origin_and_inside_a_task_the_job(log_lines):
    LogContext()
    assert re.fullmatch(HEAD + r"INFO    shop\.mail \[shop\.add j1 attempt 2\]: hello\n",
                        log_lines("shop.mail"))  # fmt: skip


def test_a_line_outside_of_jobs_has_no_empty_brackets(log_lines):
    LogContext()
    assert log_lines("shop.mail", task=None).endswith("INFO    shop.mail: hello\n")


def test_a_line_that_names_the_job_itself_does_not_say_it_twice(log_lines):
    LogContext()
    assert log_lines("eventmq.execution.joblog").endswith(
        "INFO    eventmq.execution.joblog: hello\n"
    )


def test_a_legacy_job_has_no_task(log_lines):
    LogContext()
    assert "[(legacy) j1 attempt 2]" in log_lines("shop.mail", task="")


def test_without_the_middleware_lines_are_written_all_the_same(log_lines):
    logging.setLogRecordFactory(logging.LogRecord)
    assert log_lines("shop.mail").endswith("INFO    shop.mail: hello\n")


def test_an_app_that_configures_logging_does_not_silence_us(log_lines):
    """``dictConfig`` disables the existing loggers by default."""
    for name in ("eventmq", "eventmq.execution.joblog"):
        logging.getLogger(name).disabled = True
    assert log_lines("eventmq.execution.joblog").endswith(": hello\n")
    assert not logging.getLogger("eventmq").disabled


def test_a_message_is_one_line_and_no_control_character_reaches_the_terminal(capsys):
    """A text of a job could clear the screen, or look like a line of the log."""
    start()
    logging.getLogger("shop").info("\x1b[2J%s", "a\x07\n2026-01-01 INFO eventmq: all is well\tb")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("INFO    shop: \\x1b[2Ja\\x07\\n2026-01-01 INFO eventmq: all is well\tb")


def test_a_task_s_name_is_escaped_too(log_lines):
    LogContext()
    assert "[evil\\x1b[2J j1 attempt 2]" in log_lines("shop.mail", task="evil\x1b[2J")


def test_a_traceback_keeps_its_lines_and_escapes_the_rest(capsys):
    start()
    try:
        raise ValueError("\x1b[2J")
    except ValueError:
        logging.getLogger("shop").exception("it broke")
    lines = capsys.readouterr().err.splitlines()
    assert "    Traceback (most recent call last):" == lines[1]
    assert "    ValueError: \\x1b[2J" == lines[-1]


def test_the_text_of_an_exception_cannot_look_like_a_line_of_the_log(capsys):
    start()
    forged = "2026-01-01 00:00:00,000 INFO    eventmq.broker: all is well"
    try:
        raise ValueError(f"no\n{forged}\n\n{forged}")
    except ValueError as error:
        logging.getLogger("shop").exception("it broke", stack_info=True)
        logging.getLogger("py.warnings").warning("%s", f"a.py:1: UserWarning: {error}\n")
    lines = capsys.readouterr().err.splitlines()
    heads = [line for line in lines if not line.startswith("    ")]
    assert ["shop: it broke", "py.warnings: a.py:1: UserWarning: no"] == [
        line.split(maxsplit=3)[3] for line in heads
    ]


def test_a_warning_of_python_shows_its_source_below(capsys):
    start()
    logging.getLogger("py.warnings").warning("%s", "a.py:1: UserWarning: odd\n  warn('odd')\n")
    assert ["a.py:1: UserWarning: odd", "      warn('odd')"] == [
        line.rpartition("py.warnings: ")[2] for line in capsys.readouterr().err.splitlines()
    ]


# Handlers of the app


class Kept(logging.Handler):
    """Keeps the messages."""

    def __init__(self):
        super().__init__()
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


def test_the_handlers_of_an_app_are_kept_and_get_the_lines_of_eventmq(root, capsys):
    """An app that logs warnings only still gets what a worker says of itself."""
    app = Kept()
    start(app)
    logging.getLogger("eventmq.worker").info("connected")
    logging.getLogger("eventmq.worker").debug("quiet")
    logging.getLogger("shop").info("below the app's own level")
    logging.getLogger("shop").warning("odd")
    assert [app] == root.handlers
    assert ["connected", "odd"] == app.messages
    assert "" == capsys.readouterr().err


def test_the_level_that_an_app_gives_the_loggers_of_eventmq_is_kept():
    app = Kept()
    logging.getLogger("eventmq").setLevel("ERROR")
    start(app)
    logging.getLogger("eventmq.worker").warning("no")
    logging.getLogger("eventmq.worker").error("yes")
    assert ["yes"] == app.messages


def test_handlers_of_an_app_are_replaced_where_that_is_said(capsys):
    app = Kept()
    start(app, handlers="replace")
    logging.getLogger("shop").info("hello")
    assert [] == app.messages
    assert capsys.readouterr().err.endswith("INFO    shop: hello\n")


def test_our_own_handler_is_replaced_by_the_next_start(root, capsys):
    start(level="error")
    start_logging("info")
    assert 1 == len(root.handlers)
    logging.getLogger("shop").info("hello")
    assert 1 == capsys.readouterr().err.count("hello")


def test_an_app_with_handlers_is_told_that_it_chooses_the_format():
    app = Kept()
    start(app, form="json")
    (message,) = app.messages
    assert "log_format is json, but the app has configured handlers of its own" in message
    assert message.endswith("set log_handlers to 'replace'")


def test_a_child_does_not_repeat_what_its_worker_has_said():
    app = Kept()
    start(app, form="json", warned=True)
    assert [] == app.messages


# JSON


@pytest.fixture
def log_json(capsys):
    """Return the objects of the lines that a function logs."""
    factory = logging.getLogRecordFactory()
    LogContext()

    def log_json(log):
        start(form="json")
        log()
        return [json.loads(line) for line in capsys.readouterr().err.splitlines()]

    yield log_json
    logging.setLogRecordFactory(factory)


def test_json_has_an_object_a_line_with_standard_names(log_json):
    (line,) = log_json(lambda: logging.getLogger("shop").warning("%d left", 3))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert {"level": "warning", "logger": "shop", "message": "3 left"} == line


def test_json_names_the_job_also_in_lines_of_the_job_log(log_json):
    context = copy_context()
    context.run(current.set, JobContext("j1", "shop.add", "mail", 2, 3, ""))
    log = logging.getLogger("eventmq.execution.joblog")
    (line,) = log_json(lambda: context.run(log.error, "it failed"))
    assert {
        "job_id": "j1",
        "task": "shop.add",
        "queue": "mail",
        "attempt": 2,
    }.items() <= line.items()


def test_json_keeps_a_traceback_and_line_breaks_in_its_object(log_json):
    def log():
        try:
            raise ValueError("\x1b[2J\n\u202e")
        except ValueError:
            logging.getLogger("shop").exception("it\nbroke")

    (line,) = log_json(log)
    assert "it\nbroke" == line["message"]
    assert line["exception"].startswith("Traceback (most recent call last):\n")
    assert line["exception"].endswith("ValueError: \x1b[2J\n\u202e")


def test_json_shows_a_terminal_no_control_characters(capsys):
    start(form="json")
    logging.getLogger("shop").info("\x1b[2J \x7f \u202e \ud800 ü")
    text = capsys.readouterr().err
    assert text.endswith("\n")
    assert text[:-1].isprintable()
    assert "\x1b[2J \x7f \u202e \ud800 ü" == json.loads(text)["message"]


def test_json_has_the_fields_that_the_app_gives(log_json):
    """Values that JSON cannot express are text, and no field hides one of EventMQ's."""
    number, key = uuid.uuid4(), {(1, 2): 3}
    extra = {"order": 7, "who": {"id": [1, None]}, "number": number, "task": "mine", "odd": key}
    extra["share"] = float("nan")
    (line,) = log_json(lambda: logging.getLogger("shop").info("sold", extra=extra))
    del line["time"]
    assert {
        "level": "info", "logger": "shop", "message": "sold", "order": 7,
        "who": {"id": [1, None]}, "number": str(number), "task_": "mine", "odd": "{(1, 2): 3}",
        "share": "nan",
    } == line  # fmt: skip


def test_json_has_the_stack_that_was_asked_for(log_json):
    (line,) = log_json(lambda: logging.getLogger("shop").info("here", stack_info=True))
    assert line["stack"].startswith("Stack (most recent call last):\n")


class Shy:
    """Cannot be shown."""

    def __repr__(self):
        raise ValueError("shy")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("%d left", "x"),
            r"cannot log '%d left' with the arguments \('x',\) \(.*test_logs.py, li",
        ),
        ((Shy(),), r"cannot log <.*Shy object at 0x\w+> with the arguments \(\) \("),
        (("%s", Shy()), r"cannot log '%s' with the arguments <tuple object at 0x\w+> \("),
    ],
)
def test_json_says_what_cannot_be_logged(log_json, arguments, message):
    (line,) = log_json(lambda: logging.getLogger("shop").info(*arguments))
    assert re.match(message, line["message"])
    assert ("error", "shop") == (line["level"], line["logger"])
    assert "Traceback (most recent call last)" in line["exception"]


def test_json_has_what_cannot_be_logged_because_of_a_field(log_json):
    (line,) = log_json(lambda: logging.getLogger("shop").info("sold", extra={"to": Shy()}))
    assert line["message"].startswith("cannot log 'sold' with the arguments () (")
    assert line["exception"].endswith("ValueError: shy")


def test_what_cannot_be_logged_is_not_said_where_the_app_does_not_want_it(log_json, monkeypatch):
    monkeypatch.setattr(logging, "raiseExceptions", False)
    assert [] == log_json(lambda: logging.getLogger("shop").info("%d left", "x"))


def test_a_closed_stderr_does_not_reach_the_app(monkeypatch):
    """A log line never fails the code that writes it."""
    with open("/dev/null", "w") as closed:  # noqa: PTH123 - a stream
        monkeypatch.setattr(sys, "stderr", closed)
        start(form="json")
    logging.getLogger("shop").info("hello")


def crash():
    raise ValueError("it broke")


def test_json_has_uncaught_exceptions_of_threads(log_json):
    def run(target):
        thread = threading.Thread(target=target, name="mailer")
        thread.start()
        thread.join()

    (line,) = log_json(lambda: run(crash))
    assert "uncaught exception in thread mailer" == line["message"]
    assert ("error", "eventmq.uncaught") == (line["level"], line["logger"])
    assert line["exception"].endswith("ValueError: it broke")
    assert [] == log_json(lambda: run(sys.exit))


def test_json_has_uncaught_exceptions_of_the_program(log_json):
    error = ValueError("it broke")
    (line,) = log_json(lambda: sys.excepthook(ValueError, error, None))
    assert ("uncaught exception", "ValueError: it broke") == (line["message"], line["exception"])


def test_json_has_exceptions_that_python_ignores(log_json):
    class Leaving:
        def __del__(self):
            crash()

    (line,) = log_json(lambda: Leaving() and None)
    assert line["message"].startswith("uncaught exception, ignored: in <function")
    assert "__del__" in line["message"]
    assert line["exception"].endswith("ValueError: it broke")


def test_hooks_of_the_app_are_kept(monkeypatch):
    seen = []
    monkeypatch.setattr(threading, "excepthook", seen.append)
    start(form="json")
    threading.excepthook("its own")
    assert ["its own"] == seen


def test_text_leaves_uncaught_exceptions_to_python():
    start(form="json")
    start(form="text")
    assert sys.excepthook is sys.__excepthook__
    assert threading.excepthook is threading.__excepthook__


# Handlers that fail


class Raising(logging.Handler):
    calls = 0

    def emit(self, record):
        self.calls += 1
        raise ValueError("no\x1bdisk")

    def __repr__(self):
        return "<Raising>"


class Unwritable(logging.Handler):
    def emit(self, record):
        try:
            raise OSError("disk full")
        except OSError:
            self.handleError(record)


@pytest.mark.parametrize("handlers", ["keep", "replace"])
def test_a_handler_that_raises_fails_nothing_and_says_so_once(capsys, handlers):
    """That of the root logger, and of any other one."""
    raising, other = Raising(), Raising()
    logger = logging.getLogger("shop.audit")
    logger.addHandler(other)
    try:
        start(raising, level="info", handlers=handlers)
        for _ in range(5):
            logger.error("sold")
    finally:
        logger.removeHandler(other)
    lines = [line for line in capsys.readouterr().err.splitlines() if "sold" not in line]
    report = (
        "error: the log handler <Raising> fails, and its lines are lost; this is reported once: "
        r"ValueError: no\x1bdisk"
    )
    assert lines == [report] * (2 if handlers == "keep" else 1)
    assert other.calls == 5


def test_a_handler_that_cannot_write_says_so_once(capsys):
    """Python itself would print a traceback for each line."""
    start(Unwritable(), level="info")
    for _ in range(5):
        logging.getLogger("shop").error("sold")
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith("this is reported once: OSError: disk full")


def test_a_handler_is_guarded_once(capsys):
    raising = Raising()
    for _ in range(3):
        start(raising, level="info")
    logging.getLogger("shop").error("sold")
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert raising.calls == 1


def test_a_handler_that_logs_itself_ends(capsys):
    """It is called again, until Python has enough of it; the program goes on."""

    class Endless(logging.Handler):
        def emit(self, record):
            logging.getLogger("shop").error("again")

    start(Endless(), level="info")
    logging.getLogger("shop").error("sold")
    assert "RecursionError" in capsys.readouterr().err


# Lines of the processes of ``dev``


def test_a_line_in_json_gets_the_name_of_its_process():
    line = '{"level": "error", "message": "a\\nb\\u001b"}\n'
    text = name_process(line, "worker")
    assert text.isprintable()
    assert {"level": "error", "message": "a\nb\x1b", "process": "worker"} == json.loads(text)


@pytest.mark.parametrize("line", ["error: 100 %s \x1b[2J\n", "[1]\n", "{\n", "\n", "[" * 100_000])
def test_any_other_line_becomes_the_message_of_one(line):
    text = name_process(line, "beat")
    assert text.isprintable()
    fields = json.loads(text)
    assert ("info", "eventmq.stderr", line.rstrip("\n"), "beat") == (
        fields["level"], fields["logger"], fields["message"], fields["process"],
    )  # fmt: skip
    assert fields["time"].endswith("Z")
