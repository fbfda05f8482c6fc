"""The page of the plugin kit: its examples run, and each public name is in one."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
from pathlib import Path

import pytest

import eventmq.errors
import eventmq.sdk

#: Names that stand on the pages of users, and errors.
ELSEWHERE = {"JobContext", "at", "cron", "current", "current_job", "every", "exponential", "fixed"}

ROOT = Path(__file__).resolve().parents[3]

PAGE = ROOT / "docs" / "reference" / "plugin-kit.rst"


def test_the_examples_run():
    results = doctest.testfile(str(PAGE), module_relative=False, encoding="utf-8")
    assert results.failed == 0
    assert results.attempted > 100


@pytest.mark.parametrize("name", eventmq.sdk.__all__)
def test_each_name_is_in_an_example(name):
    lines = [
        line for line in PAGE.read_text("utf-8").splitlines() if line.startswith((">>>", "..."))
    ]
    assert re.search(rf"\b{name}\b", "\n".join(lines))


def test_each_name_has_an_entry():
    entry = re.compile(r"^\.\. (?:auto\w+|py:data):: (\w+)", re.MULTILINE)
    entries = set(entry.findall(PAGE.read_text("utf-8")))
    errors = {name for name in eventmq.sdk.__all__ if name in eventmq.errors.__all__}
    assert entries >= {*eventmq.sdk.__all__} - errors - ELSEWHERE


def test_importing_the_kit_loads_no_library():
    code = (
        "import sys, eventmq.sdk; "
        "print(sorted({'zmq', 'click', 'pluggy', 'msgspec', 'asyncio'} & {*sys.modules}))"
    )
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, check=True, text=True).stdout == "[]\n"


def test_the_whole_kit_loads_neither_zmq_nor_click():
    code = (
        "import sys, eventmq.sdk as kit; [getattr(kit, name) for name in kit.__all__]; "
        "print(sorted({'zmq', 'click'} & {*sys.modules}))"
    )
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, check=True, text=True).stdout == "[]\n"
