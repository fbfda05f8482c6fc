"""Conversion of values to the types of annotations: settings and options of plugins.

A class declares options as the fields of a dataclass, with `option` where a default alone is not
enough; `read_options` makes an instance from values of files, variables and arguments. The library
msgspec converts; it is imported for the first value that does not have its type yet.

`plain` does the opposite for serializers: it converts dataclasses and similar objects to plain
data.
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

#: Key of the metadata of a dataclass field under which `option` stores its declaration.
_DECLARED = "eventmq"

#: Words for true and false that msgspec does not accept.
_FLAGS = {"yes": True, "on": True, "no": False, "off": False}

#: Largest whole number of an option: the 64-bit limit of C, SQLite and MessagePack.
MAX_WHOLE = 2**63 - 1

#: Largest number of an option in seconds, some 31 years; a larger one is a mistake.
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

#: Bounds of a number -> their words in messages.
_BOUNDS = {"ge": "from", "gt": "above", "le": "to", "lt": "below"}

#: Bounds of an option -> their checks. Bounds of msgspec would import it even for values that have
#: their type already: 5 ms in each process, at its start and in each child.
_CHECKS: Mapping[str, Callable[[Any, Any], bool]] = {
    "ge": operator.ge,
    "gt": operator.gt,
    "le": operator.le,
    "lt": operator.lt,
    "min_length": lambda value, least: len(value) >= least,
    "pattern": lambda value, pattern: re.search(pattern, value) is not None,
}


def convert(value: object, kind: Any, *, text: bool = False) -> Any:
    """Convert a value to a type; return it unchanged if it has that type already.

    Args:
        value: A value from MessagePack, JSON, TOML, a variable or a caller.
        kind: The type: a builtin, `Literal`, an `Enum`, `Path`, `datetime`, `UUID`, `Decimal`, a
            list, tuple or mapping of these, a dataclass, a class of attrs or msgspec, or
            `Annotated` with bounds in a ``msgspec.Meta``.
        text: Accept text for any type, since variables and command lines have only text:
            ``"4"`` is a whole number, ``"yes"`` is true, ``"a, b"`` is a list.

    Raises:
        ValueError: The value does not fit. The message names the allowed values but not the value,
            which may be a secret.
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

    if kind is bool and isinstance(value, (int, float)):  # otherwise 1 would be true
        raise ValueError(describe(kind))
    try:
        return msgspec.convert(value, kind, strict=strict, dec_hook=_convert_others)
    except msgspec.ValidationError:
        # Without the cause, which may contain the value.
        raise ValueError(describe(kind)) from None


def _are_texts(value: object) -> bool:
    return type(value) is tuple and all(type(each) is str for each in value)


def _plain(text: str, kind: Any) -> object:
    """Return the form of a text that msgspec converts."""
    if get_origin(kind) in {tuple, list}:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if kind in {str, Path}:
        return text
    return _FLAGS.get(text.strip().lower(), text.strip()) if kind is bool else text.strip()


def _convert_others(kind: type[Any], value: object) -> object:
    """Convert to a type that msgspec does not support."""
    if kind is Path and isinstance(value, (str, PurePath)):
        return Path(value)
    raise ValueError(value)


def plain(value: Any) -> Any:
    """Return the plain form of a value; values inside it are not converted.

    A dataclass, a class of attrs, a ``msgspec.Struct`` or a pydantic model becomes the dict of its
    fields, an enum its value, a path or one of pydantic's URLs text.

    Raises:
        TypeError: The value has no plain form.
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
        encoded = dict(zip(kind.__struct_encode_fields__, read, strict=True))
        return encoded if config.tag is None else {config.tag_field: config.tag, **encoded}
    elif is_model(kind):
        return value.model_dump(round_trip=True)
    elif kind.__module__ == "pydantic.networks":
        return str(value)
    else:
        raise TypeError(kind.__name__)
    return {name: getattr(value, name) for name in names}


def is_model(kind: object) -> bool:
    """Return whether an object is a class of pydantic models."""
    # A program that has such a class has imported pydantic.
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)


def describe(kind: Any, bounds: Mapping[str, Any] | None = None) -> str:
    """Describe the allowed values of a type: "a whole number from 0 to 9"."""
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
    limits = {name: edge for name, edge in bounds.items() if edge is not None}
    edges = [f" {word} {limits[name]:.15g}" for name, word in _BOUNDS.items() if name in limits]
    if minimum := limits.get("min_length"):
        edges.append(f" of {minimum} or more characters" if kind is str else f", {minimum} or more")
    if "pattern" in limits:
        edges.append(f" that matches {limits['pattern']!r}")
    return words + "".join(edges)


def _shown(value: object) -> str:
    """Return a number as text, and for any other value, which may be a secret, only its type."""
    if isinstance(value, (int, float)):
        return str(value)
    words = {str: "text", list: "a list", tuple: "a list", dict: "a table", type(None): "nothing"}
    return words.get(type(value), type(value).__name__)


def _wrong_item(value: object, kind: Any) -> str:
    """Name the item of a list or table that does not fit; "" if there is none."""
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
    for name, each, item_kind in parts:
        try:
            _convert(each, item_kind, strict=False)
        except ValueError:
            deeper = "" if isinstance(each, str) else _wrong_item(each, item_kind)
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
    """A value is not allowed for an option; the message names the allowed values and the reason."""

    def __init__(self, allowed: str, reason: str) -> None:
        super().__init__(f"{allowed}: {reason}" if reason else allowed)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Option:
    """A declared option.

    Attributes:
        name: Its name in settings.
        field: Name of the dataclass field.
        kind: Type of its values.
        default: Its default.
        allowed: Description of the allowed values.
        required: Whether it must be set.
        doc: Its meaning.
        unit: The unit of a number, such as ``s``.
        bounds: The bounds of `option`, by name.
        parse: Turns the given value, of any type, into one that is then converted. If it raises,
            the value is refused.
        check: Returns whether a converted value is allowed, or raises `ValueError`, whose text is
            shown; it should not repeat a value that may be a secret.
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
        """The type in Python's notation; ``str`` for a choice of words."""
        if get_origin(self.kind) is Literal:
            return "str"
        return str(self.kind) if get_origin(self.kind) else str(self.kind.__name__)

    def read(self, value: object) -> Any:
        """Return the checked value; None if that is the default.

        Text is accepted for every type but a table.

        Raises:
            ValueError: The value is not allowed; the message is ``allowed``, with the item that is
                wrong or the reason that `check` gave.
        """
        if value is None is self.default:
            return None
        parsed = self._parsed(value)
        try:
            converted = convert(parsed, self.kind, text=True)
            good = all(math.isfinite(n) for n in _numbers(converted) if isinstance(n, float))
            good = good and all(
                _CHECKS[name](converted, edge) for name, edge in self.bounds.items()
            )
        except (ValueError, OverflowError):
            raise _WrongValueError(
                self.allowed, "" if self.parse else _wrong_item(parsed, self.kind)
            ) from None
        reason, limit = "", int(MAX_SECONDS) if self.unit == "s" else MAX_WHOLE
        if good and not all(-limit <= number <= limit for number in _numbers(converted)):
            good, reason = False, f"the largest number is {limit}"
        try:
            good = good and (self.check is None or self.check(converted))
        except ValueError as error:
            good, reason = False, str(error)
        if not good:
            raise _WrongValueError(self.allowed, reason)
        return converted

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
    or tuple of these, or a table of these such as ``dict[str, int]``; or any of these or None.

    Args:
        default: Its default; an option without one must be set.
        doc: Its meaning.
        default_factory: Returns its default, instead of ``default``: ``dict`` for an empty table.
        name: Its name in settings if that differs from the name of the field.
        unit: The unit of a number, such as ``s``.
        allowed: Description of the allowed values; by default made from type and bounds.
        parse: Turns the given value, of any type, into one that is then converted. If it raises,
            the value is refused.
        check: Returns whether a converted value is allowed, or raises `ValueError`, whose text is
            shown; it should not repeat a value that may be a secret.
        ge: Smallest allowed number.
        gt: Bound that a number must exceed.
        le: Largest allowed number.
        lt: Bound that a number must be below.
        min_length: Minimum number of characters of a text, or of items of a list.
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
        PluginError: The type of a field cannot be resolved at run time.
    """
    return _options_of(kind)  # type: ignore[arg-type]  # classes can be hashed


@lru_cache(maxsize=256)  # types are looked up in 50 us, and a scheduler makes many triggers
def _options_of(kind: Any) -> Mapping[str, Option]:
    try:
        hints = get_type_hints(kind, include_extras=True)
    except NameError as error:
        raise PluginError(
            f"the options {kind.__qualname__} have a type that cannot be resolved at run time: "
            f"{error}"
            "; import it outside of `if TYPE_CHECKING`"
        ) from error
    options = {}
    for each in filter(lambda each: each.init, fields(kind)):
        declared = dict(each.metadata.get(_DECLARED, ()))
        name, hint = declared.pop("name", "") or each.name, _without_none(hints[each.name])
        allowed = declared.pop("allowed", "") or describe(hint, declared.get("bounds"))
        default: Any = each.default
        if each.default_factory is not MISSING:
            default = each.default_factory()
        required = default is MISSING
        options[name] = Option(name, each.name, hint, default, allowed, required, **declared)
    return options


def _without_none(kind: Any) -> Any:
    """Return ``X`` for ``X | None``."""
    inner = [each for each in get_args(kind) if each is not type(None)]
    return inner[0] if get_origin(kind) in {Union, UnionType} and len(inner) == 1 else kind


def read_values(
    options: Mapping[str, Option], values: Mapping[str, object], *, owner: str
) -> dict[str, Any]:
    """Return the values that are set, by the name of the field. See `read_options`."""
    converted = {}
    for name, value in values.items():
        if name not in options:
            if name == "url" and isinstance(value, str) and "://" in value:
                raise PluginError(f"{owner} does not accept a URL: use its name alone")
            raise PluginError(f"{owner} has no option {name!r}; {did_you_mean(name, options)}")
        try:
            converted[options[name].field] = options[name].read(value)
        except ValueError as error:
            raise PluginError(
                f"option {name!r} of {owner} must be {error}"
                + _instead(error, options[name].kind, value)
            ) from None
    for name in options.keys() - values.keys():
        if options[name].required:
            raise PluginError(f"{owner} needs the option {name!r}: {options[name].allowed}")
    return converted


def _instead(error: ValueError, kind: Any, value: object) -> str:
    """Describe the wrong value; "" if the error does so already, or a description adds nothing."""
    if isinstance(error, _WrongValueError) and error.reason:
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
        values: Name -> value from the settings; an option without one has its default. Text is
            accepted for every type but a table.
        owner: The owner of the options, for messages: ``plugin 'dill'``.

    Raises:
        PluginError: An option is unknown, missing or not allowed, or ``__post_init__``, which
            checks options together, raised `ValueError`.
    """
    converted = read_values(options_of(kind), values, owner=owner)
    try:
        return kind(**converted)
    except ValueError as error:
        raise PluginError(f"{owner}: {error}") from error
