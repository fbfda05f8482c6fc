"""A Django project on a broker with keys: web process, worker and relay have a key each."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack

import pytest

from tests.contrib.django.conftest import ROOT, Process
from tests.support.keyed_broker import Keys

SETTINGS = """
SECRET_KEY = "x"
USE_TZ = True
INSTALLED_APPS = [
    "eventmq_contrib.django", "keyed", "django.contrib.auth", "django.contrib.contenttypes"
]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite"}}
BACKEND = "eventmq_contrib.django.EventMQBackend"
TASKS = {
    "default": {"BACKEND": BACKEND}, "outbox": {"BACKEND": BACKEND, "OPTIONS": {"outbox": True}}
}
"""

TASKS = """
from django import VERSION
if VERSION >= (6, 0):
    from django.tasks import task
else:
    from django_tasks import task
from eventmq import fixed
from eventmq_contrib.django import task_options


@task(takes_context=True)
@task_options(retries=1, retry_policy=fixed(0.01))
def attempts(context, text):
    if context.attempt == 1:
        raise ValueError(text)
    return [text, context.task_result.worker_ids == context.task_result.worker_ids[:1] * 2]
"""

WEB = """
import django
django.setup()
from keyed.tasks import attempts
from tests.support.system import until

for backend in ("default", "outbox"):
    result = attempts.using(backend=backend).enqueue(backend)
    until(lambda: result.refresh() or result.is_finished, "the task has ended")
    print(result.status, result.return_value, result.args)
"""


class Site:
    """A project in a folder, and its processes."""

    def __init__(self, folder):
        (folder / "keyed").mkdir()
        files = {"__init__": "", "settings": SETTINGS, "tasks": TASKS, "web": WEB}
        for name, text in files.items():
            (folder / "keyed" / f"{name}.py").write_text(text)
        self._folder = folder
        self._keys = Keys(folder)
        self.broker = self._keys.start(folder)

    def _environment(self, name, roles, group):
        self._keys.authorize(name, *roles, group=group)
        keys = self._keys.settings(name)
        return {
            "EVENTMQ_BROKER": self.broker["main"], "EVENTMQ_KEY_FILE": keys["key_file"],
            "EVENTMQ_BROKER_KEY_FILE": keys["broker_key_file"],
            "DJANGO_SETTINGS_MODULE": "keyed.settings",
            "PYTHONPATH": os.pathsep.join([str(self._folder), str(ROOT)]),
        }  # fmt: skip

    def start(self, name, *command, roles=("client",), group="shop"):
        environment = self._environment(name, roles, group)
        log = self._folder / f"{name}.log"
        process = Process(log, *command, folder=self._folder, **environment)
        process.line("ready")
        return process

    def run(self, *command, group="shop"):
        environment = os.environ | self._environment("web", ["client"], group)
        return subprocess.run(
            [sys.executable, "-m", *command], cwd=self._folder, env=environment, check=False,
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip


@pytest.fixture
def site(tmp_path):
    site = Site(tmp_path)
    database, both = f"sqlite:///{tmp_path}/db.sqlite", ("worker", "client")
    with ExitStack() as stack:
        stack.callback(site.broker.stop)
        migrated = site.run("django", "migrate", "-v0")
        assert migrated.returncode == 0, migrated.stderr
        for process in (
            site.start("work", "django", "eventmq_worker", "-c", "1", roles=both),
            site.start("relay", "eventmq", "outbox", "relay", "--database", database),
        ):
            stack.callback(process.stop)
        yield site


def test_keys_of_one_group(site):
    ran = site.run("keyed.web")
    assert ran.returncode == 0, ran.stderr
    assert [
        f"SUCCESSFUL ['{backend}', True] ['{backend}']" for backend in ("default", "outbox")
    ] == ran.stdout.splitlines()


def test_a_key_of_another_group_does_not_see_what_the_relay_has_sent(site):
    ran = site.run("keyed.web", group="office")
    assert "submitted with another key than 'web'" in ran.stderr
