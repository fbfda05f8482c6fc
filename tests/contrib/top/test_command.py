"""The command ``eventmq top``, on a terminal of its own."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from eventmq.cli.program import program
from tests.contrib.top.driving import DEADLINE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.contrib.top.driving import Shop

#: Nothing listens there.
NOWHERE = "tcp://127.0.0.1:9"


class Terminal:
    """A terminal of 80 columns and 24 lines in which the command runs."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.screen, inside = pty.openpty()
        self.output = b""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "eventmq", "top", *arguments],
            stdin=inside, stdout=inside, stderr=inside, cwd=folder,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"},
        )  # fmt: skip
        os.close(inside)

    def read(self, wait: float) -> bool:
        """Read what is there; return whether there was anything."""
        if not select.select([self.screen], [], [], wait)[0]:
            return False
        try:
            data = os.read(self.screen, 65536)
        except OSError:  # the process has ended
            return False
        self.output += data
        return bool(data)

    def shows(self, text: str) -> None:
        """Wait until a text was written."""
        end = time.monotonic() + DEADLINE
        while text.encode() not in self.output:
            self.read(0.1)
            assert time.monotonic() < end, self.output[-2000:]

    def quit(self, key: bytes) -> int:
        """Press a key that ends it, and return the exit code."""
        os.write(self.screen, key)
        end = time.monotonic() + DEADLINE
        while self.process.poll() is None:
            self.read(0.1)
            assert time.monotonic() < end, self.output[-2000:]
        return self.process.returncode

    def close(self) -> None:
        """End it."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE)
        os.close(self.screen)


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    terminals: list[Terminal] = []
    yield terminals
    for terminal in terminals:
        terminal.close()


@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_it_shows_the_brokers_and_ends_with_a_key(
    shop: Shop, tmp_path: Path, terminals: list[Terminal], key: bytes
) -> None:
    """One that is missing prevents neither; no log line is in the page."""
    options = ("--broker", f"shop={shop.broker['main']}", "--broker", f"lost={NOWHERE}")
    terminals.append(terminal := Terminal(tmp_path, *options))
    terminal.shows("shop: up")
    terminal.shows("lost: missing since")
    assert 0 == terminal.quit(key)
    assert b"WARNING" not in terminal.output
    assert b"Traceback" not in terminal.output


@pytest.mark.parametrize(("options", "error"), [
    (["--broker", "shop="], "'shop=' is not NAME=URL"),
    (
        ["--broker", f"a={NOWHERE}", "--broker", f"a={NOWHERE}"],
        f"'a={NOWHERE}' is not NAME=URL with a name of its own",
    ),
    (
        ["-A", "shop", "--broker", f"a={NOWHERE}", "--broker", f"b={NOWHERE}"],
        "-A names the app of one",
    ),
    ([], 'a page needs a terminal; "eventmq status" prints such figures once'),
])  # fmt: skip
def test_a_wrong_use_is_named(options: list[str], error: str) -> None:
    result = CliRunner().invoke(program, ["top", *options])
    assert 2 == result.exit_code
    assert error in result.output


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "textual", None)
    result = CliRunner().invoke(program, ["top"])
    assert 1 == result.exit_code
    assert "error: eventmq top needs textual: pip install '.[top]'\n" == result.output
