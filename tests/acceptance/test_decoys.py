"""A directory full of files with the names of libraries: commands called in it run none of them."""

from __future__ import annotations

import configparser
import contextlib
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from eventmq.shadows import LIBRARIES
from tests.support.system import System

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]

#: Modules of the interpreter that the program uses, beside the libraries.
STANDARD = (
    "__future__", "asyncio", "contextlib", "email", "gc", "importlib", "json", "logging",
    "platform", "queue", "secrets", "select", "shutil", "signal", "socket", "string", "struct",
    "tempfile", "threading", "tomllib", "traceback", "typing", "uuid",
)  # fmt: skip

#: A module that records in a file beside it that it was imported.
DECOY = """
import os
with open(os.path.join({folder!r}, "ran"), "a") as ran:
    ran.write({name!r} + chr(10))
"""

#: No broker is there.
NOWHERE = "tcp://127.0.0.1:1"

PROGRAMS = {
    "script": [str(Path(sys.executable).parent / "eventmq")],
    "module": [sys.executable, "-m", "eventmq"],
}

SHOP = """
import helper
from eventmq import EventMQ

app = EventMQ("shop")
helper.found()
"""

HELPER = """
def found():
    with open("found", "w") as file:
        file.write("found")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with decoys: files for most, and packages."""
    folder = tmp_path / "decoys"
    folder.mkdir()
    for name in {*STANDARD, *LIBRARIES} - {"eventmq"}:
        text = DECOY.format(folder=str(folder), name=name)
        if name in {"rich", "zmq", "email"}:
            (folder / name).mkdir()
            (folder / name / "__init__.py").write_text(text)
        else:
            (folder / f"{name}.py").write_text(text)
    return folder


def ran(folder: Path) -> list[str]:
    """Return the decoys that ran."""
    path = folder / "ran"
    return path.read_text().split() if path.exists() else []


def run(program: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    return subprocess.run(
        [*PROGRAMS[program], *arguments],
        cwd=folder, capture_output=True, text=True, timeout=50, check=False, env=environment,
    )  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(
    "arguments",
    [
        ["version"],
        ["plugins"],
        ["status", "--broker", NOWHERE],
        ["queues", "--broker", NOWHERE, "--json"],
        ["failed", "list", "--broker", NOWHERE],
        ["keys", "new", "keys"],
        ["broker", "--bind", "nonsense"],
        ["fsck", "--data-dir", "data"],
        ["demo", "--help"],
        ["no-such-command"],
    ],
    ids=" ".join,
)
def test_a_command_that_names_no_module_imports_none_from_the_directory(
    folder: Path, program: str, arguments: list[str]
) -> None:
    done = run(program, folder, *arguments)
    assert "Traceback" not in done.stderr
    assert ran(folder) == []


def leave_libraries(folder: Path) -> None:
    """Take away what an app of the directory would get itself: that is Python's way."""
    for name in STANDARD:
        for path in (folder / name, folder / f"{name}.py"):
            if path.exists():
                path.rename(folder / f"no_{path.name}")


@pytest.mark.parametrize("program", PROGRAMS)
def test_an_app_of_the_directory_is_found_with_the_libraries_of_the_package(
    folder: Path, program: str
) -> None:
    """The program also imports its own modules from the folder; names of libraries are decoys."""
    leave_libraries(folder)
    (folder / "helper.py").write_text(HELPER)
    (folder / "shop.py").write_text(SHOP)
    done = run(program, folder, "status", "-A", "shop", "--broker", NOWHERE)
    assert (folder / "found").exists(), done.stderr
    assert "Traceback" not in done.stderr
    assert ran(folder) == []


@pytest.fixture
def system(folder: Path) -> Iterator[System]:
    system = System(folder)
    yield system
    system.stop()


def test_a_worker_and_its_processes_use_the_libraries_of_the_package(
    system: System, folder: Path
) -> None:
    leave_libraries(folder)
    system.broker()
    system.worker()
    app = system.app()
    task = app.task(name="survivor.work")(lambda number: number)
    assert task.delay(7).get(timeout=50.0) == 7
    assert ran(folder) == []


def named(lines: str) -> list[Requirement]:
    return [Requirement(line) for line in lines.splitlines() if line and line[0] != "#"]


def installed(requirements: list[Requirement]) -> set[str]:
    """Return the normalized names of distributions and of their requirements."""
    names, done = set(), set()
    while requirements:
        requirement = requirements.pop()
        if str(requirement) in done:
            continue
        done.add(str(requirement))
        with contextlib.suppress(metadata.PackageNotFoundError):
            further = metadata.requires(requirement.name) or []
            names.add(canonicalize_name(requirement.name))
            for each in map(Requirement, further):
                extras = ["", *requirement.extras]
                if not each.marker or any(each.marker.evaluate({"extra": e}) for e in extras):
                    requirements.append(each)
    return names


def modules_of(distributions: set[str]) -> set[str]:
    """Return the importable modules of distributions, except private ones and those of mypyc."""
    return {
        module
        for module, owners in metadata.packages_distributions().items()
        if module.isidentifier() and module[0] != "_" and not module.endswith("__mypyc")
        if any(canonicalize_name(owner) in distributions for owner in owners)
    }


def test_all_libraries_of_the_package_are_protected() -> None:
    """This includes the requirements of libraries, the extras for users, and Spark Connect."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    requirements = [*named(config["options"]["install_requires"]), Requirement("pyspark[connect]")]
    for extra, lines in config["options.extras_require"].items():
        if extra not in {"bench", "test", "test-core", "lint", "types", "docs", "dev"}:
            requirements += named(lines)
    modules = modules_of(installed(requirements))
    assert {"zmq", "mdurl", "markupsafe", "numpy", "dateutil", "py4j", "google", "grpc"} <= modules
    assert modules - LIBRARIES == set()


def test_what_libraries_import_is_not_taken_from_the_directory_of_an_app(folder: Path) -> None:
    leave_libraries(folder)
    libraries = ["markupsafe", "numpy", "mdurl", "py4j"]
    for name in libraries:
        (folder / f"{name}.py").write_text(DECOY.format(folder=str(folder), name=name))
    (folder / "shop.py").write_text(f"import {', '.join(libraries)}\n{SHOP}")
    (folder / "helper.py").write_text(HELPER)
    done = run("script", folder, "status", "-A", "shop", "--broker", NOWHERE)
    assert ran(folder) == []
    assert (folder / "found").exists(), done.stderr
