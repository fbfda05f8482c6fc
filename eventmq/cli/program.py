"""The program: all commands, its own options, and its exit."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

import click

from eventmq.cli.command import DONE, INTERRUPTED, SUMMARY, WRONG_USAGE, print_error
from eventmq.cli.declared import loaded_plugins
from eventmq.cli.logs import warn_of_variables
from eventmq.cli.target import VERBOSITY
from eventmq.errors import EventMQError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Program", "program"]

_PLUGIN_COMMANDS = f"{__name__}.plugin_commands"

#: Headings of the list of commands -> names; commands of plugins come last.
_GROUPS = {
    "Start": ("demo", "dev", "broker", "worker", "beat", "gateway"),
    "Submit": ("call", "schedule", "unschedule", "publish", "subscribe"),
    "Inspect": ("status", "ping", "queues", "workers", "jobs", "job", "failed", "schedules"),
    "Act": ("cancel", "purge", "pause", "resume", "drain", "clock"),
    "Store": ("fsck", "backup", "store"),
    "Extend": ("plugins", "settings", "keys", "version"),
}

#: Module -> its commands. A module is imported when one of them is asked for: all modules together
#: would add some 30 ms to the start of each command.
_MODULES = {
    "demo.command": ("demo",),
    "broker": ("broker",),
    "worker": ("worker",),
    "beat": ("beat",),
    "dev": ("dev",),
    "gateway": ("gateway",),
    "call": ("call",),
    "inspect": ("ping", "status", "queues", "workers", "jobs", "job"),
    "control": ("failed", "cancel", "purge", "pause", "resume", "drain", "clock"),
    "schedules": ("schedules", "schedule", "unschedule"),
    "store": ("fsck", "backup", "store"),
    "topics": ("publish", "subscribe"),
    "keys": ("keys",),
    "about": ("plugins", "settings", "version"),
}

_NO_MEMORY = (
    "out of memory, so this process has ended; every job with a receipt is on disk. Start it again "
    "with more memory, or with smaller frames (max_frame)"
)


class Program(click.Group):
    """Group of all commands. The module of a command is imported when it is asked for.

    Plugins load for an unknown command, and for the list of commands.
    """

    def main(self, args: Sequence[str] | None = None, *more: Any, **named: Any) -> NoReturn:
        """Run a command and exit with its code; expected errors become one line on stderr.

        Args:
            args: The command line; that of the process if None.
            *more: As in click.
            **named: As in click; ``warned``: the parent process has warned of misspelt variables.
        """
        named["standalone_mode"] = False
        warnings = warn_of_variables(done=named.pop("warned", False))
        try:
            with warnings:
                code = super().main(args, *more, **named)
        except (click.ClickException, EventMQError) as error:
            code = print_error(error)
        except MemoryError:
            code = print_error(MemoryError(_NO_MEMORY))
        except (click.Abort, KeyboardInterrupt):
            code = INTERRUPTED
        sys.exit(code if isinstance(code, int) else DONE)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; plugins load if it is not built in."""
        self.load(cmd_name)
        return self.commands.get(cmd_name) or _with_plugins(self, ctx).get(cmd_name)

    def load(self, *names: str) -> None:
        """Import the modules of built-in commands, without names those of all."""
        for module, has in _MODULES.items():
            if not names or (set(names) & set(has)).difference(self.commands):
                for command in import_module(f"eventmq.cli.{module}").COMMANDS:
                    self.add_command(command)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names; a broken plugin must not prevent the help."""
        try:
            return list(_with_plugins(self, ctx))
        except EventMQError as error:
            print_error(error)
            return list(self.commands)  # all that are built in are loaded by now

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands under their headings, each with its whole summary."""
        names = self.list_commands(ctx)
        grouped = {name for group in _GROUPS.values() for name in group}
        ungrouped = [name for name in names if name not in grouped]
        for title, group in {**_GROUPS, "Extend": (*_GROUPS["Extend"], *ungrouped)}.items():
            commands = [(name, self.get_command(ctx, name)) for name in group if name in names]
            rows = [(name, each.get_short_help_str(SUMMARY)) for name, each in commands if each]
            with formatter.section(title):
                formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve the command; an error names the nearest one."""
        if args and self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            hint = did_you_mean(args[0], _with_plugins(self, ctx))
            ctx.fail(f"there is no command {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)


def _with_plugins(group: Program, ctx: click.Context) -> dict[str, click.Command]:
    """Return the commands of plugins too, cached for one run of the program."""
    meta = ctx.find_root().meta
    if _PLUGIN_COMMANDS not in meta:
        group.load()
        everything = click.Group(commands=dict(group.commands))
        loaded_plugins(ctx).add_commands(everything)
        meta[_PLUGIN_COMMANDS] = everything.commands
    commands: dict[str, click.Command] = meta[_PLUGIN_COMMANDS]
    return commands


def _switch_plugins(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> None:
    """Add the values of ``-p`` to the settings of this process and of those that it starts."""
    if not values:
        return
    from eventmq.registry.manager import split_switches
    from eventmq.settings import PREFIX, load_settings

    settings = load_settings({})
    on, off = split_switches(values)
    for name, chosen, added in (
        ("LOAD_PLUGINS", settings.load_plugins, on),
        ("DISABLED_PLUGINS", settings.disabled_plugins, off),
    ):
        if added:
            os.environ[f"{PREFIX}{name}"] = ",".join(dict.fromkeys([*chosen, *added]))


def _print_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        from eventmq.cli.about import version_line

        click.echo(version_line())
        ctx.exit()


@click.group(
    cls=Program,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "-p", "plugins", multiple=True, metavar="NAME", is_eager=True, expose_value=False,
    callback=_switch_plugins, help="Load a plugin; no:NAME disables one. Repeatable.",
)  # fmt: skip
@VERBOSITY[0]
@VERBOSITY[1]
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version,
    help="Show the version and exit.",
)  # fmt: skip
@click.pass_context
def program(ctx: click.Context, verbose: int, quiet: int) -> int:
    """EventMQ is a task queue for Python: it runs functions in the background.

    Jobs run on this machine or on others, and the broker keeps every job on disk until it is done.
    "eventmq demo" shows everything at work; "eventmq COMMAND --help" explains a command.
    """
    ctx.obj = verbose - quiet
    if ctx.invoked_subcommand is not None:
        return DONE
    click.echo(ctx.get_help(), err=True)
    return WRONG_USAGE
