"""Plugins, settings and versions of this installation: ``plugins settings version``."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import click

from eventmq.cli.command import FAILED, Command
from eventmq.cli.output import show_object, show_rows
from eventmq.cli.target import takes_json, takes_target, takes_wide

if TYPE_CHECKING:
    from eventmq.cli.target import Target

__all__ = ["COMMANDS", "version_line"]

_PLUGIN_COLUMNS = ("name", "version", "origin", "hooks", "provides", "in_use")
_SETTING_COLUMNS = ("name", "value", "source", "type", "unit", "default", "env")


@click.command(cls=Command, exits={FAILED: "a plugin is broken"})
@takes_json
@takes_wide
@takes_target
def plugins(target: Target, as_json: bool, wide: bool) -> None:
    """List the plugins.

    For each plugin its origin, what it provides, and what of that is in use. Without -A the
    settings of the working directory apply.
    """
    rows = target.app().plugins.listing()
    gives_way = ("hooks", "version", "provides")
    show_rows(rows, _PLUGIN_COLUMNS, as_json=as_json, wide=wide, gives_way=gives_way)


@click.command(cls=Command)
@takes_json
@takes_wide
@takes_target
def settings(target: Target, as_json: bool, wide: bool) -> None:
    """List the settings.

    For each setting its value and source, type, unit, default and environment variable. Without -A
    these are the settings of the working directory and the environment.
    """
    from eventmq.settings import describe

    rows, gives_way = describe(target.app().settings), ("env", "default", "type", "unit")
    show_rows(rows, _SETTING_COLUMNS, as_json=as_json, wide=wide, gives_way=gives_way)


@click.command(cls=Command)
@takes_json
def version(as_json: bool) -> None:
    """Show the version."""
    if as_json:
        show_object(_versions(), as_json=True)
    else:
        click.echo(version_line())


def version_line() -> str:
    """Return the line that ``version`` and ``--version`` print."""
    versions = _versions()
    eventmq_version = versions.pop("eventmq")
    libraries = ", ".join(f"{name} {value}" for name, value in versions.items())
    return f"eventmq {eventmq_version} ({libraries})"


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    from eventmq.plugins.database import library_version

    versions = {}
    for name in ("eventmq", "pyzmq"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:  # not installed: a checkout
            versions[name] = "unknown"
    return {
        "eventmq": versions["eventmq"],
        "python": platform.python_version(),
        "pyzmq": versions["pyzmq"],
        "sqlite": library_version(),
    }


COMMANDS = (plugins, settings, version)
