"""Submission: transactions, the outbox, wrong tasks and wrong settings."""

from __future__ import annotations

import logging
import threading
from datetime import datetime, timedelta, timezone

import pytest

from tests.contrib.django.conftest import Process, ended, rolled_back, until


@pytest.fixture
def framework(project):
    from eventmq_contrib.django import framework

    return framework


def _exists(task, result):
    from eventmq_contrib.django.framework import TaskResultDoesNotExist

    try:
        task.get_result(result.id)
    except TaskResultDoesNotExist:
        return False
    return True


# Transactions


def test_a_task_is_sent_when_its_transaction_is_committed(tasks, worker, database):
    from django.db import transaction

    task = tasks.save.using(backend=database)
    with transaction.atomic(using=database):
        result = task.enqueue("committed", alias=database)
        assert ("READY", None) == (result.status, result.enqueued_at)
        assert not _exists(task, result)
    assert result.enqueued_at is not None
    assert isinstance(ended(result).return_value, int)


def test_nothing_is_sent_after_a_rollback(tasks, database):
    from django.db import transaction

    from eventmq_contrib.django.framework import task_enqueued

    sent = []

    def keep(task_result, **_):
        sent.append(task_result)

    task_enqueued.connect(keep)
    task = tasks.save.using(backend=database, queue_name="spare")
    with rolled_back(database):
        whole = task.enqueue("rolled back")
    with transaction.atomic(using=database):
        with rolled_back(database):
            part = task.enqueue("savepoint")
        kept = task.enqueue("kept")
    task_enqueued.disconnect(keep)
    assert [False, False, True] == [_exists(task, each) for each in (whole, part, kept)]
    assert [kept] == sent


def test_without_on_commit_a_task_is_sent_at_once(tasks, worker):
    from django.db import transaction

    with transaction.atomic():
        result = tasks.add.using(backend="at_once").enqueue(1)
        assert 2 == ended(result).return_value


def test_outside_a_transaction_a_task_is_sent_at_once(tasks, project):
    result = tasks.add.using(queue_name="spare").enqueue(1)
    assert result.enqueued_at is not None
    assert _exists(tasks.add, result)


def test_without_autocommit_the_error_is_that_of_django(tasks, database):
    from django.db import connections, transaction

    connections[database].ensure_connection()
    transaction.set_autocommit(False, using=database)
    with pytest.raises(transaction.TransactionManagementError):
        tasks.add.using(backend=database).enqueue(1)
    connections[database].close()


def test_without_autocommit_the_outbox_is_written_in_the_transaction(tasks, database):
    from django.db import connections, transaction

    alias = "outbox" if database == "default" else f"{database}_outbox"
    connections[database].ensure_connection()
    transaction.set_autocommit(False, using=database)
    tasks.add.using(backend=alias).enqueue("rolled back")
    transaction.rollback(using=database)
    result = tasks.add.using(backend=alias).enqueue("committed")
    transaction.commit(using=database)
    assert [result.id] == _rows(database)
    assert result.enqueued_at is None
    with connections[database].cursor() as cursor:
        cursor.execute("DELETE FROM eventmq_outbox")
    transaction.commit(using=database)
    connections[database].close()


def test_a_broker_that_is_away_after_the_commit_loses_the_task_and_that_is_logged(tasks, caplog):
    from django.db import transaction

    with caplog.at_level(logging.ERROR, "eventmq.django"), transaction.atomic():
        result = tasks.add.using(backend="away").enqueue(1)
        tasks.save.using(backend="default", queue_name="spare").enqueue("still sent")
    assert result.enqueued_at is None
    [record] = [each for each in caplog.records if each.name == "eventmq.django"]
    text = record.getMessage()
    assert f"job {result.id} of task {tasks.add.module_path} is lost" in text


def test_a_commit_waits_once_for_a_broker_that_is_away(project, tasks, caplog):
    from django.db import transaction

    from eventmq_contrib.django import delay_on_commit
    from tests.contrib.django.project.apps import away

    name = "waits.once"
    if name not in away.tasks:
        away.task(name=name)(lambda: None)
    for _ in range(2):
        caplog.clear()
        with caplog.at_level(logging.ERROR, "eventmq.django"), transaction.atomic():
            tasks.add.using(backend="away").enqueue(1)
            with transaction.atomic():
                tasks.add.using(backend="away").enqueue(2)
            delay_on_commit(away.tasks[name])
        first, *others = [each.getMessage() for each in caplog.records]
        assert "no broker could be reached" in first
        assert 2 == len(others)
        assert all("is lost: the broker was away for another job" in each for each in others)


@pytest.fixture
def other(project, monkeypatch, tmp_path):
    """The alias of a database, and of a backend for its transactions whose broker is away."""
    from django.conf import settings
    from django.db import connections
    from django.test import override_settings

    database = {**connections.settings["default"], "NAME": str(tmp_path / "other.sqlite")}
    monkeypatch.setitem(connections.settings, "other", database)
    away = settings.TASKS["away"]
    backend = {**away, "OPTIONS": {**away["OPTIONS"], "database": "other"}}
    with override_settings(TASKS={**settings.TASKS, "other": backend}):
        yield "other"
    connections["other"].close()
    del connections["other"]


def test_a_broker_that_another_commit_found_away_is_tried_again(other, tasks, caplog):
    """It may be back when a transaction is committed that began before that commit."""
    from django.db import transaction
    from django.test import TestCase

    with caplog.at_level(logging.ERROR, "eventmq.django"):
        with transaction.atomic():
            tasks.add.using(backend="away").enqueue(1)
            with transaction.atomic(other):
                tasks.add.using(backend=other).enqueue(2)
        with rolled_back():  # as the tests of a TestCase, which find several commits in one
            for number in range(2):
                with TestCase.captureOnCommitCallbacks(execute=True):
                    tasks.add.using(backend="away").enqueue(number)
    texts = [each.getMessage() for each in caplog.records]
    assert 4 == len(texts)
    assert all("no broker could be reached" in each for each in texts), texts


def test_a_broker_that_is_away_outside_a_transaction_is_an_error(tasks):
    from eventmq import BrokerUnavailable

    with pytest.raises(BrokerUnavailable):
        tasks.add.using(backend="away").enqueue(1)


def test_a_duplicate_after_the_commit_is_not_lost(tasks, caplog):
    from django.db import transaction

    task = tasks.once.using(queue_name="spare")
    with caplog.at_level(logging.INFO, "eventmq.django"), transaction.atomic():
        first, second = task.enqueue("a"), task.enqueue("a")
    assert [True, False] == [_exists(task, each) for each in (first, second)]
    records = [each for each in caplog.records if each.name == "eventmq.django"]
    assert [logging.INFO] == [each.levelno for each in records]


def test_delay_on_commit_sends_a_job_of_an_eventmq_task(project, caplog):
    from django.db import transaction

    from eventmq_contrib.django import delay_on_commit
    from eventmq_contrib.django.framework import task_backends
    from tests.contrib.django.project.apps import away

    app = task_backends["default"].app
    name = "plain.task"
    if name not in app.tasks:
        app.task(name=name, queue="spare")(lambda number: number)
    plain = app.tasks[name]

    def waiting():
        jobs = app.ask("jobs", {"task": name, "state": "queued"})["jobs"]
        return len(jobs)

    with rolled_back():
        delay_on_commit(plain, 1)
    assert 0 == waiting()
    with transaction.atomic():
        with pytest.raises(TypeError):
            delay_on_commit(plain, 1, 2)
        delay_on_commit(plain, 1)
        delay_on_commit(plain.options(priority=3), number=1)
        assert 0 == waiting()
    assert 2 == waiting()
    if "lost.task" not in away.tasks:
        away.task(name="lost.task")(lambda: None)
    with caplog.at_level(logging.ERROR, "eventmq.django"), transaction.atomic():
        delay_on_commit(away.tasks["lost.task"])
    assert "of task lost.task is lost" in caplog.text


# The outbox


def _rows(alias):
    from eventmq_contrib.django.models import OutboxJob

    return list(OutboxJob.objects.using(alias).values_list("job_id", flat=True))


def test_the_outbox_keeps_tasks_of_committed_transactions_until_they_are_sent(
    tasks, worker, database, project
):
    from django.conf import settings
    from django.db import transaction

    alias = "outbox" if database == "default" else f"{database}_outbox"
    task = tasks.save.using(backend=alias, priority=5)
    with rolled_back(database):
        task.enqueue("rolled back")
    assert [] == _rows(database)
    with transaction.atomic(using=database):
        result = task.enqueue("kept", alias=database)
        assert ("READY", None) == (result.status, result.enqueued_at)
    assert [result.id] == _rows(database)
    waiting = task.get_result(result.id)
    assert ("READY", task, ["kept"], {"alias": database}) == (
        waiting.status, waiting.task, waiting.args, waiting.kwargs,
    )  # fmt: skip
    import os

    url = os.environ.get("PROJECT_POSTGRESQL", "")
    if database == "default":
        url = f"sqlite:///{settings.DATABASES['default']['NAME']}"
    relay = Process(
        project / f"relay-{database}.log",
        *("eventmq", "outbox", "relay", "--database", url, "--broker", settings.BROKER),
    )
    try:
        relay.line("ready")
        assert isinstance(ended(result).return_value, int)
        until(lambda: not _rows(database), "an empty outbox")
    finally:
        relay.stop()


def test_the_table_of_the_outbox_is_that_of_its_package_and_needs_no_migration(database, capsys):
    from django.core.management import call_command
    from django.db import connections

    from eventmq_contrib.outbox import TABLE

    with connections[database].cursor() as cursor:
        assert TABLE in connections[database].introspection.table_names(cursor)
    call_command("makemigrations", "eventmq", check=True, dry_run=True)
    assert "No changes detected" in capsys.readouterr().out


# Wrong tasks


def test_wrong_tasks_are_errors_of_the_framework(tasks, framework):
    def local():
        pass

    wrong = [
        ({"run_after": datetime(2030, 1, 1)}, "aware"),  # noqa: DTZ001
        ({"priority": 101}, "between -100 and 100"),
        ({"priority": -101}, "between -100 and 100"),
        ({"priority": 1.5}, "whole number"),
        ({"queue_name": "unknown"}, "not valid for backend"),
    ]
    for changes, text in wrong:
        with pytest.raises(framework.InvalidTask, match=text):
            tasks.add.using(**changes)
    framework.task_backends["any_queue"].register(tasks.add)
    for name in ("", "x" * 256):
        with pytest.raises(framework.InvalidTask, match="1 to 255 characters"):
            tasks.add.using(backend="any_queue", queue_name=name).enqueue(1)
    beyond = datetime.max.replace(tzinfo=timezone(timedelta(hours=-23)))  # in UTC
    with pytest.raises(framework.InvalidTask, match="out of range"):
        tasks.add.using(run_after=beyond).enqueue(1)
    with pytest.raises(framework.InvalidTask, match="module level"):
        tasks.task(local)
    for arguments in ([object()], [{1, 2}], [b"\xff"]):
        with pytest.raises((TypeError, ValueError), match="Unsupported"):
            tasks.add.enqueue(*arguments)
    with pytest.raises(TypeError, match="c"):
        tasks.add.enqueue(1, c=2)


def test_wrong_options_of_a_task_are_named(tasks, framework):
    from eventmq_contrib.django import task_options

    with pytest.raises(TypeError, match="queue"):
        task_options(queue="mail")
    broken = tasks.task(task_options(retries="many")(_function))
    with pytest.raises(framework.InvalidTask, match="retries"):
        broken.enqueue()


def _function():
    pass


# Wrong settings


def test_wrong_settings_are_found_by_the_checks(project):
    from django.core.checks import run_checks
    from django.core.exceptions import ImproperlyConfigured
    from django.test import override_settings

    app = "tests.contrib.django.project.apps"
    wrong = {
        "E001": {"brokr": "tcp://127.0.0.1:1"},
        "E002": {"app": f"{app}:away", "broker": "tcp://127.0.0.1:1"},
        "E004": {"app": "no.such.module:app"},
        "E005": {"on_commit": "yes"},
        "E006": {"database": "elsewhere"},
    }
    for number, options in wrong.items():
        found = _errors(options, override_settings, run_checks)
        assert [f"eventmq.{number}"] == [each.id for each in found], found
    text = str(_errors(wrong["E001"], override_settings, run_checks)[0])
    assert "broker" in text
    for options in ({"app": f"{app}:not_an_app"}, {"app": 3}, {"broker": 3}, {"broker": "nothing"}):
        [error] = _errors(options, override_settings, run_checks)
        assert "eventmq.E004" == error.id
        assert next(iter(options)) in error.msg
    assert [] == _errors({}, override_settings, run_checks)
    for options in (None, ["broker"]):
        with pytest.raises(ImproperlyConfigured, match=r"OPTIONS of TASKS\['default'\] is"):
            _errors(options, override_settings, run_checks)


def _errors(options, override_settings, run_checks):
    from tests.contrib.django.project.settings import BACKEND

    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": options}}):
        return [each for each in run_checks() if each.id.startswith("eventmq")]


def test_the_outbox_needs_its_app_and_a_serializer_for_json(project, monkeypatch):
    from django.core.checks import run_checks
    from django.test import override_settings

    from eventmq import EventMQ
    from tests.contrib.django.project import apps

    monkeypatch.setattr(apps, "packed", EventMQ(accept_content=["msgpack"]), raising=False)
    packed = {"app": f"{apps.__name__}:packed"}
    [error] = _errors(packed, override_settings, run_checks)
    assert "eventmq.E003" == error.id
    apps.packed.close()
    from django.apps import apps as django_apps

    monkeypatch.setattr(django_apps, "is_installed", lambda name: False)
    [error] = _errors({"outbox": True}, override_settings, run_checks)
    assert "eventmq.E007" == error.id


def test_a_broker_in_memory_runs_tasks_inside_the_process(tasks):
    result = ended(tasks.add.using(backend="memory").enqueue(1, b=2))
    assert 3 == result.return_value
    result = ended(tasks.watched.using(backend="memory").enqueue(1))
    assert 2 == result.return_value[0]


def test_all_threads_share_a_client(tasks, framework):
    app = framework.task_backends["default"].app
    found, results = [], []

    def submit():
        found.append(framework.task_backends["default"])
        results.append(tasks.add.using(queue_name="spare").enqueue(1))

    threads = [threading.Thread(target=submit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 4 == len({id(each) for each in found})
    assert {id(app)} == {id(each.app) for each in found}
    assert 4 == len({each.id for each in results})
