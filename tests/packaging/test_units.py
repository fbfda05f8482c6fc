"""The units in deploy/systemd: systemd takes them, and their command lines are there."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.command_lines import parse

UNITS = sorted((Path(__file__).parents[2] / "deploy" / "systemd").glob("*.service"))
SUPERVISOR = Path(__file__).parents[2] / "deploy" / "supervisord.conf"

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze"
)


def read(unit: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(unit.read_text("utf-8"))
    return parser


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_every_command_line_is_one(unit: Path) -> None:
    service = read(unit)["Service"]
    path, *line = service["ExecStart"].replace("%i", "shop").split()
    assert path == "/opt/eventmq/bin/eventmq"
    parse(line)
    assert (service["Type"] == "notify") is (line[0] != "metrics")


def test_supervisor_runs_commands_that_are_there() -> None:
    parser = configparser.RawConfigParser(inline_comment_prefixes=(";",))
    parser.read_string(SUPERVISOR.read_text("utf-8"))
    programs = [name for name in parser.sections() if name.startswith("program:")]
    assert len(programs) == 3
    for name in programs:
        path, *line = parser[name]["command"].replace("%(ENV_EVENTMQ_DATA)s", "data").split()
        assert (path, line[0]) == ("eventmq", name.partition(":")[2])
        parse(line)


def test_a_worker_has_more_time_to_stop_than_its_jobs() -> None:
    [unit] = [unit for unit in UNITS if "worker" in unit.name]
    service = read(unit)["Service"]
    assert int(service["TimeoutStopSec"]) > 30
    assert service["KillMode"] == "mixed"


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_no_unit_is_given_up(unit: Path) -> None:
    """A data directory that is in use, or a port that is taken, may be free later."""
    sections = read(unit)
    assert sections["Unit"]["StartLimitIntervalSec"] == "0"
    assert sections["Service"]["Restart"] in {"always", "on-failure"}


@needs_systemd
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    """With another program in the place of the one that is not installed there."""
    names = []
    for unit in UNITS:
        made = tmp_path / unit.name.replace("@", "@shop")
        made.write_text(unit.read_text("utf-8").replace("/opt/eventmq/bin/eventmq", "/bin/true"))
        names.append(str(made))
    done = subprocess.run(
        ["systemd-analyze", "verify", *names], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@needs_systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_finds_little_exposed(unit: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", str(unit)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    match = re.search(r"exposure level for \S+: ([0-9.]+)", done.stdout)
    assert match is not None, done.stdout + done.stderr
    assert float(match[1]) <= 2.0
