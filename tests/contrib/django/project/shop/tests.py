"""Tests of the project, which `test_testing.py` runs with the runner."""

from __future__ import annotations

from datetime import timedelta

from django.db import transaction
from django.test import TestCase, TransactionTestCase
from django.utils import timezone

from eventmq_contrib.django.testing import inline_jobs, run_jobs
from tests.contrib.django.project.shop import tasks
from tests.contrib.django.project.shop.models import Order


class InATransaction(TestCase):
    def test_a_task_sees_the_rows_of_the_test(self):
        with self.captureOnCommitCallbacks(execute=True):
            result = tasks.save.enqueue("seen")
        assert "READY" == result.status
        result.refresh()
        assert Order.objects.get(name="seen").pk == result.return_value

    def test_a_coroutine_sees_them_as_well(self):
        with self.captureOnCommitCallbacks(execute=True):
            result = tasks.awatched.enqueue("async")
        result.refresh()
        assert "async" == result.return_value
        assert Order.objects.filter(name="async").exists()

    def test_a_task_that_leaves_a_transaction_does_not_end_that_of_the_test(self):
        Order.objects.create(name="mine")
        with self.captureOnCommitCallbacks(execute=True):
            tasks.add.enqueue(1)
        assert 1 == run_jobs()
        assert Order.objects.filter(name="mine").exists()

    def test_a_test_has_no_jobs_of_another(self):
        assert 0 == run_jobs()


class WithCommits(TransactionTestCase):
    def test_tasks_are_sent_after_the_commit(self):
        with transaction.atomic():
            result = tasks.add.enqueue(1, b=2)
            assert 0 == run_jobs()
        assert 1 == run_jobs()
        result.refresh()
        assert 3 == result.return_value

    def test_what_is_not_due_waits(self):
        later = tasks.add.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1)
        later.refresh()
        assert "READY" == later.status

    def test_a_failure_is_a_result(self):
        result = tasks.watched.enqueue(1, kind="Reject")
        result.refresh()
        assert ("FAILED", 1) == (result.status, result.attempts)

    def test_a_backend_of_the_project_and_another_path_are_replaced_as_well(self):
        for alias in ("derived", "long_path"):
            result = tasks.add.using(backend=alias).enqueue(1, b=2)
            result.refresh()
            assert 3 == result.return_value

    def test_the_fixture_of_another_runner_changes_nothing(self):
        result = tasks.add.enqueue(1)
        with inline_jobs():
            assert 1 == run_jobs()
        result.refresh()
        assert 2 == result.return_value

    def test_a_task_may_ask_for_its_own_result(self):
        result = tasks.asks.enqueue()
        result.refresh()
        assert "RUNNING" == result.return_value
