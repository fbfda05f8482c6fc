"""What a worker's log says about jobs."""

from __future__ import annotations

import logging

import msgpack
import pytest

from eventmq.execution import joblog
from eventmq.execution.failures import Reject, Retry
from eventmq.execution.spec import TaskSpec
from eventmq.interfaces import JobContext
from eventmq.job import OutcomeKind
from eventmq.wire.results import RemoteError
from tests.support.worker_harness import call, echo, make_executor, noop
from tests.unit.execution.test_executor import legacy, run, run_call

JOB = JobContext("j1", "t", "default", 2, 3, "")
SECRET = "hunter2"


def fails(secret):
    raise ValueError("no luck")


def asks(secret):
    raise Retry("not yet", countdown=2.5)


def rejects(secret):
    raise Reject("never")


@pytest.fixture
def log(caplog):
    """Return level and lines of what was logged; nothing may ever show an argument or a result."""
    caplog.set_level(logging.INFO, "eventmq.execution")
    yield lambda: [(r.levelname, logging.Formatter().format(r)) for r in caplog.records]
    assert SECRET not in caplog.text


def one(log):
    (line,) = log()
    return line


def test_a_job_that_failed_for_good_is_an_error_with_its_traceback(log):
    run_call(make_executor(fails), "fails", SECRET, attempt=1)
    level, text = one(log)
    lines = text.splitlines()
    assert level == "ERROR"
    assert lines[0] == "job j1 of task fails failed for good at attempt 1: ValueError: no luck"
    assert lines[1] == "Traceback (most recent call last):"
    assert "in fails" in lines[2]
    assert lines[-1] == "ValueError: no luck"


def test_control_characters_of_an_error_are_escaped_for_every_handler(caplog):
    """The traceback is no part of the message, which is one line."""
    joblog.failed(JOB, RemoteError("builtins.ValueError", "no\nluck", "Traceback:\n  \x1b[2J"))
    (record,) = caplog.records
    message = r"job j1 of task t failed for good at attempt 2: ValueError: no\nluck"
    assert (message, "Traceback:\n  \\x1b[2J") == (record.getMessage(), record.exc_text)


def test_a_rejected_job_is_an_error(log):
    run_call(make_executor(rejects), "rejects", SECRET, headers="retry-count:3")
    level, text = one(log)
    assert level == "ERROR"
    assert "eventmq.execution.failures.Reject: never" in text


def test_a_retry_is_a_warning_with_the_seconds_until_the_next_attempt(log):
    run_call(make_executor(fails), "fails", SECRET, headers="retry-count:3", attempt=2)
    assert one(log) == (
        "WARNING",
        "attempt 2 of job j1 of task fails failed: ValueError: no luck; the next is in 7 s",
    )


def test_a_retry_that_the_task_asked_for_is_no_warning(log):
    run_call(make_executor(asks), "asks", SECRET, headers="retry-count:3")
    level, text = one(log)
    assert level == "INFO"
    assert text.endswith("Retry: not yet; the next is in 2.5 s")


def test_a_result_that_cannot_be_encoded_is_a_failure(log):
    spec = TaskSpec(name="t", function=lambda _: {object()})
    run_call(make_executor(spec), "t", SECRET, attempt=3)
    level, text = one(log)
    assert level == "ERROR"
    assert text.startswith("job j1 of task t failed for good at attempt 3: ")
    assert "SerializationError" in text
    assert "Traceback" not in text, "frames of a serializer tell its user nothing"


def test_a_serializer_that_breaks_is_shown_with_its_frames(log):
    class Broken:
        def encode(self, value, envelope):
            raise KeyError("x")

        def decode(self, data, envelope):
            return [[], {}]

    run_call(make_executor(noop, serializer=lambda _: Broken()), "noop", SECRET)
    level, text = one(log)
    assert level == "ERROR"
    assert "the result, a NoneType, cannot be serialised: 'x'" in text
    assert "in encode" in text
    assert "execution.py" not in text


def test_a_result_that_is_too_large_is_a_failure(log):
    run_call(make_executor(echo, max_result=100), "echo", SECRET * 20)
    level, text = one(log)
    assert level == "ERROR"
    assert "ResultTooLarge: the result has 142 bytes; the limit is 100" in text


@pytest.mark.parametrize(
    ("headers", "payload", "error"),
    [
        ("task:noop,content-type:msgpack", b"\xc1" + SECRET.encode(), "SerializationError"),
        ("task:noop,content-type:dill", b"", "ContentNotAllowed"),
        ("task:noop,content-type:msgpack,backoff:x:{", b"", "JSONDecodeError"),
    ],
)
def test_what_cannot_be_tried_is_a_failure(log, headers, payload, error):
    run(make_executor(noop), headers, payload)
    level, text = one(log)
    assert level == "ERROR"
    assert "job j1 of task noop failed for good at attempt 1" in text
    assert error in text


def test_an_unknown_task_is_a_warning_here_because_the_broker_decides(log):
    run_call(make_executor(noop), "other", SECRET)
    assert one(log) == (
        "WARNING", "job j1 goes back to the broker: this worker knows no task 'other'"
    )  # fmt: skip


def test_a_legacy_job_that_is_not_admitted_is_a_warning(log):
    legacy("os", "getcwd", SECRET)
    level, text = one(log)
    assert level == "WARNING"
    assert "os.getcwd is not admitted" in text


def test_a_legacy_job_has_no_task(log):
    run(make_executor(noop), "", b"[")
    assert one(log)[1].startswith("job j1 of task (legacy) failed for good")


def test_success_is_told_of_at_debug_only(log, caplog):
    executor = make_executor(noop, fails).for_slot()
    assert executor.run.__func__ is type(executor).run, "the hot path is the method itself"
    run_call(executor, "noop")
    assert log() == []
    caplog.set_level(logging.DEBUG, "eventmq.execution")
    for _ in range(2):
        executor = executor.for_slot()
    run_call(executor, "noop")
    assert [text.split(" in ")[0] for _, text in log()] == [
        "job j1 of task noop starts, attempt 1",
        "job j1 of task noop succeeded at attempt 1",
    ]


def test_of_a_long_traceback_the_end_is_logged(log):
    lines = [f"  line {n:05}" for n in range(5000)]
    joblog.failed(JOB, RemoteError("x.Y", "m", "\n".join([*lines, "x.Y: m"])))
    shown = one(log)[1].splitlines()
    assert shown[1] == "[...]"
    assert shown[2] in lines, "it begins with a whole line"
    assert shown[-1] == "x.Y: m"
    assert 15 * 1024 < len("\n".join(shown[2:])) <= 16 * 1024


def test_a_long_text_of_an_error_is_cut(log):
    joblog.failed(JOB, RemoteError("x.Y", "m" * 10_000))
    assert one(log)[1].endswith(": x.Y: " + "m" * 4096 + " [...]")


@pytest.mark.parametrize(("count", "end"), [(1, "j0 (t)"), (10, "j9 (t)"), (12, "and 2 more")])
def test_aborted_jobs_are_named_up_to_ten(log, count, end):
    joblog.aborted([(f"j{n}", "t") for n in range(count)], "stopped at once")
    level, text = one(log)
    assert level == "WARNING"
    assert text.startswith(f"stopped at once: aborted {count} running ")
    assert text.endswith(end)
    assert text.count("(t)") == min(count, 10)


def test_without_aborted_jobs_nothing_is_said(log):
    joblog.aborted([], "stopped at once")
    assert log() == []


def test_a_broken_log_handler_fails_no_job(log, monkeypatch):
    def broken(record):
        raise RuntimeError

    logger = logging.getLogger("eventmq.execution.joblog")
    monkeypatch.setattr(logger, "filters", [broken])
    row = run_call(make_executor(fails), "fails", SECRET, headers="retry-count:1")
    assert row.kind == OutcomeKind.RETRY
    assert run_call(make_executor(fails), "fails", SECRET).kind == OutcomeKind.FAILED


def test_what_is_logged_needs_no_payload():
    """The calls of these tests do carry the secret."""
    assert SECRET in msgpack.unpackb(call("fails", SECRET)[1])[0]


def test_an_error_has_the_exception_and_the_fields_of_its_job(caplog):
    """For handlers that send more than text, also where there is no current job."""
    error = ValueError("no luck")
    joblog.failed(JOB, RemoteError("builtins.ValueError", "no luck", "Traceback: ..."), error)
    joblog.refused("j2", "u", "q", 1, OutcomeKind.FAILED, RemoteError("x.Y", "never"))
    failed_job, refused = caplog.records
    assert failed_job.exc_info == (ValueError, error, None)
    assert refused.exc_info is None
    names = [f"eventmq_{name}" for name in ("job", "task", "queue", "attempt")]
    assert [getattr(failed_job, name) for name in names] == ["j1", "t", "default", 2]
    assert [getattr(refused, name) for name in names] == ["j2", "u", "q", 1]
