"""Tasks that real workers run, and their results in another process."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest

from tests.contrib.django.conftest import TIMEOUT, Process, ended, running_worker, until


@pytest.fixture
def framework(project):
    from eventmq_contrib.django import framework

    return framework


@pytest.fixture
def backend(framework):
    return framework.task_backends["default"]


def test_all_features_of_the_framework_are_supported(backend):
    names = ("defer", "async_task", "get_result", "priority")
    assert [True] * 4 == [getattr(backend, f"supports_{name}") for name in names]


def test_a_result_has_all_of_its_job(tasks, backend, worker):
    sent = tasks.add.enqueue(1, b=2)
    assert sent.status == "READY"
    result = ended(backend.get_result(sent.id))
    assert (3, [1], {"b": 2}, [], 1) == (
        result.return_value, result.args, result.kwargs, result.errors, result.attempts,
    )  # fmt: skip
    assert tasks.add == result.task
    times = [result.enqueued_at, result.started_at, result.last_attempted_at, result.finished_at]
    assert sorted(times) == times
    assert all(time.tzinfo is not None for time in times)
    assert sent.enqueued_at == result.enqueued_at
    assert result.worker_ids == [row["name"] for row in backend.app.ask("workers")]


@pytest.mark.parametrize("priority", [-100, -1, 0, 50, 100])
def test_a_call_is_given_back_exactly_before_and_after_it_ran(tasks, backend, worker, priority):
    from django.utils import timezone

    call = tasks.echo.using(
        priority=priority, queue_name="mail", run_after=timezone.now() + timedelta(seconds=0.3)
    )
    arguments = [1 << 80, 1.5, None, True, "ä", {"x": [{}]}, b"bytes"]
    backend.app.ask("pause", {"queue": "mail"})  # until it was seen that it waits
    try:
        sent = call.enqueue(*arguments, key="v")
        waiting = backend.get_result(sent.id)
    finally:
        backend.app.ask("resume", {"queue": "mail"})
    arguments[-1] = "bytes"
    assert ("READY", call, arguments, {"key": "v"}) == (
        waiting.status, waiting.task, waiting.args, waiting.kwargs,
    )  # fmt: skip
    result = ended(sent)
    found = backend.get_result(sent.id)
    assert (call, arguments, {"key": "v"}) == (found.task, found.args, found.kwargs)
    assert [arguments, {"key": "v"}] == found.return_value == result.return_value
    assert found.started_at >= call.run_after


@pytest.mark.parametrize(("alias", "more"), [("default", "x" * 1_100_000), ("outbox", "")])
def test_what_plain_json_lacks_is_given_back_exactly_from_wherever_it_waits(tasks, alias, more):
    from eventmq_contrib.django.models import OutboxJob

    call = tasks.echo.using(backend=alias, queue_name="spare")
    arguments = [{1: {2.5: None}}, 1 << 80, {"$eventmq": "int", "value": "0x1"}, more]
    sent = call.enqueue(*arguments)
    found = call.get_result(sent.id)
    OutboxJob.objects.all().delete()
    assert (arguments, {}) == (found.args, found.kwargs) == (sent.args, sent.kwargs)


def test_times_are_naive_without_time_zones(tasks, backend):
    from django.test import override_settings

    with override_settings(USE_TZ=False):
        task = tasks.echo.using(queue_name="spare", run_after=datetime(2100, 6, 1, 12, 30))  # noqa: DTZ001
        found = backend.get_result(task.enqueue().id)
        assert (task, None) == (found.task, found.enqueued_at.tzinfo)


def test_jobs_of_higher_priority_come_first(tasks, backend, project):
    task = tasks.now_utc.using(queue_name="spare")
    results = [task.using(priority=p).enqueue() for p in (-100, 100, -99, 0, 1)]
    with running_worker(project, "-c", "1", "-Q", "spare", name="ordered"):
        times = [ended(result).return_value for result in results]
    assert [1, 4, 3, 2, 0] == sorted(range(5), key=times.__getitem__)


def test_a_failure_has_the_errors_and_workers_of_all_attempts(tasks, backend, worker):
    sent = tasks.watched.using(priority=9).enqueue(9)
    result = ended(backend.get_result(sent.id))
    assert ("FAILED", 4, [9], 9) == (
        result.status, result.attempts, result.args, result.task.priority,
    )  # fmt: skip
    assert [ValueError] * 4 == [each.exception_class for each in result.errors]
    assert all(
        f"ValueError: attempt {number}" in each.traceback
        for number, each in enumerate(result.errors, start=1)
    )
    assert result.started_at < result.last_attempted_at <= result.finished_at
    with pytest.raises(ValueError, match="failed"):
        _ = result.return_value


def test_a_task_knows_its_attempts_before(tasks, backend, worker):
    sent = tasks.watched.using(priority=-3).enqueue(2)
    result = ended(sent)
    name = backend.app.ask("workers")[0]["name"]
    assert [3, [name] * 3, 2, -3] == result.return_value
    assert (2, [name] * 3) == (len(result.errors), result.worker_ids)


def _signals(result):
    from tests.contrib.django.project.shop.models import Seen

    rows = Seen.objects.filter(job=result.id).order_by("pk")
    assert {row.worker for row in rows} <= set(result.worker_ids)
    return [(row.signal, row.status, row.attempt) for row in rows]


def test_the_three_signals_are_sent_once_for_what_they_say(tasks, framework, worker):
    enqueued = []

    def keep(sender, task_result, **_):
        enqueued.append((sender, task_result.id, task_result.enqueued_at is not None))

    framework.task_enqueued.connect(keep)
    good, bad = tasks.watched.enqueue(1), tasks.watched.enqueue(1, kind="Reject")
    framework.task_enqueued.disconnect(keep)
    sender = type(framework.task_backends["default"])
    assert [(sender, good.id, True), (sender, bad.id, True)] == enqueued
    assert [
        ("started", "RUNNING", 1), ("started", "RUNNING", 2), ("finished", "SUCCESSFUL", 2),
    ] == _signals(ended(good))  # fmt: skip
    assert [("started", "RUNNING", 1), ("finished", "FAILED", 1)] == _signals(ended(bad))


def test_coroutines_submit_run_and_are_read(tasks, worker):
    async def scenario():
        result = await tasks.awatched.aenqueue("async")
        while not result.is_finished:
            await asyncio.sleep(0.01)
            await result.arefresh()
        return await tasks.awatched.aget_result(result.id)

    result = asyncio.run(asyncio.wait_for(scenario(), TIMEOUT))
    assert "async" == result.return_value
    assert [("started", "RUNNING", 1), ("finished", "SUCCESSFUL", 1)] == _signals(result)


def test_a_result_that_is_no_json_fails_the_task(tasks, worker):
    result = ended(tasks.not_json.enqueue())
    assert [TypeError] == [each.exception_class for each in result.errors]
    assert "Unsupported type" in result.errors[0].traceback


def test_a_cancelled_task_has_failed_with_an_error_that_can_be_imported(tasks, backend, worker):
    from eventmq import JobCancelled
    from eventmq_contrib.django import TaskError

    for task in (tasks.sleep.using(queue_name="spare", priority=7), tasks.sleep):
        result = task.enqueue(60)
        if task is tasks.sleep:
            until(lambda r=result: r.refresh() or r.status == "RUNNING", "running")
            assert 1 == result.attempts
        assert backend.app.job(result.id).cancel("no longer needed")
        found = ended(backend.get_result(result.id))
        [error] = found.errors
        assert isinstance(error, TaskError)
        assert ("FAILED", JobCancelled) == (found.status, error.exception_class)
        assert (task, [60], {}) == (found.task, found.args, found.kwargs)
        assert "no longer needed" in error.traceback
        assert found.finished_at is not None


def test_arguments_over_a_mebibyte_come_back(tasks, backend, worker):
    text = "x" * 2_500_000
    assert [text] == backend.get_result(ended(tasks.watched.enqueue(text)).id).args
    waiting = tasks.watched.using(queue_name="spare").enqueue(text)
    assert [text] == backend.get_result(waiting.id).args
    assert backend.app.job(waiting.id).cancel()
    found = ended(backend.get_result(waiting.id))
    assert ("FAILED", [text], {}) == (found.status, found.args, found.kwargs)


def test_an_expired_task_has_failed(tasks, backend):
    from django.utils import timezone

    from eventmq import JobExpired

    task = tasks.too_late.using(priority=-7, run_after=timezone.now() + timedelta(hours=1))
    result = ended(backend.get_result(task.enqueue(1, b="x").id))
    assert [JobExpired] == [each.exception_class for each in result.errors]
    assert (task, [1], {"b": "x"}) == (result.task, result.args, result.kwargs)


@pytest.fixture
def postgresql_broker(project, postgresql):
    """A broker whose store is PostgreSQL, as the broker of the backend ``default``."""
    import os

    from django.conf import settings
    from django.test import override_settings

    url = os.environ["PROJECT_POSTGRESQL"]
    process = Process(
        project / "postgresql-broker.log",
        *("eventmq", "broker", "--store", url, "--bind", "tcp://127.0.0.1:0"),
        *("--data-dir", str(project / "postgresql-broker")),
    )
    try:
        address = process.line("ready").partition("main=")[2].split()[0]
        default = {**settings.TASKS["default"], "OPTIONS": {"broker": address}}
        with override_settings(TASKS={**settings.TASKS, "default": default}):
            yield
    finally:
        process.stop()


def test_a_store_in_postgresql_keeps_the_calls_of_ended_tasks(postgresql_broker, framework, tasks):
    backend = framework.task_backends["default"]
    task = tasks.sleep.using(queue_name="spare", priority=7)
    waiting, purged = task.enqueue(1), task.enqueue(seconds=2)
    late = ended(tasks.too_late.enqueue(1, b="x"))
    assert backend.app.job(waiting.id).cancel()
    backend.app.ask("bulk", {"id": "purge", "action": "cancel", "queue": "spare"})
    found = [ended(backend.get_result(each.id)) for each in (waiting, purged)]
    assert [(task, [1], {}), (task, [], {"seconds": 2})] == [
        (each.task, each.args, each.kwargs) for each in found
    ]
    assert (tasks.too_late, [1], {"b": "x"}) == (late.task, late.args, late.kwargs)
    backend.app.close()


def test_a_result_does_not_exist_after_its_retention(tasks, framework, backend, worker):
    result = tasks.forgotten.enqueue()

    def gone():
        try:
            backend.get_result(result.id)
        except framework.TaskResultDoesNotExist:
            return True
        return False

    until(gone, "retention")


def test_a_job_that_is_forgotten_before_its_arguments_are_read_does_not_exist(
    tasks, framework, backend, monkeypatch
):
    from eventmq_contrib.django import backend as module

    begin_body = module.begin_body
    monkeypatch.setattr(module, "begin_body", lambda app, _: begin_body(app, "forgotten"))
    result = tasks.echo.using(queue_name="spare").enqueue("x" * 1_100_000)
    with pytest.raises(framework.TaskResultDoesNotExist, match=result.id):
        backend.get_result(result.id)
    backend.app.job(result.id).cancel()


def test_what_is_no_task_of_the_project_has_no_result(tasks, framework, backend):
    job = backend.app.send("somewhere.else", queue="spare")
    for job_id in (job.id, "unknown", "", "\0", "\ud800", 3):
        with pytest.raises(framework.TaskResultDoesNotExist):
            backend.get_result(job_id)
    job.cancel()


def test_a_task_that_kills_its_process_has_failed(tasks, project):
    result = tasks.die.using(queue_name="spare").enqueue()
    with running_worker(project, "-c", "1", "-Q", "spare", name="deadly"):
        [error] = ended(result).errors
    assert "eventmq.errors.WorkerLost" == error.exception_class_path
    assert issubclass(error.exception_class, Exception)
