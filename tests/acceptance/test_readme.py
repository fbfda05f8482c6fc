"""Does what the README says, word for word, but for ports and the place of the programs."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.shell import DEADLINE, Shell, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.acceptance.shell import Program

README = Path(__file__).parents[2] / "README.rst"

#: ``.. file: NAME`` or ``.. terminal: NAME`` and the block of code below it.
MARKED = re.compile(
    r"^\.\. (?P<kind>file|terminal): (?P<name>\S+)\n\n\.\. code-block:: \S+\n\n"
    r"(?P<code>(?:(?: {4}.*)?\n)+)",
    re.MULTILINE,
)

PROGRAMS = {
    ".venv/bin/eventmq": [sys.executable, "-m", "eventmq"],
    ".venv/bin/python": [sys.executable],
}


def blocks() -> list[tuple[str, str, str]]:
    """Return kind, name and code of the marked blocks, in order."""
    found = MARKED.finditer(README.read_text(encoding="utf-8"))
    return [
        (m["kind"], m["name"], re.sub(r"^ {4}", "", m["code"], flags=re.MULTILINE)) for m in found
    ]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    address = f"tcp://127.0.0.1:{free_port()}"
    shell = Shell(tmp_path, EVENTMQ_BIND=address, EVENTMQ_BROKER=address)
    yield shell
    shell.close()


def type_in(shell: Shell, command: str) -> Program:
    """Start what a line with ``$`` says."""
    program, *arguments = shlex.split(command.removeprefix("$ "))
    return shell.launch(*PROGRAMS[program], *arguments)


def follow(shell: Shell, code: str) -> list[str]:
    """Type the commands of a terminal; return the lines that it should show and does not."""
    missing = []
    for line in code.strip().splitlines():
        if line.startswith("$ "):
            program = type_in(shell, line)
        elif (shown := program.line()) != line:
            missing.append(f"{line!r}, but {shown!r}")
    return missing


def test_the_readme_has_its_marks() -> None:
    kinds = [(kind, name) for kind, name, _ in blocks()]
    assert ("file", "shop.py") in kinds
    terminals = [name for kind, name in kinds if kind == "terminal"]
    assert ["broker", "worker", "client"] == terminals


def test_the_first_app_of_the_readme_runs(shell: Shell) -> None:
    for kind, name, code in blocks():
        if kind == "file":
            (shell.folder / name).write_text(code, encoding="utf-8")
        elif name == "client":
            assert not follow(shell, code)
            assert 0 == shell.programs[-1].process.wait(DEADLINE)
        else:
            assert not follow(shell, code)
            shell.programs[-1].ready()
