"""``manage.py eventmq_worker`` and ``eventmq_beat``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.contrib.django.conftest import ROOT, Process, until


def _run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "django", *arguments], cwd=ROOT, check=False, capture_output=True,
        text=True, timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )  # fmt: skip


def test_a_worker_finds_the_tasks_modules_of_the_installed_apps(tasks, worker):
    assert f"task {tasks.add.module_path}, queue default" in worker.text
    unserved = f"task {tasks.too_late.module_path}, queue spare, which this worker does not serve"
    assert unserved in worker.text


def test_a_worker_serves_the_queues_of_its_backend_unless_told_otherwise(project):
    process = Process(project / "queues.log", "django", "eventmq_worker", "-c", "1")
    try:
        assert "queues=default:10,mail:10,spare:10" in process.line("ready")
    finally:
        process.stop()


def test_a_worker_restarts_at_a_hangup(project):
    process = Process(project / "hangup.log", "django", "eventmq_worker", "-Q", "none", "-c", "1")
    try:
        process.line("ready")
        os.kill(process.pid, signal.SIGHUP)
        until(lambda: process.text.count("ready app=") == 2, "ready again")
    finally:
        process.stop()


def test_help_is_that_of_the_command_of_eventmq(project):
    ran = _run("eventmq_worker", "--help")
    assert 0 == ran.returncode, ran.stderr
    assert "--max-abandoned" in ran.stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["--backend", "unknown"],
            "error: TASKS has no backend of EventMQ called 'unknown'",
        ),
        (["--nonsense"], "no such option"),
    ],
)
def test_wrong_usage_is_named(project, arguments, text):
    ran = _run("eventmq_worker", *arguments)
    assert ran.returncode in {1, 2}
    assert text.lower() in ran.stderr.lower()
    assert "Traceback" not in ran.stderr


def test_beat_submits_tasks_on_their_schedules_as_they_were_declared(project, worker, tasks):
    from eventmq_contrib.django.framework import task_backends
    from tests.contrib.django.project.shop.models import Order

    backend = task_backends["default"]
    process = Process(project / "beat.log", "django", "eventmq_beat")
    try:
        process.line("ready")
        until(lambda: Order.objects.filter(name="tick").count() >= 2, "two ticks")
    finally:
        process.stop()
    asked = {"task": tasks.tick.module_path, "state": "succeeded"}
    jobs = until(lambda: backend.app.ask("jobs", asked)["jobs"], "an end")
    assert tasks.tick == backend.get_result(jobs[0]["id"]).task
