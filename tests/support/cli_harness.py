"""Runs commands inside the test's process, in a folder of their own, and undoes their changes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from click.testing import CliRunner, Result

from eventmq.cli.program import program

if TYPE_CHECKING:
    import pytest

__all__ = ["Cli", "open_cli"]


class Cli:
    """A folder with modules, and the program."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, text: str) -> None:
        """Write a file."""
        (self.folder / name).write_text(text, encoding="utf-8")

    def run(self, *arguments: str) -> Result:
        """Run a command; an unexpected exception propagates to the test."""
        environ, modules = dict(os.environ), set(sys.modules)
        result = CliRunner().invoke(program, list(arguments))
        os.environ.clear()
        os.environ.update(environ)
        for name in set(sys.modules) - modules:
            if str(self.folder) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    def json(self, *arguments: str) -> Any:
        """Run a command that succeeds and return what it prints on stdout."""
        result = self.run(*arguments)
        assert 0 == result.exit_code, result.stderr
        return json.loads(result.stdout)

    def error(self, *arguments: str) -> tuple[int, str]:
        """Run a command that fails; return its exit code and its one line of error."""
        result = self.run(*arguments)
        lines = result.stderr.splitlines()
        assert "" == result.stdout
        assert 1 == len(lines), result.stderr
        assert lines[0].startswith("error: ")
        return result.exit_code, lines[0].removeprefix("error: ")


def open_cli(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Return a `Cli` in ``folder``; changes to the process are undone after the test."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return Cli(folder)
