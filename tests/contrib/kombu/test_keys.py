"""A Celery application on a broker with keys."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from celery import Celery, chord

from eventmq_contrib.kombu import apps
from tests.support.keyed_broker import Keys
from tests.support.system import DEADLINE, until

TASKS = """
import json, os
from celery import Celery
import eventmq_contrib.kombu

options = json.loads(os.environ["OPTIONS"])
app = Celery("shop", broker=os.environ["CELERY_URL"], backend=os.environ["CELERY_URL"])
app.conf.update(broker_transport_options=options, result_backend_transport_options=options)


@app.task
def add(a, b):
    return a + b


@app.task
def total(numbers):
    return sum(numbers)
"""


class Keyed:
    """A broker with keys, the options for a key of each name, and a worker."""

    def __init__(self, folder):
        self._folder = folder
        self.keys = Keys(folder)
        self.broker = self.keys.start(folder)
        self.url = self.broker["main"].replace("tcp://", "eventmq://")
        (folder / "shop.py").write_text(TASKS)
        self.log = folder / "worker.log"

    def options(self, name, *roles, group):
        self.keys.authorize(name, *roles, group=group)
        return self.keys.settings(name)

    def client(self, options):
        app = Celery("client", broker=self.url, backend=self.url, set_as_current=False)
        app.conf.update(broker_transport_options=options, result_backend_transport_options=options)
        return app

    def worker(self, options):
        environment = {**os.environ, "CELERY_URL": self.url, "OPTIONS": json.dumps(options)}
        with self.log.open("w") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", "shop", "worker", "-l", "INFO", "-c", "2"],
                stdout=log, stderr=log, cwd=self._folder, env=environment, start_new_session=True,
            )  # fmt: skip


@pytest.fixture
def keyed(tmp_path):
    keyed = Keyed(tmp_path)
    yield keyed
    for key in [key for key in apps._apps if keyed.broker["main"] in key[0]]:
        apps._apps.pop(key).close()
    keyed.broker.stop()


def test_clients_and_workers_of_one_group(keyed):
    worker = keyed.worker(keyed.options("work", "worker", "client", group="shop"))
    client = keyed.client(keyed.options("web", "client", group="shop"))
    try:
        assert client.send_task("shop.add", (1, 2)).get(timeout=DEADLINE) == 3
        adds = [client.signature("shop.add", (n, n), app=client) for n in (1, 2)]
        result = chord(adds, client.signature("shop.total", app=client), app=client).delay()
        assert result.get(timeout=DEADLINE) == 6
        assert client.control.inspect(timeout=20, limit=1).ping()
        worker.terminate()
        assert worker.wait(DEADLINE) == 0
    finally:
        if worker.poll() is None:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait(DEADLINE)


@pytest.mark.parametrize(
    ("roles", "why"),
    [
        (["worker"], "the key 'work' (worker) may not call 'queues': that needs the role"),
        (["client"], "the key 'work' (client) may not"),
    ],
)
def test_a_worker_without_a_role_says_which(keyed, roles, why):
    worker = keyed.worker(keyed.options("work", *roles, group="shop"))
    try:
        until(lambda: why in keyed.log.read_text(), why)
    finally:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait(DEADLINE)
