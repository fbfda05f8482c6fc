"""A broker with a worker of Celery and one of EventMQ, which know different tasks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import ModuleType

import pytest

pytest.importorskip("celery", reason="needs celery: pip install celery")

from celery import Celery

from eventmq_contrib.kombu import apps
from tests.support.system import DEADLINE, System, until

#: The app of Celery, with the tasks that have not moved.
OLD = """
import os

from celery import Celery

import eventmq_contrib.kombu

app = Celery("old", broker=os.environ["CELERY_URL"], backend=os.environ["CELERY_URL"])
app.conf.update(task_acks_late=True, broker_connection_retry_on_startup=True)
app.conf.task_routes = {"shop.*": {"queue": "new"}}


@app.task
def total(numbers):
    return sum(numbers)


@app.task
def note(*args):
    with open(os.environ["RECORD"], "a") as file:
        file.write(f"{args}\\n")


@app.task
def errback(request, exc, traceback):
    with open(os.environ["RECORD"], "a") as file:
        file.write(f"{exc!r} {request.id} {request.task}\\n")


@app.task
def errback_of_id(task_id):
    note("failed", task_id)


@app.task
def call_new(a, b):
    return app.send_task("shop.add", (a, b)).id
"""

#: The app of EventMQ, with the tasks that have moved.
NEW = """
import os
import time

from eventmq import EventMQ, current_job
from eventmq_contrib.celery import shared_task

app = EventMQ(
    "shop", imports=["shop"], middleware=["celery"],
    accept_content=["msgpack", "json", "application/json"],
    plugin_options={"celery": {"app": "old:app"}},
)


class NoStock(Exception):
    pass


class CardRefused(Exception):
    def __init__(self, card, code):
        super().__init__(card, code)
        self.code = code


@shared_task
def add(a, b):
    return a + b


@shared_task(bind=True, max_retries=2, default_retry_delay=0.05)
def retried(self, name):
    if self.request.retries < 2:
        raise self.retry(exc=NoStock(name))
    return [self.request.retries, self.request.delivery_info["routing_key"], self.request.args]


@shared_task(autoretry_for=(NoStock,), retry_kwargs={"max_retries": 1, "countdown": 0.05})
def fail(name):
    raise NoStock(name)


@shared_task
def refuse(key):
    raise KeyError(key) if key else CardRefused("4111", 51)


@shared_task(ignore_result=True)
def quiet():
    return 1


@shared_task
def errback(task_id):
    with open(os.environ["RECORD"], "a") as file:
        file.write(f"moved {task_id}\\n")


@shared_task(time_limit=1)
def hang():
    time.sleep(60)


@shared_task
def wait():
    while True:
        time.sleep(0.01)
        current_job().check()


@shared_task
def slow(mark):
    path = os.path.join(os.path.dirname(__file__), mark)
    with open(path, "a") as file:
        file.write("x")
    if os.path.getsize(path) == 1:  # the worker is killed meanwhile
        time.sleep(60)
    return os.path.getsize(path)


@shared_task(bind=True)
def report(self):
    self.update_state(state="PROGRESS", meta={"current": 3, "total": 4, "step": "zip"})
    wait()


@app.task(name="shop.typed")
def typed(count: int):
    return count


@app.task(name="shop.call_old")
def call_old(numbers):
    import old
    return old.total.delay(numbers).id
"""


@pytest.fixture(scope="module")
def system(tmp_path_factory):
    system = System(tmp_path_factory.mktemp("system"))
    (system.folder / "old.py").write_text(OLD)
    (system.folder / "shop.py").write_text(NEW)
    system.broker()
    os.environ["CELERY_URL"] = system.address.replace("tcp://", "eventmq://")
    yield system
    while apps._apps:  # which last as long as the process
        apps._apps.popitem()[1].close()
    system.stop()
    del os.environ["CELERY_URL"]


@pytest.fixture(scope="module")
def old(system):
    """The app of a Celery client."""
    url = os.environ["CELERY_URL"]
    app = Celery("client", broker=url, backend=url, set_as_current=False)
    app.conf.task_routes = {"shop.*": {"queue": "new"}}
    yield app
    app.close()


@pytest.fixture(scope="module")
def new(system):
    """The app of an EventMQ client."""
    return system.app()


@pytest.fixture(scope="module")
def moved(system, old):
    """The app of EventMQ in a Celery client: it has the settings of the worker's."""
    sys.modules["old_client"] = ModuleType("old_client")
    sys.modules["old_client"].app = old
    yield system.app(
        middleware=["celery"],
        accept_content=["msgpack", "json", "application/json"],
        plugin_options={"celery": {"app": "old_client:app"}},
    )
    del sys.modules["old_client"]


@pytest.fixture(scope="module", params=["prefork", "threads"])
def workers(request, system, old):
    """Both workers, with this pool."""
    queues = ("-Q", "new", "--pool", request.param)
    ours, _ = system.start("worker", "-A", "shop", "--broker", system.address, "-c", "2", *queues)
    command = [sys.executable, "-m", "celery", "-A", "old", "worker", "-l", "INFO", "-c", "2"]
    environment = {**os.environ, "RECORD": str(system.record), "PYTHONWARNINGS": "ignore"}
    path = system.folder / f"celery-{request.param}.log"
    with path.open("w") as log:
        theirs = subprocess.Popen(
            [*command, "-P", request.param], stdout=log, stderr=log, cwd=system.folder,
            env=environment, start_new_session=True,
        )  # fmt: skip
    try:
        until(lambda: " ready." in path.read_text() or theirs.poll() is not None, "Celery's worker")
        yield request.param
        theirs.terminate()
        assert theirs.wait(DEADLINE) == 0, path.read_text()
        ours.terminate()
        assert ours.wait(DEADLINE) == 0
    finally:
        if theirs.poll() is None:
            os.killpg(theirs.pid, signal.SIGKILL)
            theirs.wait(DEADLINE)
