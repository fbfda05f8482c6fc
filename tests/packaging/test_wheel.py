"""The wheel holds both packages and the licence, and nothing else."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("eventmq", "eventmq_contrib")
DIST_INFO = "eventmq-1.0.0.dev0.dist-info"
LEFT_BEHIND = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__", "build", "dist", "_build")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built in a copy of the checkout so that nothing of an older build gets in."""
    work = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT, work / "checkout", ignore=LEFT_BEHIND)
    for name in ("tests", "benchmarks", "examples", "docs"):  # also where they look like packages
        (work / "checkout" / name).mkdir(exist_ok=True)
        (work / "checkout" / name / "__init__.py").touch()
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation"]
    done = subprocess.run(
        [*build, "--outdir", work, work / "checkout"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    (path,) = work.glob("*.whl")
    assert path.name == "eventmq-1.0.0.dev0-py3-none-any.whl"
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_the_wheel_holds_every_source_file_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    sources = {
        path.relative_to(ROOT).as_posix()
        for name in PACKAGES
        for path in (ROOT / name).rglob("*.py")
    }
    spark = {"log4j2.properties", "templates/report.html"}
    data = {f"{name}/py.typed" for name in PACKAGES}
    data |= {f"eventmq_contrib/spark/{name}" for name in spark}
    dashboard = ROOT / "eventmq_contrib" / "dashboard"
    data |= {
        path.relative_to(ROOT).as_posix()
        for folder in ("static", "templates")
        for path in (dashboard / folder).iterdir()
    }
    metadata = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "top_level.txt"}
    about = {f"{DIST_INFO}/{name}" for name in metadata | {"licenses/LICENSE"}}
    assert sources | data | about == set(wheel.namelist())


def test_every_folder_of_the_packages_is_a_package() -> None:
    """A folder without ``__init__.py`` would silently be missing from the wheel."""
    folders = {
        folder
        for name in PACKAGES
        for path in (ROOT / name).rglob("*.py")
        for folder in path.parents
        if folder.is_relative_to(ROOT / name)
    }
    assert [] == sorted(str(folder) for folder in folders if not (folder / "__init__.py").exists())


def test_the_wheel_has_its_metadata(wheel: zipfile.ZipFile) -> None:
    about = message_from_bytes(wheel.read(f"{DIST_INFO}/METADATA"))
    assert about["Name"] == "eventmq"
    assert about["License-Expression"] == "BSD-3-Clause"
    assert about["Requires-Python"] == ">=3.10"
    lines = [line for line in about.get_all("Requires-Dist") if "extra" not in line]
    needed = {re.split(r"[^\w.-]", line)[0] for line in lines}
    assert needed == {
        "apsw", "click", "cronsim", "dill", "msgpack", "msgspec", "pluggy", "pyzmq", "rich",
        "setproctitle", "tomli", "tzdata",
    }  # fmt: skip


def test_the_wheel_brings_the_command_and_the_pytest_plugin(wheel: zipfile.ZipFile) -> None:
    lines = wheel.read(f"{DIST_INFO}/entry_points.txt").decode().splitlines()
    assert [line for line in lines if line] == [
        "[celery.result_backends]",
        "eventmq = eventmq_contrib.kombu.backend:EventMQBackend",
        "[console_scripts]",
        "eventmq = eventmq.cli:main",
        "[eventmq]",
        "celery = eventmq_contrib.celery",
        "dashboard = eventmq_contrib.dashboard",
        "emp = eventmq_contrib.gateways.emp",
        "journal = eventmq_contrib.journal",
        "majordomo = eventmq_contrib.gateways.majordomo",
        "mc0 = eventmq_contrib.gateways.mc0",
        "opentelemetry = eventmq_contrib.opentelemetry",
        "outbox = eventmq_contrib.outbox",
        "postgres = eventmq_contrib.postgres",
        "prometheus = eventmq_contrib.prometheus",
        "spark = eventmq_contrib.spark",
        "top = eventmq_contrib.top",
        "[pytest11]",
        "eventmq.testing.plugin = eventmq.testing.plugin",
    ]
