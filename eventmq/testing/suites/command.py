"""Conformance suite for commands of the program ``eventmq``."""

# ruff: noqa: S101 - suites are methods that assert

from __future__ import annotations

import json
import re
from threading import Thread
from typing import TYPE_CHECKING, NamedTuple

import click
import pytest

from eventmq.app import EventMQ
from eventmq.cli.command import DONE, NO_BROKER, WRONG_USAGE, Command
from eventmq.cli.program import Program, program

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["CommandSuite", "Ended"]

#: An address at which no broker answers.
_NO_BROKER_URL = "tcp://127.0.0.1:1"

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


class Ended(NamedTuple):
    """How a command ended: its exit code, and what it wrote."""

    code: int
    stdout: str
    stderr: str

    def check_error(self) -> None:
        """Check that it said what was wrong as commands do."""
        assert self.stdout == "", "an error goes to stderr; stdout is for results"
        assert self.stderr.startswith("error: "), f"stderr is no error: {self.stderr!r}"
        assert self.stderr.count("\n") == 1, f"an error is one line: {self.stderr!r}"


class CommandSuite:
    """Subclass it and return your command from `make`; `prepare` may give a broker jobs.

    ``arguments`` are those of a call that succeeds, without ``--broker``; None for a command that
    runs until it is stopped, which is not called then.
    """

    arguments: Sequence[str] | None = ()

    def make(self) -> Command:
        """Return the command, as the hook ``eventmq_add_commands`` adds it."""
        raise NotImplementedError("define make() in your subclass: it returns your command")

    def prepare(self, app: EventMQ) -> None:
        """Do on a new broker what the call with ``arguments`` needs, such as submitting jobs."""

    @pytest.fixture(autouse=True)
    def _around(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        monkeypatch.setenv("EVENTMQ_SUBMIT_TIMEOUT", "0.2")
        self._capsys = capsys

    @pytest.fixture
    def address(self) -> Iterator[str]:
        """Return the address of a broker that runs in a thread, prepared."""
        with EventMQ("suite", broker=_NO_BROKER_URL) as owner:
            runner = owner.make_broker(binds={"main": "tcp://127.0.0.1:0"}, store="memory")
            runner.bind()
            thread = Thread(target=runner.run)
            thread.start()
            try:
                with EventMQ("suite", broker=runner.addresses["main"], submit_timeout=30.0) as app:
                    self.prepare(app)
                yield runner.addresses["main"]
            finally:
                runner.stop()
                thread.join()

    def run(self, *arguments: str) -> Ended:
        """Run the command as the program does."""
        command = self.make()
        name = str(command.name)
        with pytest.raises(SystemExit) as ended:
            Program("eventmq", commands={name: command}).main([name, *arguments])
        return Ended(int(ended.value.code or 0), *self._capsys.readouterr())

    def call(self, address: str, *more: str) -> Ended:
        """Run the command with ``arguments`` against a broker."""
        broker = ("--broker", address) if self.has_option("--broker") else ()
        if self.arguments is None:
            pytest.skip("this command runs until it is stopped")
        return self.run(*self.arguments, *broker, *more)

    def has_option(self, option: str) -> bool:
        """Return whether the command has an option."""
        return any(option in param.opts for param in self.make().params)

    def test_its_name_is_plain_and_free(self) -> None:
        """Small letters, digits and hyphens; a name of a built-in command is an error."""
        command = self.make()
        assert isinstance(command, Command), "use click.command(cls=eventmq.cli.Command)"
        assert _NAME.fullmatch(str(command.name)), f"{command.name!r} is no plain name"
        program.load()
        built_in = program.commands.get(str(command.name), command)
        assert built_in is command, f"eventmq has a command {command.name!r} already"

    def test_its_help_says_what_it_does_and_how_it_ends(self) -> None:
        """Its first line, each option, and the exit codes."""
        command, ended = self.make(), self.run("--help")
        assert (ended.code, ended.stderr) == (DONE, "")
        assert command.help, "give the function a docstring, which is the help"
        silent = [p.name for p in command.params if isinstance(p, click.Option) and not p.help]
        assert silent == [], f"these options have no help: {silent}"
        words = " ".join(ended.stdout.split())
        for code, meaning in command.exits.items():
            assert f"{code} {meaning}" in words, f"the help lacks exit code {code}"

    def test_wrong_usage_is_one_line_and_its_exit_code(self) -> None:
        """On stderr, with 2, as in all commands."""
        ended = self.run("--no-such-option")
        ended.check_error()
        assert ended.code == WRONG_USAGE

    def test_without_a_broker_it_ends_with_that_exit_code(self) -> None:
        """The code is 3, which its help has, if it calls the broker."""
        if not self.has_option("--broker"):
            pytest.skip("this command takes no broker")
        ended, documented = self.call(_NO_BROKER_URL), self.make().exits
        assert ended.code in documented, f"name the exit code {ended.code} in exits=, for the help"
        if NO_BROKER in documented:
            assert ended.code == NO_BROKER, "let BrokerUnavailable pass: the program makes it 3"
        if ended.code:
            ended.check_error()

    def test_its_call_succeeds_and_writes_no_error(self, address: str) -> None:
        """The call with ``arguments``."""
        ended = self.call(address)
        assert (ended.code, "error: " in ended.stderr) == (DONE, False), ended.stderr

    def test_json_is_all_that_it_writes_for_programs(self, address: str) -> None:
        """One value, or one in each line."""
        if not self.has_option("--json"):
            pytest.skip("this command has no --json")
        output = self.call(address, "--json").stdout
        assert output, "with --json it writes something, were it an empty list"
        sound = _is_json(output) or all(map(_is_json, output.splitlines()))
        assert sound, f"with --json stdout has something else than JSON: {output!r:.200}"
