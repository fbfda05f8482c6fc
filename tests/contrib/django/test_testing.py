"""The test runner."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.contrib.django.conftest import ROOT


@pytest.mark.parametrize("options", [[], ["--parallel", "2"]])
def test_the_tests_of_a_project_need_no_broker(project, database, options):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PROJECT_BROKER": "tcp://127.0.0.1:9"}
    environment["PROJECT_DEFAULT"] = database
    if database == "default":
        environment.pop("PROJECT_POSTGRESQL", None)
    runner = "eventmq_contrib.django.EventMQTestRunner"
    command = ["-W", "error", "-m", "django", "test", "--noinput", "--testrunner", runner]
    ran = subprocess.run(
        [sys.executable, *command, *options, "tests.contrib.django.project.shop.tests"],
        cwd=ROOT, env=environment, check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert 0 == ran.returncode, ran.stderr
    assert "Ran 10 tests" in ran.stderr


def test_a_test_of_another_runner_has_its_jobs_inside_and_leaves_none(tasks):
    from eventmq_contrib.django import framework
    from eventmq_contrib.django.testing import InlineBackend, inline_jobs, run_jobs

    for _ in range(2):
        with inline_jobs():
            assert 0 == run_jobs()
            result = tasks.add.enqueue(1, b=2)
            result.refresh()
            assert 3 == result.return_value
            tasks.add.enqueue(4)
    assert not isinstance(framework.task_backends["default"], InlineBackend)


def test_inline_jobs_inside_another_leaves_the_jobs_of_that(tasks):
    from eventmq_contrib.django.framework import TaskResultDoesNotExist
    from eventmq_contrib.django.testing import inline_jobs, run_jobs

    with inline_jobs():
        first = tasks.add.enqueue(1)
        with inline_jobs():
            second, third = tasks.add.enqueue(2), tasks.add.using(backend="away").enqueue(3)
            third.refresh()
            assert 4 == third.return_value
            later = tasks.add.enqueue(4)
        assert 1 == run_jobs()
        for result in (first, second, later):
            result.refresh()
        assert [2, 3, 5] == [each.return_value for each in (first, second, later)]
        with pytest.raises(TaskResultDoesNotExist):
            third.refresh()
    with inline_jobs(), pytest.raises(TaskResultDoesNotExist):
        first.refresh()


def test_settings_may_name_the_backend_of_tests(tasks):
    from django.conf import settings
    from django.test import override_settings

    from eventmq_contrib.django.testing import inline_jobs

    inline = "eventmq_contrib.django.testing.InlineBackend"
    named = {alias: {**each, "BACKEND": inline} for alias, each in settings.TASKS.items()}
    with override_settings(TASKS=named), inline_jobs():
        result = tasks.add.enqueue(1)
        result.refresh()
        assert 2 == result.return_value
