"""The examples of the page about schedules run as they stand there, in one process."""

from __future__ import annotations

import re
import shlex
import sys
import textwrap
from pathlib import Path

import click
import pytest

from eventmq.cli.program import program

PAGE = (Path(__file__).resolve().parents[3] / "docs/howto/schedules/schedules.rst").read_text(
    "utf-8"
)


def blocks(language: str) -> list[str]:
    """Return the code blocks of a language."""
    found = re.findall(rf"\.\. code-block:: {language}\n\n((?:   .*\n|\n)+)", PAGE)
    return [textwrap.dedent(text) for text in found]


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """The first example as a module, with the broker inside."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("EVENTMQ_BROKER", "memory://")
    (tmp_path / "shop.py").write_text(blocks("python")[0])
    import shop

    yield shop
    shop.app.close()
    sys.modules.pop("shop")


def test_the_code_declares_what_the_page_says(shop):
    found = shop.app.schedules.in_code()
    assert {"nightly report", "shop.refresh_prices"} == set(found)
    assert "mail" == found["nightly report"].queue


def test_a_job_that_runs_later_waits_and_can_be_cancelled(shop):
    names: dict[str, object] = {}
    exec(compile(blocks("python")[1], "schedules.rst", "exec"), names)
    due = names["day"].info()["due"]
    assert names["tomorrow"].timestamp() == pytest.approx(due, abs=1)


def test_the_program_does_what_the_page_says(shop, capsys):
    names: dict[str, object] = {}
    exec(compile(blocks("python")[2], "schedules.rst", "exec"), names)
    assert "'often', 'once'" in capsys.readouterr().out
    names["job"].get(timeout=20)
    assert "once" in {made.name for made in shop.app.schedules.list()}


LINES = [line.removeprefix("$ ") for line in "\n".join(blocks("console")).split("\n$ ")]


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("eventmq ")])
def test_the_commands_are_written_as_they_are(line):
    """Each is parsed, with its options."""
    name, *arguments = shlex.split(line.strip().removeprefix("$ ").removeprefix("eventmq "))
    command = program.get_command(click.Context(program), name)
    assert command is not None
    if isinstance(command, click.Group):
        name, *arguments = arguments
        command = command.commands[name]
    command.make_context(name, arguments)
