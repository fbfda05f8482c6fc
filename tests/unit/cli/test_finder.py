from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.cli_harness import Cli, open_cli

if TYPE_CHECKING:
    from pathlib import Path

APP = "from eventmq import EventMQ\n"
ERRORS = "from eventmq import EventMQ; from eventmq.errors import *\n"


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    return open_cli(tmp_path, monkeypatch)


def broker_of(cli: Cli, app: str) -> str:
    """Return the setting ``broker`` of the app that was found."""
    rows = cli.json("settings", "--json", "-A", app)
    return next(row["value"] for row in rows if row["name"] == "broker")


def app_at(port: int) -> str:
    return f'EventMQ("x", broker="tcp://127.0.0.1:{port}")\n'


def test_the_attribute_app_is_taken_where_none_is_named(cli: Cli) -> None:
    cli.write("find_app.py", f"{APP}other = {app_at(1)}app = {app_at(2)}")
    assert "tcp://127.0.0.1:2" == broker_of(cli, "find_app")


def test_the_only_app_is_taken_whatever_it_is_called(cli: Cli) -> None:
    cli.write("find_only.py", f"{APP}queue = same = {app_at(3)}")
    assert "tcp://127.0.0.1:3" == broker_of(cli, "find_only")


def test_an_attribute_named_app_that_is_something_else_does_no_harm(cli: Cli) -> None:
    cli.write("find_else.py", f"{APP}app = 1\nqueue = {app_at(4)}")
    assert "tcp://127.0.0.1:4" == broker_of(cli, "find_else")


def test_the_named_attribute_wins(cli: Cli) -> None:
    cli.write("find_named.py", f"{APP}app = {app_at(5)}class box:\n    mine = {app_at(6)}")
    assert "tcp://127.0.0.1:6" == broker_of(cli, "find_named:box.mine")


def test_a_module_in_a_package_is_found(cli: Cli) -> None:
    (cli.folder / "find_pkg").mkdir()
    cli.write("find_pkg/__init__.py", "")
    cli.write("find_pkg/core.py", f"{APP}app = {app_at(7)}")
    assert "tcp://127.0.0.1:7" == broker_of(cli, "find_pkg.core")


@pytest.mark.parametrize(
    ("source", "option", "message"),
    [
        ("", "nowhere", "there is no module 'nowhere'"),
        ("", "bad_ap", "did you mean 'bad_app'?"),
        ("", "bad_app.py", "name a module, not a file: bad_app"),
        ("", "bad_app:", "write -A module or -A module:attribute"),
        ("", ":app", "write -A module or -A module:attribute"),
        ("", "bad_app", "has no app; it needs a line such as app = EventMQ('bad_app')"),
        ("", "bad_app.inner", "there is no module 'bad_app.inner'"),
        (f"a = {app_at(1)}b = {app_at(2)}", "bad_app", "several apps: a, b; name one, as in -A"),
        (f"shop = {app_at(1)}", "bad_app:shp", "has no 'shp'; did you mean 'shop'?"),
        (f"shop = {app_at(1)}n = 1", "bad_app:n", "bad_app:n is not an app, but of type int"),
        ("1 / 0", "bad_app", "ZeroDivisionError: division by zero (bad_app.py, line 2)"),
        ("raise SystemExit(3)", "bad_app", "cannot be imported: SystemExit: 3"),
        ("import no_such_thing", "bad_app", "ModuleNotFoundError: No module named 'no_such_thing'"),
        ('raise NotAllowed("no")', "bad_app", "NotAllowed: no (bad_app.py, line 2)"),
        ("app = EventMQ(brker=1)", "bad_app", "error: -A bad_app: unknown setting 'brker' from"),
        ("app = EventMQ(brker=1)", "bad_app", "did you mean 'broker'? (bad_app.py, line 2)"),
        ('raise BrokerUnavailable("x")', "bad_app", "BrokerUnavailable: x (bad_app.py, line 2)"),
        ("def (", "bad_app", "cannot be imported: SyntaxError"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(cli: Cli, source, option, message) -> None:
    cli.write("bad_app.py", ERRORS + source)
    result = cli.run("queues", "-A", option)
    assert 2 == result.exit_code
    *traceback, last = result.stderr.splitlines()
    assert last.startswith("error: ")
    assert message in last
    assert bool(traceback) == ("cannot be imported" in last)
    assert "SettingsError" not in last


def test_a_wrong_settings_file_is_the_error_and_not_the_module(cli: Cli) -> None:
    cli.write("eventmq.toml", "brker = 1\n")
    cli.write("bad_file.py", f'{APP}app = EventMQ("x")')
    result = cli.run("queues", "-A", "bad_file")
    assert 2 == result.exit_code
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: -A bad_file: unknown setting 'brker' from ")
    assert line.endswith("(bad_file.py, line 2)")
    assert "eventmq.toml" in line


@pytest.mark.parametrize(
    ("options", "named"),
    [((), "error: the setting imports: there is no"), (("-I", "no_task"), "error: -I no_task: ")],
)
def test_a_module_is_named_by_what_names_it(cli: Cli, options, named) -> None:
    """The app names modules by ``imports``, the command line by ``-I``."""
    imports = "" if options else ", imports=['no_task']"
    cli.write("names_more.py", f"{APP}app = EventMQ('x'{imports})")
    result = cli.run("queues", "-A", "names_more", *options)
    assert 2 == result.exit_code
    assert result.stderr.splitlines()[-1].startswith(named)


def test_a_setting_that_the_app_refuses_is_the_apps_error(cli: Cli) -> None:
    cli.write("bad_set.py", f'{APP}app = EventMQ("x", brker="tcp://127.0.0.1:1")')
    result = cli.run("queues", "-A", "bad_set")
    assert 2 == result.exit_code
    assert "did you mean 'broker'?" in result.stderr.splitlines()[-1]


def test_the_traceback_of_a_module_is_shown_from_its_first_line(cli: Cli) -> None:
    """The frames of the program and of Python's import system do not help its user."""
    cli.write("bad_deep.py", "def inner():\n    1 / 0\n\ninner()\n")
    for options in (("queues", "-A", "bad_deep"), ("worker", "-A", "good_deep", "-I", "bad_deep")):
        cli.write("good_deep.py", f"{APP}app = {app_at(1)}")
        result = cli.run(*options)
        assert 2 == result.exit_code
        lines = result.stderr.splitlines()
        assert "Traceback (most recent call last):" == lines[0]
        assert "bad_deep.py" in lines[1]
        assert "in inner" in result.stderr
        assert "importlib" not in result.stderr
        assert "ZeroDivisionError: division by zero" in lines
        assert "(bad_deep.py, line 2)" in lines[-1]


def test_control_characters_of_a_traceback_do_not_reach_the_terminal(cli: Cli) -> None:
    cli.write("bad_escape.py", "raise ValueError('\\x1b[31m red \\x07')")
    stderr = cli.run("queues", "-A", "bad_escape").stderr
    assert "red" in stderr
    assert "\x1b" not in stderr
    assert "\x07" not in stderr


def test_the_error_of_an_app_that_is_used_at_its_import_tells_how_to_avoid_it(cli: Cli) -> None:
    cli.write("busy_app.py", f"{APP}app = {app_at(9)}app.plugins")
    code, message = cli.error("queues", "-A", "busy_app", "--broker", "tcp://127.0.0.1:9")
    assert 2 == code
    assert 'under if __name__ == "__main__":' in message


def test_a_module_of_i_that_cannot_be_imported_is_named(cli: Cli) -> None:
    cli.write("good_app.py", f"{APP}app = {app_at(1)}")
    code, message = cli.error("worker", "-A", "good_app", "-I", "nowhere")
    assert 2 == code
    assert "-I nowhere" in message


def test_a_worker_of_an_app_in_memory_says_what_would_be_right(cli: Cli) -> None:
    cli.write("memory_app.py", f'{APP}app = EventMQ("x", broker="memory://")')
    code, message = cli.error("worker", "-A", "memory_app")
    assert 2 == code
    assert "--broker tcp://" in message
