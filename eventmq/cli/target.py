"""Which app and which broker a command is about: ``-A``, ``-I`` and ``--broker``."""

from __future__ import annotations

import functools
import traceback
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from eventmq.cli.finder import Found, find_app, import_modules, join_path, loads_plugins
from eventmq.cli.logs import moved, start_logging
from eventmq.errors import AppNotFound, NotAllowed, SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from eventmq.app import EventMQ

    Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

__all__ = ["LOUDNESS", "Target", "options_of", "takes_app", "takes_json", "takes_target"]

takes_json = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, and nothing else on stdout."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What the options of a command name.

    Attributes:
        app_name: Of ``-A``, or None.
        imports: Of ``-I``.
        broker: Of ``--broker``, or None.
        louder: Number of ``-v`` less the number of ``-q``.
    """

    app_name: str | None = None
    imports: tuple[str, ...] = ()
    broker: str | None = None
    louder: int = 0

    def find(self, **overrides: Any) -> Found:
        """Return the app, where it is, with the settings of the command line.

        Args:
            **overrides: Settings that win over all others; None is not given.

        Raises:
            AppNotFound: ``-A`` or ``-I`` names nothing, or a module that raises.
            SettingsError: A setting is wrong.
        """
        if self.app_name or self.imports or loads_plugins():
            join_path()
        try:
            return self._find(overrides)
        except AppNotFound as error:
            if self.louder > 0 and error.__cause__ is not None:
                click.echo("".join(traceback.format_exception(error.__cause__)), err=True)
            raise

    def _find(self, overrides: Mapping[str, Any]) -> Found:
        from eventmq.app import EventMQ

        found = find_app(self.app_name) if self.app_name else Found(EventMQ("eventmq"), "")
        app = found.app
        given = {"broker": self.broker, **overrides}
        if self.imports:
            given["imports"] = (*app.settings.imports, *self.imports)
        try:
            app.override(**{name: value for name, value in given.items() if value is not None})
        except NotAllowed as error:
            msg = f"-A {self.app_name}: its module uses the app while it is imported; put that "
            raise AppNotFound(msg + 'under if __name__ == "__main__":') from error
        if self.app_name or self.imports:
            import_modules(app.settings.imports)
        return found

    def app(self, **overrides: Any) -> EventMQ:
        """Return the app of `find`."""
        return self.find(**overrides).app

    @contextmanager
    def asking(self, timeout: float | None = None) -> Iterator[EventMQ]:
        """Give the app, to ask its broker something, and close it at the end.

        Args:
            timeout: Seconds to wait for an answer, else those of the settings.
        """
        start_logging(moved("error", self.louder))
        app = self.app(submit_timeout=timeout)
        try:
            yield app
        finally:
            app.close()

    def serving(self, **overrides: Any) -> Found:
        """Return the app of `find`, to serve for long: with its log lines.

        Raises:
            SettingsError: Its broker lives inside one process.
        """
        found = self.find(**overrides)
        level = moved(found.app.settings.log_level, self.louder)
        with suppress(NotAllowed):  # in use already: then only this process logs so
            found.app.override(log_level=level)
        start_logging(level)
        if "memory://" in found.app.settings.broker:
            msg = "the broker memory:// lives inside the process that uses it; name one that "
            raise SettingsError(msg + "others can reach: --broker tcp://127.0.0.1:47291")
        return found


def _app_option(*, required: bool) -> Decorator:
    return click.option(
        "-A", "--app", "app_name", metavar="MODULE[:ATTRIBUTE]", required=required,
        help="The app; looked for in the working directory first. Without an attribute it is "
        'the module\'s "app", else its only one.',
    )  # fmt: skip


_IMPORTS = click.option(
    "-I", "--import", "imports", metavar="MODULE", multiple=True,
    help="Import one more module with tasks. Repeatable.",
)  # fmt: skip
_BROKER = click.option(
    "--broker", metavar="URL",
    help="The broker; else the app's, else EVENTMQ_BROKER, else tcp://127.0.0.1:47291.",
)  # fmt: skip


#: They can stand before the command as well as after it.
LOUDNESS = (
    click.option("-v", "--verbose", count=True, help="Log more. Repeatable."),
    click.option("-q", "--quiet", count=True, help="Log less. Repeatable."),
)


def _packing(*options: Decorator) -> Decorator:
    """Return a decorator that adds options and hands them over as one ``target``."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        def packed(
            app_name: str | None = None,
            imports: tuple[str, ...] = (),
            broker: str | None = None,
            **more: Any,
        ) -> Any:
            louder = more.pop("verbose") - more.pop("quiet")
            louder += click.get_current_context().find_root().obj or 0
            target = Target(app_name=app_name, imports=imports, broker=broker, louder=louder)
            return function(target=target, **more)

        command: Callable[..., Any] = functools.update_wrapper(packed, function)
        for option in reversed([*options, *LOUDNESS]):
            command = option(command)
        return command

    return decorate


#: For commands that talk to a broker.
takes_target = _packing(_app_option(required=False), _IMPORTS, _BROKER)


def takes_app(*, required: bool = False) -> Decorator:
    """Return the decorator for commands that run processes of an app."""
    return _packing(_app_option(required=required), _IMPORTS)


def options_of(pairs: tuple[str, ...], option: str) -> dict[str, str]:
    """Return what ``--pool-option name=value`` and the like say."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.UsageError(f"{option} {pair!r} is not written as name=value")
        found[name] = value
    return found
