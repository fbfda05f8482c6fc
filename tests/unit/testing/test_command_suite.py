"""The suite of commands finds what is wrong with one, and says it."""

from __future__ import annotations

import click
import pytest

from eventmq.cli import DONE, FAILED, NO_BROKER, Command, takes_json, takes_target
from eventmq.errors import BrokerUnavailable
from eventmq.testing import CommandSuite


@pytest.fixture
def check(monkeypatch, capsys):
    """Run the checks of the suite that begin so on a command; they need no broker that answers."""

    def check(command, name, **attributes):
        made = type("Made", (CommandSuite,), {"make": lambda self: command, **attributes})()
        made._capsys = capsys
        monkeypatch.setenv("EVENTMQ_SUBMIT_TIMEOUT", "0.2")
        [method] = [getattr(made, each) for each in dir(made) if each.startswith(f"test_{name}")]
        parameters = ["tcp://127.0.0.1:1"] if "address" in method.__code__.co_varnames else []
        method(*parameters)

    return check


def plain(name="backlog", **options):
    """Return a command that does nothing."""

    @click.command(name, cls=options.pop("cls", Command), **options)
    def backlog():
        """List what waits."""

    return backlog


@click.command("backlog", cls=Command)
@click.option("--most")
def silent(most):
    """List what waits."""


@click.command("backlog", cls=Command)
def untold():
    pass


@click.command("backlog", cls=Command)
@takes_json
@takes_target
def asking(target, *, as_json):
    """List what waits."""
    with target.asking() as app:
        app.ask("queues")


@click.command("backlog", cls=Command, exits={FAILED: "", NO_BROKER: ""})
@takes_target
def catching(target):
    """List what waits."""
    try:
        with target.asking() as app:
            app.ask("queues")
    except BrokerUnavailable:
        return FAILED
    return DONE


@click.command("backlog", cls=Command)
@takes_json
@takes_target
def chatty(target, *, as_json):
    """List what waits."""
    click.echo("looking ...")


@click.command("backlog", cls=Command)
def loud():
    """List what waits."""
    click.echo("error: no\nand no", err=True)
    return FAILED


@pytest.mark.parametrize(
    ("command", "name", "message"),
    [
        (plain(cls=click.Command), "its_name", "use click.command\\(cls=eventmq.cli.Command\\)"),
        (plain(name="Back log"), "its_name", "'Back log' is no plain name"),
        (plain(name="queues"), "its_name", "eventmq has a command 'queues' already"),
        (silent, "its_help", "these options have no help: \\['most'\\]"),
        (untold, "its_help", "give the function a docstring"),
        (plain(epilog="-", exits={FAILED: "too many"}), "its_help", "the help lacks exit code 0"),
        (asking, "without_a_broker", "name the exit code 3 in exits="),
        (catching, "without_a_broker", "let BrokerUnavailable pass"),
        (loud, "its_call", "error: no"),
        (chatty, "json", "with --json stdout has something else than JSON: 'looking"),
        (plain(), "wrong_usage", None),
        (plain(), "its_name", None),
        (plain(), "its_help", None),
    ],
)
def test_what_is_wrong_with_a_command_is_found(check, command, name, message):
    if message is None:
        check(command, name)
        return
    with pytest.raises(AssertionError, match=message):
        check(command, name)


def test_a_command_that_runs_until_it_is_stopped_is_not_called(check):
    with pytest.raises(pytest.skip.Exception, match="until it is stopped"):
        check(loud, "its_call", arguments=None)
