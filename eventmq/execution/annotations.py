"""Arguments and results as the types that a function's annotations name.

Serializers know plain data and a few types more. What a function gets besides (dataclasses, enums,
paths, attrs classes, pydantic models, tuples) is made from plain data here, by the library msgspec.
A plan is made once for a function: clients check arguments with it before they submit a job, and
workers convert them before they run it. What needs no conversion costs a look-up of its type.
"""

from __future__ import annotations

import collections.abc
import inspect
import logging
import re
import sys
import typing
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime
from enum import Enum
from functools import partial
from itertools import chain, repeat
from pathlib import PurePath
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from eventmq.conversion import is_model
from eventmq.errors import ArgumentError, SerializationError, SettingsError

if typing.TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Converter = Callable[[Any], Any]

__all__ = ["RESULT", "ArgumentPlan", "ResultPlan", "make_plans"]

_log = logging.getLogger(__name__)


class _Result:
    """Stands for the result of another job, which is an argument and is not known yet."""


RESULT = _Result()

#: Types of arguments that a plan keeps as good ones, at most: few functions get more.
MAX_GOOD = 64

#: Values of an enum or a literal that an error lists, at most.
MAX_VALUES = 10

#: Builtin -> the types whose values pass for it, as with type checkers; they stay as they are.
_BUILTINS: Mapping[Any, tuple[type, ...]] = {
    bool: (bool,),
    int: (int,),
    float: (float, int),
    complex: (complex, float, int),
    str: (str,),
    bytes: (bytes, bytearray, memoryview),
    NoneType: (NoneType,),
}

#: Types of plain data, to which values of other types are made on their way.
_PLAIN = frozenset({str, int, float, list, dict})

#: Without these, msgspec takes text for bytes, as base64.
_BYTES = (bytes, bytearray, memoryview)

#: Types that msgspec does not know -> the nearest one that it does.
_NEAREST: Mapping[Any, Any] = {
    collections.abc.Iterable: Sequence,
    collections.abc.Container: Sequence,
    collections.abc.Reversible: Sequence,
    collections.OrderedDict: dict,
    collections.defaultdict: dict,
}

#: Generic types whose arguments are converted one by one.
_CONTAINERS = frozenset(
    {
        *_NEAREST, list, tuple, set, frozenset, dict, Sequence, Mapping,
        collections.abc.Collection, collections.abc.MutableMapping,
        collections.abc.MutableSequence, collections.abc.MutableSet, collections.abc.Set,
    }
)  # fmt: skip

#: Names that are often imported for type checkers only, and mean one thing.
_COMMON = {
    name: getattr(module, name) for module in (collections.abc, typing) for name in module.__all__
}

#: Python 3.12 and later have it.
_ALIAS: Any = getattr(typing, "TypeAliasType", ())

#: Types in messages of msgspec -> as one writes them.
_WORDS = {
    "array": "list",
    "object": "dict",
    "null": "None",
    "decimal": "Decimal",
    "uuid": "UUID",
    "duration": "timedelta",
}

#: A message of msgspec: what is wrong, and where.
_MESSAGE = re.compile(r"(?s)(.*?)(?: - at `(?:key in )?\$(.*)`)?")

#: How its messages begin; those of classes stay as they are.
_OPENING = re.compile(r"^(?:Expected|Object|Invalid)\b")


# --- annotations --------------------------------------------------------------------------------


def _hints(function: Callable[..., Any], task: str) -> dict[str, Any]:
    """Return the annotations of a function by name; the log has those that are not there."""
    inner = inspect.unwrap(function)
    try:
        return get_type_hints(inner, include_extras=True)
    except Exception:  # noqa: BLE001 - an annotation may be any expression
        names = {**_COMMON, **getattr(inner, "__globals__", {})}
    found: dict[str, Any] = {}
    for name, written in getattr(inner, "__annotations__", {}).items():
        one: Any = SimpleNamespace(__annotations__={name: written})
        try:
            found |= get_type_hints(one, globalns=names, include_extras=True)
        except Exception as error:  # noqa: BLE001 - as above
            _log.warning(
                "task %s: the annotation of %s is not there at run time (%s), so values are not "
                "turned into it: import it outside of `if TYPE_CHECKING`",
                task,
                _called(name),
                error,
            )
    return found


def _called(name: str) -> str:
    return "the result" if name == "return" else f"the argument {name!r}"


class _StandIn(type):
    """The class of classes that msgspec gets in place of types that it refuses."""

    read: Converter

    def __instancecheck__(cls, value: object) -> bool:
        return True


def _stand_in(name: str, read: Converter) -> type:
    return _StandIn(name, (), {"read": staticmethod(read)})


def _bare(kind: Any) -> Any:
    """Return a type without what msgspec does not read: names for it, and notes to others."""
    while True:
        if isinstance(kind, _ALIAS):
            kind = kind.__value__
        elif hasattr(kind, "__supertype__"):
            kind = kind.__supertype__
        elif get_origin(kind) is Annotated and not any(map(_is_bound, kind.__metadata__)):
            kind = kind.__origin__
        else:
            return kind


def _is_bound(note: object) -> bool:
    return type(note).__module__.startswith("msgspec")


def _unchanged(value: Any) -> Any:
    return value


def _decodable(kind: Any) -> Any:
    """Return a type that msgspec takes, with stand-ins for what it refuses.

    Raises:
        TypeError: There is none.
    """
    kind = _bare(kind)
    origin, inner = get_origin(kind), get_args(kind)
    if origin in {Union, UnionType}:
        kind = Union[tuple(map(_decodable, inner))]  # noqa: UP007 - of any number
        return kind if _is_taken(kind) else _either(kind)
    if origin in _CONTAINERS:
        return _NEAREST.get(origin, origin)[tuple(map(_decodable, inner))]
    if origin is Literal and any(type(each) not in {str, int, NoneType} for each in inner):
        return _stand_in(_name(kind), partial(_literal, inner))
    if not isinstance(kind, type) or inner:
        return kind
    if issubclass(kind, Enum) and not _is_taken(kind):
        return _stand_in(kind.__name__, partial(_member, kind))
    if getattr(kind, "_is_protocol", False) and kind.__module__ != "collections.abc":
        return _stand_in(kind.__name__, _unchanged)
    return _NEAREST.get(kind, kind)


def _is_taken(kind: Any) -> bool:
    try:
        _check_taken(kind)
    except TypeError:
        return False
    return True


def _check_taken(kind: Any) -> None:
    """Raise `TypeError` if msgspec refuses a type."""
    import msgspec

    try:
        msgspec.msgpack.Decoder(kind, dec_hook=_convert_other)
    except NameError as error:
        raise TypeError(f"{error}; import it outside of `if TYPE_CHECKING`") from error


def _either(union: Any) -> type:
    """Return the stand-in of a union.

    What is written in another type comes before what is written as it is, so that ``str | Path``
    gives a path.

    Raises:
        TypeError: Several arms are written as dicts, which do not say of which of them they are.
    """
    arms = get_args(union)
    records = [_name(arm) for arm in arms if _is_record(arm)]
    if len(records) > 1:
        msg = f"{' and '.join(records)} cannot be told apart once they are dicts: give each a "
        raise TypeError(f"{msg}parameter of its own, or make them msgspec.Struct with tag=True")
    builtins = tuple(each for arm in arms for each in _BUILTINS.get(arm, ()))
    others = [arm for arm in arms if arm not in _BUILTINS]
    written, native = (
        [arm for arm in others if _is_written(arm) is each] for each in (True, False)
    )
    name = " | ".join(map(_name, arms))
    own = {arm for arm in others if isinstance(arm, type)} - _PLAIN
    reads = list(map(_converter, written)), list(map(_converter, native))
    return _stand_in(name, partial(_first, name, own, builtins, reads))


def _first(
    name: str,
    own: set[type],
    builtins: tuple[type, ...],
    reads: tuple[list[Converter], list[Converter]],
    value: object,
) -> Any:
    """Return a value as the first arm of a union that it fits."""
    if type(value) in own:
        return value
    written, native = reads
    for read in written if isinstance(value, builtins) else written + native:
        with suppress(Exception):  # what the classes of arms raise
            return read(value)
    if isinstance(value, builtins):
        return value
    raise ValueError(_expected(name, value))


def _is_record(kind: Any) -> bool:
    """Return whether values of a class are written as dicts."""
    names = ("__dataclass_fields__", "__attrs_attrs__", "__struct_fields__", "__total__")
    return is_model(kind) or any(hasattr(kind, name) for name in names)


def _is_written(kind: Any) -> bool:
    """Return whether values of a type are written in another one."""
    turned = inspect.isclass(kind) and issubclass(kind, (Enum, PurePath))
    return turned or isinstance(kind, _StandIn) or _is_record(kind)


def _literal(allowed: Sequence[Any], value: object) -> Any:
    for each in allowed:
        plain = each.value if isinstance(each, Enum) else each
        if value is each or (type(value) is type(plain) and value == plain):
            return each
    raise ValueError(f"not one of {', '.join(map(repr, allowed))}")


def _member(kind: type[Enum], value: object) -> Enum:
    """Return the member of an enum whose values are not all texts or all whole numbers."""
    try:
        return kind(tuple(value) if isinstance(value, list) else value)
    except ValueError:
        raise ValueError(f"not one of the values of {kind.__name__}{_values_of([kind])}") from None


def _values_of(arms: Iterable[Any]) -> str:
    """Return the values of enums and literals among types, for the end of an error."""
    found: list[Any] = []
    for arm in arms:
        if get_origin(arm) is Literal:
            found += get_args(arm)
        elif inspect.isclass(arm) and issubclass(arm, Enum):
            found += arm
    shown = [repr(each.value if isinstance(each, Enum) else each) for each in found]
    more = f" and {len(shown) - MAX_VALUES} more" if len(shown) > MAX_VALUES else ""
    return f": {', '.join(shown[:MAX_VALUES])}{more}" if shown else ""


def _model(kind: Any, value: object) -> Any:
    """Return a pydantic model; its library says what is wrong, without the value."""
    pydantic = sys.modules["pydantic"]
    try:
        return kind.model_validate(value, by_alias=True, by_name=True)
    except pydantic.ValidationError as error:
        plain = error.errors(include_input=False, include_context=False, include_url=False)[0]
        where = ".".join(map(str, plain["loc"]))
        raise ValueError(f"{where}: {plain['msg']}" if where else plain["msg"]) from None


def _convert_other(kind: Any, value: object) -> Any:
    """Convert to a type that msgspec does not know."""
    if isinstance(kind, _StandIn):
        return kind.read(value)
    if is_model(kind):
        return _model(kind, value)
    plain = get_origin(kind) or kind
    if issubclass(plain, PurePath) and isinstance(value, (str, PurePath)):
        return plain(value)
    if not isinstance(value, plain):
        raise TypeError(_expected(_name(kind), value))
    return value


def _converter(kind: Any) -> Converter:
    """Return what converts to a type; raises `TypeError` if msgspec refuses it."""
    import msgspec

    _check_taken(kind)
    options: Any = {"builtin_types": _BYTES, "dec_hook": _convert_other}
    return partial(msgspec.convert, type=kind, **options)


def _name(kind: Any) -> str:
    """Return a type as one writes it."""
    if kind is NoneType:
        return "None"
    if isinstance(kind, type) and not get_args(kind):
        return kind.__name__
    return re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", str(kind))


def _expected(name: str, value: object) -> str:
    kind = type(value)
    got = _name(kind)
    if got == name:
        got = f"another class of that name, {kind.__module__}.{kind.__qualname__}"
    return f"expected {name}, got {got}"


# --- plans --------------------------------------------------------------------------------------


class _Place:
    """Where values of a type go: a parameter, the result or the parts of a stream.

    Attributes:
        name: Name of the type.
        read: Converts; None where nothing is converted.
    """

    __slots__ = ("_classes", "_types", "_values", "name", "read")

    def __init__(self, kind: Any) -> None:
        arms = _arms(kind)
        # Where plain data may stand for an arm that is written in it, its type decides nothing.
        unclear = _PLAIN if any(map(_is_written, arms)) else frozenset()
        types = {arm for arm in arms if isinstance(arm, type)}
        classes = [each for arm in types for each in _BUILTINS.get(arm, ())]
        self.name = _name(kind)
        self._values = _values_of(arms)
        self._classes = tuple(each for each in classes if each not in unclear)
        self._types = types.union([datetime] if date in types else []) - unclear
        self.read: Converter | None = None
        if any(not isinstance(arm, type) or arm not in _BUILTINS for arm in arms):
            self.read = _converter(_decodable(kind))

    def has(self, value: object) -> bool:
        """Return whether a value has the type already."""
        return isinstance(value, self._classes) or type(value) in self._types

    def convert(self, value: object) -> Any:
        """Return a value as the type.

        Raises:
            ValueError: It does not fit; the message says where in it and why, without the value.
        """
        if self.read is None:
            raise _MisfitError("", _expected(self.name, value))
        try:
            return self.read(value)
        except Exception as error:
            import msgspec

            if isinstance(error, msgspec.ValidationError):
                raise _MisfitError(*self._explained(str(error), value)) from None
            raise _MisfitError("", f"{type(error).__name__}: {error}") from error

    def _explained(self, message: str, value: object) -> tuple[str, str]:
        """Return where in a value something is wrong, and what."""
        found = _MESSAGE.fullmatch(message)
        why, where = found.groups() if found else (message, None)
        if why.startswith("Invalid enum value"):
            why = f"not one of the values of {self.name}{self._values}"
            why = "not one of its values" if where else why
        elif not where and re.fullmatch(r"Expected `[^`]*`, got `[^`]*`", why):
            why = _expected(self.name, value)
        why = re.sub(r"`([^`]*)`", lambda each: _WORDS.get(each[1], each[1]), why)
        return where or "", _OPENING.sub(lambda each: each[0].lower(), why)


class _MisfitError(ValueError):
    """A value that does not fit: where in it, and why."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(where, why)
        self.where = where
        self.why = why


class ArgumentPlan:
    """Converts the arguments of a task. Made by `make_plans`. Thread-safe.

    Args:
        task: Name of the task.
        signature: Signature of its function.
        places: Parameters whose arguments are looked at, by name.

    Attributes:
        good: Types of positional arguments that fit as they are.
    """

    def __init__(
        self, task: str, signature: inspect.Signature, places: Mapping[str, _Place]
    ) -> None:
        self._task = task
        found = [(each, places.get(each.name)) for each in signature.parameters.values()]
        rest = [(each.name, place) for each, place in found if each.kind is each.VAR_POSITIONAL]
        self._positional = [
            (each.name, place)
            for each, place in found
            if each.kind in {each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD}
        ]
        self._rest = rest[0] if rest else ("", None)
        self._named = {
            each.name: place
            for each, place in found
            if each.kind in {each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD}
        }
        self._others = next((p for each, p in found if each.kind is each.VAR_KEYWORD), None)
        self.good: set[tuple[type, ...]] = set()

    def convert(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Return arguments as the types of the annotations.

        Raises:
            ArgumentError: One does not fit.
        """
        types = tuple(map(type, args))
        if types not in self.good:
            args = self._all(args, types)
        if kwargs:
            get, others = self._named.get, self._others
            kwargs = {k: self._one(k, get(k, others), value) for k, value in kwargs.items()}
        return args, kwargs

    def _all(self, args: Sequence[Any], types: tuple[type, ...]) -> Sequence[Any]:
        found, good = list(args), len(self.good) < MAX_GOOD
        places = chain(self._positional, repeat(self._rest))
        for index, (value, (name, place)) in enumerate(zip(args, places, strict=False)):
            if place is not None and not place.has(value):
                found[index], good = self._one(name, place, value), False
        if good:
            self.good.add(types)
        return found

    def _one(self, name: str, place: _Place | None, value: Any) -> Any:
        if place is None or value is RESULT or place.has(value):
            return value
        try:
            return place.convert(value)
        except _MisfitError as error:
            what = f"task {self._task}: argument {name + error.where!r}: {error.why}"
            raise ArgumentError(what, task=self._task, argument=name) from error.__cause__


class ResultPlan:
    """Converts the result of a task, and the parts of its stream. Made by `make_plans`."""

    def __init__(self, task: str, result: _Place | None, part: _Place | None) -> None:
        self._task = task
        self._result = result
        self._part = part

    def result(self, job_id: str, value: Any) -> Any:
        """Return a result as the type of the annotation.

        Raises:
            SerializationError: It does not fit.
        """
        return self._convert("the result", self._result, job_id, value)

    def part(self, job_id: str, value: Any) -> Any:
        """Return a part of a stream as the type of the annotation; raises as `result`."""
        return self._convert("a part", self._part, job_id, value)

    def _convert(self, what: str, place: _Place | None, job_id: str, value: Any) -> Any:
        if place is None or place.has(value):
            return value
        try:
            return place.convert(value)
        except _MisfitError as error:
            where = f" at {error.where.lstrip('.')}" if error.where else ""
            msg = (
                f"{what} of job {job_id} does not fit the annotation of task {self._task}{where}: "
                f"{error.why}; app.job(id) gives it as it was serialised"
            )
            raise SerializationError(msg) from error.__cause__


def make_plans(
    task: str, function: Callable[..., Any], signature: inspect.Signature
) -> tuple[ArgumentPlan | None, ResultPlan | None]:
    """Return how arguments and results of a function are converted; None where nothing is.

    Args:
        task: Name of the task.
        function: The function.
        signature: Its signature.

    Raises:
        SettingsError: Values cannot be turned into the type of an annotation.
    """
    hints = _hints(function, task)
    result, part = _returned(function, hints.pop("return", Any))
    places = {}
    for name, parameter in signature.parameters.items():
        place = _place(task, _called(name), hints.get(name), optional=parameter.default is None)
        if place is not None:
            places[name] = place
    outcomes = [_place(task, _called("return"), kind) for kind in (result, part)]
    # What plain data a function returns is its own affair.
    turned = [place if place is not None and place.read is not None else None for place in outcomes]
    return (
        ArgumentPlan(task, signature, places) if places else None,
        ResultPlan(task, *turned) if any(turned) else None,
    )


def _returned(function: Callable[..., Any], kind: Any) -> tuple[Any, Any]:
    """Return the types of the result and of the parts that the annotation of a function names."""
    inner, arguments = inspect.unwrap(function), get_args(kind)
    if inspect.isgeneratorfunction(inner):
        return (*arguments, Any, Any, Any)[2], (*arguments, Any)[0]
    if inspect.isasyncgenfunction(inner):
        return Any, (*arguments, Any)[0]
    if get_origin(kind) in {collections.abc.Awaitable, collections.abc.Coroutine}:
        return arguments[-1], Any
    return kind, Any


def _place(task: str, what: str, kind: Any, *, optional: bool = False) -> _Place | None:
    kind = _bare(kind)
    if any(_says_nothing(arm) for arm in _arms(kind)):
        return None
    if optional:
        kind = Union[kind, None]  # noqa: UP007 - it may be no class
    try:
        return _Place(kind)
    except TypeError as error:
        msg = f"task {task}: values cannot be turned into the annotation of {what}, {_name(kind)}"
        raise SettingsError(f"{msg}: {error}") from error


def _arms(kind: Any) -> list[Any]:
    """Return the arms of a union, without names for them; of anything else, itself."""
    inner = get_args(kind) if get_origin(kind) in {Union, UnionType} else [kind]
    return list(map(_bare, inner))


def _says_nothing(kind: Any) -> bool:
    """Return whether an annotation says nothing about a value, as ``Any`` or a type variable."""
    if isinstance(kind, type):
        return kind is Any or kind is object
    return get_origin(kind) is None
