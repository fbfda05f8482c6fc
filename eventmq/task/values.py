"""Checks of options and arguments: each error names the option, its value and what is allowed."""

from __future__ import annotations

from collections.abc import Iterable as IterableABC
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NoReturn

from eventmq.errors import SettingsError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

__all__ = [
    "arguments",
    "calls",
    "duration",
    "exceptions",
    "flag",
    "headers",
    "limits",
    "no_guarantee",
    "refuse",
    "reject_unknown",
    "seconds",
    "text",
    "timestamp",
    "whole",
]

#: Maximum length in characters of a name of a task or queue, and of an id, as in the broker.
MAX_TEXT = 255

#: Maximum of numbers such as retries and seconds: more than is sensible, less than overflows.
MAX_NUMBER = 1_000_000_000


def refuse(name: str, value: object, allowed: str) -> NoReturn:
    """Raise `SettingsError` for an argument, with its value."""
    raise SettingsError(f"{name} is {value!r}; allowed is: {allowed}")


def refuse_type(name: str, value: object, allowed: str) -> NoReturn:
    """Raise `SettingsError` for arguments of a job, without the value, which may be secret."""
    raise SettingsError(f"{name} is of type {type(value).__name__}; allowed is: {allowed}")


def reject_unknown(
    what: str, explicit: Iterable[str], names: Iterable[str], words: Mapping[str, str]
) -> None:
    """Raise `SettingsError` for an unknown argument, with a hint or the nearest name.

    Args:
        what: Description of the callee.
        explicit: The names in the call.
        names: The known names.
        words: Names of other software -> hint.
    """
    names = list(names)
    for name in explicit:
        if name not in names:
            hint = words.get(name) or did_you_mean(name, {*names})
            raise SettingsError(f"{what} takes no argument {name!r}; {hint}")


def text(name: str, value: object) -> None:
    """Check a name."""
    if not isinstance(value, str) or not value or len(value) > MAX_TEXT:
        refuse(name, value, f"text of 1 to {MAX_TEXT} characters")


def flag(name: str, value: object) -> None:
    """Check a bool."""
    if not isinstance(value, bool):
        refuse(name, value, "True or False")


def whole(name: str, value: object, maximum: int = MAX_NUMBER, *, minimum: int = 0) -> None:
    """Check a whole number."""
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
        refuse(name, value, f"a whole number from {minimum} to {maximum}")


def seconds(name: str, value: object, *, zero: bool = True) -> None:
    """Check a length of time."""
    good = (
        isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= MAX_NUMBER
    )
    if not good or (not zero and value == 0):
        refuse(name, value, f"seconds, {'from' if zero else 'more than'} 0")


def duration(name: str, value: object, *, zero: bool = True) -> float:
    """Return seconds for seconds or a `timedelta`."""
    length = value.total_seconds() if isinstance(value, timedelta) else value
    seconds(name, length, zero=zero)
    return float(length)  # type: ignore[arg-type]  # it was checked


def limits(timeout: object, soft_timeout: object) -> None:
    """Check the limits of a job's run; None is no limit."""
    for name, value in (("timeout", timeout), ("soft_timeout", soft_timeout)):
        if value is None:
            continue
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not (number and 0 < value <= MAX_NUMBER):  # type: ignore[operator]  # it is a number
            refuse(
                name, value, f"seconds, more than 0 and at most {MAX_NUMBER}, or None for no limit"
            )
    if timeout is not None and soft_timeout is not None and soft_timeout >= timeout:  # type: ignore[operator]
        allowed = f"less than timeout, which is {timeout!r}: the soft limit comes first"
        refuse("soft_timeout", soft_timeout, allowed)


def timestamp(name: str, value: object) -> float:
    """Return the Unix time of an aware `datetime`."""
    allowed = "an aware datetime, such as datetime.now(timezone.utc) + timedelta(minutes=5)"
    if not isinstance(value, datetime):
        refuse(name, value, allowed)
    if value.utcoffset() is None:
        refuse(name, value, f"{allowed}; this one is naive: it has no time zone")
    return max(value.timestamp(), 0.0)


def arguments(args: object, kwargs: object, call: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of one job.

    Args:
        args: Positional arguments: a list or tuple.
        kwargs: Keyword arguments: a mapping, or None.
        call: The beginning of a correct call, such as ``apply_async(``.
    """
    if not isinstance(args, (list, tuple)):
        refuse_type("args", args, f"a list or tuple, as in {call}(value,))")
    by_name = {} if kwargs is None else kwargs
    right = f'{call}(value,), {{"name": value}})'
    if not isinstance(by_name, Mapping):
        refuse_type("kwargs", kwargs, f"a mapping of names to values, as in {right}")
    for name in by_name:
        if not isinstance(name, str):
            refuse_type("a name in kwargs", name, f"text, as in {right}")
    return tuple(args), dict(by_name)


def calls(value: object) -> list[Sequence[Any]]:
    """Return the argument tuples of a ``map`` as a list."""
    allowed = "an iterable of argument tuples, one for each job, such as [(1,), (2,)]"
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, IterableABC):
        refuse_type("calls", value, allowed)
    tuples = list(value)
    for args in tuples:
        if not isinstance(args, (tuple, list)):
            refuse_type("one of the calls", args, f"{allowed}; write (value,) for one argument")
    return tuples


def exceptions(name: str, value: object) -> tuple[type[BaseException], ...]:
    """Return one or several exception classes as a tuple."""
    kinds = value if isinstance(value, (tuple, list)) else (value,)
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        refuse(name, value, "an exception class, or a tuple of them")
    return tuple(kinds)


def headers(value: object) -> tuple[tuple[str, str], ...]:
    """Return (name, value) pairs for a mapping of text to text."""
    good = isinstance(value, Mapping) and all(
        isinstance(name, str) and name and isinstance(text, str) for name, text in value.items()
    )
    if not good:
        refuse("headers", value, "a mapping of text to text")
    return tuple(value.items())  # type: ignore[attr-defined]  # it is a mapping


def no_guarantee(*, guarantee: bool, retries: int, unique: bool) -> None:
    """Refuse options that jobs without guarantee cannot have: they run once and are not stored."""
    if guarantee or not (retries or unique):
        return
    conflict = f"retries={retries}" if retries else "unique"
    raise SettingsError(
        f"guarantee=False and {conflict} exclude each other: a job without guarantee is run at "
        "most once and is not stored; allowed is one of them"
    )
