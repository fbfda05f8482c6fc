"""Conversion of arguments and results to the types in the annotations of a function.

Serializers support plain data and a few other types. Other values that a function expects
(dataclasses, enums, paths, attrs classes, pydantic models, tuples) are made from plain data here,
by the library msgspec. A plan is made once per function: clients check arguments with it before
they submit a job, and workers convert them before they run it. A value that needs no conversion
costs a lookup of its type.
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
    """Placeholder for the result of another job, which is an argument and is not known yet."""


RESULT = _Result()

#: Maximum number of types of arguments that a plan caches as fitting.
MAX_GOOD = 64

#: Maximum number of values of an enum or a literal in an error.
MAX_VALUES = 10

#: Builtin -> types whose values are accepted for it unchanged, as by type checkers.
_BUILTINS: Mapping[Any, tuple[type, ...]] = {
    bool: (bool,),
    int: (int,),
    float: (float, int),
    complex: (complex, float, int),
    str: (str,),
    bytes: (bytes, bytearray, memoryview),
    NoneType: (NoneType,),
}

#: Types of plain data, to which serializers convert values of other types.
_PLAIN_TYPES = frozenset({str, int, float, list, dict})

#: msgspec would accept text for bytes, as base64; these types prevent that.
_BYTES = (bytes, bytearray, memoryview)

#: Types that msgspec does not support -> the nearest one that it does.
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

#: Names that are often imported only for type checkers, with their usual meaning.
_COMMON = {
    name: getattr(module, name) for module in (collections.abc, typing) for name in module.__all__
}

#: The type of ``type X = ...``, in Python 3.12 and later.
_ALIAS: Any = getattr(typing, "TypeAliasType", ())

#: Types in messages of msgspec -> their names in Python.
_WORDS = {
    "array": "list",
    "object": "dict",
    "null": "None",
    "decimal": "Decimal",
    "uuid": "UUID",
    "duration": "timedelta",
}

#: A message of msgspec: the reason and the location.
_MESSAGE = re.compile(r"(?s)(.*?)(?: - at `(?:key in )?\$(.*)`)?")

#: Beginning of its messages; messages of users' classes are not changed.
_OPENING = re.compile(r"^(?:Expected|Object|Invalid)\b")


# --- annotations --------------------------------------------------------------------------------


def _hints(function: Callable[..., Any], task: str) -> dict[str, Any]:
    """Return the annotations of a function by name; log those that cannot be resolved."""
    inner = inspect.unwrap(function)
    try:
        return get_type_hints(inner, include_extras=True)
    except Exception:  # noqa: BLE001 - an annotation may be any expression
        names = {**_COMMON, **getattr(inner, "__globals__", {})}
    hints: dict[str, Any] = {}
    for name, annotation in getattr(inner, "__annotations__", {}).items():
        holder: Any = SimpleNamespace(__annotations__={name: annotation})
        try:
            hints |= get_type_hints(holder, globalns=names, include_extras=True)
        except Exception as error:  # noqa: BLE001 - as above
            _log.warning(
                "task %s: the annotation of %s cannot be resolved at run time (%s), so values are "
                "not converted to it: import it outside of `if TYPE_CHECKING`",
                task,
                _called(name),
                error,
            )
    return hints


def _called(name: str) -> str:
    return "the result" if name == "return" else f"the argument {name!r}"


class _StandIn(type):
    """Metaclass of the classes that msgspec gets in place of types that it refuses."""

    read: Converter

    def __instancecheck__(cls, value: object) -> bool:
        return True


def _stand_in(name: str, read: Converter) -> type:
    return _StandIn(name, (), {"read": staticmethod(read)})


def _bare(kind: Any) -> Any:
    """Return a type without what msgspec does not read: aliases, and notes to other libraries."""
    while True:
        if isinstance(kind, _ALIAS):
            kind = kind.__value__
        elif hasattr(kind, "__supertype__"):
            kind = kind.__supertype__
        elif get_origin(kind) is Annotated and not any(map(_is_bound, kind.__metadata__)):
            kind = kind.__origin__
        else:
            return kind


def _is_bound(metadata: object) -> bool:
    return type(metadata).__module__.startswith("msgspec")


def _unchanged(value: Any) -> Any:
    return value


def _decodable(kind: Any) -> Any:
    """Return a type that msgspec supports, with stand-ins for types that it refuses.

    Raises:
        TypeError: It cannot be replaced.
    """
    kind = _bare(kind)
    origin, inner = get_origin(kind), get_args(kind)
    if origin in {Union, UnionType}:
        kind = Union[tuple(map(_decodable, inner))]  # noqa: UP007 - of any number
        return kind if _is_supported(kind) else _either(kind)
    if origin in _CONTAINERS:
        return _NEAREST.get(origin, origin)[tuple(map(_decodable, inner))]
    if origin is Literal and any(type(each) not in {str, int, NoneType} for each in inner):
        return _stand_in(_name(kind), partial(_literal, inner))
    if not isinstance(kind, type) or inner:
        return kind
    if issubclass(kind, Enum) and not _is_supported(kind):
        return _stand_in(kind.__name__, partial(_member, kind))
    if getattr(kind, "_is_protocol", False) and kind.__module__ != "collections.abc":
        return _stand_in(kind.__name__, _unchanged)
    return _NEAREST.get(kind, kind)


def _is_supported(kind: Any) -> bool:
    try:
        _check_supported(kind)
    except TypeError:
        return False
    return True


def _check_supported(kind: Any) -> None:
    """Raise `TypeError` if msgspec refuses a type."""
    import msgspec

    try:
        msgspec.msgpack.Decoder(kind, dec_hook=_convert_other)
    except NameError as error:
        raise TypeError(f"{error}; import it outside of `if TYPE_CHECKING`") from error


def _either(union: Any) -> type:
    """Return the stand-in of a union.

    Arms with a serialised form of another type come before others, so that ``str | Path`` gives a
    path.

    Raises:
        TypeError: Several arms are serialised as dicts, which cannot be distinguished.
    """
    arms = get_args(union)
    records = [_name(arm) for arm in arms if _is_record(arm)]
    if len(records) > 1:
        msg = f"{' and '.join(records)} cannot be told apart once they are dicts: give each a "
        raise TypeError(f"{msg}parameter of its own, or make them msgspec.Struct with tag=True")
    builtins = tuple(each for arm in arms for each in _BUILTINS.get(arm, ()))
    other_arms = [arm for arm in arms if arm not in _BUILTINS]
    converted, native = (
        [arm for arm in other_arms if _is_converted(arm) is each] for each in (True, False)
    )
    name = " | ".join(map(_name, arms))
    classes = {arm for arm in other_arms if isinstance(arm, type)} - _PLAIN_TYPES
    reads = list(map(_converter, converted)), list(map(_converter, native))
    return _stand_in(name, partial(_first, name, classes, builtins, reads))


def _first(
    name: str,
    classes: set[type],
    builtins: tuple[type, ...],
    reads: tuple[list[Converter], list[Converter]],
    value: object,
) -> Any:
    """Convert a value to the first arm of a union that it fits."""
    if type(value) in classes:
        return value
    converted, native = reads
    for read in converted if isinstance(value, builtins) else converted + native:
        with suppress(Exception):  # exceptions of users' classes
            return read(value)
    if isinstance(value, builtins):
        return value
    raise ValueError(_expected(name, value))


def _is_record(kind: Any) -> bool:
    """Return whether values of a class are serialised as dicts."""
    names = ("__dataclass_fields__", "__attrs_attrs__", "__struct_fields__", "__total__")
    return is_model(kind) or any(hasattr(kind, name) for name in names)


def _is_converted(kind: Any) -> bool:
    """Return whether values of a type are serialised as another type."""
    turned = inspect.isclass(kind) and issubclass(kind, (Enum, PurePath))
    return turned or isinstance(kind, _StandIn) or _is_record(kind)


def _literal(allowed: Sequence[Any], value: object) -> Any:
    for each in allowed:
        accepted = each.value if isinstance(each, Enum) else each
        if value is each or (type(value) is type(accepted) and value == accepted):
            return each
    raise ValueError(f"not one of {', '.join(map(repr, allowed))}")


def _member(kind: type[Enum], value: object) -> Enum:
    """Return the member of an enum whose values are neither all text nor all whole numbers."""
    try:
        return kind(tuple(value) if isinstance(value, list) else value)
    except ValueError:
        raise ValueError(f"not one of the values of {kind.__name__}{_values_of([kind])}") from None


def _values_of(arms: Iterable[Any]) -> str:
    """Return the values of enums and literals among types, for the end of an error."""
    values: list[Any] = []
    for arm in arms:
        if get_origin(arm) is Literal:
            values += get_args(arm)
        elif inspect.isclass(arm) and issubclass(arm, Enum):
            values += arm
    shown = [repr(each.value if isinstance(each, Enum) else each) for each in values]
    more = f" and {len(shown) - MAX_VALUES} more" if len(shown) > MAX_VALUES else ""
    return f": {', '.join(shown[:MAX_VALUES])}{more}" if shown else ""


def _model(kind: Any, value: object) -> Any:
    """Return a pydantic model; the error is pydantic's, without the value."""
    pydantic = sys.modules["pydantic"]
    try:
        return kind.model_validate(value, by_alias=True, by_name=True)
    except pydantic.ValidationError as error:
        first_error = error.errors(include_input=False, include_context=False, include_url=False)[0]
        location = ".".join(map(str, first_error["loc"]))
        raise ValueError(
            f"{location}: {first_error['msg']}" if location else first_error["msg"]
        ) from None


def _convert_other(kind: Any, value: object) -> Any:
    """Convert to a type that msgspec does not support."""
    if isinstance(kind, _StandIn):
        return kind.read(value)
    if is_model(kind):
        return _model(kind, value)
    origin = get_origin(kind) or kind
    if issubclass(origin, PurePath) and isinstance(value, (str, PurePath)):
        return origin(value)
    if not isinstance(value, origin):
        raise TypeError(_expected(_name(kind), value))
    return value


def _converter(kind: Any) -> Converter:
    """Return a function that converts to a type; raises `TypeError` if msgspec refuses it."""
    import msgspec

    _check_supported(kind)
    options: Any = {"builtin_types": _BYTES, "dec_hook": _convert_other}
    return partial(msgspec.convert, type=kind, **options)


def _name(kind: Any) -> str:
    """Return the name of a type in Python's notation."""
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


class _Target:
    """An annotated value: a parameter, the result or the parts of a stream.

    Attributes:
        name: Name of the type.
        read: Converts a value; None if no conversion is needed.
    """

    __slots__ = ("_classes", "_types", "_values", "name", "read")

    def __init__(self, kind: Any) -> None:
        arms = _arms(kind)
        # If plain data may stand for an arm that is serialised as it, its type is no proof.
        unclear = _PLAIN_TYPES if any(map(_is_converted, arms)) else frozenset()
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
        """Return a value converted to the type.

        Raises:
            ValueError: It does not fit; the message has the location and the reason, but not the
                value.
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
        """Return the location of an error in a value, and the reason."""
        match = _MESSAGE.fullmatch(message)
        reason, location = match.groups() if match else (message, None)
        if reason.startswith("Invalid enum value"):
            reason = f"not one of the values of {self.name}{self._values}"
            reason = "not one of its values" if location else reason
        elif not location and re.fullmatch(r"Expected `[^`]*`, got `[^`]*`", reason):
            reason = _expected(self.name, value)
        reason = re.sub(r"`([^`]*)`", lambda each: _WORDS.get(each[1], each[1]), reason)
        return location or "", _OPENING.sub(lambda each: each[0].lower(), reason)


class _MisfitError(ValueError):
    """A value does not fit; it has the location and the reason."""

    def __init__(self, location: str, reason: str) -> None:
        super().__init__(location, reason)
        self.location = location
        self.reason = reason


class ArgumentPlan:
    """Converts the arguments of a task. Made by `make_plans`. Thread-safe.

    Args:
        task: Name of the task.
        signature: Signature of its function.
        targets: Annotated parameters by name.

    Attributes:
        good: Types of positional arguments that fit without conversion.
    """

    def __init__(
        self, task: str, signature: inspect.Signature, targets: Mapping[str, _Target]
    ) -> None:
        self._task = task
        annotated = [(each, targets.get(each.name)) for each in signature.parameters.values()]
        variadic = [
            (each.name, target) for each, target in annotated if each.kind is each.VAR_POSITIONAL
        ]
        self._positional = [
            (each.name, target)
            for each, target in annotated
            if each.kind in {each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD}
        ]
        self._variadic = variadic[0] if variadic else ("", None)
        self._named = {
            each.name: target
            for each, target in annotated
            if each.kind in {each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD}
        }
        self._any_other = next((p for each, p in annotated if each.kind is each.VAR_KEYWORD), None)
        self.good: set[tuple[type, ...]] = set()

    def convert(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Return arguments converted to the types of the annotations.

        Raises:
            ArgumentError: An argument does not fit.
        """
        types = tuple(map(type, args))
        if types not in self.good:
            args = self._all(args, types)
        if kwargs:
            get, any_other = self._named.get, self._any_other
            kwargs = {k: self._one(k, get(k, any_other), value) for k, value in kwargs.items()}
        return args, kwargs

    def _all(self, args: Sequence[Any], types: tuple[type, ...]) -> Sequence[Any]:
        converted, good = list(args), len(self.good) < MAX_GOOD
        expected = chain(self._positional, repeat(self._variadic))
        for index, (value, (name, target)) in enumerate(zip(args, expected, strict=False)):
            if target is not None and not target.has(value):
                converted[index], good = self._one(name, target, value), False
        if good:
            self.good.add(types)
        return converted

    def _one(self, name: str, target: _Target | None, value: Any) -> Any:
        if target is None or value is RESULT or target.has(value):
            return value
        try:
            return target.convert(value)
        except _MisfitError as error:
            subject = f"task {self._task}: argument {name + error.location!r}: {error.reason}"
            raise ArgumentError(subject, task=self._task, argument=name) from error.__cause__


class ResultPlan:
    """Converts the result of a task, and the parts of its stream. Made by `make_plans`."""

    def __init__(self, task: str, result: _Target | None, part: _Target | None) -> None:
        self._task = task
        self._result = result
        self._part = part

    def result(self, job_id: str, value: Any) -> Any:
        """Return a result converted to the type of the annotation.

        Raises:
            SerializationError: It does not fit.
        """
        return self._convert("the result", self._result, job_id, value)

    def part(self, job_id: str, value: Any) -> Any:
        """Return a part of a stream converted to the type of the annotation; raises as `result`."""
        return self._convert("a part", self._part, job_id, value)

    def _convert(self, subject: str, target: _Target | None, job_id: str, value: Any) -> Any:
        if target is None or target.has(value):
            return value
        try:
            return target.convert(value)
        except _MisfitError as error:
            at = f" at {error.location.lstrip('.')}" if error.location else ""
            msg = (
                f"{subject} of job {job_id} does not fit the annotation of task {self._task}{at}: "
                f"{error.reason}; app.job(id) gives it as it was serialised"
            )
            raise SerializationError(msg) from error.__cause__


def make_plans(
    task: str, function: Callable[..., Any], signature: inspect.Signature
) -> tuple[ArgumentPlan | None, ResultPlan | None]:
    """Return the plans for arguments and results of a function; None if nothing is converted.

    Args:
        task: Name of the task.
        function: The function.
        signature: Its signature.

    Raises:
        SettingsError: Values cannot be converted to the type of an annotation.
    """
    hints = _hints(function, task)
    result, part = _returned(function, hints.pop("return", Any))
    targets = {}
    for name, parameter in signature.parameters.items():
        target = _target(task, _called(name), hints.get(name), optional=parameter.default is None)
        if target is not None:
            targets[name] = target
    outcomes = [_target(task, _called("return"), kind) for kind in (result, part)]
    # Plain data that a function returns is not converted.
    turned = [
        target if target is not None and target.read is not None else None for target in outcomes
    ]
    return (
        ArgumentPlan(task, signature, targets) if targets else None,
        ResultPlan(task, *turned) if any(turned) else None,
    )


def _returned(function: Callable[..., Any], kind: Any) -> tuple[Any, Any]:
    """Return the types of the result and of the parts in the return annotation of a function."""
    inner, arguments = inspect.unwrap(function), get_args(kind)
    if inspect.isgeneratorfunction(inner):
        return (*arguments, Any, Any, Any)[2], (*arguments, Any)[0]
    if inspect.isasyncgenfunction(inner):
        return Any, (*arguments, Any)[0]
    if get_origin(kind) in {collections.abc.Awaitable, collections.abc.Coroutine}:
        return arguments[-1], Any
    return kind, Any


def _target(task: str, subject: str, kind: Any, *, optional: bool = False) -> _Target | None:
    kind = _bare(kind)
    if any(_is_unconstrained(arm) for arm in _arms(kind)):
        return None
    if optional:
        kind = Union[kind, None]  # noqa: UP007 - it may be no class
    try:
        return _Target(kind)
    except TypeError as error:
        msg = (
            f"task {task}: values cannot be converted to the annotation of {subject}, {_name(kind)}"
        )
        raise SettingsError(f"{msg}: {error}") from error


def _arms(kind: Any) -> list[Any]:
    """Return the arms of a union, with aliases resolved; for any other type, the type itself."""
    inner = get_args(kind) if get_origin(kind) in {Union, UnionType} else [kind]
    return list(map(_bare, inner))


def _is_unconstrained(kind: Any) -> bool:
    """Return whether an annotation allows any value, as ``Any`` or a type variable does."""
    if isinstance(kind, type):
        return kind is Any or kind is object
    return get_origin(kind) is None
