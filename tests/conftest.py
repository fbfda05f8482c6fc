"""What every test gets: a clean environment and log, what services it asks for, a budget."""

from __future__ import annotations

import logging
import os
import statistics
import tempfile
import time
import timeit
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

#: Folders under tests/ that share a budget, and its seconds. A folder that is not named here has
#: the budget of a small one.
BUDGETS = {
    ("unit", "properties", "contracts"): 180.0,
    ("simulation",): 120.0,
    ("integration", "acceptance"): 300.0,
    ("gateways",): 120.0,
    ("spark",): 240.0,
    ("packaging",): 60.0,
}
SMALL = 60.0

#: A million additions, and the seconds that a core of the machine takes for them for which budgets
#: are meant. A slower core has more time, by as much as it is slower; a faster one has no less. How
#: slow it is changes while tests run, where it is shared: every so many seconds it is measured.
ADDITIONS = "x = 0\nfor i in range(1_000_000): x += i"
ADDED = 0.028
BETWEEN = 4.0

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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--budget-factor",
        type=float,
        default=float(os.environ.get("EVENTMQ_TEST_BUDGET_FACTOR") or 1),
        help="multiply the time budgets of the folders under tests/ (0: no budgets); "
        "EVENTMQ_TEST_BUDGET_FACTOR unless told, else 1",
    )


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
    config.pluginmanager.register(Budgets(config.getoption("--budget-factor")), "budgets")


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


class Budgets:
    """Adds up the time of each folder's tests; a folder over its budget fails the run."""

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self.spent: Counter[tuple[str, ...]] = Counter()
        self.added: list[float] = []
        self.measured = 0.0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.spent[folders_of(report.nodeid)] += report.duration
        if self.factor and time.monotonic() - self.measured > BETWEEN:
            self.added.append(timeit.timeit(ADDITIONS, number=1))
            self.measured = time.monotonic()

    def slowness(self) -> float:
        """Return how many times slower than meant a core was, most of the time; at least 1."""
        return max(1.0, statistics.median(self.added) / ADDED) if self.added else 1.0

    def over(self) -> list[str]:
        factor = self.factor * self.slowness()
        return [
            f"tests/{{{','.join(folders)}}} took {seconds:.1f} s, its budget is {budget:.0f} s"
            for folders, seconds in sorted(self.spent.items())
            if 0 < (budget := BUDGETS.get(folders, SMALL) * factor) < seconds
        ]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self.over() and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.factor:
            spent = ", ".join(f"{'+'.join(f)} {s:.0f} s" for f, s in sorted(self.spent.items()))
            slow = f"a core was {self.slowness():.2f} times slower than budgets are meant for"
            terminalreporter.write_line(f"{spent}; {slow}")
        for line in self.over():
            terminalreporter.write_line(f"OVER BUDGET: {line}", red=True, bold=True)


def folders_of(nodeid: str) -> tuple[str, ...]:
    """Return the folders with which the test at ``tests/FOLDER/...`` shares its budget."""
    parts = nodeid.split("::", 1)[0].split("/")
    folder = parts[1] if len(parts) > 2 and parts[0] == TESTS.name else "."
    return next((folders for folders in BUDGETS if folder in folders), (folder,))
