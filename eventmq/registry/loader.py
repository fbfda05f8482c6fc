"""Plugin loader: finds plugins, and registers the factories that they provide."""

from __future__ import annotations

import contextlib
import importlib
import logging
import re
from collections.abc import Mapping
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import pluggy

from eventmq import hookspecs
from eventmq.errors import (
    EventMQError,
    HookError,
    PluginCollision,
    PluginError,
    PluginNotFound,
    SettingsError,
    did_you_mean,
)
from eventmq.registry.built_ins import BUILT_INS, PACKAGE, WITH_OPTIONS, plugin_name
from eventmq.registry.names import KINDS, Registry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from importlib.metadata import Distribution, EntryPoint

    from eventmq.interfaces import PluginContext

__all__ = ["Loader", "Plugin", "extra_of", "off_switch", "own_distribution", "requirement"]


_REQUIREMENT = re.compile(r"[A-Za-z0-9._-]+")

_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")


class Plugin(NamedTuple):
    """One plugin, loaded or built in.

    ``origin`` is ``built in``, the name of a distribution, ``setting`` or ``argument``;
    ``provides`` are (hook, name).
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
        """How it is named where another plugin is in its way."""
        return f"the built-in plugin {self.name!r}" if self.origin == "built in" else str(self)

    @property
    def remedy(self) -> str:
        """How it is switched off, for the end of a message; "" for what is built in."""
        return "" if self.origin == "built in" else f"; {off_switch(self.name)}"


def off_switch(name: str) -> str:
    """Return how a plugin is switched off, for the end of a message."""
    return f"switch it off with -p no:{name} or EVENTMQ_DISABLED_PLUGINS={name}"


def own_distribution() -> Distribution | None:
    """Return the distribution of EventMQ, None where it runs from a checkout."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        return distribution("eventmq")
    except PackageNotFoundError:
        return None


def extra_of(distribution: Distribution, library: str) -> str:
    """Return the extra of a distribution that brings a library, "" if none is known to."""
    plain = re.sub(r"[._-]+", "-", library).lower()
    for line in distribution.requires or ():
        name = _REQUIREMENT.match(line)
        extra = _EXTRA.search(line)
        if name and extra and re.sub(r"[._-]+", "-", name[0]).lower() == plain:
            return extra[1]
    return ""


def requirement(distribution: Distribution | None, library: str) -> str:
    """Return what to ``pip install`` in order to get a library that a plugin needs."""
    extra = extra_of(distribution, library) if distribution else ""
    return f"{distribution.name}[{extra}]" if distribution and extra else library


log = logging.getLogger(__name__)

_SPECS = frozenset(name for name in vars(hookspecs) if name.startswith("eventmq_"))


class Loader:
    """The plugins of one app. Every method is for the thread that builds the app.

    Args:
        disabled: Names of plugins that are not loaded.
    """

    def __init__(self, disabled: Iterable[str] = ()) -> None:
        self._disabled = frozenset(disabled)
        self._disabled_seen: set[str] = set()
        self._hooks = pluggy.PluginManager(hookspecs.PROJECT)
        self._hooks.add_hookspecs(hookspecs)
        self.registries: dict[str, Registry[Any]] = {k.hook: Registry(k) for k in KINDS}
        self.plugins: dict[str, Plugin] = {}
        for module in BUILT_INS:
            self._add_built_in(module)

    # Built-in plugins

    def _add_built_in(self, module: str) -> None:
        kind, provided = BUILT_INS[module]
        name = plugin_name(module)
        if self._is_off(name, PACKAGE + module):
            return
        factory = partial(self._make_built_in, module, kind.hook, provided)
        self.registries[kind.hook].add(provided, factory, name)
        self.plugins[name] = Plugin(name, "built in", (kind.hook,), ((kind.hook, provided),))

    def _make_built_in(self, module: str, hook: str, name: str, context: PluginContext) -> object:
        """Import a built-in plugin and call its factory; registered in its place. Thread-safe."""
        return getattr(self._import_built_in(module), hook)()[name](context)

    def _import_built_in(self, module: str) -> object:
        plugin = importlib.import_module(PACKAGE + module)
        if not self._hooks.is_registered(plugin):
            with contextlib.suppress(ValueError):  # another thread was faster
                self._hooks.register(plugin, plugin_name(module))
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
        except Exception as error:
            msg = (
                f"plugin {point.name!r} of the distribution {origin!r} cannot be imported: "
                f"{type(error).__name__}: {error}; {off_switch(point.name)}"
            )
            raise PluginError(msg) from error
        if not self._hooks.is_registered(plugin):
            self._register(plugin, point.name, origin, point.dist)

    def load_module(self, name: str, origin: str) -> None:
        """Load a module by its dotted name; one that is loaded is left as it is."""
        if name in self.plugins or self._is_off(name):
            return
        try:
            plugin = importlib.import_module(name)
        except Exception as error:
            if isinstance(error, ModuleNotFoundError) and _is_part(error.name, name):
                raise PluginNotFound(self._not_found(name, origin)) from error
            msg = (
                f"plugin {name!r}, named by the {origin}, cannot be imported: "
                f"{type(error).__name__}: {error}; {off_switch(name)}"
            )
            raise PluginError(msg) from error
        if not self._hooks.is_registered(plugin):
            self._register(plugin, name, origin)

    def _not_found(self, name: str, origin: str) -> str:
        """Return the error for a plugin that does not exist."""
        hint = did_you_mean(name, self.plugins)
        if "did you mean" not in hint:
            hint = 'name an installed plugin (see "eventmq plugins") or a module on the path'
        where = "-p or the setting load_plugins" if origin.startswith("setting") else origin
        return f"there is no plugin {name!r}, named by {where}; {hint}"

    def load_object(self, plugin: object) -> None:
        """Load an object given to the app: its name is a module's, or its class's and a number.

        One that is loaded, under whatever name, is left as it is.
        """
        name = getattr(plugin, "__name__", None) or type(plugin).__name__
        if self._is_off(name) or self._hooks.is_registered(plugin):
            return
        if isinstance(plugin, ModuleType) and name in self.plugins:
            self._collide(name, "argument plugins")
        count = sum(known.partition("#")[0] == name for known in self.plugins)
        self._register(plugin, f"{name}#{count + 1}" if count else name, "argument")

    def _is_off(self, *names: str) -> bool:
        off = self._disabled.intersection(names)
        self._disabled_seen |= off
        return bool(off)

    def _collide(self, name: str, origin: str) -> None:
        msg = f"two plugins are called {name!r}: from {self.plugins[name].origin} and {origin}"
        raise PluginCollision(f"{msg}; {off_switch(name)}")

    def _register(
        self, plugin: object, name: str, origin: str, dist: Distribution | None = None
    ) -> None:
        if name in self.plugins:
            self._collide(name, origin)
        version = dist.version if dist else str(getattr(plugin, "__version__", ""))
        made = Plugin(name, origin, version=version, distribution=dist)
        try:
            hooks = self._hooks_of(plugin, name)
            made = made._replace(hooks=hooks, provides=tuple(self._collect(name, hooks)))
        except PluginError as error:
            raise type(error)(f"{made}: {error}{made.remedy}") from error
        self.plugins[name] = made

    def _hooks_of(self, plugin: object, name: str) -> tuple[str, ...]:
        """Register a plugin with pluggy and return the names of its hooks."""
        try:
            self._hooks.register(plugin, name)
        except (pluggy.PluginValidationError, ValueError) as error:
            raise HookError(str(error)) from error
        callers = self._hooks.get_hookcallers(plugin) or []
        hooks = tuple(sorted(caller.name for caller in callers))
        _check_marks(plugin, hooks)
        return hooks

    def implementations(self, hook: str, name: str | None = None) -> list[pluggy.HookImpl]:
        """Return the functions of a hook, of one plugin or of all, in the order of loading."""
        found = getattr(self._hooks.hook, hook).get_hookimpls()
        return [impl for impl in found if name in {None, impl.plugin_name}]

    def declared(self, hook: str) -> Iterator[tuple[Plugin, str, Any]]:
        """Yield (plugin, name, value) of what the plugins return from a hook for options."""
        for module in WITH_OPTIONS:
            if plugin_name(module) in self.plugins:
                self._import_built_in(module)
        for impl in self.implementations(hook):
            for name, value in _mapping(hook, impl).items():
                yield self.plugins[impl.plugin_name], name, value

    def _collect(self, name: str, hooks: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        """Call the registration hooks of a plugin and add what they provide."""
        for hook in hooks:
            for impl in self.implementations(hook, name):
                if impl.kwargnames:
                    msg = f"an argument of {hook} has a default, so it would never be given: "
                    raise HookError(msg + impl.kwargnames[0])
                if hook in self.registries:
                    for provided, factory in _mapping(hook, impl).items():
                        self.registries[hook].add(provided, factory, name, self._full_name)
                        yield hook, provided

    def _full_name(self, name: str) -> str:
        return self.plugins[name].full_name

    def finish(self, options: Iterable[str] = ()) -> None:
        """Check what can be checked only when all plugins are loaded.

        Args:
            options: Names for which the settings have options.

        Raises:
            HookError: A plugin implements an unknown hook.
            SettingsError: Options are for a misspelt name.
        """
        try:
            self._hooks.check_pending()
        except pluggy.PluginValidationError as error:
            callers = self._hooks.get_hookcallers(error.plugin) or []
            wrong = next(caller.name for caller in callers if not caller.has_spec())
            name = self._hooks.get_name(error.plugin)
            plugin = self.plugins[str(name)]
            msg = f"{plugin} implements {wrong!r}, and there is no such hook"
            hint = f"{did_you_mean(wrong, _SPECS)}{plugin.remedy}"
            raise HookError(f"{msg}; {hint}") from error
        for name in sorted(self._disabled - self._disabled_seen):
            hint = did_you_mean(name, self.plugins)
            log.warning("plugin %r is switched off, but there is none; %s", name, hint)
        self._check_options(options)

    def _check_options(self, options: Iterable[str]) -> None:
        """Refuse options under a misspelt name, and warn of those under an unknown name.

        The latter are no error: the plugin may belong to an app that this process does not load.
        """
        provided = {p.name for registry in self.registries.values() for p in registry}
        known = {*provided, *(kind_name for _, kind_name in BUILT_INS.values())}
        for name in sorted({*options} - known - {*self.plugins} - self._disabled):
            hint = did_you_mean(name, known)
            if "did you mean" in hint:
                msg = f"the table plugins.{name} of the settings is of no plugin; {hint}"
                raise SettingsError(msg)
            log.warning("the table plugins.%s of the settings is of no plugin; %s", name, hint)


def _is_part(missing: str | None, name: str) -> bool:
    """Return whether a missing module is the named one, or a package around it."""
    return bool(missing) and f"{name}.".startswith(f"{missing}.")


def _mapping(hook: str, impl: pluggy.HookImpl) -> Mapping[str, Any]:
    """Call a registration hook and return what it provides."""
    try:
        mapping = impl.function()
    except EventMQError:
        raise
    except Exception as error:
        raise PluginError(f"{hook} failed: {type(error).__name__}: {error}") from error
    if not isinstance(mapping, Mapping) or not all(isinstance(name, str) for name in mapping):
        msg = f"{hook} returned {type(mapping).__name__}; it must be a mapping, name -> "
        raise HookError(msg + _mapped(hook))
    return mapping


def _mapped(hook: str) -> str:
    """Return what the names of a mapping that a hook returns stand for."""
    return {"eventmq_command_options": "options", "eventmq_task_options": "function"}.get(
        hook, "factory"
    )


def _check_marks(plugin: object, hooks: tuple[str, ...]) -> None:
    """Raise `HookError` for a hook without the marker, or a plugin without hooks."""
    unmarked = sorted(hook for hook in _SPECS - set(hooks) if callable(getattr(plugin, hook, None)))
    if unmarked:
        raise HookError(f"{unmarked[0]} is not marked with @hookimpl")
    if not hooks:
        raise HookError("it implements no hook; mark functions with @hookimpl")
