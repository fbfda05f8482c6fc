from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from click.shell_completion import ShellComplete

from eventmq.app import EventMQ
from eventmq.cli.command import FAILED
from eventmq.cli.program import program
from eventmq.errors import SettingsError
from tests.support.cli_harness import Cli, open_cli

if TYPE_CHECKING:
    from pathlib import Path

    from eventmq.settings import Settings

COMMANDS = [
    "demo", "broker", "worker", "beat", "dev", "gateway", "call", "ping", "status", "queues",
    "workers", "jobs", "job", "failed", "cancel", "purge", "pause", "resume", "drain", "clock",
    "schedules", "schedule", "unschedule", "fsck", "backup", "store", "publish", "subscribe",
    "keys", "plugins", "settings", "version",
]  # fmt: skip

HELLO = """
import click
from eventmq import hookimpl

@click.command()
def hello():
    click.echo("hello")

@hookimpl
def eventmq_add_commands(cli):
    cli.add_command(hello)
"""


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    return open_cli(tmp_path, monkeypatch)


def test_the_commands_are_those_of_the_interface() -> None:
    program.load()
    assert sorted(COMMANDS) == sorted(program.commands)


def test_a_command_is_loaded_by_itself() -> None:
    """Each with the module that has it, and no other's."""
    code = (
        "import click, sys; from eventmq.cli.program import program; "
        "context = click.Context(program); "
        "print([(name, program.get_command(context, name).name, sorted(program.commands)) "
        "for name in sys.argv[1:]], 'eventmq.cli.control' in sys.modules)"
    )
    run = [sys.executable, "-c", code, "version", "worker"]
    shown = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    about = ["plugins", "settings", "version"]
    expected = [("version", "version", about), ("worker", "worker", sorted([*about, "worker"]))]
    assert f"{expected} False" == shown.strip()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_and_its_exit_codes(cli: Cli, name: str) -> None:
    result = cli.run(name, "--help")
    assert 0 == result.exit_code
    assert "Exit codes: 0 done," in " ".join(result.stdout.split())


def test_without_a_command_it_shows_help_and_says_wrong_usage(cli: Cli) -> None:
    result = cli.run()
    assert 2 == result.exit_code
    assert "" == result.stdout
    assert "Usage: " in result.stderr


def test_an_unknown_command_names_the_nearest(cli: Cli) -> None:
    code, message = cli.error("wrker")
    assert 2 == code
    assert "did you mean 'worker'?" in message


def test_an_unknown_option_is_wrong_usage_in_one_sentence(cli: Cli) -> None:
    code, message = cli.error("queues", "--jsn")
    assert 2 == code
    assert "--jsn" in message
    assert "queues --help" in message


def test_a_wrong_setting_in_a_file_is_wrong_usage_and_names_the_nearest(cli: Cli) -> None:
    cli.write("eventmq.toml", 'brokr = "tcp://127.0.0.1:1"\n')
    code, message = cli.error("settings")
    assert 2 == code
    assert "eventmq.toml" in message
    assert "did you mean 'broker'?" in message


def test_a_variable_with_an_old_name_is_wrong_usage_and_names_the_new_one(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENTMQ_GRACE", "3")
    code, message = cli.error("settings")
    assert 2 == code
    assert "'grace' from EVENTMQ_GRACE" in message
    assert "set EVENTMQ_SHUTDOWN_GRACE instead" in message


def test_options_of_a_worker_set_its_settings_whatever_these_are_called(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Settings] = []

    def make_worker(app: EventMQ, **_: object) -> None:
        made.append(app.settings)
        raise SettingsError("seen")

    monkeypatch.setattr(EventMQ, "make_worker", make_worker)
    cli.write("shop.py", "from eventmq import EventMQ\napp = EventMQ()\n")
    options = ["--grace", "7", "--cancel-grace", "3", "--max-abandoned", "9", "-Q", "mail:4"]
    assert cli.run("worker", "-A", "shop", *options).stderr.endswith("error: seen\n")
    (settings,) = made
    command_line = [
        settings.shutdown_grace, settings.cancel_grace, settings.max_abandoned_threads,
        settings.queues,
    ]  # fmt: skip
    assert [7.0, 3.0, 9, ((4, "mail"),)] == command_line


@pytest.mark.parametrize(
    ("options", "queues"),
    [
        (["-Q", "a", "-Q", "b"], ((10, "a"), (10, "b"))),
        (["-Q", "a:3,b", "--queues", "c:1"], ((3, "a"), (10, "b"), (1, "c"))),
        ([], ((7, "of-the-settings"),)),
    ],
    ids=str,
)
def test_all_queues_of_the_command_line_count(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, options: list[str], queues: object
) -> None:
    made: list[Settings] = []

    def make_worker(app: EventMQ, **_: object) -> None:
        made.append(app.settings)
        raise SettingsError("seen")

    monkeypatch.setattr(EventMQ, "make_worker", make_worker)
    cli.write("shop.py", "from eventmq import EventMQ\napp = EventMQ()\n")
    cli.write("eventmq.toml", 'queues = "of-the-settings:7"\n')
    assert cli.run("worker", "-A", "shop", *options).stderr.endswith("error: seen\n")
    assert [queues] == [settings.queues for settings in made]


@pytest.mark.parametrize("queues", ["", "mail,"])
def test_a_queue_without_a_name_is_wrong_usage(cli: Cli, queues: str) -> None:
    code, message = cli.error("worker", "-A", "shop", "-Q", queues)
    assert 2 == code
    assert "a queue has no name; write NAME:WEIGHT" in message


@pytest.mark.parametrize("command", ["worker", "dev"])
@pytest.mark.parametrize(
    ("queues", "right"), [("mail=3", "mail:3"), ("a,mail=3", "mail:3"), ("mail=", "mail:10")]
)
def test_a_weight_after_an_equals_sign_is_wrong_usage(
    cli: Cli, command: str, queues: str, right: str
) -> None:
    code, message = cli.error(command, "-A", "shop", "-Q", queues)
    assert 2 == code
    assert f"is not NAME:WEIGHT; write {right}" in message


def test_a_concurrency_in_words_is_wrong_usage(cli: Cli) -> None:
    code, message = cli.error("worker", "-A", "shop", "-c", "four")
    assert 2 == code
    assert "'four' is neither a whole number from 1 nor two such as 2-8" in message


def test_the_version_is_an_option_too(cli: Cli) -> None:
    assert cli.run("version").stdout == cli.run("--version").stdout


@pytest.mark.parametrize("arguments", [["version"], ["settings", "--json"], ["--help"], ["wrker"]])
def test_a_misspelt_variable_is_warned_of_once_whatever_the_command(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setenv("EVENTMQ_BROKRE", "tcp://127.0.0.1:1")
    monkeypatch.setenv("EVENTMQ_DASHBOARD_COLOUR", "red")
    result = cli.run(*arguments)
    lines = [line for line in result.stderr.splitlines() if "EVENTMQ_" in line]
    words = "environment variable EVENTMQ_BROKRE is unknown; did you mean EVENTMQ_BROKER?"
    assert [f"warning: {words}"] == lines


# Plugins


def test_without_memory_a_command_ends_with_a_sentence(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No traceback of where it happened to be: that says nothing of the cause."""

    def hog(_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(program.commands["version"], "invoke", hog)
    done = cli.run("version")
    assert (done.exit_code, done.stdout) == (FAILED, "")
    assert done.stderr.startswith("error: out of memory, so this process has ended")


def test_a_plugin_adds_a_command(cli: Cli) -> None:
    cli.write("greeter.py", HELLO)
    assert "hello\n" == cli.run("-p", "greeter", "hello").stdout
    assert "hello" in cli.run("-p", "greeter", "--help").stdout


def test_what_a_plugin_added_is_gone_in_the_next_call(cli: Cli) -> None:
    cli.write("greeter2.py", HELLO)
    cli.run("-p", "greeter2", "hello")
    assert 2 == cli.run("hello").exit_code


def test_a_plugin_cannot_take_the_name_of_a_command(cli: Cli) -> None:
    cli.write("taker.py", HELLO.replace("def hello", "def broker").replace("(hello)", "(broker)"))
    code, message = cli.error("-p", "taker", "nothing")
    assert 1 == code
    assert "'broker'" in message
    assert "leave out -p taker, or take it out of the setting load_plugins" in message


def test_a_broken_plugin_is_named_with_its_off_switch(cli: Cli) -> None:
    cli.write("broken.py", "import no_such_library\n")
    code, message = cli.error("-p", "broken", "plugins")
    assert 1 == code
    assert "no_such_library" in message
    assert "leave out -p broken, or take it out of the setting load_plugins" in message


def test_a_broken_hook_is_named_with_its_off_switch(cli: Cli) -> None:
    cli.write("crash.py", HELLO.replace("cli.add_command(hello)", "1 / 0"))
    code, message = cli.error("-p", "crash", "hello")
    assert 1 == code
    assert "ZeroDivisionError" in message
    assert "leave out -p crash, or take it out of the setting load_plugins" in message


def test_a_broken_plugin_does_not_keep_the_help_from_people(cli: Cli) -> None:
    cli.write("broken2.py", "1 / 0\n")
    result = cli.run("-p", "broken2", "--help")
    assert 0 == result.exit_code
    assert "Inspect:" in result.stdout
    assert "leave out -p broken2, or take it out of the setting load_plugins" in result.stderr


def test_a_plugin_that_exits_when_imported_does_not_end_the_help(cli: Cli) -> None:
    cli.write("quitter.py", "import sys\nsys.exit('no licence')\n")
    result = cli.run("-p", "quitter", "--help")
    assert 0 == result.exit_code
    assert "Inspect:" in result.stdout
    assert "'quitter'" in result.stderr
    assert "SystemExit: no licence" in result.stderr


def test_a_plugin_is_left_out_with_no(cli: Cli) -> None:
    names = [row["name"] for row in cli.json("-p", "no:serializers.dill", "plugins", "--json")]
    assert "serializers.msgpack" in names
    assert "serializers.dill" not in names


def test_the_switches_add_to_what_the_files_say(cli: Cli) -> None:
    cli.write(
        "eventmq.toml", 'disabled_plugins = ["serializers.json"]\naccept_content = ["msgpack"]\n'
    )
    names = [row["name"] for row in cli.json("-p", "no:serializers.dill", "plugins", "--json")]
    assert ["serializers.msgpack"] == [name for name in names if name.startswith("serializers")]


def test_a_shell_completes_the_commands_of_a_group_that_lists_without_one() -> None:
    completion = ShellComplete(program, {}, "eventmq", "_EVENTMQ_COMPLETE")
    completions = [item.value for item in completion.get_completions(["failed"], "")]
    assert ["drop", "list", "retry", "show"] == sorted(completions)
