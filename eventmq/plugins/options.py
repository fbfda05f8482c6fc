"""Reads the options of a plugin: known names, types of the defaults, clear errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eventmq.errors import PluginError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq.interfaces import PluginContext

__all__ = ["read_options"]

_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def _flag(value: object) -> bool:
    word = str(value).lower()
    if word not in _WORDS:
        raise ValueError(value)
    return _WORDS[word]


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(value)  # noqa: TRY004 - all readers say so
    return float(value)


def _integer(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(value)  # noqa: TRY004 - all readers say so
    return int(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(value)  # noqa: TRY004 - all readers say so
    return value


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if not isinstance(value, (list, tuple)):
        raise ValueError(value)  # noqa: TRY004 - all readers say so
    return tuple(map(_text, value))


_READERS = {
    bool: (_flag, "true or false"),
    int: (_integer, "a whole number"),
    float: (_number, "a number"),
    str: (_text, "text"),
    tuple: (_texts, "a list of texts"),
}


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
    result = dict(defaults)
    for name, value in context.options.items():
        if name not in defaults:
            hint = did_you_mean(name, defaults)
            raise PluginError(f"plugin {context.name!r} has no option {name!r}; {hint}")
        reader, wanted = _READERS[type(defaults[name])]
        try:
            result[name] = reader(value)
        except ValueError as error:
            msg = f"option {name!r} of plugin {context.name!r} must be {wanted}"
            raise PluginError(f"{msg}, not {type(value).__name__}") from error
    return result
