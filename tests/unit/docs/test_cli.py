"""The page of the command line is built from the commands; what it says besides is true of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click
import pytest

from eventmq.cli.command import MEANINGS
from eventmq.cli.program import program
from eventmq_contrib.dashboard.command import dashboard
from eventmq_contrib.gateways.emp.command import emp
from eventmq_contrib.journal.command import journal
from eventmq_contrib.outbox.command import outbox
from eventmq_contrib.prometheus.command import metrics
from eventmq_contrib.spark.command import spark
from eventmq_contrib.top.command import top
from tests.support.page_files import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = (ROOT / "docs" / "reference" / "cli.rst").read_text(encoding="utf-8")

program.load()
ROOTS = {"eventmq": program, **{f"eventmq {each.name}": each for each in (
    dashboard, emp, journal, metrics, outbox, spark, top,
)}}  # fmt: skip


def commands(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """Yield a command and those below it, each with its whole name."""
    yield name, command
    for below in getattr(command, "commands", {}).values():
        yield from commands(f"{name} {below.name}", below)


EVERY = {name: each for root in ROOTS.items() for name, each in commands(*root)}


def test_the_page_is_made_from_all_commands() -> None:
    """Those of groups come with their group."""
    pattern = r"^\.\. click:: (\S+):(\S+)\n   :prog: (.+)\n( +:nested: full)?"
    named = re.findall(pattern, PAGE, re.MULTILINE)
    assert [prog for _, _, prog, _ in named] == list(ROOTS)
    for module, attribute, prog, nested in named:
        found = getattr(__import__(module, fromlist=[attribute]), attribute)
        assert (found, bool(nested)) == (ROOTS[prog], isinstance(found, click.Group))


@pytest.mark.parametrize("name", EVERY)
def test_every_command_says_what_it_does_its_exit_codes_and_what_its_options_are(name: str) -> None:
    command = EVERY[name]
    assert command.help
    assert name in ROOTS or "Exit codes: 0 done" in str(command.epilog)
    options = [each for each in command.params if isinstance(each, click.Option)]
    assert [each.opts for each in options if not each.help and not each.hidden] == []


def test_the_page_has_the_exit_codes() -> None:
    for code, meaning in MEANINGS.items():
        assert f"\n``{code}``\n    {meaning}\n" in PAGE
