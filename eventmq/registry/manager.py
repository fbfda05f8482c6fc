"""Plugin manager: makes, calls and lists the plugins of one app."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from eventmq.clock import SystemClock
from eventmq.errors import EventMQError, HookError, PluginCollision, PluginError
from eventmq.hookspecs import PROJECT
from eventmq.interfaces import CommandOption, PluginContext, TaskRole
from eventmq.registry.loader import Loader, off_switch, own_distribution, requirement
from eventmq.registry.names import (
    GATEWAY,
    MIDDLEWARE,
    QUEUE_ORDER,
    QUEUE_STORE,
    RESULT_BACKEND,
    RETRY_POLICY,
    ROUTING_STRATEGY,
    SCHEDULE_STORE,
    SERIALIZER,
    WORKER_POOL,
    scheme,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from importlib.metadata import EntryPoint

    import click
    import pluggy

    from eventmq.clock import Clock
    from eventmq.interfaces import (
        Middleware,
        ResultBackend,
        RetryPolicy,
        Serializer,
    )
    from eventmq.registry.loader import Plugin
    from eventmq.registry.names import PluginKind
    from eventmq.settings import Settings

__all__ = ["PluginManager", "split_switches"]

T = TypeVar("T")

log = logging.getLogger(__name__)

#: Source of options -> where they stand.
_TABLES = {
    "default": "[eventmq.plugins.{0}] of eventmq.toml",
    "pyproject.toml": "[tool.eventmq.plugins.{0}] of pyproject.toml",
    "argument": "plugin_options[{0!r}] of the app",
}

#: Hooks that are in use when implemented, whatever the settings choose.
_ALWAYS_IN_USE = frozenset({"eventmq_configure", "eventmq_add_commands", "eventmq_job_event"})


def split_switches(values: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the values of ``-p``: modules to load, and from ``no:NAME`` names to disable."""
    switches = list(values)
    load = tuple(value for value in switches if not value.startswith("no:"))
    return load, tuple(value.removeprefix("no:") for value in switches if value.startswith("no:"))


class PluginManager:
    """The plugins of one app. `load` once, in the thread that builds the app; the rest anywhere.

    Args:
        settings: Plugins to load, choices among them, and their options.
        clock: Handed to plugins.
        app: Returns the app, which is handed to plugins.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock | None = None,
        app: Callable[[], object] = lambda: None,
    ) -> None:
        self._settings = settings
        self._app = app
        self._clock = clock or SystemClock()
        self._loader = Loader(settings.disabled_plugins)
        self._objects: dict[tuple[str, str], object] = {}
        self._made: set[tuple[str, str]] = set()

    def load(
        self, plugins: Iterable[object] = (), *, entry_points: Iterable[EntryPoint] | None = None
    ) -> None:
        """Load everything that is not built in.

        Args:
            plugins: Modules, their dotted names, or objects, as given to the app.
            entry_points: Those of the group ``eventmq``; None takes what is installed.

        Raises:
            PluginError: A plugin cannot be imported, is wrong, or provides a name that is taken.
            SettingsError: The settings have options for a misspelt name.
        """
        if entry_points is None:
            from importlib.metadata import entry_points as installed

            entry_points = installed(group=PROJECT)
        for point in sorted(entry_points, key=lambda point: point.name):
            self._loader.load_entry_point(point)
        for name in self._settings.load_plugins:
            self._loader.load_module(name, "setting load_plugins")
        for plugin in plugins:
            if isinstance(plugin, str):
                self._loader.load_module(plugin, "argument plugins")
            else:
                self._loader.load_object(plugin)
        self._loader.finish(self._settings.plugin_options)

    # Objects

    def make(
        self,
        kind: PluginKind[T],
        text: str,
        *,
        options: Mapping[str, Any] | None = None,
    ) -> T:
        """Return a new object.

        Args:
            kind: For instance `eventmq.registry.names.SERIALIZER`.
            text: A name, or a URL whose scheme is one; the URL is then the option ``url``.
            options: Added to the options of the settings; these win.

        Raises:
            PluginNotFound: No plugin provides the name.
            PluginError: The plugin cannot make it; a missing library is named with its extra.
        """
        registration = self._loader.registries[kind.hook].find(text)
        given = {**(options or {}), **({"url": text} if "://" in text else {})}
        merged = {**self._settings.plugin_options.get(registration.name, {}), **given}
        plugin = self._loader.plugins[registration.plugin]
        what = f"{kind.name} {registration.name!r} of {plugin}"
        context = PluginContext(registration.name, merged, self._clock, self._app())
        try:
            made = registration.factory(context)
        except EventMQError as error:
            if type(error) is not PluginError:
                raise
            where = self._where(registration.name, given, str(error))
            raise PluginError(f"{what}: {error}{where}") from error
        except ModuleNotFoundError as error:
            raise PluginError(f"{what} {_missing(plugin, error)}{plugin.remedy}") from error
        except Exception as error:
            msg = f"{what} cannot be made: {type(error).__name__}: {error}{plugin.remedy}"
            raise PluginError(msg) from error
        if lack := kind.lack(made):
            raise PluginError(f"{what} {lack}{plugin.remedy}")
        self._made.add((kind.hook, registration.name))
        return cast("T", made)

    def _where(self, name: str, given: Mapping[str, Any], error: str) -> str:
        """Return where the options of an error are, for its end; "" where the caller gave them."""
        table = self._settings.plugin_options.get(name, {})
        wrong = [option for option in {**table, **given} if repr(option) in error]
        if given.keys() & wrong or "option" not in error:
            return ""
        of = {self._settings.source(f"plugins.{name}.{option}") for option in wrong or table}
        tables = [_TABLES.get(source, _TABLES["default"]) for source in sorted(of or {"default"})]
        return f"; see {' and '.join(tables).format(name)}"

    def foreign(self, kind: PluginKind[Any], text: str) -> str:
        """Return a name with its plugin, for the beginning of a message; "" if it is built in."""
        registration = self._loader.registries[kind.hook].find(text)
        plugin = self._loader.plugins[registration.plugin]
        built_in = plugin.origin == "built in"
        return "" if built_in else f"{kind.name} {registration.name!r} of {plugin}"

    def get(self, kind: PluginKind[T], text: str) -> T:
        """Return the app's one object of a name: `make`, once, with the settings' options."""
        key = (kind.hook, text)
        if key not in self._objects:
            self._objects.setdefault(key, self.make(kind, text))
        return cast("T", self._objects[key])

    def serializer(self, name: str) -> Serializer:
        """Return the serializer of a content type."""
        return self.get(SERIALIZER, name)

    def retry_policy(self, name: str, options: Mapping[str, Any] | None = None) -> RetryPolicy:
        """Return a retry policy with these options."""
        return self.make(RETRY_POLICY, name, options=options)

    def middleware(self) -> tuple[Middleware, ...]:
        """Return the middleware that the settings choose, outermost first."""
        return tuple(self.get(MIDDLEWARE, name) for name in self._settings.middleware)

    def names(self, kind: PluginKind[Any]) -> list[str]:
        """Return the names of a kind that can be chosen."""
        return [provided.name for provided in self._loader.registries[kind.hook]]

    def close(self) -> None:
        """Close the app's result backend, if it was made. Idempotent."""
        for (hook, _), made in self._objects.items():
            if hook == RESULT_BACKEND.hook:
                cast("ResultBackend", made).close()

    # Hooks

    def configure(self) -> None:
        """Call ``eventmq_configure``: once, in the order of loading."""
        for impl in self._loader.implementations("eventmq_configure"):
            _call("eventmq_configure", impl, self._app())

    def add_commands(self, cli: click.Group) -> None:
        """Call ``eventmq_add_commands``: once, at the start of the program.

        Raises:
            PluginCollision: A plugin took the name of a command that was there.
        """
        owners: dict[str, str] = {}
        for impl in self._loader.implementations("eventmq_add_commands"):
            plugin = self._loader.plugins[impl.plugin_name]
            before = dict(cli.commands)
            _call("eventmq_add_commands", impl, cli)
            replaced = [name for name in before if cli.commands.get(name) is not before[name]]
            if replaced:
                owner = owners.get(replaced[0], "EventMQ")
                msg = f"{plugin} takes the name of the command {replaced[0]!r} of {owner}"
                raise PluginCollision(f"{msg}{plugin.remedy}")
            owners |= dict.fromkeys(cli.commands.keys() - before.keys(), str(plugin))

    def observer(self) -> Callable[[Mapping[str, Any]], None] | None:
        """Return what to call with each event, or None where no plugin observes."""
        observers = self._loader.implementations("eventmq_job_event")
        return partial(_notify, observers) if observers else None

    # Options that plugins declare

    def command_options(self, kind: PluginKind[Any]) -> dict[str, tuple[CommandOption, list[str]]]:
        """Return name -> option and whose it is, of what plugins declare for a command.

        Args:
            kind: What the command runs: `GATEWAY` or `WORKER_POOL` of `eventmq.registry.names`.

        Raises:
            HookError: A plugin declares what is no option, or options for what it does not provide.
            PluginCollision: Two declare different options of one name.
        """
        found: dict[str, tuple[CommandOption, list[str]]] = {}
        for plugin, owner, options in self._loader.declared("eventmq_command_options"):
            kinds = [hook for hook, name in plugin.provides if name == owner]
            if not {GATEWAY.hook, WORKER_POOL.hook}.intersection(kinds):
                msg = f"{plugin} declares options for {owner!r}, and provides no gateway or worker "
                raise HookError(f"{msg}pool of that name{plugin.remedy}")
            listed = options if isinstance(options, (list, tuple)) else [options]
            if listed is not options or not all(isinstance(o, CommandOption) for o in listed):
                msg = f"what {plugin} declares for {owner!r} is no list of CommandOption"
                raise HookError(f"{msg}{plugin.remedy}")
            for option in options if kind.hook in kinds else ():
                same, owners = found.setdefault(option.name, (option, []))
                if (same.metavar, same.minimum) != (option.metavar, option.minimum):
                    msg = f"the options {option.name!r} of {owners[0]!r} and {owner!r} differ"
                    raise PluginCollision(f"{msg}{plugin.remedy}")
                owners.append(owner)
        return found

    def task_options(self) -> dict[str, Callable[[Any], TaskRole]]:
        """Return what plugins declare for ``@app.task``: name -> function that reads a value.

        Raises:
            HookError: A plugin declares what is no function; from such a function, that it returns
                what is no role.
            PluginCollision: Two declare one name.
        """
        found: dict[str, Callable[[Any], TaskRole]] = {}
        owners: dict[str, Plugin] = {}
        for plugin, name, read in self._loader.declared("eventmq_task_options"):
            if name in found:
                msg = f"the task option {name!r} of {plugin} is one of {owners[name]} too"
                raise PluginCollision(f"{msg}{plugin.remedy}")
            if not callable(read):
                msg = f"the task option {name!r} of {plugin} is no function"
                raise HookError(f"{msg}{plugin.remedy}")
            found[name], owners[name] = partial(_read_role, plugin, name, read), plugin
        return found

    # Listing

    def listing(self) -> list[dict[str, str]]:
        """Return one row per plugin: name, version, origin, hooks, provides, in_use."""
        own = own_distribution()
        version = own.version if own else ""
        chosen = self._chosen()
        return [_row(plugin, version, chosen) for plugin in self._loader.plugins.values()]

    def _chosen(self) -> set[tuple[str, str]]:
        """Return (hook, name) of what the settings choose or this process has made."""
        s = self._settings
        chosen: list[tuple[PluginKind[Any], str]] = [
            (SERIALIZER, name) for name in s.accept_content
        ]
        chosen += [(MIDDLEWARE, name) for name in s.middleware]
        chosen += [(SERIALIZER, s.serializer), (ROUTING_STRATEGY, s.routing_strategy)]
        chosen += [(ROUTING_STRATEGY, name) for _, name in s.queue_routing_strategies]
        chosen += [(QUEUE_ORDER, s.queue_order), (RESULT_BACKEND, s.result_backend)]
        chosen += [(QUEUE_STORE, s.store), (WORKER_POOL, s.pool)]
        chosen += [(SCHEDULE_STORE, s.schedule_store)]
        return self._made | {(kind.hook, scheme(text)) for kind, text in chosen}


def _missing(plugin: Plugin, error: ModuleNotFoundError) -> str:
    """Return which library a factory lacks and how to install it."""
    library = (error.name or str(error)).partition(".")[0]
    needed = requirement(plugin.distribution or own_distribution(), library)
    return f"needs the library {library!r}: pip install '{needed}' ({error})"


def _row(plugin: Plugin, own_version: str, chosen: set[tuple[str, str]]) -> dict[str, str]:
    used = [name for hook, name in plugin.provides if (hook, name) in chosen]
    used += [hook for hook in plugin.hooks if hook in _ALWAYS_IN_USE]
    return {
        "name": plugin.name,
        "version": own_version if plugin.origin == "built in" else plugin.version,
        "origin": plugin.origin,
        "hooks": ", ".join(plugin.hooks),
        "provides": ", ".join(name for _, name in plugin.provides),
        "in_use": ", ".join(used),
    }


def _read_role(
    plugin: Plugin, name: str, read: Callable[[Any], TaskRole], value: object
) -> TaskRole:
    role: object = read(value)
    if not isinstance(role, TaskRole):
        msg = f"the task option {name!r} of {plugin} gives {type(role).__name__}, no TaskRole"
        raise HookError(f"{msg}{plugin.remedy}")
    return role


def _call(hook: str, impl: pluggy.HookImpl, argument: object) -> None:
    """Call a hook of one argument; an implementation may leave it out."""
    try:
        impl.function(*(argument for _ in impl.argnames))
    except EventMQError:
        raise
    except Exception as error:
        what = f"plugin {impl.plugin_name!r} failed in {hook}"
        msg = f"{what}: {type(error).__name__}: {error}; {off_switch(impl.plugin_name)}"
        raise PluginError(msg) from error


def _notify(observers: list[pluggy.HookImpl], event: Mapping[str, Any]) -> None:
    """Call every observer with an event; one that fails does not stop the others."""
    for impl in observers:
        try:
            _call("eventmq_job_event", impl, event)
        except EventMQError:
            log.exception("an observer failed; the event goes on to the others")
