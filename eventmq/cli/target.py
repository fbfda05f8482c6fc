"""App and broker of a command: ``-A``, ``-I`` and ``--broker``."""

from __future__ import annotations

import functools
import getpass
import importlib
import os
import socket
import traceback
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from eventmq import shadows
from eventmq.cli.logs import early_lines, shift_level, start_logging
from eventmq.errors import AppNotFound, NotAllowed, SettingsError, did_you_mean
from eventmq.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import ModuleType

    from eventmq.app import EventMQ

    Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

__all__ = [
    "VERBOSITY",
    "Found",
    "Target",
    "find_app",
    "import_modules",
    "import_named",
    "join_path",
    "loads_plugins",
    "options_of",
    "takes_app",
    "takes_json",
    "takes_log_format",
    "takes_metrics_bind",
    "takes_queues",
    "takes_target",
    "takes_wide",
]


#: Default of the attribute in ``-A``.
_DEFAULT_ATTRIBUTE = "app"

#: Description of the other source of modules, beside ``-I``.
_SETTING = "the setting imports"

#: Maximum number of characters of a user: the broker's limit of an actor.
_MAX_USER = 200

#: Folder of this package.
_PACKAGE = Path(__file__).parents[1]


class Found(NamedTuple):
    """An app, and ``module:attribute`` by which another process loads it; "" for none."""

    app: EventMQ
    path: str


def join_path() -> None:
    """Put the working directory on the path, for the user's modules.

    Called only if the command line names a module: a command that only calls a broker imports
    nothing from the current directory.
    """
    shadows.join_path(str(Path.cwd()))


def loads_plugins() -> bool:
    """Return whether ``-p`` names plugins, or the environment variable that replaces it does."""
    return bool(os.environ.get("EVENTMQ_LOAD_PLUGINS"))


def import_modules(names: Iterable[str], option: str = "") -> None:
    """Import modules.

    Args:
        names: Their names.
        option: Source of the names, for messages; ``-I`` if empty.

    Raises:
        AppNotFound: A module cannot be imported.
    """
    for name in names:
        import_named(name, option or f"-I {name}")


def find_app(text: str) -> Found:
    """Return the app for a text: ``module`` or ``module:attribute``.

    Without an attribute it is ``app``, or else the module's only `EventMQ`.

    Raises:
        AppNotFound: There is no such app, or its module raises.
    """
    name, colon, attribute = text.partition(":")
    if not name or (colon and not attribute):
        raise AppNotFound(f"-A {text!r} names no app; write -A module or -A module:attribute")
    module = import_named(name, f"-A {text}")
    attribute = attribute or _only(module)
    return Found(_named(module, attribute), f"{name}:{attribute}")


def import_named(name: str, option: str) -> ModuleType:
    """Import a module.

    Args:
        name: Name of the module.
        option: Source of the name, for messages.

    Raises:
        AppNotFound: It cannot be imported; the message has the reason.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise AppNotFound(f"{option}: {_missing(error.name, name)}") from None
        raise AppNotFound(f"{option}: {_broken(name, error)}") from error
    except (Exception, SystemExit) as error:
        raise AppNotFound(f"{option}: {_broken(name, error)}") from error


def _missing(missing: str, name: str) -> str:
    """Return the error for a module that does not exist."""
    text = f"there is no module {missing!r} in {Path.cwd()} or on the path"
    if name.endswith(".py") or "/" in name:
        right = name.removesuffix(".py").strip("./").replace("/", ".")
        return f"{text}; name a module, not a file: {right}"
    modules = [path.stem for path in Path().glob("*.py") if path.stem.isidentifier()]
    hint = did_you_mean(missing, modules)
    if "did you mean" in hint:
        return f"{text}; {hint}"
    return f"{text}; run this in the directory that has it, or put that on PYTHONPATH"


def _broken(name: str, error: BaseException) -> str:
    """Return the error for a module whose import raises, with the line."""
    frames = traceback.extract_tb(error.__traceback__)
    users = [frame for frame in frames if _is_users(frame.filename)]
    location = f" ({Path(users[-1].filename).name}, line {users[-1].lineno})" if users else ""
    if isinstance(error, SyntaxError):
        location = ""  # the message has the line
    if isinstance(error, SettingsError):
        return f"{error}{location}"
    return f"the module {name!r} cannot be imported: {type(error).__name__}: {error}{location}"


def _is_users(filename: str) -> bool:
    """Return whether a file belongs neither to this package nor to the import machinery."""
    return "importlib" not in filename and not Path(filename).is_relative_to(_PACKAGE)


def _traceback_of(error: BaseException) -> str:
    """Return the traceback of a module that raises, from the first line in that module."""
    frames = error.__traceback__
    while frames is not None and not _is_users(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))


def _named(module: ModuleType, attribute: str) -> EventMQ:
    from eventmq.app import EventMQ

    value: Any = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            names = [*_apps(module)] or [name for name in vars(module) if name[0] != "_"]
            hint = did_you_mean(attribute, names)
            raise AppNotFound(f"the module {module.__name__!r} has no {attribute!r}; {hint}")
        value = getattr(value, part)
    if not isinstance(value, EventMQ):
        kind, apps = type(value).__name__, _apps(module)
        hint = did_you_mean(attribute, apps) if apps else "name one that is EventMQ(...)"
        path = f"{module.__name__}:{attribute}"
        raise AppNotFound(f"{path} is not an app, but of type {kind}; {hint}")
    return value


def _apps(module: ModuleType) -> Mapping[str, EventMQ]:
    from eventmq.app import EventMQ

    return {name: value for name, value in vars(module).items() if isinstance(value, EventMQ)}


def _only(module: ModuleType) -> str:
    """Return the attribute that has the module's only app."""
    apps, name = _apps(module), module.__name__
    if _DEFAULT_ATTRIBUTE in apps:
        return _DEFAULT_ATTRIBUTE
    if not apps:
        msg = f"the module {name!r} has no app; it needs a line such as app = EventMQ({name!r})"
        raise AppNotFound(msg)
    first = next(iter(apps))
    if len({id(app) for app in apps.values()}) > 1:
        names = ", ".join(apps)
        msg = f"the module {name!r} has several apps: {names}; name one, as in -A {name}:{first}"
        raise AppNotFound(msg)
    return first


def user() -> str:
    """Return the user who runs this command, as user@host."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in containers
        name = f"uid-{os.getuid()}" if hasattr(os, "getuid") else "unknown"
    return printable(f"{name}@{socket.gethostname()}")[:_MAX_USER]


takes_json = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, and nothing else on stdout."
)

takes_wide = click.option(
    "--wide", is_flag=True, help="A table with all columns, whole ids and full times."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """App and broker named by the options of a command.

    Attributes:
        app_name: Value of ``-A``, or None.
        imports: Values of ``-I``.
        broker: Values of ``--broker``, separated by commas, or None.
        verbosity: Number of ``-v`` minus the number of ``-q``.
    """

    app_name: str | None = None
    imports: tuple[str, ...] = ()
    broker: str | None = None
    verbosity: int = 0

    def find(self, **overrides: Any) -> Found:
        """Return the app and its path, with the settings of the command line applied.

        Args:
            **overrides: Settings that take precedence over all others; None is ignored.

        Raises:
            AppNotFound: ``-A`` or ``-I`` names a module or app that cannot be loaded.
            SettingsError: A setting is wrong.
        """
        if self.app_name or self.imports or loads_plugins():
            join_path()
        try:
            return self._find(overrides)
        except AppNotFound as error:
            if error.__cause__ is not None and not isinstance(error.__cause__, SettingsError):
                click.echo(printable(_traceback_of(error.__cause__), keep="\n\t"), err=True)
            raise

    def _find(self, overrides: Mapping[str, Any]) -> Found:
        from eventmq.app import EventMQ

        app_and_path = find_app(self.app_name) if self.app_name else Found(EventMQ("eventmq"), "")
        app = app_and_path.app
        chosen = {"broker": self.broker, **overrides}
        if self.imports:
            chosen["imports"] = (*app.settings.imports, *self.imports)
        try:
            app.override(**{name: value for name, value in chosen.items() if value is not None})
        except NotAllowed:
            msg = f"-A {self.app_name}: its module uses the app while it is imported; put that "
            raise AppNotFound(msg + 'under if __name__ == "__main__":') from None
        if self.app_name or self.imports:
            import_modules([n for n in app.settings.imports if n not in self.imports], _SETTING)
            import_modules(self.imports)
        return app_and_path

    def app(self, **overrides: Any) -> EventMQ:
        """Return the app of `find`."""
        return self.find(**overrides).app

    @contextmanager
    def asking(self, timeout: float | None = None, *, level: str = "error") -> Iterator[EventMQ]:
        """Yield the app, to call its broker, and close it at the end.

        Args:
            timeout: Seconds to wait for an answer; default: that of the settings.
            level: Lowest level that is logged, unless ``-v`` or ``-q`` is used.
        """
        start_logging(shift_level(level, self.verbosity))
        app = self.app(submit_timeout=timeout)
        with suppress(NotAllowed):  # the app is in use already
            app.override(actor=app.settings.actor or user())
        try:
            yield app
        finally:
            app.close()

    def serving(self, **overrides: Any) -> Found:
        """Return the app of `find` for a long-running command, and set up its logging.

        Raises:
            SettingsError: Its broker is ``memory://``.
        """
        chosen = click.get_current_context().meta.get(_LOG_FORMAT)
        with early_lines():
            app_and_path = self.find(log_format=chosen, **overrides)
            settings = app_and_path.app.settings
            level = shift_level(settings.log_level, self.verbosity)
            with suppress(NotAllowed):  # in use: the level then applies to this process only
                app_and_path.app.override(log_level=level)
            start_logging(level, form=settings.log_format, handlers=settings.log_handlers)
        if "memory://" in app_and_path.app.settings.broker:
            msg = "the broker memory:// lives inside the process that uses it; name one that "
            raise SettingsError(msg + "others can reach: --broker tcp://127.0.0.1:47291")
        return app_and_path


def _app_option(*, required: bool) -> Decorator:
    return click.option(
        "-A", "--app", "app_name", metavar="MODULE[:ATTRIBUTE]", required=required,
        help="The app; searched for in the working directory first. Without an attribute it is "
        'the module\'s "app", or else its only app.',
    )  # fmt: skip


_IMPORTS = click.option(
    "-I", "--import", "imports", metavar="MODULE", multiple=True,
    help="Import another module with tasks. Repeatable.",
)  # fmt: skip


def _brokers(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> str | None:
    """Join the values of ``--broker``."""
    return ",".join(values) or None


_BROKER = click.option(
    "--broker", metavar="URL", multiple=True, callback=_brokers,
    help="The broker, or several; default: the app's, or EVENTMQ_BROKER, or "
    "tcp://127.0.0.1:47291. Repeatable, or separated by commas.",
)  # fmt: skip

#: Key of the context under which `takes_log_format` stores the value.
_LOG_FORMAT = f"{__name__}.log_format"


def _store_log_format(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    ctx.meta[_LOG_FORMAT] = value


#: For long-running commands, which use `Target.serving`.
takes_log_format = click.option(
    "--log-format", type=click.Choice(["text", "json"]), expose_value=False,
    callback=_store_log_format, help="Format of log lines; default: the setting log_format.",
)  # fmt: skip


#: For a broker or a worker.
takes_metrics_bind = click.option(
    "--metrics-bind", metavar="HOST:PORT",
    help="Serve the metrics of this process to Prometheus here. Default: nowhere.",
)  # fmt: skip


def _queues(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> str | None:
    """Join the values of ``-Q``."""
    for part in ",".join(values).split(","):
        name, equals, weight = part.strip().partition("=")
        if values and not name:
            raise click.BadParameter("a queue has no name; write NAME:WEIGHT, such as mail:30")
        if equals:
            raise click.BadParameter(
                f"{part.strip()!r} is not NAME:WEIGHT; write {name}:{weight or 10}"
            )
    return ",".join(values) or None


takes_queues = click.option(
    "-Q", "--queues", metavar="NAME:WEIGHT,...", multiple=True, callback=_queues,
    help="Queues of the worker, with their weights; default: the queue default. Repeatable.",
)  # fmt: skip

#: Options that are allowed before the command as well as after it.
VERBOSITY = (
    click.option("-v", "--verbose", count=True, help="Log more. Repeatable."),
    click.option("-q", "--quiet", count=True, help="Log less. Repeatable."),
)


def _packing(*options: Decorator) -> Decorator:
    """Return a decorator that adds options and passes their values as one ``target``."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        def packed(
            app_name: str | None = None,
            imports: tuple[str, ...] = (),
            broker: str | None = None,
            **more: Any,
        ) -> Any:
            verbosity = more.pop("verbose") - more.pop("quiet")
            verbosity += click.get_current_context().find_root().obj or 0
            target = Target(app_name=app_name, imports=imports, broker=broker, verbosity=verbosity)
            return function(target=target, **more)

        command: Callable[..., Any] = functools.update_wrapper(packed, function)
        for option in reversed([*options, *VERBOSITY]):
            command = option(command)
        return command

    return decorate


#: For commands that talk to a broker.
takes_target = _packing(_app_option(required=False), _IMPORTS, _BROKER)


def takes_app(*, required: bool = False) -> Decorator:
    """Return the decorator for commands that run processes of an app."""
    return _packing(_app_option(required=required), _IMPORTS)


def options_of(pairs: tuple[str, ...], option: str) -> dict[str, str]:
    """Parse options such as ``--pool-option name=value``."""
    options = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.UsageError(f"{option} {pair!r} is not written as name=value")
        options[name] = value
    return options
