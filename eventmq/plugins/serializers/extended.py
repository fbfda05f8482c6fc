"""Extended types: types that MessagePack and JSON lack, and how both serializers encode them.

Types are matched exactly, so a subclass is refused and does not lose what it adds. A time with a
zone keeps its offset, not the name of the zone. Tuples are decoded as lists. As keys of a dict and
in a set, where lists are not possible, lists are decoded as tuples.

Values with a plain form (`eventmq.sdk.plain`) are encoded and decoded as that form; the annotations
of a task convert them back.
"""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from eventmq.sdk import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "BY_CODE",
    "BY_TAG",
    "BY_TYPE",
    "Extension",
    "children",
    "explain",
    "freeze",
]


class Extension(NamedTuple):
    """Encoding of a type: as plain data with a code (msgpack) or a tag (json)."""

    type: type
    code: int
    tag: str
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def freeze(value: Any) -> Any:
    """Return the value with tuples in place of lists, so that it can be hashed."""
    return tuple(map(freeze, value)) if isinstance(value, list) else value


def _members(value: Any) -> list[Any]:
    """Return the members of a set; raise TypeError if one would be decoded as a dict."""
    members = list(value)
    for member in members:
        if type(member) not in BY_TYPE and isinstance(_plain_or_none(member), dict):
            kind = type(member).__name__
            raise TypeError(f"a set has a {kind}, which is written as a dict: give a list of them")
    return members


#: Codes and tags are part of the format: never change or reuse them.
_EXTENSIONS = (
    Extension(datetime, 1, "datetime", datetime.isoformat, datetime.fromisoformat),
    Extension(date, 2, "date", date.isoformat, date.fromisoformat),
    Extension(time, 3, "time", time.isoformat, time.fromisoformat),
    Extension(
        timedelta,
        4,
        "timedelta",
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda plain: timedelta(*plain),
    ),
    Extension(Decimal, 5, "decimal", str, Decimal),
    Extension(UUID, 6, "uuid", str, UUID),
    Extension(set, 7, "set", _members, lambda plain: set(map(freeze, plain))),
    Extension(frozenset, 8, "frozenset", _members, lambda plain: frozenset(map(freeze, plain))),
    Extension(int, 9, "int", hex, lambda plain: int(plain, 16)),
    Extension(
        complex,
        10,
        "complex",
        lambda value: [value.real, value.imag],
        lambda plain: complex(*plain),
    ),
)

BY_TYPE = {extension.type: extension for extension in _EXTENSIONS}
BY_CODE = {extension.code: extension for extension in _EXTENSIONS}
BY_TAG = {extension.tag: extension for extension in _EXTENSIONS}


def _plain_or_none(value: object) -> Any:
    try:
        return plain(value)
    except TypeError:
        return None


_PLAIN = (str, int, float, bytes, bytearray, memoryview, type(None))
_KNOWN = (
    "None bool int float str bytes list tuple (read as a list) dict set frozenset "
    "datetime date time timedelta Decimal UUID complex, enums, paths, dataclasses, attrs classes, "
    "msgspec structs and pydantic models"
)


def _shown(value: object) -> str:
    """Return the beginning of ``repr(value)``, or the type of the value if that fails."""
    try:
        return f"{value!r:.40}"
    except Exception:  # noqa: BLE001 - a very long int, or a class of the user's
        return f"<{type(value).__name__}>"


def children(value: object, path: str) -> Iterator[tuple[str, object]]:
    """Yield (path, value) for each item of a container; for dicts also the keys."""
    if isinstance(value, dict):
        for key, item in value.items():
            shown = _shown(key)
            yield f"{path}, key {shown}", key
            yield f"{path}[{shown}]", item
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield f"{path}[{index}]", item
    elif type(value) in {set, frozenset}:
        for item in value:  # type: ignore[attr-defined]
            yield f"{path}, member {_shown(item)}", item


def _errors(value: object, path: str, outer: set[int]) -> Iterator[str]:
    """Yield type, path and reason for each part of a value that cannot be encoded."""
    where = f"{type(value).__name__} at {path}"
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            yield f"{where}: UTF-8 has no surrogates"
    elif isinstance(value, (dict, list, tuple)) or type(value) in {set, frozenset}:
        if id(value) in outer:
            yield f"{where}: it contains itself"
            return
        outer.add(id(value))
        for inner, item in children(value, path):
            yield from _errors(item, inner, outer)
        outer.discard(id(value))
    elif type(value) not in BY_TYPE and not isinstance(value, _PLAIN):
        simple = _plain_or_none(value)
        if simple is None:
            yield f"{where}; it takes: {_KNOWN}"
        elif id(value) in outer:
            yield f"{where}: it contains itself"
        else:
            outer.add(id(value))
            yield from _errors(simple, path, outer)
            outer.discard(id(value))


def explain(name: str, value: object, error: Exception) -> str:
    """Return why a value cannot be encoded: type and path of the part, or else the error."""
    try:
        error_text = next(_errors(value, "value", set()), "")
    except RecursionError:
        error_text = f"{type(value).__name__} at value: it is nested too deeply"
    if not error_text:
        return f"{name} cannot encode this {type(value).__name__}: {error or 'nested too deeply'}"
    return f"{name} cannot encode the {error_text}"
