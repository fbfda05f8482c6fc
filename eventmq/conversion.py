"""Conversion of values to the types of annotations: settings and options of plugins.

A class declares options as the fields of a dataclass, with `option` where a default alone does not
say enough; `read_options` makes one of it from what files, variables and arguments have. The
library msgspec converts. It is imported for the first value that does not have its type yet.

`plain` goes the other way, for serializers: from dataclasses and their kind to plain data.
"""

from __future__ import annotations

import math
import operator
import re
import sys
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from dataclasses import field as dataclass_field
from enum import Enum
from functools import lru_cache
from pathlib import Path, PurePath
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from eventmq.errors import PluginError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "Option",
    "convert",
    "describe",
    "is_model",
    "option",
    "options_of",
    "plain",
    "read_options",
    "read_values",
]

T = TypeVar("T")

#: Where a field of a dataclass has what `option` declares.
_DECLARED = "eventmq"

#: What msgspec does not take for true and false, though people write it.
_FLAGS = {"yes": True, "on": True, "no": False, "off": False}

#: Largest whole number of an option: what C, SQLite and MessagePack have in 64 bits.
MAX_WHOLE = 2**63 - 1

#: Largest number of an option in seconds, some 31 years: more than any timer takes is a mistake.
MAX_SECONDS = 1e9

_TEXTS = tuple[str, ...]

#: Types in the words of error messages.
_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
    type(None): "nothing",
    list: "a list",
    tuple: "a list",
    dict: "a table",
    Mapping: "a table",
}

#: Types of items -> their plural.
_PLURALS: Mapping[Any, str] = {
    int: "whole numbers",
    float: "numbers",
    str: "texts",
    Path: "paths",
}

_TABLES = frozenset({dict, Mapping})

_MANY = frozenset({*_TABLES, list, tuple})

#: Bounds of a number -> how they are said.
_BOUNDS = {"ge": "from", "gt": "above", "le": "to", "lt": "below"}

#: Bounds of an option -> their checks. Those of msgspec would load it for values that have their
#: type already: 5 ms in each process, where it is started and where it has a child.
_CHECKS: Mapping[str, Callable[[Any, Any], bool]] = {
    "ge": operator.ge,
    "gt": operator.gt,
    "le": operator.le,
    "lt": operator.lt,
    "min_length": lambda value, least: len(value) >= least,
    "pattern": lambda value, pattern: re.search(pattern, value) is not None,
}


def convert(value: object, kind: Any, *, text: bool = False) -> Any:
    """Return a value as a type, itself where it has that type already.

    Args:
        value: What MessagePack, JSON, TOML, a variable or a caller has.
        kind: The type: a builtin, `Literal`, an `Enum`, `Path`, `datetime`, `UUID`, `Decimal`, a
            list, tuple or mapping of these, a dataclass, a class of attrs or msgspec, or
            `Annotated` with bounds in a ``msgspec.Meta``.
        text: Text is read as the type too, since variables and command lines have nothing else:
            ``"4"`` is a whole number, ``"yes"`` is true, ``"a, b"`` is a list.

    Raises:
        ValueError: The value does not fit; the message says what would, without the value, which
            may be a secret.
    """
    if text and isinstance(value, str):
        value = _plain(value, get_args(kind)[0] if get_origin(kind) is Annotated else kind)
    if type(value) is kind or (kind == _TEXTS and _are_texts(value)):
        return value
    if type(value) is str and get_origin(kind) is Literal and value in get_args(kind):
        return value
    return _convert(value, kind, strict=not text)


def _convert(value: object, kind: Any, *, strict: bool) -> Any:
    import msgspec

    if kind is bool and isinstance(value, (int, float)):  # else 1 would be true
        raise ValueError(describe(kind))
    try:
        return msgspec.convert(value, kind, strict=strict, dec_hook=_convert_others)
    except msgspec.ValidationError:
        # Without the cause, which may repeat the value.
        raise ValueError(describe(kind)) from None


def _are_texts(value: object) -> bool:
    return type(value) is tuple and all(type(each) is str for each in value)


def _plain(text: str, kind: Any) -> object:
    """Return what msgspec takes for text."""
    if get_origin(kind) in {tuple, list}:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if kind in {str, Path}:
        return text
    return _FLAGS.get(text.strip().lower(), text.strip()) if kind is bool else text.strip()


def _convert_others(kind: type[Any], value: object) -> object:
    """Convert to a type that msgspec does not know."""
    if kind is Path and isinstance(value, (str, PurePath)):
        return Path(value)
    raise ValueError(value)


def plain(value: Any) -> Any:
    """Return the plain form of a value: one level of it, what is inside is as it was.

    That of a dataclass, a class of attrs, a ``msgspec.Struct`` or a pydantic model is the dict of
    its fields, that of an enum is its value, that of a path or of pydantic's URLs is text.

    Raises:
        TypeError: It has none.
    """
    kind = type(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, PurePath):
        return str(value)
    if is_dataclass(value) and kind.__module__.partition(".")[0] != "eventmq":  # a signature
        names = [field.name for field in fields(value)]
    elif hasattr(kind, "__attrs_attrs__"):
        names = [field.name for field in kind.__attrs_attrs__]
    elif hasattr(kind, "__struct_config__"):
        config = kind.__struct_config__
        read = (getattr(value, name) for name in kind.__struct_fields__)
        found = dict(zip(kind.__struct_encode_fields__, read, strict=True))
        return found if config.tag is None else {config.tag_field: config.tag, **found}
    elif is_model(kind):
        return value.model_dump(round_trip=True)
    elif kind.__module__ == "pydantic.networks":
        return str(value)
    else:
        raise TypeError(kind.__name__)
    return {name: getattr(value, name) for name in names}


def is_model(kind: object) -> bool:
    """Return whether something is a class of pydantic's models."""
    # Whoever has one has imported the library.
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)


def describe(kind: Any, bounds: Mapping[str, Any] | None = None) -> str:
    """Return in words which values a type has: "a whole number from 0 to 9"."""
    origin, inner = get_origin(kind), get_args(kind)
    bounds = bounds or {}
    if origin is Annotated:
        return describe(inner[0], {name: getattr(inner[1], name, None) for name in _BOUNDS})
    if origin is Literal or (isinstance(kind, type) and issubclass(kind, Enum)):
        names = [str(getattr(item, "value", item)) for item in inner or kind]
        return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    if kind in _WORDS:
        words = _WORDS[kind]
    elif origin in {Union, UnionType}:
        words = " or ".join(map(describe, inner))
    elif origin is tuple and inner[1:] != (...,):
        words = f"a list of {len(inner)} items: {', '.join(map(describe, inner))}"
    elif origin in {tuple, list}:
        plural = _PLURALS.get(inner[0])
        words = f"a list of {plural}" if plural else f"a list, each item {describe(inner[0])}"
    elif origin in _TABLES:
        plural = _PLURALS.get(inner[1]) if inner[0] is str else None
        words = f"a table, each key {describe(inner[0])} and each value {describe(inner[1])}"
        words = f"a table of {plural}" if plural else words
    else:
        words = f"a value of the type {getattr(kind, '__name__', kind)}"
    given = {name: edge for name, edge in bounds.items() if edge is not None}
    edges = [f" {word} {given[name]:.15g}" for name, word in _BOUNDS.items() if name in given]
    if least := given.get("min_length"):
        edges.append(f" of {least} or more characters" if kind is str else f", {least} or more")
    if "pattern" in given:
        edges.append(f" that matches {given['pattern']!r}")
    return words + "".join(edges)


def _shown(value: object) -> str:
    """Return a number, and of all else, which may be a secret, what it is."""
    if isinstance(value, (int, float)):
        return str(value)
    words = {str: "text", list: "a list", tuple: "a list", dict: "a table", type(None): "nothing"}
    return words.get(type(value), type(value).__name__)


def _wrong_item(value: object, kind: Any) -> str:
    """Return which item of a list or table does not fit, "" where none is to blame."""
    origin, inner = get_origin(kind), get_args(kind)
    if isinstance(value, str):
        value = _plain(value, kind)
    parts: list[tuple[str, object, Any]] = []
    if origin in _TABLES and isinstance(value, Mapping):
        for key, each in value.items():
            parts += [
                (f"the key {key!r}", key, inner[0]),
                (f"the value of {key!r}", each, inner[1]),
            ]
    elif origin in {tuple, list} and isinstance(value, (tuple, list)):
        kinds = inner if origin is tuple and inner[1:] != (...,) else (inner[0],) * len(value)
        if len(kinds) != len(value):
            return f"the number of items is {len(value)}"
        named = (f"item {number}" for number in range(1, len(value) + 1))
        parts = list(zip(named, value, kinds, strict=True))
    for name, each, wanted in parts:
        try:
            _convert(each, wanted, strict=False)
        except ValueError:
            deeper = "" if isinstance(each, str) else _wrong_item(each, wanted)
            return f"in {name}, {deeper}" if deeper else f"{name} is {_shown(each)}"
    return ""


def _numbers(value: object) -> Iterator[int | float]:
    """Yield a number, or the numbers in a list or table."""
    if isinstance(value, (int, float)):
        yield value
    elif isinstance(value, (tuple, list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _numbers(item)


class _WrongValueError(ValueError):
    """A value that an option may not have: which are allowed, and why this one is not."""

    def __init__(self, allowed: str, why: str) -> None:
        super().__init__(f"{allowed}: {why}" if why else allowed)
        self.why = why


@dataclass(frozen=True, slots=True)
class Option:
    """A declared option.

    Attributes:
        name: As users write it.
        field: Name of the field.
        kind: Type of its values.
        default: Its default.
        allowed: Which values it may have, in words.
        required: It must be set.
        doc: What it means.
        unit: Of a number, as ``s``.
        bounds: Those of `option`, by name.
        parse: Makes of what was given, of any type, a value that is converted then. If it raises,
            the value is refused.
        check: Returns whether a converted value is allowed, or raises `ValueError`, whose text is
            shown; it should not repeat what may be a secret.
    """

    name: str
    field: str
    kind: Any
    default: Any
    allowed: str
    required: bool = False
    doc: str = ""
    unit: str = ""
    bounds: Mapping[str, Any] = dataclass_field(default_factory=dict)
    parse: Callable[[Any], object] | None = None
    check: Callable[[Any], bool] | None = None

    @property
    def type_name(self) -> str:
        """The type as one writes it; ``str`` where some words are allowed."""
        if get_origin(self.kind) is Literal:
            return "str"
        return str(self.kind) if get_origin(self.kind) else str(self.kind.__name__)

    def read(self, value: object) -> Any:
        """Return a checked value; None if it is the default.

        Text is accepted for every type but a table.

        Raises:
            ValueError: It is not allowed; the message is ``allowed``, with the item that is wrong
                or the reason that `check` gave.
        """
        if value is None is self.default:
            return None
        plain = self._parsed(value)
        try:
            found = convert(plain, self.kind, text=True)
            good = all(math.isfinite(n) for n in _numbers(found) if isinstance(n, float))
            good = good and all(_CHECKS[name](found, edge) for name, edge in self.bounds.items())
        except (ValueError, OverflowError):
            raise _WrongValueError(
                self.allowed, "" if self.parse else _wrong_item(plain, self.kind)
            ) from None
        why, limit = "", int(MAX_SECONDS) if self.unit == "s" else MAX_WHOLE
        if good and not all(-limit <= number <= limit for number in _numbers(found)):
            good, why = False, f"the largest number is {limit}"
        try:
            good = good and (self.check is None or self.check(found))
        except ValueError as error:
            good, why = False, str(error)
        if not good:
            raise _WrongValueError(self.allowed, why)
        return found

    def _parsed(self, value: object) -> object:
        if self.parse:
            try:
                value = self.parse(value)
            except Exception:  # noqa: BLE001 - it gets values of any type; no secret is repeated
                raise _WrongValueError(self.allowed, "") from None
        return str(value) if isinstance(value, PurePath) and self.kind is str else value


def option(
    default: Any = MISSING,
    doc: str = "",
    *,
    default_factory: Any = MISSING,
    name: str = "",
    unit: str = "",
    allowed: str = "",
    parse: Callable[[Any], object] | None = None,
    check: Callable[[Any], bool] | None = None,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    min_length: int | None = None,
    pattern: str | None = None,
) -> Any:
    """Return the dataclass field of an option.

    Its type is ``str``, ``int``, ``float``, ``bool``, ``Path``, a ``Literal``, an ``Enum``, a list
    or tuple of them, or a table of them, as ``dict[str, int]``; any of these or None.

    Args:
        default: Its default; an option without one must be set.
        doc: What it means.
        default_factory: Returns its default, in place of ``default``: ``dict`` for an empty table.
        name: Its name for users, where that is not the name of the field.
        unit: Of a number, as ``s``.
        allowed: Which values it may have, in words; by default made from type and bounds.
        parse: Makes of what was given, of any type, a value that is converted then. If it raises,
            the value is refused.
        check: Returns whether a converted value is allowed, or raises `ValueError`, whose text is
            shown; it should not repeat what may be a secret.
        ge: A number is this or more.
        gt: A number is more than this.
        le: A number is this or less.
        lt: A number is less than this.
        min_length: A text, or a list, has so many characters or items at least.
        pattern: A regular expression that a text matches somewhere.
    """
    bounds = {"ge": ge, "gt": gt, "le": le, "lt": lt, "min_length": min_length, "pattern": pattern}
    declared = {
        "name": name, "doc": doc, "unit": unit, "allowed": allowed,
        "bounds": {name: edge for name, edge in bounds.items() if edge is not None},
        "parse": parse, "check": check,
    }  # fmt: skip
    metadata = {_DECLARED: declared}
    if default_factory is not MISSING:
        return dataclass_field(default_factory=default_factory, metadata=metadata)
    return dataclass_field(default=default, metadata=metadata)


def options_of(kind: type[Any]) -> Mapping[str, Option]:
    """Return the options of a dataclass: name -> option.

    Raises:
        PluginError: The type of a field is not there when the program runs.
    """
    return _options_of(kind)  # type: ignore[arg-type]  # classes can be hashed


@lru_cache(maxsize=256)  # types are looked up in 50 us, and a scheduler makes many triggers
def _options_of(kind: Any) -> Mapping[str, Option]:
    try:
        hints = get_type_hints(kind, include_extras=True)
    except NameError as error:
        raise PluginError(
            f"the options {kind.__qualname__} have a type that is not there at run time: {error}"
            "; import it outside of `if TYPE_CHECKING`"
        ) from error
    found = {}
    for each in filter(lambda each: each.init, fields(kind)):
        declared = dict(each.metadata.get(_DECLARED, ()))
        name, hint = declared.pop("name", "") or each.name, _without_none(hints[each.name])
        allowed = declared.pop("allowed", "") or describe(hint, declared.get("bounds"))
        default: Any = each.default
        if each.default_factory is not MISSING:
            default = each.default_factory()
        required = default is MISSING
        found[name] = Option(name, each.name, hint, default, allowed, required, **declared)
    return found


def _without_none(kind: Any) -> Any:
    """Return ``X`` for ``X | None``."""
    inner = [each for each in get_args(kind) if each is not type(None)]
    return inner[0] if get_origin(kind) in {Union, UnionType} and len(inner) == 1 else kind


def read_values(
    known: Mapping[str, Option], values: Mapping[str, object], *, owner: str
) -> dict[str, Any]:
    """Return what is set: name of the field -> value. See `read_options`."""
    found = {}
    for name, value in values.items():
        if name not in known:
            if name == "url" and isinstance(value, str) and "://" in value:
                raise PluginError(f"{owner} takes no URL: choose it by its name alone")
            raise PluginError(f"{owner} has no option {name!r}; {did_you_mean(name, known)}")
        try:
            found[known[name].field] = known[name].read(value)
        except ValueError as error:
            raise PluginError(
                f"option {name!r} of {owner} must be {error}"
                + _instead(error, known[name].kind, value)
            ) from None
    for name in known.keys() - values.keys():
        if known[name].required:
            raise PluginError(f"{owner} needs the option {name!r}: {known[name].allowed}")
    return found


def _instead(error: ValueError, kind: Any, value: object) -> str:
    """Return what was given in place of the right value, "" where that is said or says nothing."""
    if isinstance(error, _WrongValueError) and error.why:
        return ""
    if isinstance(value, (str, list, tuple, dict)) and not value:
        return ", not empty"
    kind = get_origin(kind) or kind
    if isinstance(value, str):
        same = kind not in {bool, int, float, *_MANY}
    else:
        same = isinstance(value, (list, tuple, dict)) and kind in _MANY
        same = same and (kind in _TABLES) is isinstance(value, dict)
    return "" if same else f", not {_shown(value)}"


def read_options(kind: type[T], values: Mapping[str, object], *, owner: str) -> T:
    """Return the options of a plugin.

    Args:
        kind: A dataclass with a field for each option.
        values: Name -> value as the settings have it; what is left out has its default. Text is
            accepted for every type but a table.
        owner: What takes the options, for messages: ``plugin 'dill'``.

    Raises:
        PluginError: An option is unknown, missing or not allowed, or ``__post_init__``, where
            options are checked together, raised `ValueError`.
    """
    found = read_values(options_of(kind), values, owner=owner)
    try:
        return kind(**found)
    except ValueError as error:
        raise PluginError(f"{owner}: {error}") from error
