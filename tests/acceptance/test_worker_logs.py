"""Where the log lines of real processes go, and their form."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.system import DEADLINE, System, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TASK = """
import logging


@app.task
def speak(text):
    logging.getLogger("shop.mail").info("spoken: %s", text)
    return text
"""

OWN_HANDLER = """
import logging.config

logging.config.dictConfig({
    "version": 1,
    "formatters": {"own": {"format": "%(name)s|%(message)s"}},
    "handlers": {"file": {"class": "logging.FileHandler", "filename": "app.log",
                          "formatter": "own"}},
    "root": {"level": "INFO", "handlers": ["file"]},
})
"""


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    system = System(tmp_path)
    yield system
    system.stop()


def declare(system: System, code: str) -> None:
    """Add code to the module of the app."""
    with (system.folder / "survivor.py").open("a") as file:
        file.write(code)


def speak(system: System, text: str) -> None:
    assert text == system.app().send("survivor.speak", (text,)).get(timeout=DEADLINE)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_an_app_that_configures_logging_gets_all_lines(system: System, pool: str) -> None:
    """Those of the worker, and those of the tasks in its processes."""
    declare(system, OWN_HANDLER + TASK)
    system.broker()
    system.worker("--pool", pool)
    speak(system, "hello")
    log = system.folder / "app.log"
    until(lambda: "shop.mail|spoken: hello\n" in log.read_text(), "the task's line")
    assert "eventmq.worker|task survivor.speak, queue default\n" in log.read_text()
    assert "" == (system.folder / "worker.log").read_text()


def test_the_handlers_of_an_app_are_replaced_if_the_setting_is_set(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENTMQ_LOG_HANDLERS", "replace")
    declare(system, OWN_HANDLER + TASK)
    system.broker()
    system.worker()
    speak(system, "hello")
    log = system.folder / "worker.log"
    until(lambda: "spoken: hello\n" in log.read_text(), "the task's line")
    assert "INFO    shop.mail [survivor.speak " in log.read_text()
    assert "" == (system.folder / "app.log").read_text()


def test_json_lines_of_worker_and_broker_have_standard_names(system: System) -> None:
    """Each line is an object; that of a task has its job, also from another process."""
    declare(system, TASK)
    _, line = system.start("broker", "--log-format", "json", "-v", "--bind", "tcp://127.0.0.1:0",
                           "--data-dir", str(system.folder / "data"))  # fmt: skip
    system.address = next(w for w in line.split() if "tcp://" in w).partition("=")[2]
    system.worker("--log-format", "json")
    speak(system, "hello")

    def lines(name: str) -> list[dict[str, Any]]:
        return [json.loads(text) for text in (system.folder / name).read_text().splitlines()]

    def spoken() -> list[dict[str, Any]]:
        return [line for line in lines("worker.log") if line["logger"] == "shop.mail"]

    until(spoken, "the task's line")
    (line,) = spoken()
    assert ("spoken: hello", "survivor.speak", "default", 1) == tuple(
        line[name] for name in ("message", "task", "queue", "attempt")
    )
    assert 32 == len(line["job_id"])
    for line in (*lines("worker.log"), *lines("broker.log")):
        assert {"time", "level", "logger", "message"} <= line.keys()
