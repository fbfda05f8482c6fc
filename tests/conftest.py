"""What every test gets: a clean environment and log, and the services that it asks for."""

from __future__ import annotations

import logging
import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TESTS = Path(__file__).parent

#: Services that tests can ask for with `need_service`. The tests of this list's services are
#: skipped with a reason where the service is missing, and fail where EVENTMQ_TEST_REQUIRE names
#: it: ``all``, or names separated by commas. There is no such test yet.
SERVICES: frozenset[str] = frozenset()

#: Seconds that the tests of these folders should take together on two idle cores. Printed beside
#: what they took and never enforced: a slow machine fails nothing. Only the time limit of a single
#: test and the limits of the stages of ``.ci/run`` do.
AIMS = {
    ("unit", "properties", "contracts"): 180.0,
    ("simulation",): 120.0,
    ("integration", "acceptance"): 300.0,
    ("contrib/gateways",): 120.0,
    ("contrib/journal", "contrib/spark"): 240.0,
    ("packaging",): 60.0,
}

settings.register_profile(
    "suite",
    deadline=None,
    max_examples=200,
    stateful_step_count=60,
    print_blob=True,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("quick", settings.get_profile("suite"), max_examples=20)
settings.register_profile("long", settings.get_profile("suite"), max_examples=200_000)
settings.load_profile("suite")


def pytest_configure(config: pytest.Config) -> None:
    unknown = required_services() - SERVICES
    if unknown:
        names = ", ".join(sorted(unknown))
        msg = f"EVENTMQ_TEST_REQUIRE names what no test asks for: {names}"
        raise pytest.UsageError(msg)
    # No setting of the person who runs the tests reaches them, nor the processes they start.
    for name in [name for name in os.environ if name.startswith("EVENTMQ_")]:
        if not name.startswith("EVENTMQ_TEST_"):
            del os.environ[name]
    keep_bytecode(config)
    config.pluginmanager.register(FolderTimes(), "folder-times")


def keep_bytecode(config: pytest.Config) -> None:
    """Let the processes that tests start share compiled modules, also where none may be written.

    They lie in a directory of this run; else each of some hundred processes compiles anew.
    """
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None) and "PYTHONPYCACHEPREFIX" not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="eventmq-bytecode-")
        os.environ["PYTHONPYCACHEPREFIX"] = folder.name
        config.add_cleanup(folder.cleanup)


def required_services() -> frozenset[str]:
    """Return the services without which tests must fail instead of being skipped."""
    named = os.environ.get("EVENTMQ_TEST_REQUIRE", "")
    names = frozenset(name.strip() for name in named.split(",") if name.strip())
    return SERVICES if "all" in names else names


@pytest.fixture(autouse=True)
def log_of_before() -> Iterator[None]:
    """Undo what a test does to the log of the process, as every command does: it starts its own."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers
    logging.captureWarnings(capture=False)


@pytest.fixture(scope="session")
def need_service() -> Callable[[str, str | None], None]:
    """Call it with a service's name and what is missing: None, or a sentence for the reader.

    It returns if nothing is missing, fails where the service is required, and skips elsewhere.
    """

    def need(name: str, missing: str | None) -> None:
        if name not in SERVICES:
            pytest.fail(f"{name} is not in SERVICES of tests/conftest.py", pytrace=False)
        if missing is None:
            return
        if name in required_services():
            pytest.fail(f"{name} is required here: {missing}", pytrace=False)
        pytest.skip(f"{name}: {missing}")

    return need


class FolderTimes:
    """Adds up how long the tests of each folder took, and prints it beside the aim."""

    def __init__(self) -> None:
        self.spent: Counter[tuple[str, ...]] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.spent[folders_of(report.nodeid)] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for folders, seconds in sorted(self.spent.items()):
            aim = f" (aim: {AIMS[folders]:.0f} s)" if folders in AIMS else ""
            terminalreporter.write_line(f"tests/{','.join(folders)}: {seconds:.0f} s{aim}")


def folders_of(nodeid: str) -> tuple[str, ...]:
    """Return the folders that share an aim with the folder of a test, or that folder alone."""
    parts = nodeid.split("::", 1)[0].split("/")
    inside = "/".join(parts[1:-1]) if parts[0] == TESTS.name else ""
    for folders in AIMS:
        if any(f"{inside}/".startswith(f"{folder}/") for folder in folders):
            return folders
    return (inside or ".",)
