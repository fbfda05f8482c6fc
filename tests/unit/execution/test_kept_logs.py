"""What a job logs, on its way to the outcome."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from eventmq.execution.async_executor import AsyncExecutor
from eventmq.execution.executor import Executor
from eventmq.execution.kept_logs import LogBuffer
from eventmq.execution.spec import TaskSpec
from eventmq.job import OutcomeKind
from eventmq.wire.batches import ChunkEntry, LoggedRow, OutcomeRow
from tests.support.worker_harness import call, make_executor

_log = logging.getLogger("shop")


@pytest.fixture(autouse=True)
def root():
    """The root logger at level info, as in a worker, and as it was in the end."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    root.setLevel(logging.INFO)
    yield root
    root.setLevel(level)
    assert root.handlers == handlers


def say(*texts):
    for text in texts:
        _log.info(text)
    return len(texts)


def fail():
    _log.warning("soon")
    raise ValueError("no")


def shout():
    try:
        raise KeyError("k")
    except KeyError:
        _log.exception("it broke\nin two")


async def asay(text):
    await asyncio.sleep(0)
    await asyncio.to_thread(_log.info, "in a thread of it")
    _log.info(text)


def start_thread():
    thread = threading.Thread(target=say, args=("from a thread",))
    thread.start()
    thread.join()


def misfit():
    _log.info("%d apples", "three")
    _log.info("after")


def spec(function, **more):
    return TaskSpec(name=function.__name__, function=function, keep_logs=True, **more)


def run(executor, *args, attempt=1):
    headers, payload = call(*args)
    route = executor.routes("default", [headers])[0]
    entry = ChunkEntry("j1", 1, attempt, 0, 0.0, 0.0, 0, len(payload))
    return executor.run(route, 5, entry, payload)


def log_of(row) -> list[str]:
    """Return the lines of a row's log without their times."""
    lines = row[7].decode().splitlines() if len(row) > 7 else []
    return [line[24:] if line[:2] == "20" else line for line in lines]


def test_what_a_job_logs_goes_behind_its_outcome():
    """With time, level and logger, as the log of the worker has it, but without the job."""
    executor = make_executor(spec(say))
    row = run(executor, "say", "one", "two")
    assert isinstance(row, LoggedRow)
    assert (5, OutcomeKind.SUCCEEDED, 8) == (row.position, row.kind, len(row))
    assert ["INFO    shop: one", "INFO    shop: two"] == log_of(row)
    assert row[7].startswith(b"20")


def test_a_job_that_logs_nothing_has_no_log():
    assert type(run(make_executor(spec(say)), "say")) is OutcomeRow


def test_only_the_jobs_of_the_task_have_logs():
    """One after the other in the same process; and nothing of it reaches the next job."""
    executor = make_executor(spec(fail), say)
    assert [] == log_of(run(executor, "say", "not kept"))
    assert 8 == len(run(executor, "fail"))
    assert 7 == len(run(executor, "say", "not kept"))


def test_without_such_a_task_a_job_runs_as_ever():
    """No function is wrapped around its run: there is nothing that could cost anything."""
    executor = make_executor(say).for_slot()
    run(executor, "say", "one")
    assert "run" not in vars(executor)
    assert executor.run.__func__ is Executor.run


def test_a_copy_for_another_slot_keeps_logs_of_its_own():
    executor = make_executor(spec(say))
    run(executor, "say", "one")
    other = executor.for_slot()
    assert ["INFO    shop: two"] == log_of(run(other, "say", "two"))


def test_a_failure_is_in_the_log_with_its_traceback():
    lines = log_of(run(make_executor(spec(fail)), "fail"))
    assert "WARNING shop: soon" == lines[0]
    assert "failed for good at attempt 1: ValueError: no" in lines[1]
    assert "    ValueError: no" == lines[-1]


def test_a_message_is_one_line_and_a_traceback_follows():
    lines = log_of(run(make_executor(spec(shout)), "shout"))
    head = [r"ERROR   shop: it broke\nin two", "    Traceback (most recent call last):"]
    assert head == lines[:2]


def test_coroutines_and_their_threads_are_kept_in_any_pool():
    executor = make_executor(spec(asay))
    expected = ["INFO    shop: in a thread of it", "INFO    shop: done"]
    assert expected == log_of(run(executor, "asay", "done"))
    executor.close()


def test_many_coroutines_of_one_loop_have_a_log_each():
    executor = AsyncExecutor.of(make_executor(spec(asay)), lambda coroutine, _: coroutine)

    async def all_of_them():
        headers, _ = call("asay", "x")
        route = executor.routes("default", [headers])[0]
        made = [(f"j{n}", call("asay", str(n))[1]) for n in range(20)]
        runs = [
            executor.arun(
                route, n, ChunkEntry(job_id, 1, 1, 0, 0.0, 0.0, 0, len(payload)), payload,
                executor.new_cancellation(),
            )
            for n, (job_id, payload) in enumerate(made)
        ]  # fmt: skip
        return await asyncio.gather(*runs)

    rows = asyncio.run(all_of_them())
    assert [log_of(row)[-1] for row in rows] == [f"INFO    shop: {n}" for n in range(20)]
    assert {2} == {len(log_of(row)) for row in rows}


def test_threads_that_a_task_starts_have_no_part_in_it():
    assert [] == log_of(run(make_executor(spec(start_thread)), "start_thread"))


def test_what_is_below_the_level_of_the_log_is_not_kept(root):
    root.setLevel(logging.WARNING)
    assert 7 == len(run(make_executor(spec(say)), "say", "quiet"))


def test_a_message_that_does_not_fit_its_arguments_fails_nothing(monkeypatch):
    monkeypatch.setattr(logging, "raiseExceptions", False)  # pytest's handler would raise
    row = run(make_executor(spec(misfit)), "misfit")
    assert OutcomeKind.SUCCEEDED == row.kind
    assert ["INFO shop: a line that cannot be formatted", "INFO    shop: after"] == log_of(row)


def test_a_task_that_configures_logging_anew_loses_its_own_log_only(root):
    """`logging.config` removes all handlers; the next job has its log again."""
    before = root.handlers[:]

    def configure():
        root.handlers[:] = []
        _log.info("unheard")

    executor = make_executor(spec(configure), spec(say))
    assert [] == log_of(run(executor, "configure"))
    root.handlers[:] = before
    assert ["INFO    shop: heard"] == log_of(run(executor, "say", "heard"))


def test_the_last_lines_are_kept_and_the_first_says_how_many_were_cut():
    row = run(make_executor(spec(say), max_log=1024), "say", *(f"line {n}" for n in range(100)))
    first, *lines = log_of(row)
    assert len(row[7]) <= 1024
    assert f"[lines cut before these: {100 - len(lines)}; max_job_log_bytes is 1024]" == first
    assert [f"INFO    shop: line {n}" for n in range(100 - len(lines), 100)] == lines
    assert len(lines) > 15


def test_a_line_that_is_too_long_loses_its_end():
    log = LogBuffer(1000)
    log.add("é" * 1000)
    text = log.text().decode()
    assert text.endswith("é [...]\n")
    assert 895 < len(text.encode()) <= 1000
    log.add("next")
    assert log.text().decode() == "[lines cut before these: 1; max_job_log_bytes is 1000]\nnext\n"


def test_memory_is_bounded_however_much_a_job_logs():
    log = LogBuffer(4096)
    for _ in range(1000):
        log.add("x" * 1000)
    assert log._size <= 4096
    assert b"[lines cut before these: 997;" in log.text()
