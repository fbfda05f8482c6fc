"""The plugin manager: every door, and what comes out."""

from __future__ import annotations

import importlib
import logging
import subprocess
import sys
from functools import partial
from pathlib import Path

import click
import pytest

from eventmq.errors import PluginCollision, PluginError, PluginNotFound, SettingsError
from eventmq.hookspecs import hookimpl
from eventmq.interfaces import Envelope
from eventmq.plugins.routing import RoundRobin
from eventmq.registry.manager import PluginManager, split_switches
from eventmq.registry.names import (
    BUILT_INS,
    KINDS,
    RESULT_BACKEND,
    ROUTING_STRATEGY,
    SERIALIZER,
    WITH_OPTIONS,
    module_of,
)
from eventmq.settings import load_settings
from eventmq.testing import FakeClock, RetryPolicySuite
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

ENVELOPE = Envelope("id", "x")


def row_of(manager, name):
    return next(row for row in manager.listing() if row["name"] == name)


# Built in


@pytest.mark.parametrize("name", BUILT_INS)
def test_the_table_of_built_ins_says_what_the_modules_provide(name):
    """One source of truth: the hooks of a module give the names that the table has for it."""
    of_module = [row for other, row in BUILT_INS.items() if module_of(other) == module_of(name)]
    plugin = importlib.import_module(module_of(name))
    marked = {n for n, value in vars(plugin).items() if hasattr(value, "eventmq_impl")}
    options = {"eventmq_command_options"} if name in WITH_OPTIONS else set()
    assert marked == {kind.hook for kind, _ in of_module} | options
    provided = {(hook, text) for hook in marked - options for text in getattr(plugin, hook)()}
    assert provided == {(kind.hook, text) for kind, text in of_module}


def test_every_module_with_a_hook_is_in_the_table():
    package = importlib.import_module("eventmq.plugins")
    root = Path(package.__path__[0])
    files = [path for path in root.rglob("*.py") if "\n@hookimpl\n" in path.read_text("utf-8")]
    names = {".".join(path.relative_to(root).with_suffix("").parts) for path in files}
    folders = {name.rpartition(".")[0] for name in names if name.endswith((".__init__", ".store"))}
    plain = {name for name in names if not name.endswith((".__init__", ".store"))}
    modules = {module_of(name).removeprefix("eventmq.plugins.") for name in BUILT_INS}
    assert plain | folders == modules


def test_loading_imports_only_what_is_used():
    """An app that uses msgpack has neither dill nor json's plugin in memory."""
    code = """
import sys
from eventmq.registry.manager import PluginManager
from eventmq.settings import load_settings
manager = PluginManager(load_settings({}))
manager.load()
manager.listing()
manager.serializer("msgpack")
plugins = {name for name in sys.modules if name.startswith("eventmq.plugins.")}
print(sorted(name for name in plugins if name.endswith("_")), "dill" in sys.modules)
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert shown.stdout == "['eventmq.plugins.serializers.msgpack_'] False\n"


def test_a_built_in_is_made_when_its_name_is_used(manage):
    manager = manage()
    data, _ = manager.serializer("json").encode([1], ENVELOPE)
    assert data == b"[1]"
    assert row_of(manager, "serializers.json")["in_use"] == "json"


def test_get_makes_an_object_once_and_make_each_time(manage):
    manager = manage()
    assert manager.serializer("json") is manager.serializer("json")
    assert manager.make(SERIALIZER, "json") is not manager.make(SERIALIZER, "json")


@pytest.mark.parametrize("name", ["serializers.dill", "eventmq.plugins.serializers.dill_"])
def test_a_built_in_can_be_switched_off(manage, name):
    manager = manage(disabled_plugins=[name])
    assert "dill" not in manager.names(SERIALIZER)
    with pytest.raises(PluginNotFound):
        manager.serializer("dill")


def test_a_name_of_a_built_in_is_taken_before_it_is_imported(manage):
    plugin = providing(eventmq_serializers={"json": lambda context: Shout()})
    with pytest.raises(PluginCollision, match=r"'Made'.*'serializers.json' too"):
        manage(plugin)
    manager = manage(plugin, disabled_plugins=["serializers.json"])
    assert isinstance(manager.serializer("json"), Shout)


# Doors


def test_an_object_given_to_the_app_is_a_plugin(manage):
    manager = manage(Shouting())
    assert manager.serializer("shout").encode("a", ENVELOPE) == (b"A", "")
    assert row_of(manager, "Shouting") == {
        "name": "Shouting",
        "version": "1.2",
        "origin": "argument",
        "hooks": "eventmq_serializers",
        "provides": "shout",
        "in_use": "shout",
    }


def test_two_objects_of_one_class_are_two_plugins(manage):
    seen = []

    class Observer:
        @hookimpl
        def eventmq_job_event(self, event):
            seen.append(event["kind"])

    manager = manage(Observer(), Observer())
    assert [row["name"] for row in manager.listing()][-2:] == ["Observer", "Observer#2"]
    manager.observer()({"kind": "enqueued"})
    assert seen == ["enqueued", "enqueued"]


def test_a_module_named_by_setting_or_argument_is_a_plugin(manage, module):
    name = module("shouting_module", SHOUT)
    assert "shout" in manage(load_plugins=[name]).names(SERIALIZER)
    assert "shout" in manage(name, load_plugins=[name]).names(SERIALIZER)
    assert "shout" not in manage(name, disabled_plugins=[name]).names(SERIALIZER)


def test_an_entry_point_is_a_plugin_with_its_distribution(manage, module, point):
    module("shouting_module", SHOUT)
    manager = manage(entry_points=[point("shouting", "shouting_module")])
    row = row_of(manager, "shouting")
    assert (row["origin"], row["version"], row["provides"]) == ("shouting", "3.4", "shout")
    assert row["in_use"] == ""


def test_an_entry_point_that_is_switched_off_is_not_imported(manage, point, caplog):
    manager = manage(entry_points=[point("x", "no_such_module")], disabled_plugins=["x"])
    assert "x" not in [row["name"] for row in manager.listing()]
    assert caplog.records == []


def test_without_entry_points_given_the_installed_ones_are_loaded():
    manager = PluginManager(load_settings({}, directory="/", environ={}))
    manager.load()
    assert len(manager.listing()) >= len(BUILT_INS)


def test_every_row_has_the_same_columns(manage):
    rows = manage(Shouting()).listing()
    columns = ["name", "version", "origin", "hooks", "provides", "in_use"]
    assert [list(row) for row in rows] == [columns] * len(rows)
    assert all(isinstance(value, str) for row in rows for value in row.values())


def test_switching_off_what_is_not_there_is_a_warning(manage, caplog):
    """A misspelt ``-p no:NAME`` would leave on what must be off."""
    with caplog.at_level(logging.WARNING, "eventmq"):
        manage(disabled_plugins=["serializers.dil"])
    assert "did you mean 'serializers.dill'?" in caplog.text


def test_switches_of_the_command_line_are_sorted():
    assert split_switches(["a", "no:b", "c.d"]) == (("a", "c.d"), ("b",))


# What a factory gets


class Probe:
    """Has every attribute that a contract may ask for, and the context of its factory."""

    def __init__(self, context):
        self.context = context

    def __getattr__(self, name):
        return None


class Proxy:
    """Has the attributes of another object, and none of its own."""

    def __init__(self, context):
        object.__setattr__(self, "made", RoundRobin())

    def __getattribute__(self, name):
        return getattr(object.__getattribute__(self, "made"), name)


class PartialProxy(Proxy):
    """Hides what a routing strategy needs."""

    def __getattribute__(self, name):
        if name == "by_key":
            raise AttributeError(name)
        return super().__getattribute__(name)


def test_an_object_may_delegate_each_attribute_to_another(manage):
    plugin = providing(eventmq_routing_strategies={"proxy": Proxy, "partial": PartialProxy})
    manager = manage(plugin)
    assert manager.make(ROUTING_STRATEGY, "proxy").by_key is False
    with pytest.raises(PluginError, match="has no 'by_key', which the contract RoutingStrategy"):
        manager.make(ROUTING_STRATEGY, "partial")


def contexts(manage, **arguments):
    """Return a manager whose routing strategy ``probe`` has the context that its factory got."""
    plugin = providing(eventmq_routing_strategies={"probe": Probe})
    return manage(plugin, **arguments)


def test_a_factory_gets_name_options_clock_and_app(manage):
    clock, app = FakeClock(), object()
    options = {"probe": {"a": 1, "b": 1}}
    manager = contexts(manage, clock=clock, app=app, plugin_options=options)
    context = manager.make(ROUTING_STRATEGY, "probe", options={"b": 2}).context
    assert context.name == "probe"
    assert context.options == {"a": 1, "b": 2}
    assert context.clock is clock
    assert context.app is app


def test_a_url_reaches_the_factory_as_an_option(manage):
    plugin = providing(eventmq_result_backends={"probe": Probe})
    context = manage(plugin).get(RESULT_BACKEND, "probe://host/1").context
    assert (context.name, context.options) == ("probe", {"url": "probe://host/1"})


def test_retry_policies_get_the_options_of_the_task(manage):
    first = RetryPolicySuite().failure()
    assert manage().retry_policy("fixed", {"delay": 7}).delay(first) == 7.0
    assert manage().retry_policy("none").delay(first) is None


def test_middleware_comes_in_the_order_of_the_setting(manage):
    plugin = providing(eventmq_middleware={"a": lambda c: "A", "b": lambda c: "B"})
    assert manage(plugin, middleware=["b", "a"]).middleware() == ("B", "A")


# Hooks that act


def test_configure_is_called_with_the_app_in_the_order_of_loading(manage):
    seen = []
    first = implementing(eventmq_configure=lambda app: seen.append(("first", app)))
    second = implementing(eventmq_configure=lambda: seen.append("second"))
    manage(first, second, app="app").configure()
    assert seen == [("first", "app"), "second"]


def test_configure_that_raises_is_named(manage):
    with pytest.raises(PluginError, match=r"'Made' failed in.*ZeroDivisionError"):
        manage(implementing(eventmq_configure=lambda app: 1 / 0)).configure()


@pytest.mark.parametrize("hook", ["eventmq_configure", "eventmq_add_commands"])
def test_a_hook_that_exits_is_an_error_as_any_other(manage, hook):
    def leave():
        raise SystemExit("no licence")

    manager = manage(implementing(**{hook: leave}))
    add = partial(manager.add_commands, click.Group())
    call = {"eventmq_configure": manager.configure, "eventmq_add_commands": add}[hook]
    with pytest.raises(PluginError) as caught:
        call()
    assert str(caught.value) == (
        f"plugin 'Made' failed in {hook}: SystemExit: no licence; "
        "switch it off with -p no:Made or EVENTMQ_DISABLED_PLUGINS=Made"
    )


def test_add_commands_adds_and_cannot_replace(manage):
    cli = click.Group(commands={"broker": click.Command("broker")})

    def add(cli):
        cli.add_command(click.Command("hello"))

    def replace(cli):
        cli.add_command(click.Command("broker"))

    manage(implementing(eventmq_add_commands=add)).add_commands(cli)
    assert sorted(cli.commands) == ["broker", "hello"]
    with pytest.raises(PluginCollision, match="'Made' takes the name of the command 'broker'"):
        manage(implementing(eventmq_add_commands=replace)).add_commands(cli)


def test_without_observers_there_is_nothing_to_call(manage):
    assert manage(Shouting()).observer() is None


def test_an_observer_that_raises_stops_no_other(manage, caplog):
    seen = []

    def see(event):
        seen.append(event)

    broken = implementing(eventmq_job_event=lambda event: 1 / 0)
    manager = manage(broken, implementing(eventmq_job_event=see))
    manager.observer()({"kind": "failed"})
    assert seen == [{"kind": "failed"}]
    assert "ZeroDivisionError" in caplog.text
    assert row_of(manager, "Made")["in_use"] == "eventmq_job_event"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.hook)
def test_every_registration_hook_provides_by_name(manage, kind):
    plugin = providing(**{kind.hook: {"probe": Probe}})
    assert manage(plugin).make(kind, "probe").context.name == "probe"


def test_options_under_a_misspelt_name_are_refused_with_the_nearest() -> None:
    """Options that are never read would be ignored silently."""
    with pytest.raises(SettingsError, match=r"plugins\.sqlit .* did you mean 'sqlite'\?"):
        PluginManager(load_settings({"plugin_options": {"sqlit": {"a": 1}}})).load()


def test_options_of_an_unknown_plugin_are_warned_of(caplog) -> None:
    """It may be given to an app that this process does not load, so it is no error."""
    PluginManager(load_settings({"plugin_options": {"zzzz": {}, "msgpack": {}}})).load()
    assert [r.getMessage()[:36] for r in caplog.records] == ["the table plugins.zzzz of the settin"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [("serializers.msgpck", "did you mean 'serializers.msgpack'?"), ("nope", "eventmq plugins")],
)
def test_a_plugin_that_there_is_not_is_not_advised_to_be_switched_off(name, hint) -> None:
    with pytest.raises(PluginNotFound) as caught:
        PluginManager(load_settings({"load_plugins": [name]})).load()
    message = f"there is no plugin {name!r}, named by -p or the setting load_plugins; "
    assert str(caught.value).startswith(message)
    assert hint in str(caught.value)
    assert "no:" not in str(caught.value)
