"""Commands with options from plugins: a gateway or worker pool declares its own.

Plugins load only if the command line has an option that the command itself does not have, and for
its help.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from eventmq.cli.command import Command, print_error
from eventmq.cli.target import join_path, loads_plugins
from eventmq.errors import EventMQError

if TYPE_CHECKING:
    from eventmq.registry.manager import PluginManager
    from eventmq.registry.names import PluginKind

__all__ = ["DeclaredOptions", "loaded_plugins"]


def loaded_plugins(ctx: click.Context) -> PluginManager:
    """Return the installed plugins and those of ``-p``, once for one call of the program."""
    meta = ctx.find_root().meta
    if __name__ not in meta:
        from eventmq.registry.manager import PluginManager
        from eventmq.settings import load_settings

        if loads_plugins():
            join_path()
        manager = PluginManager(load_settings({}))
        manager.load()
        meta[__name__] = manager
    plugins: PluginManager = meta[__name__]
    return plugins


class DeclaredOptions(Command):
    """A command that runs a gateway or pool, with the options that plugins declare for it.

    The function gets the values of these options as ``declared``, a dict.

    Args:
        kind: Kind of the plugin that the command runs.
        more: Arguments of `Command`.
    """

    def __init__(self, *args: Any, kind: PluginKind[Any], **more: Any) -> None:
        super().__init__(*args, **more)
        self._kind = kind

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line; if it has an unknown option, collect those of plugins first."""
        options = [param for param in self.params if isinstance(param, click.Option)]
        option_names = {
            name for option in options for name in (*option.opts, *option.secondary_opts)
        }
        broken: EventMQError | None = None
        if any(arg[:1] == "-" and arg.partition("=")[0] not in option_names for arg in args):
            broken = self.collect(ctx)
        try:
            remaining = super().parse_args(ctx, args)
        except click.NoSuchOption as error:  # perhaps an option of the broken plugin
            raise broken or error from None
        except click.exceptions.Exit:  # a broken plugin must not prevent the help
            if broken is not None:
                print_error(broken)
            raise
        if broken is not None:
            print_error(broken)
        names = [option.name for option in ctx.meta.get(__name__ + self._kind.hook, ())]
        values = {name: ctx.params.pop(name) for name in names}
        ctx.params["declared"] = {name: v for name, v in values.items() if v is not None}
        return remaining

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the options of the command, and the collected ones."""
        *options, last = super().get_params(ctx)
        return [*options, *ctx.meta.get(__name__ + self._kind.hook, ()), last]

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the names that can be run, before the exit codes."""
        try:
            names = ", ".join(sorted(loaded_plugins(ctx).names(self._kind)))
        except EventMQError:  # shown when options were collected
            names = ""
        if names:
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(
                    f"{self._kind.name.capitalize()}s that can be chosen: {names}."
                )
        super().format_epilog(ctx, formatter)

    def collect(self, ctx: click.Context) -> EventMQError | None:
        """Add the options of plugins; return the error of a broken one, in which case none is."""
        options = [param for param in super().get_params(ctx) if isinstance(param, click.Option)]
        spelt = {opt for option in options for opt in (*option.opts, *option.secondary_opts)}
        names = {opt[2:].replace("-", "_") for opt in spelt} | {str(each.name) for each in options}
        owner_of = dict.fromkeys(names, ctx.command_path)
        try:
            declared = loaded_plugins(ctx).command_options(self._kind, owner_of)
        except EventMQError as error:
            return error
        ctx.meta[__name__ + self._kind.hook] = [
            click.Option(
                ["--" + name.replace("_", "-")],
                metavar=option.metavar,
                type=str if option.minimum is None else click.IntRange(option.minimum),
                help=f"{option.help.rstrip('.')} ({', '.join(owners)}).",
            )
            for name, (option, owners) in declared.items()
        ]
        return None
