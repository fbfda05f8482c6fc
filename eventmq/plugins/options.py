"""Reads the options of a plugin: known names, types of the defaults, clear errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eventmq.conversion import Option, describe, read_values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq.interfaces import PluginContext

__all__ = ["read_options"]


def read_options(context: PluginContext, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options of ``defaults``, with the values of the context where it has them.

    Text is accepted for every type, since the command line has nothing else.

    Args:
        context: As the factory got it.
        defaults: Name -> default; its type (bool, int, float, str or a tuple of str) is what
            the value must have.

    Raises:
        PluginError: An option is unknown, or has a value of another type.
    """
    known = {}
    for name, default in defaults.items():
        kind = tuple[str, ...] if isinstance(default, tuple) else type(default)
        known[name] = Option(name, name, kind, default, describe(kind))
    return {**defaults, **read_values(known, context.options, owner=f"plugin {context.name!r}")}
