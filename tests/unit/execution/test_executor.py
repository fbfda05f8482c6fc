"""One job, from its payload to its outcome row."""

from __future__ import annotations

import asyncio
import functools
import json
import sys
import time

import msgpack
import pytest

from eventmq.errors import EventMQError, ResultTooLarge, SignatureError, TimeLimitExceeded
from eventmq.execution.async_executor import AsyncExecutor
from eventmq.execution.failures import Reject, Retry
from eventmq.execution.spec import TaskSpec
from eventmq.interfaces import Envelope, current_job
from eventmq.job import JobState, OutcomeKind
from eventmq.wire.batches import ChunkEntry
from eventmq.wire.results import decode_error, legacy_result
from tests.support.worker_harness import (
    Fixed,
    add,
    call,
    echo,
    later,
    make_executor,
    noop,
    sleep,
    whoami,
)

NEVER = Fixed(None)


def run(executor, headers, payload, *, attempt=1, expires=0.0, queue="default"):
    route = executor.routes(queue, [headers])[0]
    entry = ChunkEntry("j1", 2, attempt, 0, 0.0, expires, 0, len(payload))
    return executor.run(route, 5, entry, payload)


def run_call(executor, *args, attempt=1, **kwargs):
    return run(executor, *call(*args, **kwargs), attempt=attempt)


def error_of(row):
    assert row.content_type == "error"
    return decode_error(row.result)


def test_a_result_comes_back_in_the_content_type_of_the_arguments():
    row = run_call(make_executor(add), "add", 2, b=3)
    assert (row.position, row.kind, row.content_type) == (5, OutcomeKind.SUCCEEDED, "msgpack")
    assert msgpack.unpackb(row.result) == 5


def test_the_row_says_when_it_started_and_how_long_it_ran():
    before = time.time()
    row = run_call(make_executor(noop), "noop")
    assert before - 0.1 <= row.started <= time.time() + 0.1
    assert 0.0 <= row.run_time < 1.0


def test_a_task_knows_its_job_and_nobody_knows_it_afterwards():
    executor = make_executor(whoami)
    row = run_call(executor, "whoami")
    assert msgpack.unpackb(row.result) == ["j1", "whoami", "default", 1, 2]
    with pytest.raises(EventMQError, match="no current job"):
        current_job()


def test_a_task_may_write_its_result_with_another_serializer():
    spec = TaskSpec(name="echo", function=echo, serializer="json")
    row = run_call(make_executor(spec), "echo", 1)
    assert (row.content_type, row.result) == ("json", b"1")


@pytest.mark.parametrize("headers", ["ignore-result", ""])
def test_an_ignored_result_is_not_encoded(headers):
    spec = TaskSpec(name="echo", function=lambda _: object(), ignore_result=not headers)
    row = run_call(make_executor(spec), "echo", 1, headers=headers)
    assert (row.kind, row.content_type, row.result) == (OutcomeKind.SUCCEEDED, "", b"")


def test_a_coroutine_is_run_to_its_end_and_what_it_left_is_cancelled():
    cancelled = []

    async def forever():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def careless():
        task = asyncio.ensure_future(forever())
        await asyncio.sleep(0)
        return task.done()

    executor = make_executor(later, careless)
    assert msgpack.unpackb(run_call(executor, "later").result) == "later"
    assert msgpack.unpackb(run_call(executor, "careless").result) is False
    assert cancelled == [True]
    executor.close()
    executor.close()


# Failures


def broken(text="no"):
    raise ValueError(text, 4)


def test_an_exception_says_type_message_arguments_and_where():
    error = error_of(run_call(make_executor(broken), "broken"))
    assert error.type == "builtins.ValueError"
    assert error.message == "('no', 4)"
    assert error.arguments == ("no", 4)
    lines = error.traceback.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "in broken" in lines[1], "the first frame is the task's own"
    assert __file__ in lines[1]


def test_the_traceback_of_a_coroutine_starts_in_it():
    async def fails():
        raise KeyError("x")

    executor = make_executor(fails)
    first = error_of(run_call(executor, "fails")).traceback.splitlines()[1]
    executor.close()
    assert "in fails" in first


def test_wrong_arguments_show_no_frame_of_ours():
    error = error_of(run_call(make_executor(add), "add", 1))
    assert error.type == "builtins.TypeError"
    assert "execution.py" not in error.traceback


def test_an_exception_that_cannot_be_shown_is_still_a_failure():
    class Awkward(Exception):
        def __str__(self):
            raise RuntimeError

    def awkward():
        raise Awkward(object())

    error = error_of(run_call(make_executor(awkward), "awkward"))
    assert error.type.endswith("Awkward")
    assert "cannot be shown" in error.message


def test_text_that_utf8_cannot_say_is_replaced():
    def open_it():
        raise OSError("no file \udcff")

    assert error_of(run_call(make_executor(open_it), "open_it")).message == "no file ?"


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_what_would_end_the_process_fails_the_job(error):
    def leave():
        raise error

    row = run_call(make_executor(leave), "leave", headers="retry-count:3")
    assert row.kind == OutcomeKind.FAILED
    assert error_of(row).type == f"builtins.{type(error).__name__}"


# Another attempt


@pytest.mark.parametrize(
    ("attempt", "kind"), [(1, OutcomeKind.RETRY), (2, OutcomeKind.RETRY), (3, OutcomeKind.FAILED)]
)
def test_a_failed_job_is_tried_again_as_often_as_its_header_says(attempt, kind):
    row = run_call(make_executor(broken), "broken", headers="retry-count:2", attempt=attempt)
    assert row.kind == kind
    assert row.countdown == (7.0 if kind == OutcomeKind.RETRY else 0.0)
    assert error_of(row).type == "builtins.ValueError"


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"retry_on": (OSError,)}, OutcomeKind.FAILED),
        ({"retry_on": (ValueError,)}, OutcomeKind.RETRY),
        ({"no_retry_on": (ValueError,)}, OutcomeKind.FAILED),
    ],
)
def test_the_task_says_after_which_exceptions(options, kind):
    spec = TaskSpec(name="broken", function=broken, **options)
    assert run_call(make_executor(spec), "broken", headers="retry-count:1").kind == kind


def test_a_policy_may_say_never():
    executor = make_executor(broken, retry_policy=lambda *_: NEVER)
    assert run_call(executor, "broken", headers="retry-count:9").kind == OutcomeKind.FAILED


class Seeing(Fixed):
    """A retry policy that keeps the failures that it is asked about."""

    def __init__(self):
        super().__init__(3.0)
        self.seen = []

    def delay(self, failure):
        self.seen.append(failure)
        return self.seconds


def test_a_policy_sees_the_failure_of_the_job():
    policy = Seeing()
    executor = make_executor(broken, retry_policy=lambda *_: policy)
    row = run_call(executor, "broken", headers="retry-count:9,created:1700000000.5", attempt=4)
    assert (row.kind, row.countdown) == (OutcomeKind.RETRY, 3.0)
    (failure,) = policy.seen
    assert (failure.attempt, failure.task, failure.queue) == (4, "broken", "default")
    assert (failure.job_id, failure.created) == ("j1", 1_700_000_000.5)
    assert failure.error_type == error_of(row).type == "builtins.ValueError"
    assert type(failure.exception) is ValueError
    with pytest.raises(AttributeError):
        failure.attempt = 1


def test_a_policy_sees_what_a_retry_was_raised_from():
    def asks():
        try:
            raise KeyError("k")
        except KeyError as error:
            raise Retry from error

    policy = Seeing()
    executor = make_executor(asks, retry_policy=lambda *_: policy)
    run_call(executor, "asks", headers="retry-count:9")
    assert [(type(f.exception), f.error_type) for f in policy.seen] == [
        (KeyError, "builtins.KeyError")
    ]


def test_a_policy_is_not_asked_where_the_job_ends_anyway():
    policy = Seeing()
    spec = TaskSpec(name="broken", function=broken, no_retry_on=(ValueError,))
    executor = make_executor(spec, asks_again, retry_policy=lambda *_: policy)
    run_call(executor, "broken", headers="retry-count:9")
    run_call(executor, "asks_again", headers="retry-count:1", attempt=2)
    run_call(executor, "asks_again", 5.0, headers="retry-count:9")
    assert policy.seen == []


def test_the_message_names_a_policy_before_the_task_does():
    requested = []

    def policy(name, options):
        requested.append((name, dict(options)))
        return Fixed(1.0)

    executor = make_executor(broken, retry_policy=policy)
    text, payload = call("broken", headers='retry-count:1,backoff:fixed:{"delay": 2}')
    run(executor, text, payload)
    run(executor, *call("broken"))
    assert requested == [("fixed", {"delay": 2}), ("exponential", {})]


def asks_again(countdown=None):
    raise Retry(countdown=countdown)


@pytest.mark.parametrize(("countdown", "delay"), [(2.5, 2.5), (3, 3.0), (0.0, 0.0), (None, 7.0)])
def test_a_task_may_ask_for_another_attempt(countdown, delay):
    row = run_call(
        make_executor(asks_again), "asks_again", countdown, headers="retry-count:40", attempt=40
    )
    assert (row.kind, row.countdown) == (OutcomeKind.RETRY, delay)
    assert type(row.countdown) is float


def strict(a, *, b=2):
    """Raise a TypeError of its own."""
    return a + b + "x"


async def strict_later(a, *, b=2):
    return strict(a, b=b)


def wrapped(function):
    """Give a task an argument that its jobs do not have."""

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function("session", *args, **kwargs)

    return wrapper


@wrapped
def with_session(session, a):
    raise TypeError(f"{session}, {a}")


def arun_call(executor, *args, **kwargs):
    """Run a job as the pool asyncio does."""
    other = AsyncExecutor.of(executor, lambda coroutine, name: coroutine)
    headers, payload = call(*args, **kwargs)
    (route,) = other.routes("default", [headers])
    entry = ChunkEntry("j1", 2, 1, 0, 0.0, 0.0, 0, len(payload))
    return asyncio.run(other.arun(route, 0, entry, payload, other.new_cancellation()))


@pytest.mark.parametrize(
    ("task", "run_it"), [("strict", run_call), ("strict_later", run_call),
                         ("strict_later", arun_call)],
)  # fmt: skip
@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, "missing 1 required positional argument: 'a'"),
        ((1, 2), {}, "takes 1 positional argument but 2 were given"),
        ((1,), {"c": 2}, "got an unexpected keyword argument 'c'"),
    ],
)
def test_a_job_whose_arguments_the_task_does_not_take_is_not_tried_again(
    task, run_it, args, kwargs, message
):
    """Another attempt would have the same arguments."""
    executor = make_executor(strict, strict_later)
    row = run_it(executor, task, *args, headers="retry-count:5", **kwargs)
    executor.close()
    assert row.kind == OutcomeKind.FAILED
    error = error_of(row)
    assert (error.type, error.message) == ("builtins.TypeError", f"{task}() {message}")


@pytest.mark.parametrize("task", ["strict", "strict_later", "with_session"])
def test_a_type_error_of_the_task_itself_is_tried_again(task):
    """A wrapper that adds an argument makes no difference."""
    executor = make_executor(strict, strict_later, with_session)
    row = run_call(executor, task, 1, headers="retry-count:5")
    executor.close()
    assert row.kind == OutcomeKind.RETRY
    assert error_of(row).type == "builtins.TypeError"


class GivesUp:
    def delay(self, failure):
        return None


def test_a_task_that_asks_without_a_time_fails_where_its_retry_policy_gives_up():
    """Without a countdown the policy decides, and its None means that the job has failed."""
    executor = make_executor(asks_again, retry_policy=lambda *_: GivesUp())
    row = run_call(executor, "asks_again", headers="retry-count:5")
    assert row.kind == OutcomeKind.FAILED
    assert error_of(row).message == (
        "the task asked for another attempt; its retry policy allows no further attempt"
    )


def test_a_task_that_gives_the_time_is_tried_again_whatever_its_retry_policy_says():
    executor = make_executor(asks_again, retry_policy=lambda *_: GivesUp())
    row = run_call(executor, "asks_again", 5, headers="retry-count:5")
    assert (row.kind, row.countdown) == (OutcomeKind.RETRY, 5.0)


def test_what_a_task_asks_for_counts_against_its_retries():
    executor = make_executor(asks_again)
    rows = [run_call(executor, "asks_again", headers="retry-count:1", attempt=n) for n in (1, 2)]
    assert [row.kind for row in rows] == [OutcomeKind.RETRY, OutcomeKind.FAILED]


@pytest.mark.parametrize(
    ("retries", "text"), [(0, "the job has no retries"), (2, "its 2 retries are used up")]
)
def test_a_job_that_asks_once_too_often_fails_and_says_why(retries, text):
    def asks():
        raise Retry("not yet", countdown=5)

    headers = f"retry-count:{retries}" if retries else ""
    row = run_call(make_executor(asks), "asks", headers=headers, attempt=retries + 1)
    error = error_of(row)
    assert row.kind == OutcomeKind.FAILED
    assert (error.type, error.message) == ("eventmq.execution.failures.Retry", f"not yet; {text}")
    assert "in asks" in error.traceback.splitlines()[1]


def asks_from():
    try:
        {}["shop"]
    except KeyError as error:
        raise Retry(countdown=5) from error


def asks_inside():
    try:
        {}["shop"]
    except KeyError:
        raise Retry(countdown=5)  # noqa: B904 - as many write it


@pytest.mark.parametrize("function", [asks_from, asks_inside])
@pytest.mark.parametrize("attempt", [1, 2])
def test_the_error_is_what_the_retry_was_raised_from(function, attempt):
    row = run_call(
        make_executor(function), function.__name__, headers="retry-count:1", attempt=attempt
    )
    error = error_of(row)
    assert row.kind == (OutcomeKind.RETRY if attempt == 1 else OutcomeKind.FAILED)
    assert (error.type, error.message) == ("builtins.KeyError", "'shop'")
    assert f"in {function.__name__}" in error.traceback


def test_a_retry_from_none_hides_what_it_was_raised_from():
    def asks():
        try:
            {}["shop"]
        except KeyError:
            raise Retry from None

    assert error_of(run_call(make_executor(asks), "asks")).type.endswith(".Retry")


@pytest.mark.parametrize("countdown", [-1.0, float("inf"), float("nan"), "5"])
def test_an_impossible_countdown_is_refused(countdown):
    with pytest.raises(ValueError, match=r"countdown is .*; allowed are seconds from 0"):
        Retry(countdown=countdown)


def test_a_rejected_job_is_not_tried_again():
    def rejects():
        raise Reject("never again")

    row = run_call(make_executor(rejects), "rejects", headers="retry-count:5")
    assert (row.kind, error_of(row).message) == (OutcomeKind.FAILED, "never again")


# What cannot be tried


def test_an_expired_job_is_not_started():
    started = []
    executor = make_executor(TaskSpec(name="t", function=lambda: started.append(1)))
    row = run(executor, *call("t"), expires=time.time() - 1)
    assert (row.kind, started) == (OutcomeKind.EXPIRED, [])


def test_an_unknown_task_is_said_so():
    row = run_call(make_executor(add), "sub", 1, 2)
    assert row.kind == OutcomeKind.UNKNOWN_TASK
    assert error_of(row).type == "eventmq.errors.UnknownTask"
    assert "'sub'" in error_of(row).message


@pytest.mark.parametrize(
    ("headers", "payload", "error"),
    [
        ("task:add,content-type:dill", b"", "ContentNotAllowed"),
        ("task:add,content-type:msgpack,priority:999", b"", "ProtocolError"),
        ("task:add,content-type:msgpack,backoff:x:{", b"", "JSONDecodeError"),
        ("task:add,content-type:msgpack", b"\x01", "SerializationError"),
        ("task:add,content-type:msgpack", b"\xc1", "SerializationError"),
        ("task:add,content-type:msgpack", msgpack.packb([1, 2, 3]), "SerializationError"),
    ],
)
def test_what_cannot_be_read_fails_and_is_not_tried_again(headers, payload, error):
    row = run(make_executor(add), f"{headers},retry-count:3", payload)
    assert row.kind == OutcomeKind.FAILED
    assert error_of(row).type.rpartition(".")[2] == error


def test_a_result_that_cannot_be_serialised_fails():
    executor = make_executor(TaskSpec(name="t", function=object))
    error = error_of(run_call(executor, "t", headers="retry-count:3"))
    assert error.type == "eventmq.errors.SerializationError"


def test_a_result_that_is_too_large_fails():
    row = run_call(make_executor(echo, max_result=100), "echo", "x" * 101)
    assert "the limit is 100, from the setting max_frame; a result backend" in error_of(row).message
    assert row.kind == OutcomeKind.FAILED
    assert error_of(row).type == "eventmq.errors.ResultTooLarge"


def test_a_signing_serializer_sees_the_envelope_and_its_signature_travels():
    seen = []

    class Signing:
        def encode(self, value, envelope):
            seen.append(envelope)
            return b"data", "sig"

        def decode(self, data, envelope):
            seen.append(envelope)
            if envelope.signature != "good":
                raise SignatureError("the signature is wrong")
            return [[], {}]

    executor = make_executor(noop, serializer=lambda _: Signing(), accept_content=("signed",))
    headers = "task:noop,content-type:signed,created:5,expires:9,signature:"
    row = run(executor, headers + "good", b"", queue="q")
    assert seen[0] == Envelope("j1", "signed", "noop", "q", 5.0, 9.0, "good")
    assert seen[1] == Envelope("j1", "signed", created=row.started)
    assert row.content_type == f"signed;sig;{row.started!r}"
    assert error_of(run(executor, headers + "bad", b"")).type == "eventmq.errors.SignatureError"


# Around a task


class Noting:
    def __init__(self, name, notes):
        self.name, self.notes = name, notes

    def execute(self, job, proceed):
        self.notes.append(f"{self.name} before {job.id}")
        value = proceed()
        self.notes.append(f"{self.name} after")
        return value + 1


def test_middlewares_wrap_the_call_outermost_first():
    notes = []
    around = [Noting("a", notes), object(), Noting("b", notes)]
    row = run_call(make_executor(add, middleware=around), "add", 1, 2)
    assert msgpack.unpackb(row.result) == 5
    assert notes == ["a before j1", "b before j1", "b after", "a after"]


def test_a_coroutine_runs_inside_the_middlewares():
    class Look:
        def execute(self, job, proceed):
            return [proceed()]

    executor = make_executor(later, middleware=[Look()])
    assert msgpack.unpackb(run_call(executor, "later").result) == ["later"]
    executor.close()


class Elsewhere:
    inline = local = False

    def __init__(self, fails=False):
        self.fails, self.stored = fails, []

    def put(self, job_id, data, ttl):
        if self.fails:
            raise OSError("gone")
        self.stored.append((job_id, data, ttl))
        return b"ref"


def test_an_external_backend_gets_the_result_and_its_reference_is_answered():
    backend = Elsewhere()
    row = run_call(make_executor(add, backend=backend), "add", 1, 2, headers="result-ttl:60")
    assert backend.stored == [("j1", b"\x03", 60.0)]
    assert (row.kind, row.result) == (OutcomeKind.SUCCEEDED, b"ref")
    assert row.content_type == "reference:elsewhere;msgpack"


def test_a_backend_takes_results_that_the_broker_would_not():
    backend = Elsewhere()
    row = run_call(make_executor(echo, backend=backend, max_result=100), "echo", "x" * 101)
    assert (row.kind, row.result) == (OutcomeKind.SUCCEEDED, b"ref")
    assert len(backend.stored[0][1]) > 100


def test_a_result_that_a_backend_finds_too_large_fails_the_job_for_good():
    class Small(Elsewhere):
        def put(self, job_id, data, ttl):
            raise ResultTooLarge("the limit of this backend is 3")

    row = run_call(make_executor(add, backend=Small()), "add", 1, 2, headers="retry-count:3")
    assert row.kind == OutcomeKind.FAILED
    assert error_of(row)[:2] == (
        "eventmq.errors.ResultTooLarge",
        "the limit of this backend is 3",
    )


@pytest.mark.parametrize("headers", ["result-ttl:0", "ignore-result"])
def test_a_result_that_nobody_wants_is_not_handed_to_a_backend(headers):
    backend = Elsewhere()
    row = run_call(make_executor(add, backend=backend), "add", 1, 2, headers=headers)
    assert (row.kind, row.content_type, row.result) == (OutcomeKind.SUCCEEDED, "", b"")
    assert backend.stored == []


def test_a_backend_that_is_gone_costs_the_result_not_the_job():
    row = run_call(make_executor(add, backend=Elsewhere(fails=True)), "add", 1, 2)
    assert (row.kind, row.content_type, row.result) == (OutcomeKind.SUCCEEDED, "", b"")


# Legacy jobs


JOBS = """
import os.path
from os import getcwd
from subprocess import Popen
import functools

def double(n, times=1):
    return 2 * n * times

def fails():
    raise ValueError("bad luck")

async def later():
    return 1

def unwritable():
    return object()

partial = functools.partial(double, 1)

class Counter:
    def __init__(self, start, step=1):
        self.start, self.step = start, step

    def count(self, n):
        return self.start + n * self.step
"""


@pytest.fixture
def legacy_jobs(tmp_path, monkeypatch):
    package = tmp_path / "plainjobs"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "work.py").write_text(JOBS)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "plainjobs"]:
        del sys.modules[name]


def legacy(path, name, *args, headers="", patterns=("plainjobs.*",), **kwargs):
    body = {"callable": name, "path": path, "args": list(args), "kwargs": kwargs}
    executor = make_executor(allow_callables=patterns)
    row = run(executor, headers, json.dumps(["run", body]).encode())
    executor.close()
    return row


@pytest.mark.usefixtures("legacy_jobs")
class TestPlainJobs:
    def test_a_function_is_called_and_answered_as_json(self):
        row = legacy("plainjobs.work", "double", 4, times=2)
        assert (row.kind, row.content_type) == (OutcomeKind.SUCCEEDED, "plain")
        assert json.loads(row.result) == {"value": 16}

    def test_a_method_is_called_on_a_new_object(self):
        body = {
            "callable": "count",
            "path": "plainjobs.work:Counter",
            "args": [2],
            "class_args": [100],
            "class_kwargs": {"step": 10},
        }
        executor = make_executor(allow_callables=["plainjobs.work.Counter.count", "*.Counter"])
        row = run(executor, "", json.dumps(["run", body]).encode())
        assert json.loads(row.result) == {"value": 120}

    def test_a_coroutine_is_run(self):
        assert json.loads(legacy("plainjobs.work", "later").result) == {"value": 1}

    def test_an_exception_is_its_text(self):
        row = legacy("plainjobs.work", "fails")
        assert (row.kind, row.content_type) == (OutcomeKind.FAILED, "plain")
        assert row.result == b"bad luck"

    def test_the_header_retry_count_holds(self):
        assert legacy("plainjobs.work", "fails", headers="retry-count:1").kind == OutcomeKind.RETRY

    @pytest.mark.parametrize("name", ["unwritable"])
    def test_a_result_that_json_cannot_say_fails(self, name):
        row = legacy("plainjobs.work", name, headers="retry-count:1")
        assert row.kind == OutcomeKind.FAILED
        assert b"JSON" in row.result

    def test_a_result_that_is_too_large_fails_and_is_not_tried_again(self):
        body = {"callable": "double", "path": "plainjobs.work", "args": ["x" * 100]}
        executor = make_executor(allow_callables=["plainjobs.*"], max_result=100)
        row = run(executor, "retry-count:3", json.dumps(["run", body]).encode())
        assert row.kind == OutcomeKind.FAILED
        assert b"the limit is 100" in row.result

    @pytest.mark.parametrize("path", ["plainjobs.nothing", "plainjobs.work:Nobody"])
    def test_what_is_not_there_fails(self, path):
        assert legacy(path, "double").kind == OutcomeKind.FAILED

    @pytest.mark.parametrize(
        ("path", "name"),
        [
            ("os", "getcwd"),
            ("plainjobs.work", "getcwd"),
            ("plainjobs.work", "Popen"),
            ("plainjobs.work:Popen", "wait"),
            ("plainjobs.work:os", "getcwd"),
            ("plainjobs.work", "partial"),
            ("plainjobs.work", "__import__"),
            ("plainjobs.work:Counter", "__init__"),
        ],
    )
    def test_what_no_pattern_admits_is_not_called(self, path, name):
        """A name that an allowed module only imported is not allowed."""
        row = legacy(path, name)
        assert row.kind == OutcomeKind.UNKNOWN_TASK
        assert error_of(row).type == "eventmq.errors.NotAllowed"

    def test_nothing_is_imported_before_the_path_was_compared(self):
        legacy("plainjobs.work", "double", 1, patterns=["other.*"])
        assert "plainjobs.work" not in sys.modules

    def test_without_patterns_nothing_is_admitted(self):
        assert legacy("plainjobs.work", "double", 1, patterns=()).kind == OutcomeKind.UNKNOWN_TASK

    @pytest.mark.parametrize(
        "body",
        [
            b"\xff",
            b"{}",
            b'["walk", {}]',
            b'["run", {"callable": 1, "path": "x"}]',
            b'["run", {"callable": "a.b", "path": "plainjobs"}]',
            b'["run", {"callable": "a", "path": "plainjobs:"}]',
            b'["run", {"callable": "a", "path": "plainjobs", "args": {"a": 1}}]',
            b'["run", {"callable": "a", "path": "plainjobs", "kwargs": [1]}]',
            b"[" * 100_000,
        ],
    )
    def test_a_malformed_body_fails_and_is_not_tried_again(self, body):
        row = run(make_executor(allow_callables=["*"]), "retry-count:2", body)
        assert (row.kind, row.content_type) == (OutcomeKind.FAILED, "plain")


# Hard limits


def test_a_job_that_was_stopped_at_its_limit_follows_its_retries():
    """The manager calls it: the process that ran the job has ended."""
    executor = make_executor(noop)
    entry = ChunkEntry("j", 1, 1, 0, 2.5, 0.0, 0, 0)
    text = "task:noop,content-type:msgpack"
    row = executor.timed_out("q", f"{text},retry-count:1", 4, entry, 2.6)
    assert (row.position, row.kind, row.countdown) == (4, OutcomeKind.RETRY, 7.0)
    assert row.run_time == pytest.approx(2.6, abs=0.1)
    row = executor.timed_out("q", text, 4, entry, 2.6)
    assert row.kind == OutcomeKind.FAILED
    error = decode_error(row.result)
    assert error.type == "eventmq.errors.TimeLimitExceeded"
    assert error.message == "the job was stopped after its timeout of 2.5 s"


def test_a_task_may_refuse_to_be_tried_again_after_its_limit():
    spec = TaskSpec(name="t", function=noop, no_retry_on=(TimeLimitExceeded,))
    executor = make_executor(spec)
    entry = ChunkEntry("j", 1, 1, 0, 2.5, 0.0, 0, 0)
    row = executor.timed_out("q", "task:t,content-type:msgpack,retry-count:9", 0, entry, 2.6)
    assert row.kind == OutcomeKind.FAILED


def test_a_legacy_job_past_its_limit_is_told_as_deployed_software_tells_it():
    executor = make_executor(noop)
    entry = ChunkEntry("j", 1, 1, 0, 2.5, 0.0, 0, 0)
    row = executor.timed_out("q", "timeout:2.5", 0, entry, 2.6)
    assert legacy_result(JobState.FAILED, row.result) == b'{"value": "TimeoutError"}'


def test_a_soft_limit_that_nothing_could_keep_is_in_the_log(caplog):
    executor = make_executor(sleep)
    route = executor.routes("q", ["task:sleep,content-type:msgpack,soft-limit:0.01"])[0]
    entry = ChunkEntry("j", 1, 1, 0, 0.0, 0.0, 0, 0)
    row = executor.run(route, 0, entry, msgpack.packb([[0.03], {}]))
    assert row.kind == OutcomeKind.SUCCEEDED
    assert "job j of task sleep ran past its soft_timeout" in caplog.text


class Texts:
    """A result backend that returns text where bytes are due."""

    inline = local = False

    def put(self, job_id, data, ttl):
        return f"reference of {job_id}"


@pytest.mark.parametrize(
    ("headers", "outcome"), [("", ("", b"")), ("graph:o", ("msgpack", msgpack.packb(5)))]
)
def test_a_result_backend_that_returns_text_costs_the_result_and_not_the_job(
    caplog, headers, outcome
):
    """The log says what is wrong. What other jobs take goes through the broker."""
    row = run_call(make_executor(add, backend=Texts()), "add", 2, b=3, headers=headers)
    assert (row.kind, row.content_type, row.result) == (OutcomeKind.SUCCEEDED, *outcome)
    assert "the result of job j1, which succeeded, could not be kept" in caplog.text
    assert (
        "put() of the result backend 'elsewhere' returned a str as reference; it must return bytes"
        in caplog.text
    )
