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
    assert "Ran 9 tests" in ran.stderr


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
