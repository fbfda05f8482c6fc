"""Plugin manager: loads the plugins of one app, and makes, calls and lists their objects."""

from __future__ import annotations

import contextlib
import importlib
import logging
import re
from collections.abc import Mapping
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import pluggy

from eventmq import hookspecs
from eventmq.clock import SystemClock
from eventmq.errors import (
    EventMQError,
    HookError,
    PluginCollision,
    PluginError,
    PluginNotFound,
    SettingsError,
    did_you_mean,
)
from eventmq.hookspecs import PROJECT
from eventmq.interfaces import CommandOption, PluginContext, TaskRole
from eventmq.registry.names import (
    BUILT_INS,
    GATEWAY,
    KINDS,
    MIDDLEWARE,
    QUEUE_ORDER,
    QUEUE_STORE,
    RESULT_BACKEND,
    RETRY_POLICY,
    ROUTING_STRATEGY,
    SCHEDULE_STORE,
    SERIALIZER,
    WITH_OPTIONS,
    WORKER_POOL,
    Registry,
    module_of,
    plugin_name,
    scheme,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from importlib.metadata import Distribution, EntryPoint

    import click

    from eventmq.clock import Clock
    from eventmq.interfaces import (
        Middleware,
        ResultBackend,
        RetryPolicy,
        Serializer,
    )
    from eventmq.registry.names import PluginKind
    from eventmq.settings import Settings

__all__ = [
    "Loader",
    "Plugin",
    "PluginManager",
    "extra_of",
    "own_distribution",
    "requirement",
    "split_switches",
]

T = TypeVar("T")

log = logging.getLogger(__name__)

#: Origin of a plugin that ``-p`` names.
_SETTING = "setting load_plugins"

#: Source of options -> their location, for messages.
_TABLES = {
    "default": "[eventmq.plugins.{0}] of eventmq.toml",
    "pyproject.toml": "[tool.eventmq.plugins.{0}] of pyproject.toml",
    "argument": "plugin_options[{0!r}] of the app",
}

#: Hooks that are in use whenever they are implemented, whatever the settings.
_ALWAYS_IN_USE = frozenset({"eventmq_configure", "eventmq_add_commands", "eventmq_job_event"})

_SPECS = frozenset(name for name in vars(hookspecs) if name.startswith("eventmq_"))

_REQUIREMENT = re.compile(r"[A-Za-z0-9._-]+")

_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")


class Plugin(NamedTuple):
    """One plugin, loaded or built in.

    ``origin`` is ``built in``, the name of a distribution, ``setting`` or ``argument``;
    ``provides`` has (hook, name) pairs.
    """

    name: str
    origin: str
    hooks: tuple[str, ...] = ()
    provides: tuple[tuple[str, str], ...] = ()
    version: str = ""
    distribution: Distribution | None = None

    def __str__(self) -> str:
        """Return plugin and distribution, for the beginning of a message."""
        where = f" of the distribution {self.distribution.name!r}" if self.distribution else ""
        return f"plugin {self.name!r}{where}"

    @property
    def full_name(self) -> str:
        """Its name in messages about a collision with another plugin."""
        return f"the built-in plugin {self.name!r}" if self.origin == "built in" else str(self)

    @property
    def remedy(self) -> str:
        """How to disable it, for the end of a message; "" for a built-in plugin."""
        return "" if self.origin == "built in" else f"; {_without(self.name, self.origin)}"


def _without(name: str, origin: str) -> str:
    """Return how to disable a plugin, for the end of a message."""
    if origin == _SETTING:
        return f"leave out -p {name}, or take it out of the setting load_plugins"
    return f"switch it off with -p no:{name} or EVENTMQ_DISABLED_PLUGINS={name}"


def own_distribution() -> Distribution | None:
    """Return the distribution of EventMQ, None in a checkout that is not installed."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        return distribution("eventmq")
    except PackageNotFoundError:
        return None


def extra_of(distribution: Distribution, library: str) -> str:
    """Return the extra of a distribution that installs a library, "" if none does."""
    normalised = re.sub(r"[._-]+", "-", library).lower()
    for line in distribution.requires or ():
        name = _REQUIREMENT.match(line)
        extra = _EXTRA.search(line)
        if name and extra and re.sub(r"[._-]+", "-", name[0]).lower() == normalised:
            return extra[1]
    return ""


def requirement(distribution: Distribution | None, library: str) -> str:
    """Return the argument of ``pip install`` for a library that a plugin needs."""
    extra = extra_of(distribution, library) if distribution else ""
    return f"{distribution.name}[{extra}]" if distribution and extra else library


class Loader:
    """The plugins of one app. All methods are for the thread that builds the app.

    Args:
        disabled: Names of plugins that are not loaded.
    """

    def __init__(self, disabled: Iterable[str] = ()) -> None:
        self._disabled = frozenset(disabled)
        self._disabled_found: set[str] = set()
        self._hooks = pluggy.PluginManager(PROJECT)
        self._hooks.add_hookspecs(hookspecs)
        self.registries: dict[str, Registry[Any]] = {k.hook: Registry(k) for k in KINDS}
        self.plugins: dict[str, Plugin] = {}
        for plugin in BUILT_INS:
            self._add_built_in(plugin)

    # Built-in plugins

    def _add_built_in(self, plugin: str) -> None:
        kind, provided = BUILT_INS[plugin]
        name, module = plugin_name(plugin), module_of(plugin)
        if self._is_off(name, module):
            return
        factory = partial(self._make_built_in, module, kind.hook, provided)
        self.registries[kind.hook].add(provided, factory, name)
        self.plugins[name] = Plugin(name, "built in", (kind.hook,), ((kind.hook, provided),))

    def _make_built_in(self, module: str, hook: str, name: str, context: PluginContext) -> object:
        """Import a built-in plugin and call its factory; registered as the factory. Thread-safe."""
        return getattr(self._import_built_in(module), hook)()[name](context)

    def _import_built_in(self, module: str) -> object:
        plugin = importlib.import_module(module)
        if not self._hooks.is_registered(plugin):
            with contextlib.suppress(ValueError):  # another thread was faster
                self._hooks.register(plugin, plugin_name(module.split(".", 2)[2]))
        return plugin

    # Other plugins

    def load_entry_point(self, point: EntryPoint) -> None:
        """Load a plugin of an installed distribution. Any exception of its import is fatal."""
        origin = point.dist.name if point.dist else "an entry point"
        if self._is_off(point.name):
            return
        if point.name in self.plugins:
            self._collide(point.name, origin)
        try:
            plugin = point.load()
        except (Exception, SystemExit) as error:
            raise PluginError(
                f"plugin {point.name!r} of the distribution {origin!r} cannot be imported: "
                f"{type(error).__name__}: {error}; {_without(point.name, origin)}"
            ) from error
        if not self._hooks.is_registered(plugin):
            self._register(plugin, point.name, origin, point.dist)

    def load_module(self, name: str, origin: str) -> None:
        """Load a module by its dotted name, unless it is loaded already."""
        if name in self.plugins or self._is_off(name):
            return
        try:
            plugin = importlib.import_module(name)
        except (Exception, SystemExit) as error:
            missing = error.name if isinstance(error, ModuleNotFoundError) else None
            if missing and f"{name}.".startswith(
                f"{missing}."
            ):  # the module, or a package that contains it
                raise PluginNotFound(self._not_found(name, origin)) from error
            raise PluginError(
                f"plugin {name!r}, named by the {origin}, cannot be imported: "
                f"{type(error).__name__}: {error}; {_without(name, origin)}"
            ) from error
        if not self._hooks.is_registered(plugin):
            self._register(plugin, name, origin)

    def _not_found(self, name: str, origin: str) -> str:
        """Return the error for a plugin that does not exist."""
        hint = did_you_mean(name, self.plugins)
        if "did you mean" not in hint:
            hint = 'name an installed plugin (see "eventmq plugins") or a module on the path'
        source = "-p or the setting load_plugins" if origin == _SETTING else origin
        return f"there is no plugin {name!r}, named by {source}; {hint}"

    def load_object(self, plugin: object) -> None:
        """Load an object from the app's arguments; it is named for its module or class.

        An object that is loaded already, under whatever name, is not loaded again.
        """
        name = getattr(plugin, "__name__", None) or type(plugin).__name__
        if self._is_off(name) or self._hooks.is_registered(plugin):
            return
        if isinstance(plugin, ModuleType) and name in self.plugins:
            self._collide(name, "argument plugins")
        count = sum(loaded.partition("#")[0] == name for loaded in self.plugins)
        self._register(plugin, f"{name}#{count + 1}" if count else name, "argument")

    def _is_off(self, *names: str) -> bool:
        off = self._disabled.intersection(names)
        self._disabled_found |= off
        return bool(off)

    def _collide(self, name: str, origin: str) -> None:
        raise PluginCollision(
            f"two plugins are called {name!r}: from {self.plugins[name].origin} and {origin}"
            f"; {_without(name, origin)}"
        )

    def _register(
        self, plugin: object, name: str, origin: str, dist: Distribution | None = None
    ) -> None:
        if name in self.plugins:
            self._collide(name, origin)
        version = dist.version if dist else str(getattr(plugin, "__version__", ""))
        registered = Plugin(name, origin, version=version, distribution=dist)
        try:
            hooks = self._hooks_of(plugin, name)
            registered = registered._replace(
                hooks=hooks, provides=tuple(self._collect(name, hooks))
            )
        except PluginError as error:
            raise type(error)(f"{registered}: {error}{registered.remedy}") from error
        self.plugins[name] = registered

    def _hooks_of(self, plugin: object, name: str) -> tuple[str, ...]:
        """Register a plugin with pluggy and return the names of its hooks."""
        try:
            self._hooks.register(plugin, name)
        except (pluggy.PluginValidationError, ValueError) as error:
            raise HookError(str(error)) from error
        hooks = tuple(sorted(caller.name for caller in self._hooks.get_hookcallers(plugin) or []))
        _check_marks(plugin, hooks)
        return hooks

    def implementations(self, hook: str, name: str | None = None) -> list[pluggy.HookImpl]:
        """Return the functions of a hook, of one plugin or of all, in the order of loading."""
        functions = getattr(self._hooks.hook, hook).get_hookimpls()
        return [impl for impl in functions if name in {None, impl.plugin_name}]

    def call(self, hook: str, impl: pluggy.HookImpl, argument: object) -> None:
        """Call a hook of one argument; an implementation may omit it.

        Raises:
            PluginError: It raised an exception that is not an EventMQ error.
        """
        self.answer(hook, impl, dict.fromkeys(impl.argnames, argument))

    def answer(self, hook: str, impl: pluggy.HookImpl, arguments: Mapping[str, object]) -> Any:
        """Call a hook and return its value; an implementation may omit arguments.

        Raises:
            PluginError: It raised an exception that is not an EventMQ error.
        """
        try:
            return impl.function(*(arguments[name] for name in impl.argnames))
        except EventMQError:
            raise
        except (Exception, SystemExit) as error:
            plugin = self.plugins[impl.plugin_name]
            raise PluginError(
                f"{plugin} failed in {hook}: {type(error).__name__}: {error}{plugin.remedy}"
            ) from error

    def declared(self, hook: str) -> Iterator[tuple[Plugin, str, Any]]:
        """Yield (plugin, name, value) for the values of a hook that declares options.

        Raises:
            PluginError: The hook of a plugin raises, or does not return a mapping.
        """
        for plugin in WITH_OPTIONS:
            if plugin_name(plugin) in self.plugins:
                self._import_built_in(module_of(plugin))
        for impl in self.implementations(hook):
            owner = self.plugins[impl.plugin_name]
            try:
                declared = _mapping(hook, impl)
            except PluginError as error:
                raise type(error)(f"{owner}: {error}{owner.remedy}") from error
            for name, value in declared.items():
                yield owner, name, value

    def _collect(self, name: str, hooks: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        """Call the registration hooks of a plugin and add their factories."""
        for hook in hooks:
            for impl in self.implementations(hook, name):
                if impl.kwargnames:
                    raise HookError(
                        f"an argument of {hook} has a default, so it would never be given: "
                        + impl.kwargnames[0]
                    )
                if hook in self.registries:
                    for provided, factory in _mapping(hook, impl).items():
                        self.registries[hook].add(provided, factory, name, self._full_name)
                        yield hook, provided

    def _full_name(self, name: str) -> str:
        return self.plugins[name].full_name

    def finish(self, options: Iterable[str] = ()) -> None:
        """Check what can only be checked when all plugins are loaded.

        Args:
            options: Names for which the settings have options.

        Raises:
            HookError: A plugin implements an unknown hook.
            SettingsError: There are options for a misspelt name.
        """
        try:
            self._hooks.check_pending()
        except pluggy.PluginValidationError as error:
            callers = self._hooks.get_hookcallers(error.plugin) or []
            wrong = next(caller.name for caller in callers if not caller.has_spec())
            name = self._hooks.get_name(error.plugin)
            plugin = self.plugins[str(name)]
            msg = f"{plugin} implements {wrong!r}, which is not a hook"
            hint = f"{did_you_mean(wrong, _SPECS)}{plugin.remedy}"
            raise HookError(f"{msg}; {hint}") from error
        for name in sorted(self._disabled - self._disabled_found):
            hint = did_you_mean(name, self.plugins)
            log.warning("plugin %r is disabled but does not exist; %s", name, hint)
        self._check_options(options)

    def _check_options(self, options: Iterable[str]) -> None:
        """Refuse options under a misspelt name, and warn of those under an unknown name.

        The latter are not an error: the plugin may belong to an app that this process does not
        load.
        """
        provided = {p.name for registry in self.registries.values() for p in registry}
        valid = {*provided, *(kind_name for _, kind_name in BUILT_INS.values())}
        for name in sorted({*options} - valid - {*self.plugins} - self._disabled):
            hint = did_you_mean(name, valid)
            if "did you mean" in hint:
                raise SettingsError(
                    f"the table plugins.{name} of the settings is of no plugin; {hint}"
                )
            log.warning("the table plugins.%s of the settings is of no plugin; %s", name, hint)


def _mapping(hook: str, impl: pluggy.HookImpl) -> Mapping[str, Any]:
    """Call a registration hook and return its mapping."""
    try:
        mapping = impl.function()
    except PluginError:
        raise
    except (Exception, SystemExit) as error:
        raise PluginError(f"{hook} failed: {type(error).__name__}: {error}") from error
    if not isinstance(mapping, Mapping) or not all(isinstance(name, str) for name in mapping):
        raise HookError(
            f"{hook} returned {type(mapping).__name__}; it must be a mapping, name -> "
            + _MAPPED.get(hook, "factory")
        )
    return mapping


def _check_marks(plugin: object, hooks: tuple[str, ...]) -> None:
    """Raise `HookError` for a hook without the marker, or a plugin without hooks."""
    unmarked = sorted(hook for hook in _SPECS - set(hooks) if callable(getattr(plugin, hook, None)))
    if unmarked:
        raise HookError(f"{unmarked[0]} is not marked with @hookimpl")
    if not hooks:
        raise HookError("it implements no hook; mark functions with @hookimpl")


#: Hook -> what the values of its mapping are, if they are not factories.
_MAPPED = {"eventmq_command_options": "options", "eventmq_task_options": "function"}


def split_switches(values: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split the values of ``-p`` into modules to load and, from ``no:NAME``, names to disable."""
    switches = list(values)
    load = tuple(value for value in switches if not value.startswith("no:"))
    return load, tuple(value.removeprefix("no:") for value in switches if value.startswith("no:"))


class PluginManager:
    """The plugins of one app. Call `load` once in the thread that builds the app.

    All other methods may be called from any thread.

    Args:
        settings: Plugins to load, choices among them, and their options.
        clock: The clock for plugins.
        app: Returns the app for plugins.
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
        self._used: set[tuple[str, str]] = set()

    def load(
        self, plugins: Iterable[object] = (), *, entry_points: Iterable[EntryPoint] | None = None
    ) -> None:
        """Load everything that is not built in.

        Args:
            plugins: Modules, their dotted names, or objects: the argument of the app.
            entry_points: Those of the group ``eventmq``; None for the installed ones.

        Raises:
            PluginError: A plugin cannot be imported, is wrong, or provides a name that is in use.
            SettingsError: The settings have options for a misspelt name.
        """
        if entry_points is None:
            from importlib.metadata import entry_points as installed

            entry_points = installed(group=PROJECT)
        for point in sorted(entry_points, key=lambda point: point.name):
            self._loader.load_entry_point(point)
        for name in self._settings.load_plugins:
            self._loader.load_module(name, _SETTING)
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
            kind: The kind, for instance `eventmq.registry.names.SERIALIZER`.
            text: A name, or a URL whose scheme is a name; the URL is then the option ``url``.
            options: Override the options of the settings.

        Raises:
            PluginNotFound: No plugin provides the name.
            PluginError: The plugin cannot make it; a missing library is named with its extra.
        """
        registration = self._loader.registries[kind.hook].find(text)
        explicit = {**(options or {}), **({"url": text} if "://" in text else {})}
        merged = {**self._settings.plugin_options.get(registration.name, {}), **explicit}
        plugin = self._loader.plugins[registration.plugin]
        description = f"{kind.name} {registration.name!r} of {plugin}"
        context = PluginContext(registration.name, merged, self._clock, self._app())
        try:
            instance = registration.factory(context)
        except EventMQError as error:
            if type(error) is not PluginError:
                raise
            location = self._location(registration.name, explicit, str(error))
            raise PluginError(f"{description}: {error}{location}") from error
        except ModuleNotFoundError as error:
            raise PluginError(f"{description} {_missing(plugin, error)}{plugin.remedy}") from error
        except (Exception, SystemExit) as error:
            raise PluginError(
                f"{description} cannot be made: {type(error).__name__}: {error}{plugin.remedy}"
            ) from error
        if lack := kind.lack(instance):
            raise PluginError(f"{description} {lack}{plugin.remedy}")
        self._used.add((kind.hook, registration.name))
        return cast("T", instance)

    def _location(self, name: str, explicit: Mapping[str, Any], error: str) -> str:
        """Return the location of an error's options in the settings; "" if the caller set them."""
        table = self._settings.plugin_options.get(name, {})
        wrong = [option for option in {**table, **explicit} if repr(option) in error]
        if explicit.keys() & wrong or "option" not in error:
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
        """Return the app's only object of a name: made once, with the settings' options."""
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
        """Return the available names of a kind."""
        return [provided.name for provided in self._loader.registries[kind.hook]]

    def close(self) -> None:
        """Close the app's result backend, if it was made. Idempotent."""
        for (hook, _), instance in self._objects.items():
            if hook == RESULT_BACKEND.hook:
                cast("ResultBackend", instance).close()

    # Hooks

    def configure(self) -> None:
        """Call ``eventmq_configure``: once, in the order of loading."""
        for impl in self._loader.implementations("eventmq_configure"):
            self._loader.call("eventmq_configure", impl, self._app())

    def add_commands(self, cli: click.Group) -> None:
        """Call ``eventmq_add_commands``: once, at the start of the program.

        Raises:
            PluginCollision: A plugin replaced an existing command.
        """
        owners: dict[str, str] = {}
        for impl in self._loader.implementations("eventmq_add_commands"):
            plugin = self._loader.plugins[impl.plugin_name]
            before = dict(cli.commands)
            self._loader.call("eventmq_add_commands", impl, cli)
            replaced = [name for name in before if cli.commands.get(name) is not before[name]]
            if replaced:
                owner = owners.get(replaced[0], "EventMQ")
                raise PluginCollision(
                    f"{plugin} takes the name of the command {replaced[0]!r} of {owner}"
                    f"{plugin.remedy}"
                )
            owners |= dict.fromkeys(cli.commands.keys() - before.keys(), str(plugin))

    def observer(self) -> Callable[[Mapping[str, Any]], None] | None:
        """Return a function that passes an event to all observers; None if there are none."""
        observers = self._loader.implementations("eventmq_job_event")
        return partial(_notify, self._loader, observers) if observers else None

    def serve_metrics(
        self, read: Callable[[], Mapping[str, Any]], address: str
    ) -> Callable[[], None]:
        """Let every capable plugin serve metrics; return a function that stops it.

        Args:
            read: Returns the figures; see the hook ``eventmq_serve_metrics``.
            address: ``host:port``.

        Raises:
            PluginError: No plugin can, or one fails.
        """
        ends: list[Callable[[], None]] = []

        def end() -> None:
            while ends:
                ends.pop()()

        arguments = {"read": read, "address": address}
        try:
            for impl in self._loader.implementations("eventmq_serve_metrics"):
                ends.append(self._loader.answer("eventmq_serve_metrics", impl, arguments))
        except BaseException:
            end()
            raise
        if not ends:
            raise PluginError(
                "metrics_bind is set, and no plugin serves metrics; see disabled_plugins"
            )
        return end

    # Options from plugins

    def command_options(
        self, kind: PluginKind[Any], taken: Mapping[str, str] | None = None
    ) -> dict[str, tuple[CommandOption, list[str]]]:
        """Return name -> (option, owners) for the options of a command that plugins declare.

        Args:
            kind: What the command runs: `GATEWAY` or `WORKER_POOL` of `eventmq.registry.names`.
            taken: Names of options that no plugin may declare -> their owner.

        Raises:
            HookError: A plugin declares something else than an option, or options for a name that
                it does not provide.
            PluginCollision: Two declare different options of one name, or one a name of ``taken``.
        """
        by_name: dict[str, tuple[CommandOption, list[str]]] = {}
        for plugin, owner, options in self._loader.declared("eventmq_command_options"):
            kinds = [hook for hook, name in plugin.provides if name == owner]
            if not {GATEWAY.hook, WORKER_POOL.hook}.intersection(kinds):
                raise HookError(
                    f"{plugin} declares options for {owner!r}, and provides no gateway or worker "
                    f"pool of that name{plugin.remedy}"
                )
            listed = options if isinstance(options, (list, tuple)) else [options]
            if listed is not options or not all(isinstance(o, CommandOption) for o in listed):
                raise HookError(
                    f"what {plugin} declares for {owner!r} is not a list of CommandOption"
                    f"{plugin.remedy}"
                )
            for option in options if kind.hook in kinds else ():
                if taken and option.name in taken:
                    raise PluginCollision(
                        f"{plugin} declares the option {option.name!r} for {owner!r}, which is "
                        f"that of {taken[option.name]!r}{plugin.remedy}"
                    )
                first, owners = by_name.setdefault(option.name, (option, []))
                if (first.metavar, first.minimum) != (option.metavar, option.minimum):
                    raise PluginCollision(
                        f"the options {option.name!r} of {owners[0]!r} and {owner!r} differ"
                        f"{plugin.remedy}"
                    )
                owners.append(owner)
        return by_name

    def task_options(self) -> dict[str, Callable[[Any], TaskRole]]:
        """Return the options of ``@app.task`` from plugins: name -> function that reads a value.

        Raises:
            HookError: A plugin declares something else than a function, or its function returns
                something else than a role.
            PluginCollision: Two plugins declare the same name.
        """
        readers: dict[str, Callable[[Any], TaskRole]] = {}
        owners: dict[str, Plugin] = {}
        for plugin, name, read in self._loader.declared("eventmq_task_options"):
            if name in readers:
                raise PluginCollision(
                    f"the task option {name!r} of {plugin} is one of {owners[name]} too"
                    f"{plugin.remedy}"
                )
            if not callable(read):
                raise HookError(
                    f"the task option {name!r} of {plugin} is not a function{plugin.remedy}"
                )
            readers[name], owners[name] = partial(_read_role, plugin, name, read), plugin
        return readers

    # Listing

    def listing(self) -> list[dict[str, str]]:
        """Return one row per plugin: name, version, origin, hooks, provides, in_use."""
        eventmq_distribution = own_distribution()
        version = eventmq_distribution.version if eventmq_distribution else ""
        chosen = self._chosen()
        return [_row(plugin, version, chosen) for plugin in self._loader.plugins.values()]

    def _chosen(self) -> set[tuple[str, str]]:
        """Return (hook, name) for everything that the settings choose or this process has made."""
        s = self._settings
        chosen: dict[PluginKind[Any], Sequence[str]] = {
            SERIALIZER: (*s.accept_content, s.serializer),
            MIDDLEWARE: s.middleware,
            ROUTING_STRATEGY: (
                s.routing_strategy,
                *(name for _, name in s.queue_routing_strategies),
            ),
            QUEUE_ORDER: (s.queue_order,),
            RESULT_BACKEND: (s.result_backend,),
            QUEUE_STORE: (s.store,),
            WORKER_POOL: (s.pool,),
            SCHEDULE_STORE: (s.schedule_store,),
        }
        used = {(kind.hook, scheme(text)) for kind, texts in chosen.items() for text in texts}
        return self._used | used


def _missing(plugin: Plugin, error: ModuleNotFoundError) -> str:
    """Name the library that a factory lacks, and how to install it."""
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
        raise HookError(
            f"the task option {name!r} of {plugin} returns {type(role).__name__}, not a TaskRole"
            f"{plugin.remedy}"
        )
    return role


def _notify(loader: Loader, observers: list[pluggy.HookImpl], event: Mapping[str, Any]) -> None:
    """Pass an event to every observer; one that fails does not stop the others."""
    for impl in observers:
        try:
            loader.call("eventmq_job_event", impl, event)
        except EventMQError:
            log.exception("an observer failed; the event is passed to the others")
