"""The commands under *Look* in the runbook, run on a system with something to show."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import pytest

from eventmq import EventMQ
from tests.contrib.prometheus.test_alerts import RULES, RUNBOOK, section
from tests.support.shell import Shell
from tests.support.system import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(120)

SHOP = """
import time

from eventmq import EventMQ, fixed

app = EventMQ("shop")


@app.task(queue="mail")
def bad():
    raise ValueError("no such address")


@app.task(queue="mail", retries=9, retry_policy=fixed(delay=600))
def flaky():
    raise OSError("away")


@app.task(queue="mail")
def slow():
    time.sleep(600)
"""

#: Placeholders of the page for a job, an address and a database.
JOB, ADDRESS, DATABASE = "a5f6a7c8", r"tcp://10\.0\.0\.\d:47291", r"postgresql://\S+"


def looks(text: str) -> list[str]:
    """Return the commands of EventMQ in the blocks of a text, before the steps of the solution."""
    return re.findall(r"^    \$ eventmq (.*?)(?:;.*)?$", text.partition("**Do**")[0], re.MULTILINE)


#: Alert, or "" for the beginning of the page -> its commands.
LOOKS = {
    "": looks(RUNBOOK.partition("\nBrokers\n")[0]),
    **{alert: lines for alert in RULES if (lines := looks(section(alert)))},
}


class Troubled:
    """A broker and a worker, with jobs that run, failed, expired or wait for their next attempt."""

    def __init__(self, folder: Path) -> None:
        (folder / "shop.py").write_text(SHOP)
        self.shell = Shell(folder)
        self.address = self.shell.start("broker", "--bind", "tcp://127.0.0.1:0").ready()["main"]
        self.shell.environ["EVENTMQ_BROKER"] = self.address
        self.shell.start(
            "worker", "-A", "shop", "-Q", "mail", "-c", "2", "--grace", "0.1"
        ).ready()  # fmt: skip
        with EventMQ("client", broker=self.address) as app:
            self.job_id = app.send("shop.bad", queue="mail").id
            app.send("shop.flaky", queue="mail", retries=9)
            app.send("shop.slow", queue="mail")
            app.send("shop.bad", queue="unserved", expires=0.001)

            def are_there() -> bool:
                states = ("running", "failed", "delayed", "expired")
                return all(app.ask("jobs", {"state": state})["jobs"] for state in states)

            until(are_there, "the jobs are in these states")

    def words(self, line: str, database: str) -> list[str]:
        """Return the words of a command, with names of here for those of the page."""
        line = re.sub(DATABASE, database, re.sub(ADDRESS, self.address, line))
        return shlex.split(line.replace(JOB, self.job_id))


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Troubled]:
    troubled = Troubled(tmp_path_factory.mktemp("troubled"))
    yield troubled
    troubled.shell.close()


@pytest.mark.parametrize("alert", LOOKS, ids=lambda alert: alert or "first")
def test_every_source_of_information_is_shown(
    alert: str, troubled: Troubled, request: pytest.FixtureRequest
) -> None:
    """Each command succeeds and has output; a check has only its exit code."""
    for line in LOOKS[alert]:
        database = ""
        if "postgresql:" in line:
            database = request.getfixturevalue("database_url")
            troubled.shell.output("store", "init", "--store", database)
        shown = troubled.shell.output(*troubled.words(line, database))
        assert bool(shown.strip()) is ("--check" not in line), line


def test_a_failed_job_is_shown_with_its_traceback(troubled: Troubled) -> None:
    """By the id that the list before it has."""
    [_, show] = LOOKS["EventMQJobsFail"]
    assert "ValueError: no such address" in troubled.shell.output(*troubled.words(show, ""))
