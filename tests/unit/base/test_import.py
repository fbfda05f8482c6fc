"""What ``import eventmq`` gives, and what it must not load."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import eventmq
from eventmq import errors

ROOT = Path(__file__).resolve().parents[3]

#: Modules that cost time and are not needed to import the package.
HEAVY = [
    "apsw", "asyncio", "click", "dill", "msgpack", "msgspec", "pluggy", "rich", "sqlite3", "zmq",
]  # fmt: skip

#: Names that are not there.
LATER = ["Chain", "signature"]


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, timeout=30, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_package_loads_neither_libraries_nor_parts_of_it() -> None:
    program = f"import sys, eventmq; print([m for m in {HEAVY!r} if m in sys.modules])"
    assert run(program) == "[]"
    program = "import sys, eventmq; print([m for m in sys.modules if m.startswith('eventmq.')])"
    assert run(program) == "[]"


def test_importing_the_package_takes_at_most_100_ms() -> None:
    """The best of three: the machine may be busy."""
    program = "import time; t = time.perf_counter(); import eventmq; print(time.perf_counter() - t)"
    assert min(float(run(program)) for _ in range(3)) < 0.1


def test_an_app_with_tasks_loads_neither_sockets_nor_plugins_that_are_not_in_use() -> None:
    program = f"""
import sys
from eventmq import EventMQ, shared_task
app = EventMQ("shop")
@app.task(retries=3)
def add(a, b): return a + b
print([m for m in {HEAVY!r} if m in sys.modules and m not in ("msgpack", "pluggy")])
print([m for m in sys.modules if m.startswith(("eventmq.broker.", "eventmq.plugins.pools"))])
"""
    assert run(program) == "[]\n[]"


@pytest.mark.parametrize("name", eventmq.__all__)
def test_every_public_name_can_be_loaded(name: str) -> None:
    if name != "__version__":
        assert getattr(eventmq, name) is not None


def test_all_errors_are_public() -> None:
    names = {name for name in errors.__all__ if isinstance(getattr(errors, name), type)}
    assert names <= set(eventmq.__all__)


def test_public_names_are_sorted_and_listed() -> None:
    by_kind = sorted(eventmq.__all__, key=lambda name: (not name[0].isupper(), name))
    assert sorted(by_kind) == sorted(set(eventmq.__all__))
    assert by_kind == eventmq.__all__
    assert set(eventmq.__all__) <= set(dir(eventmq))


@pytest.mark.parametrize("name", [*LATER, "nonsense"])
def test_a_name_that_there_is_not_is_an_ordinary_attribute_error(name: str) -> None:
    with pytest.raises(AttributeError, match=f"module 'eventmq' has no attribute '{name}'"):
        getattr(eventmq, name)


def test_the_version_is_that_of_the_distribution() -> None:
    assert eventmq.__version__ == metadata.version("eventmq")
