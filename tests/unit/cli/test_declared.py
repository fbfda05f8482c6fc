"""Options that plugins declare for ``eventmq gateway`` and ``eventmq worker``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eventmq.errors import HookError, PluginCollision, PluginError
from eventmq.interfaces import CommandOption
from eventmq.registry.names import GATEWAY, WORKER_POOL
from tests.support.cli_harness import Cli, open_cli
from tests.support.plugin_harness import (
    implementing,
    managing,  # noqa: F401 - the fixture `manage`
    providing,
)

if TYPE_CHECKING:
    from pathlib import Path

STOMP = """
from eventmq import hookimpl
from eventmq.errors import PluginError
from eventmq.interfaces import CommandOption

def make(context):
    raise PluginError(f"options {sorted(context.options.items())}")

@hookimpl
def eventmq_gateways():
    return {"stomp": make}

@hookimpl
def eventmq_worker_pools():
    return {"farm": make}

@hookimpl
def eventmq_command_options():
    return {
        "stomp": [CommandOption(name="virtual_host", metavar="NAME", help="The virtual host.")],
        "farm": [CommandOption(name="fields", metavar="N", minimum=2, help="How many fields.")],
    }
"""

APP = "from eventmq import EventMQ\napp = EventMQ('shop', broker='tcp://127.0.0.1:1')\n"


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    cli = open_cli(tmp_path, monkeypatch)
    cli.write("stomp.py", STOMP)
    cli.write("shop.py", APP)
    return cli


def option(name: str, metavar: str = "X", minimum: int | None = None) -> CommandOption:
    return CommandOption(name=name, metavar=metavar, help="It is for a test.", minimum=minimum)


def test_a_declared_option_reaches_the_factory(cli: Cli) -> None:
    code, message = cli.error("-p", "stomp", "gateway", "stomp", "--virtual-host", "a")
    assert 1 == code
    assert "plugin 'stomp': options [('virtual_host', 'a')]" in message
    code, message = cli.error(
        "-p", "stomp", "gateway", "stomp", "--virtual-host=a", "--bind", "b", "--insecure"
    )
    assert "options [('bind', 'b'), ('insecure', 'true'), ('virtual_host', 'a')]" in message


def test_an_option_of_a_pool_is_one_of_the_worker(cli: Cli) -> None:
    arguments = ("-p", "stomp", "worker", "-A", "shop", "--pool", "farm", "--fields", "3")
    result = cli.run(*arguments)
    assert 1 == result.exit_code
    assert "('fields', 3)" in result.stderr


def test_a_number_below_its_minimum_is_wrong_usage(cli: Cli) -> None:
    code, message = cli.error("-p", "stomp", "worker", "-A", "shop", "--fields", "1")
    assert 2 == code
    assert "--fields" in message


def test_an_option_of_another_command_is_wrong_usage(cli: Cli) -> None:
    for arguments in (("worker", "-A", "shop", "--virtual-host", "a"), ("gateway", "x", "--fld")):
        code, message = cli.error("-p", "stomp", *arguments)
        assert 2 == code
        assert "no such option" in message.lower()


def test_the_help_lists_declared_options_with_their_owners_and_what_can_be_run(cli: Cli) -> None:
    gateway = " ".join(cli.run("-p", "stomp", "gateway", "--help").stdout.split())
    assert "--virtual-host NAME The virtual host (stomp)." in gateway
    assert "Folder of the CURVE keys of the gateway and its peers (majordomo, mc0)." in gateway
    assert "Gateways that can be chosen: emp, majordomo, mc0, stomp." in gateway
    worker = " ".join(cli.run("worker", "--help").stdout.split())
    assert "Replace a process after so many jobs (prefork)." in worker
    assert "Worker pools that can be chosen: asyncio, prefork, spark, threads." in worker


def test_a_broken_plugin_is_named_and_does_not_prevent_the_help(cli: Cli) -> None:
    cli.write("broken.py", "1 / 0")
    result = cli.run("-p", "broken", "worker", "--help")
    assert 0 == result.exit_code
    assert "plugin 'broken', named by the setting load_plugins, cannot be" in result.stderr
    assert "--concurrency" in result.stdout


def test_a_plugin_must_not_take_an_option_of_the_command(cli: Cli) -> None:
    cli.write("stomp.py", STOMP.replace("virtual_host", "bind"))
    result = cli.run("-p", "stomp", "gateway", "--help")
    assert (
        "error: plugin 'stomp' declares the option 'bind' for 'stomp', which is that of "
        "'program gateway'; leave out -p stomp, or take it out of the setting load_plugins\n"
    ) == result.stderr


def test_one_line_says_that_a_plugin_is_broken_whose_option_it_may_be(cli: Cli) -> None:
    cli.write("broken.py", "1 / 0")
    code, message = cli.error("-p", "broken", "worker", "-A", "shop", "--fields", "3")
    assert 1 == code
    assert "plugin 'broken', named by the setting load_plugins, cannot be" in message
    assert "no such option" not in message.lower()


@pytest.mark.parametrize("name", ["app", "app_name", "help", "import", "verbose"])
def test_a_plugin_must_not_take_an_option_by_its_spelling(cli: Cli, name: str) -> None:
    """``--app`` is the option ``app_name`` of the command, and ``--help`` is none of its own."""
    cli.write("stomp.py", STOMP.replace("virtual_host", name))
    result = cli.run("-p", "stomp", "gateway", "--help")
    assert f"declares the option {name!r} for 'stomp', which is that of" in result.stderr
    assert "stomp" not in result.stdout.partition("Gateways that can be chosen")[0]


def test_two_gateways_may_declare_the_same_option(manage) -> None:
    plugin = providing(
        eventmq_gateways={"a": list, "b": list},
        eventmq_command_options={"a": [option("keys")], "b": [option("keys"), option("own")]},
    )
    declared = manage(plugin).command_options(GATEWAY)
    assert {"keys": ["a", "b"], "own": ["b"]} == {n: owners for n, (_, owners) in declared.items()}


@pytest.mark.parametrize("other", [option("keys", "Y"), option("keys", minimum=1)], ids=str)
def test_two_different_options_of_one_name_are_an_error(manage, other: CommandOption) -> None:
    plugin = providing(
        eventmq_gateways={"a": list, "b": list},
        eventmq_command_options={"a": [option("keys")], "b": [other]},
    )
    with pytest.raises(PluginCollision, match=r"'keys' of 'a' and 'b' differ; switch it off"):
        manage(plugin).command_options(GATEWAY)


def test_options_for_what_the_plugin_does_not_provide_are_an_error(manage) -> None:
    plugin = providing(eventmq_command_options={"spark": [option("x")]})
    with pytest.raises(HookError, match="declares options for 'spark', and provides no gateway"):
        manage(plugin).command_options(WORKER_POOL)


def test_what_is_no_option_is_an_error(manage) -> None:
    for wrong in (["--keys"], option("keys"), None):
        plugin = providing(eventmq_gateways={"a": list}, eventmq_command_options={"a": wrong})
        with pytest.raises(
            HookError, match=r"for 'a' is not a list of CommandOption; switch it off"
        ):
            manage(plugin).command_options(GATEWAY)
    for name in ("--keys", "keys dir", "Keys", ""):
        with pytest.raises(ValueError, match="is not a name of an option such as virtual_host"):
            option(name)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": None}, "None is not a name of an option"),
        ({"help": None}, "help of the option 'keys' is None, and not text"),
        ({"metavar": 3}, "metavar of the option 'keys' is 3, and not text"),
        ({"minimum": "1"}, "minimum of the option 'keys' is '1', no whole number"),
    ],
    ids=str,
)
def test_a_malformed_option_is_an_error_that_names_its_plugin(manage, wrong, message) -> None:
    def declare() -> object:
        declaration = {"name": "keys", "metavar": "X", "help": "It is for a test.", **wrong}
        return {"a": [CommandOption(**declaration)]}

    plugin = implementing(eventmq_gateways=lambda: {"a": list}, eventmq_command_options=declare)
    with pytest.raises(PluginError) as caught:
        manage(plugin).command_options(GATEWAY)
    assert f"eventmq_command_options failed: ValueError: {message}" in str(caught.value)
    assert str(caught.value).startswith("plugin ")
    assert "switch it off with" in str(caught.value)


def test_what_is_no_mapping_is_an_error(manage) -> None:
    with pytest.raises(HookError, match="must be a mapping, name -> options"):
        manage(providing(eventmq_command_options=[])).command_options(GATEWAY)


def test_a_built_in_that_is_switched_off_declares_nothing(manage) -> None:
    assert "max_jobs_per_child" in manage().command_options(WORKER_POOL)
    assert {} == manage(disabled_plugins=["pools.prefork"]).command_options(WORKER_POOL)


def test_plugins_do_not_load_for_a_command_line_of_known_options(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finding them takes a part of the start of each worker."""
    loaded: list[str] = []
    monkeypatch.setattr("eventmq.cli.declared.loaded_plugins", lambda _: loaded.append("found"))
    code, message = cli.error("worker", "-c", "2", "--pool=threads", "-Q", "a:1")
    assert (2, True) == (code, "a worker needs an app" in message)
    assert [] == loaded
