"""Runs Dramatiq's own tests of actors, workers, middleware and results against EventMQ.

They are not part of this project: give the folder of a checkout of Dramatiq's repository, whose
version is that of the installed ``dramatiq``::

    python -m tests.contrib.dramatiq.foreign FOLDER [ARGUMENT OF PYTEST]...

The fixtures ``stub_broker`` and ``result_backend`` become an `EventMQBroker` and an
`EventMQBackend` of a broker process of their own; everything else is as it is there. They import
``pylibmc``. With Dramatiq 2.2, four of 141 fail: three look into the queues of a ``StubBroker``,
and one calls the method ``_store`` of a backend, which an `EventMQBackend` does not have.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import dramatiq
import pytest
from dramatiq.rate_limits.backends import StubBackend

from eventmq_contrib.dramatiq.broker import EventMQBackend, EventMQBroker, QueueConsumer
from tests.support.system import System

if TYPE_CHECKING:
    from collections.abc import Iterator

#: What to run unless arguments name tests.
TESTS = (
    "test_actors.py", "test_worker.py", "test_composition.py", "test_callbacks.py",
    "test_generic_actors.py", "test_results.py", "middleware",
)  # fmt: skip

#: What stands in the place of their fixtures.
CONFTEST = """
from .their_conftest import *
from tests.contrib.dramatiq.foreign import (
    broker_process, rate_limiter_backend, redis_result_backend, result_backend, stub_broker
)
"""

ROOT = Path(__file__).parents[3]

_numbers = itertools.count()


class TestedConsumer(QueueConsumer):
    """Records dead letters, and the class and arguments of each exception."""

    broker: TestedBroker

    def nack(self, message: Any) -> None:
        error = message._exception or Exception("unknown")
        self.broker.dead_letters.append(message)
        self.broker.failures.append((message.queue_name, type(error), error.args))
        super().nack(message)


class TestedBroker(EventMQBroker):
    """Has those attributes of Dramatiq's StubBroker by which its tests look at dead letters."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.dead_letters: list[Any] = []
        self.failures: list[tuple[str, type[BaseException], tuple[Any, ...]]] = []

    def consume(self, *args: Any, **options: Any) -> QueueConsumer:
        consumer = super().consume(*args, **options)
        consumer.__class__ = TestedConsumer
        cast("TestedConsumer", consumer).broker = self
        return consumer

    def join(self, queue_name: str, *, fail_fast: bool = True, **options: Any) -> None:
        super().join(queue_name, interval=10, **options)
        for name, kind, args in self.failures if fail_fast else ():
            if name == queue_name:
                raise kind(*args)


@pytest.fixture(scope="session")
def broker_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    system = System(tmp_path_factory.mktemp("eventmq"))
    system.broker()
    yield system
    system.stop()


@pytest.fixture
def stub_broker(broker_process: System, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestedBroker]:
    broker = TestedBroker(
        app=broker_process.apps[0] if broker_process.apps else broker_process.app(),
        namespace=f"tested{next(_numbers)}",
    )
    broker.emit_after("process_boot")
    dramatiq.set_broker(broker)
    yield broker
    broker.close()


@pytest.fixture
def result_backend(stub_broker: TestedBroker) -> EventMQBackend:
    return EventMQBackend(stub_broker.app)


@pytest.fixture
def redis_result_backend(result_backend: EventMQBackend) -> EventMQBackend:
    return result_backend


@pytest.fixture
def rate_limiter_backend() -> StubBackend:
    """Theirs in memory alone: those of Redis and memcached need servers."""
    return StubBackend()


def main() -> int:
    """Run them, and return the exit code of pytest."""
    repository, *arguments = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        tests = Path(folder) / "dramatiq_tests"
        shutil.copytree(Path(repository) / "tests", tests)
        (tests / "conftest.py").rename(tests / "their_conftest.py")
        (tests / "conftest.py").write_text(CONFTEST)
        chosen = [a if a.startswith("-") else str(tests / a) for a in arguments]
        if not any(Path(name).exists() for name in chosen):
            chosen += [str(tests / name) for name in TESTS]
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--timeout=60"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.call([*command, *chosen], cwd=folder, env=environment)


if __name__ == "__main__":
    sys.exit(main())
