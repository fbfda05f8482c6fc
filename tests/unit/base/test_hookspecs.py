"""Hooks: each is documented, each is on the page, each has a test of its own here."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from pathlib import Path

import pytest

from eventmq import hookspecs
from eventmq.errors import PluginError
from eventmq.hookspecs import hookimpl
from eventmq.interfaces import CommandOption, TaskRole
from eventmq.registry.manager import PluginManager
from eventmq.registry.names import GATEWAY, KINDS, WORKER_POOL
from eventmq.settings import load_settings
from eventmq.task import TaskOptions

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "plugin-kit.rst"
HOOKS = {name: spec for name, spec in vars(hookspecs).items() if name.startswith("eventmq_")}
EVERY = pytest.mark.parametrize("name", HOOKS)


def doc(name):
    return inspect.getdoc(HOOKS[name])


def example(name):
    """Return the function of the example in a hook's docstring."""
    block = doc(name).partition("Example::\n\n")[2].partition("\n\n")[0]
    (function,) = ast.parse(textwrap.dedent(block)).body
    return function


# Documented


@EVERY
def test_a_hook_is_one_sentence_first(name):
    assert re.fullmatch(r"[A-Z][^.]*\.", doc(name).splitlines()[0])


@EVERY
def test_a_hook_says_when_and_on_which_thread(name):
    """Either its docstring says so, or the rule at the top of the module applies."""
    text = doc(name)
    assert "thread" in text
    assert re.search(r"Chosen by|Chosen, in order, by|Called|name is the content type", text)


@EVERY
def test_a_hook_documents_exactly_its_parameters_and_its_return(name):
    signature = inspect.signature(HOOKS[name])
    args_section = re.search(r"Args:\n((?:    .*\n)+)", doc(name) + "\n")
    documented = re.findall(r"^    (\w+):", args_section[1], re.MULTILINE) if args_section else []
    assert documented == list(signature.parameters)
    assert ("Returns:" in doc(name)) == (signature.return_annotation != "None")


@EVERY
def test_a_hook_has_an_example_of_its_signature(name):
    function = example(name)
    assert [function.name, *(arg.arg for arg in function.args.args)] == [
        name,
        *inspect.signature(HOOKS[name]).parameters,
    ]
    assert [ast.unparse(mark) for mark in function.decorator_list] == ["hookimpl"]


@EVERY
def test_a_hook_says_since_when_it_is_there(name):
    assert re.search(r"\.\. versionadded:: \d+\.\d+$", doc(name))


def test_the_page_has_every_hook_with_its_exact_signature():
    """Each is taken from the code, in the code's order; none that is gone is left."""
    text = PAGE.read_text(encoding="utf-8")
    begin, end = text.index("\nHooks\n---"), text.index("\nFactories and options\n---")
    lines = text[begin:end].splitlines()
    documented = [line.partition(":: ")[2] for line in lines if line.startswith(".. autofunction")]
    assert documented == list(HOOKS)
    assert ".. currentmodule:: eventmq.hookspecs" in lines


def test_the_module_has_markers_and_specs_only():
    defined = {
        name
        for name, value in vars(hookspecs).items()
        if inspect.isfunction(value) and value.__module__ == hookspecs.__name__
    }
    assert defined == set(HOOKS)
    assert all(hasattr(spec, "eventmq_spec") for spec in HOOKS.values())


def test_every_hook_has_a_test():
    for name in HOOKS:
        assert any(test.startswith(f"test_{name}") for test in globals()), name


# Tested, each by the example of its documentation in spirit


def manage(hook, function):
    """Return a manager with one plugin that implements one hook."""
    plugin = type("Probe", (), {hook: staticmethod(hookimpl(function))})()
    manager = PluginManager(load_settings({}, directory="/", environ={}), app=lambda: "app")
    manager.load([plugin], entry_points=[])
    return manager


class Probe:
    """Has every attribute that a contract may ask for."""

    def __init__(self, context):
        self.made_as = context.name

    def __getattr__(self, name):
        return None


def provides(hook):
    """Return the name of what a registration hook returns makes by its name."""
    kind = next(kind for kind in KINDS if kind.hook == hook)
    return manage(hook, lambda: {"probe": Probe}).make(kind, "probe").made_as


def test_eventmq_serializers_provides_by_name():
    assert provides("eventmq_serializers") == "probe"


def test_eventmq_routing_strategies_provides_by_name():
    assert provides("eventmq_routing_strategies") == "probe"


def test_eventmq_queue_orders_provides_by_name():
    assert provides("eventmq_queue_orders") == "probe"


def test_eventmq_retry_policies_provides_by_name():
    assert provides("eventmq_retry_policies") == "probe"


def test_eventmq_triggers_provides_by_name():
    assert provides("eventmq_triggers") == "probe"


def test_eventmq_schedule_stores_provides_by_name():
    assert provides("eventmq_schedule_stores") == "probe"


def test_eventmq_result_backends_provides_by_name():
    assert provides("eventmq_result_backends") == "probe"


def test_eventmq_queue_stores_provides_by_name():
    assert provides("eventmq_queue_stores") == "probe"


def test_eventmq_worker_pools_provides_by_name():
    assert provides("eventmq_worker_pools") == "probe"


def test_eventmq_gateways_provides_by_name():
    assert provides("eventmq_gateways") == "probe"


def test_eventmq_middleware_provides_by_name():
    assert provides("eventmq_middleware") == "probe"


def test_eventmq_command_options_are_those_of_what_the_plugin_provides():
    option = CommandOption(name="vhost", metavar="NAME", help="Virtual host.")
    plugin = type("Probe", (), {
        "eventmq_gateways": staticmethod(hookimpl(lambda: {"stomp": Probe})),
        "eventmq_command_options": staticmethod(hookimpl(lambda: {"stomp": [option]})),
    })()  # fmt: skip
    manager = PluginManager(load_settings({}, directory="/", environ={}))
    manager.load([plugin], entry_points=[])
    assert manager.command_options(GATEWAY) == {"vhost": (option, ["stomp"])}
    assert "vhost" not in manager.command_options(WORKER_POOL)


def test_eventmq_task_options_are_read_by_the_plugin():
    def role(queue):
        return TaskRole(what=f"the STOMP queue {queue}", queue=queue)

    readers = manage("eventmq_task_options", lambda: {"stomp": role}).task_options()
    assert TaskOptions.read({"stomp": "q"}, lambda: readers).queue == "q"


def test_eventmq_configure_gets_the_app():
    seen = []
    manage("eventmq_configure", lambda app: seen.append(app + "!")).configure()
    assert seen == ["app!"]


def test_eventmq_serve_metrics_gets_the_figures_and_the_address():
    """Of several plugins each serves, and each is ended."""
    ended = []

    def serve(address, read):
        return lambda: ended.append((address, read()["peers"]))

    end = manage("eventmq_serve_metrics", serve).serve_metrics(lambda: {"peers": 2}, "here:1")
    assert ended == []
    end()
    end()
    assert ended == [("here:1", 2)]


def test_eventmq_serve_metrics_is_needed_where_an_address_is_set():
    manager = manage("eventmq_serializers", lambda: {"probe": Probe})
    with pytest.raises(PluginError, match="no plugin serves metrics"):
        manager.serve_metrics(dict, "here:1")


def test_eventmq_add_commands_gets_the_group_of_commands():
    import click

    cli = click.Group()
    manage("eventmq_add_commands", lambda cli: cli.command("hi")(print)).add_commands(cli)
    assert list(cli.commands) == ["hi"]


def test_eventmq_job_event_gets_each_event():
    seen = []
    tell = manage("eventmq_job_event", lambda event: seen.append(event["kind"])).observer()
    tell({"kind": "enqueued"})
    tell({"kind": "succeeded"})
    assert seen == ["enqueued", "succeeded"]
