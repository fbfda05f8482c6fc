"""Runs README and quickstart word for word, except for ports and paths of programs."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import HTTPCookieProcessor, build_opener

import pytest

from tests.support.shell import DEADLINE, Shell, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.shell import Program

README = Path(__file__).parents[2] / "README.rst"
QUICKSTART = Path(__file__).parents[2] / "docs" / "quickstart.rst"

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


def blocks(page: Path = README) -> list[tuple[str, str, str]]:
    """Return kind, name and code of the marked blocks, in order."""
    matches = MARKED.finditer(page.read_text(encoding="utf-8"))
    return [
        (m["kind"], m["name"], re.sub(r"^ {4}", "", m["code"], flags=re.MULTILINE)) for m in matches
    ]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    address = f"tcp://127.0.0.1:{free_port()}"
    shell = Shell(tmp_path, EVENTMQ_BIND=address, EVENTMQ_BROKER=address)
    yield shell
    shell.close()


def type_in(shell: Shell, command: str) -> Program:
    """Start the command of a line with ``$``."""
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


def play(shell: Shell, page: Path) -> None:
    """Write the files and type the commands of a page, in order; run what no command names."""
    typed = " ".join(code for kind, _, code in blocks(page) if kind == "terminal")
    for kind, name, code in blocks(page):
        if kind == "file":
            (shell.folder / name).write_text(code, encoding="utf-8")
            if name.removesuffix(".py") not in typed:
                assert 0 == shell.launch(sys.executable, name).wait()
            continue
        assert not follow(shell, code)
        if name == "client":
            assert 0 == shell.programs[-1].process.wait(DEADLINE)
        else:
            shell.programs[-1].ready()


def test_the_first_app_of_the_readme_runs(shell: Shell) -> None:
    play(shell, README)


def test_the_readme_names_the_place_of_the_first_app() -> None:
    text = " ".join(README.read_text(encoding="utf-8").split())
    assert "``shop.py``, in the directory that has ``.venv``" in text


def test_the_quickstart_runs_after_the_readme(shell: Shell) -> None:
    """All of its code, but for the lines that install and that activate the environment."""
    text = QUICKSTART.read_text(encoding="utf-8")
    assert len(blocks(QUICKSTART)) == text.count(".. code-block::") - 3
    assert "pip install . && .venv/bin/eventmq demo" in text
    play(shell, README)
    play(shell, QUICKSTART)
    for program in reversed(shell.programs):
        program.stop()
    lines = re.findall(r"^    \$ eventmq (.*)$", text, re.MULTILINE)
    assert ["dev -A post -Q default,mail --reload", "dashboard"] == lines
    shell.start(*shlex.split(lines[0])).ready()
    address = shell.start("dashboard", "--bind", "127.0.0.1:0").ready()["bind"]
    assert 0 == shell.launch(sys.executable, "post.py").wait()
    with build_opener(HTTPCookieProcessor()).open(address, timeout=DEADLINE) as answer:
        assert "mail" in answer.read().decode()
