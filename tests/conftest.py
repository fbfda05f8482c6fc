"""What every test gets: a clean environment and log; fails what is skipped and may not be."""

from __future__ import annotations

import logging
import os
import re
import signal
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

TESTS = Path(__file__).parent

#: The reason of a skip that says which service is missing: ``needs NAME: what is missing``.
NEEDS = re.compile(r"(?:Skipped: )?needs ([\w-]+): ")

#: Seconds that the tests of these folders should take together on two idle cores. Printed beside
#: what they took and never enforced: a slow machine fails nothing. Only the time limit of a single
#: test and the limits of the stages of ``.ci/run`` do.
AIMS = {
    ("unit", "properties", "contracts"): 180.0,
    ("simulation",): 120.0,
    ("integration", "acceptance"): 300.0,
    ("contrib/dashboard",): 120.0,
    ("contrib/gateways",): 120.0,
    ("contrib/journal", "contrib/spark"): 240.0,
    ("contrib/postgres",): 240.0,
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
    # No setting of the person who runs the tests reaches them, nor the processes they start.
    for name in [name for name in os.environ if name.startswith("EVENTMQ_")]:
        if not name.startswith("EVENTMQ_TEST_"):
            del os.environ[name]
    os.environ.pop("COLUMNS", None)  # which pytest-xdist sets
    os.environ.pop("PYTEST_ADDOPTS", None)  # are not for a pytest that a test starts
    if hasattr(signal, "SIGHUP"):  # which nohup ignores, for every process that is started
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail what is skipped for a service that EVENTMQ_TEST_REQUIRE names, or ``all``."""
    report = yield
    reason = report.longrepr[2] if report.skipped and isinstance(report.longrepr, tuple) else ""
    found = NEEDS.match(reason)
    required = {name.strip() for name in os.environ.get("EVENTMQ_TEST_REQUIRE", "").split(",")}
    if found is not None and required & {"all", found[1]}:
        report.outcome, report.longrepr = "failed", f"required here: {reason}"
    return report


@pytest.fixture(autouse=True)
def log_of_before() -> Iterator[None]:
    """Undo what a test does to the log of the process, as every command does: it starts its own."""
    factory = logging.getLogRecordFactory()
    before = {log: (log.level, log.propagate, log.disabled, log.handlers[:]) for log in loggers()}
    yield
    for log in loggers():
        level, log.propagate, log.disabled, log.handlers[:] = before.get(log, (0, True, False, []))
        for handler in log.handlers:  # commands guard them: see eventmq.cli.logs
            for name in ("handle", "handleError"):
                vars(handler).pop(name, None)
        if log.level != level:
            log.setLevel(level)
    logging.setLogRecordFactory(factory)
    logging.captureWarnings(capture=False)


def loggers() -> list[logging.Logger]:
    """Return all loggers of the process."""
    named = logging.root.manager.loggerDict.values()
    return [logging.root, *(log for log in named if isinstance(log, logging.Logger))]


@pytest.fixture(scope="module", autouse=True)
def no_consumer_left() -> Iterator[None]:
    """Fail the module whose tests leave a consumer: without a broker its thread never ends."""
    yield
    end = time.monotonic() + 20.0
    for thread in threading.enumerate():
        if thread.name == "eventmq-consumer":
            thread.join(max(0.0, end - time.monotonic()))
            assert not thread.is_alive(), "a test left a consumer"


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
