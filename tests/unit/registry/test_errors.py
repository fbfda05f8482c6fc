"""The plugin manager: every way in which a plugin can be wrong, and its error message."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace

import click
import pytest

from eventmq.errors import HookError, PluginCollision, PluginError
from eventmq.registry.manager import PluginManager
from eventmq.registry.names import (
    QUEUE_STORE,
    RESULT_BACKEND,
    RETRY_POLICY,
    ROUTING_STRATEGY,
    WORKER_POOL,
)
from eventmq.sdk import factory
from eventmq.settings import load_settings
from tests.support.plugin_harness import (
    SHOUT,
    Shout,
    Shouting,
    entry_points,  # noqa: F401 - the fixture `point`
    implementing,
    managing,  # noqa: F401 - the fixture `manage`
    providing,
    writing_modules,  # noqa: F401 - the fixture `module`
)

#: A plugin whose object is put there by the test.
WANTING = """
from eventmq.hookspecs import hookimpl
MADE = {{}}

@hookimpl
def {hook}():
    return {{"x": lambda context: MADE["x"]}}
"""

STORE = ("open", "submit", "finished", "verify", "fileno", "close")

POOL = (
    "slots", "interrupts", "abandoned", "start", "filenos", "assign", "take_back", "running",
    "interrupt", "credit", "scale", "kill", "poll", "stop",
)  # fmt: skip


def test_an_import_error_names_plugin_distribution_and_off_switch(manage, point):
    with pytest.raises(PluginError) as caught:
        manage(entry_points=[point("broken", "no_such_module")])
    assert str(caught.value) == (
        "plugin 'broken' of the distribution 'shouting' cannot be imported: "
        "ModuleNotFoundError: No module named 'no_such_module'; "
        "switch it off with -p no:broken or EVENTMQ_DISABLED_PLUGINS=broken"
    )


@pytest.mark.parametrize(
    ("hook", "ask"),
    [
        ("eventmq_command_options", lambda manager: manager.command_options(WORKER_POOL)),
        ("eventmq_task_options", lambda manager: manager.task_options()),
    ],
    ids=["command", "task"],
)
def test_a_hook_for_options_that_raises_names_its_plugin(manage, hook, ask):
    manager = manage(implementing(**{hook: lambda: 1 / 0}))
    with pytest.raises(PluginError) as caught:
        ask(manager)
    assert str(caught.value) == (
        f"plugin 'Made': {hook} failed: ZeroDivisionError: division by zero; "
        "switch it off with -p no:Made or EVENTMQ_DISABLED_PLUGINS=Made"
    )


def test_a_plugin_that_exits_when_imported_is_an_error_as_any_other(manage, module, point):
    name = module("quitting_module", "import sys; sys.exit('no licence')")
    with pytest.raises(PluginError, match=r"quitting.*SystemExit: no licence; switch it off"):
        manage(entry_points=[point("quitting", name)])
    with pytest.raises(PluginError) as caught:
        manage(load_plugins=[name])
    assert str(caught.value) == (
        "plugin 'quitting_module', named by the setting load_plugins, cannot be imported: "
        "SystemExit: no licence; "
        "leave out -p quitting_module, or take it out of the setting load_plugins"
    )


def test_a_plugin_that_raises_when_imported_is_fatal(manage, module):
    name = module("broken_module", "1 / 0")
    with pytest.raises(PluginError, match=r"setting load_plugins, cannot be.*ZeroDivisionError"):
        manage(load_plugins=[name])


def test_a_library_that_a_factory_misses_is_told_only_on_use(manage, module, point):
    module("shouting_module", SHOUT)
    wants = "No_Such.Library>=1; extra == 'loud'"
    manager = manage(entry_points=[point("shouting", "shouting_module", "click", wants)])
    with pytest.raises(PluginError) as caught:
        manager.serializer("shout")
    assert str(caught.value).startswith(
        "serializer 'shout' of plugin 'shouting' of the distribution 'shouting' needs the library "
        "'no_such_library': pip install 'shouting[loud]'"
    )


def test_a_library_of_no_extra_is_named_itself(manage, module):
    manager = manage(module("shouting_module", SHOUT))
    with pytest.raises(PluginError, match="pip install 'no_such_library'"):
        manager.serializer("shout")


@dataclass
class Files:
    """A result backend that is chosen by its name."""

    folder: Path
    sweep: int = 5
    inline = local = False
    put = get = close = len


def refusal(manager, text, options=None):
    with pytest.raises(PluginError) as caught:
        manager.make(RESULT_BACKEND, text, options=options)
    return str(caught.value).removeprefix("result backend 'files' of plugin 'Made': ")


def test_a_wrong_option_names_the_table_where_it_stands(manage, tmp_path):
    plugin = providing(eventmq_result_backends={"files": factory(Files)})
    table = "[eventmq.plugins.files]\n"
    (tmp_path / "eventmq.toml").write_text(f"{table}folder = 'a'\nsweep = 'b'\n", "utf-8")
    manager = PluginManager(load_settings({}, directory=tmp_path, environ={}))
    manager.load([plugin], entry_points=())
    where = "; see [eventmq.plugins.files] of eventmq.toml"
    wrong = "option 'sweep' of 'files' must be a whole number"
    assert refusal(manager, "files") == f"{wrong}, not text{where}"
    assert refusal(manager, "files", {"sweep": 1.5}) == f"{wrong}, not 1.5"
    needs = "'files' needs the option 'folder': a path"
    assert refusal(manage(plugin), "files") == needs + where
    (tmp_path / "eventmq.toml").unlink()
    (tmp_path / "pyproject.toml").write_text(f"[tool.{table[1:]}swep = 1\n", "utf-8")
    manager = PluginManager(load_settings({}, directory=tmp_path, environ={}))
    manager.load([plugin], entry_points=())
    unknown = "'files' has no option 'swep'; did you mean 'sweep'?"
    where = "; see [tool.eventmq.plugins.files] of pyproject.toml"
    assert refusal(manager, "files") == unknown + where
    manager = manage(plugin, plugin_options={"files": {"swep": 1}})
    assert refusal(manager, "files") == f"{unknown}; see plugin_options['files'] of the app"


def test_a_url_for_what_takes_none_is_told_so(manage):
    manager = manage(providing(eventmq_result_backends={"files": factory(Files)}))
    message = "'files' does not accept a URL: use its name alone"
    assert refusal(manager, "files:///tmp/x") == message


def test_a_misspelt_hook_is_an_error_with_the_nearest_name(manage):
    plugin = providing(eventmq_serialisers={})
    with pytest.raises(HookError) as caught:
        manage(plugin)
    assert str(caught.value) == (
        "plugin 'Made' implements 'eventmq_serialisers', which is not a hook; "
        "did you mean 'eventmq_serializers'?; "
        "switch it off with -p no:Made or EVENTMQ_DISABLED_PLUGINS=Made"
    )


def test_an_argument_that_the_hook_does_not_have_is_an_error(manage):
    with pytest.raises(HookError, match="application"):
        manage(implementing(eventmq_configure=lambda application: None))


def test_an_argument_with_a_default_is_an_error(manage):
    """Pluggy would never fill it."""
    with pytest.raises(HookError, match="has a default"):
        manage(implementing(eventmq_configure=lambda app=None: None))


def test_a_hook_without_the_marker_is_an_error(manage):
    plugin = SimpleNamespace(eventmq_serializers=dict, __name__="forgetful")
    with pytest.raises(HookError, match="'forgetful': eventmq_serializers is not marked"):
        manage(plugin)


def test_a_plugin_without_hooks_is_an_error(manage):
    with pytest.raises(HookError, match="'int': it implements no hook"):
        manage(7)


def test_the_same_object_twice_is_one_plugin(manage):
    plugin = Shouting()
    manager = manage(plugin, plugin)
    assert [row["name"] for row in manager.listing() if row["origin"] != "built in"] == ["Shouting"]


def test_a_module_whose_entry_point_is_installed_is_one_plugin(manage, module, point):
    """An author tests a plugin that is also installed."""
    name = module("shouting_module", SHOUT)
    points = [point("shouting", name)]
    imported = importlib.import_module(name)
    manager = manage(imported, imported, entry_points=points)
    assert [row["name"] for row in manager.listing() if row["origin"] != "built in"] == ["shouting"]


def test_another_module_of_a_name_is_refused_in_one_sentence(manage, module):
    name = module("shouting_module", SHOUT)
    with pytest.raises(PluginCollision) as caught:
        manage(ModuleType(name), load_plugins=[name])
    assert str(caught.value) == (
        "two plugins are called 'shouting_module': from setting load_plugins and argument plugins; "
        "switch it off with -p no:shouting_module or EVENTMQ_DISABLED_PLUGINS=shouting_module"
    )


def test_a_name_that_is_taken_names_both_plugins_with_their_distributions(manage, module, point):
    module("shouting_module", SHOUT)
    module("other_module", SHOUT)
    with pytest.raises(PluginCollision) as caught:
        manage(entry_points=[point("first", "other_module"), point("second", "shouting_module")])
    assert str(caught.value) == (
        "plugin 'second' of the distribution 'shouting': serializer 'shout' is provided by plugin "
        "'first' of the distribution 'shouting' too; "
        "switch it off with -p no:second or EVENTMQ_DISABLED_PLUGINS=second"
    )


def test_a_command_that_is_taken_names_both_plugins(manage):
    def add(cli):
        cli.add_command(click.Command("backlog"))

    first, second = (implementing(eventmq_add_commands=add) for _ in range(2))
    manager = manage(first, second)
    with pytest.raises(PluginCollision) as caught:
        manager.add_commands(click.Group())
    assert str(caught.value) == (
        "plugin 'Made#2' takes the name of the command 'backlog' of plugin 'Made'; "
        "switch it off with -p no:Made#2 or EVENTMQ_DISABLED_PLUGINS=Made#2"
    )
    with pytest.raises(PluginCollision, match=r"'Made' takes the name .* 'backlog' of EventMQ;"):
        manager.add_commands(click.Group(commands=[click.Command("backlog")]))


def test_two_distributions_with_one_plugin_name_collide(manage, module, point):
    module("shouting_module", SHOUT)
    module("other_module", SHOUT)
    points = [point("shouting", "shouting_module"), point("shouting", "other_module")]
    with pytest.raises(PluginCollision, match="two plugins are called 'shouting'"):
        manage(entry_points=points)


def test_a_registration_hook_must_return_a_mapping(manage):
    with pytest.raises(HookError, match="returned list"):
        manage(providing(eventmq_serializers=[]))
    with pytest.raises(HookError, match="name -> factory"):
        manage(providing(eventmq_serializers={7: Shout}))


def test_a_registration_hook_that_raises_is_named(manage):
    def broken():
        raise KeyError("x")

    with pytest.raises(PluginError, match="plugin 'Made': eventmq_serializers failed: KeyError"):
        manage(implementing(eventmq_serializers=broken))


@pytest.mark.parametrize(
    ("kind", "made", "lack"),
    [
        (RETRY_POLICY, {}, "no 'delay', which the contract RetryPolicy asks for"),
        (ROUTING_STRATEGY, {"choose": len}, "no 'by_key', which the contract RoutingStrategy"),
        (ROUTING_STRATEGY, {"choose": len, "by_key": True}, "no 'key', which the contract Keyed"),
        (RESULT_BACKEND, {"inline": True, "put": len, "get": len, "close": len}, "no 'local', "),
        (RESULT_BACKEND, {"inline": True, "local": True, "put": len, "get": len}, "no 'close', "),
        (QUEUE_STORE, dict.fromkeys(STORE, len), "no 'ownership', which the contract QueueStore"),
        (WORKER_POOL, {**dict.fromkeys(POOL, 1), "shared": True}, "no 'slot_of', which the con"),
    ],
)
def test_an_object_that_does_not_keep_its_contract_is_an_error_that_names_what_is_missing(
    manage, module, point, kind, made, lack
):
    module("wanting_module", WANTING.format(hook=kind.hook))
    manager = manage(entry_points=[point("wanting", "wanting_module")])
    importlib.import_module("wanting_module").MADE["x"] = SimpleNamespace(**made)
    with pytest.raises(PluginError) as caught:
        manager.make(kind, "x")
    text = str(caught.value)
    assert text.startswith(
        f"{kind.name} 'x' of plugin 'wanting' of the distribution 'shouting' has {lack}"
    )
    assert text.endswith("; switch it off with -p no:wanting or EVENTMQ_DISABLED_PLUGINS=wanting")


def test_a_computed_attribute_is_not_computed_to_see_that_it_is_there(manage):
    class Slow:
        by_key = False
        choose = len

        @property
        def prefer(self):
            raise AssertionError

    assert ROUTING_STRATEGY.lack(Slow()) == ""
    plugin = providing(eventmq_routing_strategies={"slow": lambda context: Slow()})
    assert isinstance(manage(plugin).make(ROUTING_STRATEGY, "slow"), Slow)


def test_a_factory_that_raises_is_named(manage):
    def broken(context):
        raise TypeError("bad option")

    manager = manage(providing(eventmq_serializers={"x": broken}))
    with pytest.raises(
        PluginError, match=r"serializer 'x' of plugin 'Made'.*TypeError: bad option"
    ):
        manager.serializer("x")
