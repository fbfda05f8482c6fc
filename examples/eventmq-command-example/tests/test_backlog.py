"""The command, run like the program does, against a broker in a thread of this process."""

from __future__ import annotations

import json
import sys
import threading

import click
import pytest
from click.testing import CliRunner
from eventmq import EventMQ
from eventmq.cli import NO_BROKER, main
from eventmq.testing import CommandSuite

from eventmq_command_example import plugin
from eventmq_command_example.command import backlog


class TestBacklog(CommandSuite):
    """It fulfils the contract of commands."""

    def make(self):
        """Return the command."""
        return backlog

    def prepare(self, app):
        """Let a job wait."""
        app.send("shop.send", queue="mail")


@pytest.fixture(scope="module")
def broker():
    """The address of a broker with jobs in two queues."""
    owner = EventMQ("owner", broker="tcp://127.0.0.1:1")
    runner = owner.make_broker(binds={"main": "tcp://127.0.0.1:0"}, store="memory")
    runner.bind()
    thread = threading.Thread(target=runner.run)
    thread.start()
    address = runner.addresses["main"]
    with EventMQ("client", broker=address) as app:
        for number in range(5):
            app.send("shop.send", (number,), queue="mail" if number else "sms")
        yield address
    runner.stop()
    thread.join(10)
    owner.close()


@pytest.fixture
def run():
    """Return a function of the arguments of the command."""
    group = click.Group("eventmq")
    plugin.eventmq_add_commands(group)

    def run(*arguments):
        return CliRunner().invoke(group, ["backlog", *arguments], standalone_mode=False)

    return run


def test_the_longest_queue_comes_first(run, broker) -> None:
    result = run("--broker", broker, "--json")
    found = [(row["name"], row["waiting"]) for row in json.loads(result.stdout)]
    assert (found, result.return_value) == ([("mail", 4), ("sms", 1)], 0)


def test_too_many_jobs_are_a_failure(run, broker) -> None:
    result = run("--broker", broker, "--most", "3")
    assert result.return_value == 1
    assert result.stderr == "error: 1 queue has more than 3 jobs waiting\n"
    assert result.stdout.splitlines()[0].split() == ["name", "waiting", "running", "workers"]


def test_without_a_broker_the_program_ends_with_its_exit_code(monkeypatch, capsys) -> None:
    monkeypatch.setenv("EVENTMQ_LOAD_PLUGINS", plugin.__name__)
    monkeypatch.setenv("EVENTMQ_SUBMIT_TIMEOUT", "0.2")
    monkeypatch.setattr(sys, "argv", ["eventmq", "backlog", "--broker", "tcp://127.0.0.1:1"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == NO_BROKER
    assert capsys.readouterr().err.startswith("error: ")


def test_the_help_has_the_exit_codes(run) -> None:
    assert "3 broker not reachable" in " ".join(run("--help").stdout.split())
