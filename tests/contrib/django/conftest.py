"""A Django project over a real broker, SQLite and PostgreSQL, and workers in processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("django", reason="needs django: the framework")

from tests.support.postgres import Unavailable, close_shared_server, shared_server
from tests.support.system import until as wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[3]

SETTINGS = "tests.contrib.django.project.settings"

#: Seconds for what takes a second on an idle machine; the time limit of a test is another one.
TIMEOUT = 100.0


class Process:
    """A program with a log, of which a line says that it is ready."""

    def __init__(self, log: Path, *command: str, folder: Path = ROOT, **environment: str) -> None:
        self.log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    @property
    def text(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def line(self, start: str) -> str:
        """Return the line that begins so, when it is there."""

        def found() -> str:
            lines = [line for line in self.text.splitlines() if line.startswith(start)]
            assert lines or self._process.poll() is None, self.text
            return lines[0] if lines else ""

        return until(found, f"{start} in {self.log}")

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self) -> int:
        return self._process.wait(TIMEOUT)

    def stop(self) -> str:
        """End it gracefully; return its log."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(30.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        return self.text


def until(ready: Callable[[], Any], what: str) -> Any:
    """Return the first true value."""
    values: list[Any] = []

    def is_ready() -> Any:
        values[:] = [ready()]
        return values[0]

    wait_until(is_ready, what, TIMEOUT)
    return values[0]


def ended(result: Any) -> Any:
    """Return a result that has ended."""
    until(lambda: result.refresh() or result.is_finished, f"the end of {result}")
    return result


@contextmanager
def rolled_back(using: str = "default") -> Iterator[None]:
    """A transaction, or a savepoint in one, that is rolled back."""
    from django.db import transaction

    with transaction.atomic(using=using):
        yield
        transaction.set_rollback(True, using=using)


#: What ends with the last test of this folder. It cannot be a package of pytest, which would be
#: imported as ``django``; and until the end of the session other tests would find clients and
#: environment of the project.
_folder = ExitStack()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Iterator[None]:
    """End the project when the next test is that of another folder."""
    try:
        return (yield)
    finally:
        if nextitem is None or Path(__file__).parent not in nextitem.path.parents:
            _folder.close()


@contextmanager
def _project(folder: Path) -> Iterator[None]:
    broker = Process(
        folder / "broker.log",
        *("eventmq", "broker", "--bind", "tcp://127.0.0.1:0", "--data-dir", str(folder / "data")),
    )
    before = dict(os.environ)
    try:
        os.environ |= {
            "DJANGO_SETTINGS_MODULE": SETTINGS,
            "PROJECT_FOLDER": str(folder),
            "EVENTMQ_SUBMIT_TIMEOUT": "60",
            "PROJECT_BROKER": broker.line("ready").partition("main=")[2].split()[0],
        }
        with ExitStack() as stack:
            with suppress(Unavailable):
                os.environ["PROJECT_POSTGRESQL"] = stack.enter_context(shared_server().database())
            _set_up()
            yield
            _tear_down()
    finally:
        broker.stop()
        os.environ.clear()
        os.environ.update(before)
        time.tzset()  # Django has set the zone of its settings
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def project(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Django, set up in this process, with the tables of its databases; and the broker."""
    folder = tmp_path_factory.mktemp("project")
    request.config.add_cleanup(close_shared_server)
    _folder.enter_context(_project(folder))
    return folder


def _set_up() -> None:
    import django
    from django.core.management import call_command
    from django.db import connections

    django.setup()
    for alias in connections:
        call_command("migrate", database=alias, run_syncdb=True, verbosity=0)
    connections.close_all()


def _tear_down() -> None:
    from django.db import connections

    from eventmq_contrib.django import backend
    from tests.contrib.django.project import apps

    connections.close_all()
    for app in (*backend._apps.values(), apps.away, apps.memory):
        app.close()


@pytest.fixture(autouse=True)
def _connections_closed(project: Path) -> Iterator[None]:
    yield
    from django.db import connections

    connections.close_all()


@contextmanager
def running_worker(folder: Path, *options: str, name: str = "worker", **environment: str) -> Any:
    """Run ``manage.py eventmq_worker``."""
    process = Process(
        folder / f"{name}.log",
        "django",
        "eventmq_worker",
        *options,
        PROJECT_NAME=name,
        **environment,
    )
    try:
        process.line("ready")
        yield process
    finally:
        process.stop()


@pytest.fixture(scope="session")
def worker(project: Path) -> Process:
    """A worker with two child processes, for all queues but ``spare``."""
    process: Process = _folder.enter_context(
        running_worker(project, "-c", "2", "-Q", "default,mail")
    )
    return process


@pytest.fixture(params=["default", "postgresql"])
def database(request: pytest.FixtureRequest, project: Path) -> str:
    """The alias of a database, which is also that of its backend."""
    from django.db import connections

    if request.param not in connections:
        pytest.skip("needs postgresql: no server is installed")
    return str(request.param)


@pytest.fixture
def tasks(project: Path) -> Any:
    from tests.contrib.django.project.shop import tasks

    return tasks


@pytest.fixture
def postgresql(project: Path) -> str:
    from django.db import connections

    if "postgresql" not in connections:
        pytest.skip("needs postgresql: no server is installed")
    return "postgresql"
