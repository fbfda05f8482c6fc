"""Command lines on the pages are taken by the commands that they name."""

from __future__ import annotations

import re
import shlex
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import click
import pytest

from tests.support.command_lines import parse, resolve
from tests.support.page_files import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (*ROOT.glob("docs/**/*.rst"), *ROOT.glob("*.rst"), *ROOT.glob("examples/**/*.rst"))
}

#: A block of code, or what follows a line that ends in ``::``.
BLOCK = re.compile(r"^( *)(?:\S.*)?::.*\n(?:\1 +:.*\n)*\n((?:(?:\1 {2,}.*)?\n)+)", re.MULTILINE)

LINE = re.compile(
    r"^(?:\$ )?(?:[A-Z_]+=\S+ )*(?:\S*/)?eventmq (?=[a-z-])((?:.*\\\n)*.*)", re.MULTILINE
)

#: What ends a command in a shell.
ENDS = {"&", "&&", ";", "|", "||", ">", ">>", "<"}

#: Commands of plugins that are written on these pages.
WRITTEN_THERE = {"backlog", "gateway lines", "greet"}


def words_of(text: str) -> list[str]:
    lexer = shlex.shlex(text, posix=True, punctuation_chars="&;|<>")
    lexer.whitespace_split = True
    words = list(lexer)
    ends = [number for number, word in enumerate(words) if word in ENDS]
    return words[: min(ends)] if ends else words


def lines(text: str) -> Iterator[list[str]]:
    """Yield the words of each line in a block that calls ``eventmq``."""
    for block in BLOCK.finditer(text):
        for line in LINE.finditer(dedent(block[2])):
            words = words_of(line[1].replace("\\\n", " "))
            while words[0] == "-p":  # plugins that are not there
                del words[:2]
            yield words


def mentions(text: str) -> Iterator[list[str]]:
    """Yield the words of each command that stands in a sentence, up to the first placeholder."""
    for code in re.findall(r"``eventmq ([a-z][^`]*)``", text.replace("\n", " ")):
        yield code.split()


def found(find: Callable[[str], Iterator[list[str]]]) -> list[Any]:
    """Return what is found in the pages, each as a parameter that names its page."""
    return [
        pytest.param(words, id=f"{page}-{' '.join(words)[:40]}")
        for page, text in PAGES.items()
        for words in find(text)
        if not any(" ".join(words).startswith(own) for own in WRITTEN_THERE)
    ]


@pytest.mark.parametrize("words", found(lines))
def test_each_command_line_is_taken(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with parse(words):
        pass


@pytest.mark.parametrize("words", found(mentions))
def test_each_command_in_a_sentence_has_its_options(words: list[str]) -> None:
    command, context, rest = resolve(words)
    params = command.get_params(click.Context(command, parent=context))
    options = {name for each in params for name in (*each.opts, *each.secondary_opts)}
    named = {word.split("=")[0].strip("[]") for word in rest if word.startswith(("-", "[-"))}
    assert named <= options


def test_what_the_program_would_refuse_is_refused() -> None:
    """Else nothing above says anything."""
    text = "Do this::\n\n    $ eventmq worker -A shop \\\n        --pol threads && eventmq ping\n"
    [words] = lines(text)
    assert words == ["worker", "-A", "shop", "--pol", "threads"]
    with pytest.raises(click.NoSuchOption):
        parse(words)
    with pytest.raises(click.UsageError):
        parse(["workr"])
