"""The tutorial: each command that it shows, as it is shown, from the demo to the report."""

from __future__ import annotations

import json
import re
import shlex
import signal
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from eventmq_contrib.spark.command import spark as group
from tests.contrib.spark.test_report_page import read
from tests.support.page_files import ROOT, write_files
from tests.support.shell import Shell

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

_PAGE = "tutorial-spark.rst"
_RUNS = re.compile(r"^\.\. runs: (.+)\n\n\.\. code-block:: console\n\n   \$ (.+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def commands() -> dict[str, list[str]]:
    """Name -> words of the command that is shown there."""
    text = (ROOT / "docs" / _PAGE).read_text(encoding="utf-8")
    commands = {name: shlex.split(line) for name, line in _RUNS.findall(text)}
    shown = set(re.findall(r"^   \$ (?!pip )(.+)$", text, re.MULTILINE))
    assert shown == {line for _, line in _RUNS.findall(text)}, "a command is not run here"
    return commands


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path, PYTHONPATH=str(ROOT))
    yield shell
    shell.close()


@pytest.fixture(scope="module")
def demo(
    commands: dict[str, list[str]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shell]:
    """Where the demo runs, beside the test of the shop."""
    folder = tmp_path_factory.mktemp("demo")
    (folder / "tmp").mkdir()
    shell = Shell(folder, TMPDIR=str(folder / "tmp"), PYTHONPATH=str(ROOT))
    shell.start(*commands["demo"][1:])
    yield shell
    shell.close()


def on_spark(words: list[str]) -> str:
    """Run a command of the page in the session of the tests; return its output."""
    assert ["eventmq", "spark"] == words[:2]
    ran = CliRunner().invoke(group, words[2:])
    assert 0 == ran.exit_code, ran.output
    return ran.stdout


@pytest.mark.usefixtures("demo")
@pytest.mark.timeout(180)
def test_the_way_from_the_shop_to_the_report(
    spark: SparkSession, shell: Shell, commands: dict[str, list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The shop is open for three seconds here."""
    monkeypatch.chdir(shell.folder)
    assert ["shop.py"] == write_files(_PAGE, shell.folder)
    broker = shell.start(*commands["broker"][1:], "--bind", "tcp://127.0.0.1:0")
    shell.environ["EVENTMQ_BROKER"] = broker.ready()["main"]
    shell.start(*commands["worker"][1:])
    journal = shell.start(*commands["journal"][1:])
    journal.ready()
    python, script, day = commands["shop"]
    assert ("python", "420") == (python, day)
    shop = shell.launch(sys.executable, script, "3")
    *_, last = shop.line().split()
    assert 0 == shop.wait()
    assert 0 == journal.stop(signal.SIGINT)

    assert "shop.charge" in on_spark(commands["stats"])
    on_spark(commands["failures"])
    on_spark([last if re.fullmatch("[0-9a-f]{32}", word) else word for word in commands["trace"]])
    assert (shell.folder / "trace.json").is_file()
    assert "needed" in on_spark(commands["capacity"])
    check_report(json.loads(on_spark([*commands["report"], "--json"])), shell.folder)


def check_report(report: dict[str, Any], folder: Path) -> None:
    """Compare a report with the rows of the journal, and check its page."""
    rows = [
        row
        for path in folder.glob("journal/date=*/hour=*/*.parquet")
        for row in pq.ParquetFile(path).read().to_pylist()
    ]
    kinds = Counter(row["kind"] for row in rows)
    assert len(rows) == report["events"]
    assert len({row["job_id"] for row in rows}) == report["audit"]["jobs"]
    assert kinds["succeeded"] == report["audit"]["succeeded"]
    assert report["audit"]["sound"] is True
    assert sum(row["started_us"] is not None for row in rows) == sum(
        row["runs"] for row in report["tasks"]
    )
    assert kinds["retry"] == sum(row["retries"] for row in report["tasks"])
    assert kinds["failed"] + kinds["retry"] == sum(row["attempts"] for row in report["failures"])
    assert {"orders", "mail"} == {row["queue"] for row in report["slo"]}
    came = sum(map(sum, report["timeline"]["came"].values()))
    assert report["audit"]["jobs"] == came
    page = read((folder / "report.html").read_text(encoding="utf-8")).text
    assert "A busy shop" in page
    assert "Every job is accounted for, as far as the journal's own seals reach." in page


@pytest.mark.timeout(120)
def test_the_way_from_the_demo_to_the_audit(
    spark: SparkSession, demo: Shell, commands: dict[str, list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(demo.folder)
    [shown] = demo.programs
    assert 0 == shown.wait(), shown.text
    [folder] = (demo.folder / "tmp").iterdir()
    journal = [
        re.sub(r"/tmp/eventmq-demo-\w+", str(folder), w) for w in commands["journal of the demo"]
    ]
    assert journal != commands["journal of the demo"]
    demo.output(*journal[1:])
    output = on_spark(commands["audit of the demo"])
    for name in ("lost", "double_leased", "missing_events"):
        assert re.search(rf"^{name} +0$", output, re.MULTILINE), output
