"""An exception as plain data, and back, without running any of its own code.

The worker takes an exception apart (`take_apart`), the client puts one together (`rebuild`). What
pickle would do with it is done by the parts of Python that are written in C: the nearest builtin
class makes the object from the arguments, and the attributes are set on it one by one. So a class
with a constructor of another signature comes back like any other, and a message can make a client
call no constructor, ``__reduce__`` or ``__setattr__`` that is written in Python.
"""

from __future__ import annotations

import builtins
from contextlib import suppress
from inspect import getattr_static
from types import (
    BuiltinFunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    WrapperDescriptorType,
)
from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq.errors import JobFailed
from eventmq.wire.batches import pack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from eventmq.wire.results import RemoteError

    FindJobs = Callable[[str], type[Exception] | None]

__all__ = ["ExceptionParts", "rebuild", "take_apart"]

#: How methods written in C stand in their class.
_NATIVE = (BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType)

#: How attributes written in C, and slots, stand in their class.
_FIELDS = (MemberDescriptorType, GetSetDescriptorType)

#: Bytes that the attributes of an exception may take together: a `JobFailed` that a task lets pass
#: has a traceback among them.
STATE_LIMIT = 24 * 1024

#: Exceptions of a group that are sent.
MEMBERS = 32

#: Python 3.11 and later have it.
_GROUP: type[BaseException] | None = getattr(builtins, "BaseExceptionGroup", None)


class ExceptionParts(NamedTuple):
    """Arguments, plain attributes and, of a group, members of an exception."""

    arguments: tuple[object, ...]
    state: dict[str, object]
    members: tuple[BaseException, ...] = ()


def _native(kind: type, name: str) -> Any:
    """Return the nearest method of a class that is written in C."""
    for base in kind.__mro__:
        attribute = vars(base).get(name)
        if isinstance(attribute, _NATIVE):
            return attribute
    raise TypeError(name)


def _is_settable(name: object) -> bool:
    """Return whether an attribute is the exception's own: no method, no part of Python."""
    if not isinstance(name, str) or hasattr(BaseException, name):
        return False
    return name == "__notes__" or not name.startswith("__")


# Taking apart


def take_apart(error: BaseException) -> ExceptionParts:
    """Return what an exception is made of. Raises nothing, whatever its class does."""
    if _GROUP is not None and isinstance(error, _GROUP):
        group: Any = error
        state = _plain(vars(error).items())
        return ExceptionParts((group.message,), state, tuple(group.exceptions[:MEMBERS]))
    try:
        _, arguments, *more = _native(type(error), "__reduce__")(error)
        attributes = dict(more[0]) if more and more[0] else {}
        return ExceptionParts(arguments, _plain([*attributes.items(), *_slots(error)]))
    except Exception:  # noqa: BLE001 - a class of the user's may break anything
        return ExceptionParts((), {})


def _slots(error: BaseException) -> Iterable[tuple[str, object]]:
    for base in type(error).__mro__:
        for name in vars(base).get("__slots__", ()):
            if type(vars(base).get(name)) is MemberDescriptorType:
                with suppress(AttributeError):  # not set
                    yield name, vars(base)[name].__get__(error)


def _plain(items: Iterable[tuple[object, object]]) -> dict[str, object]:
    """Return the attributes that any client can read, as many as there is room for."""
    attributes: dict[str, object] = {}
    remaining = STATE_LIMIT
    for name, value in items:
        if _is_settable(name):
            with suppress(Exception):  # not plain
                size = len(pack([name, value]))
                if size <= remaining:
                    attributes[str(name)] = value
                    remaining -= size
    return attributes


# Together


def rebuild(remote: RemoteError, find: FindJobs) -> Exception | None:
    """Return an exception like the worker's, or None where that cannot be.

    Args:
        remote: What the worker said of it.
        find: Returns the class of a dotted name, None where there is none.
    """
    kind = find(remote.type)
    if kind is None:
        return None
    try:
        return _make(kind, remote, find)
    except Exception:  # noqa: BLE001 - arguments that the class does not take
        return None


def _make(kind: type[Exception], remote: RemoteError, find: FindJobs) -> Exception:
    arguments: tuple[object, ...]
    if _GROUP is not None and issubclass(kind, _GROUP):
        members = [rebuild(member, find) or _stand_in(member) for member in remote.members]
        arguments = (*(remote.arguments or (remote.message,))[:1], members)
    else:
        arguments = (remote.message,) if remote.arguments is None else remote.arguments
    made: Exception = _native(kind, "__new__")(kind, *arguments)
    _native(kind, "__init__")(made, *arguments)
    for name, value in (remote.state or {}).items():
        if _is_settable(name):
            _set(made, name, value)
    return made


def _stand_in(member: RemoteError) -> JobFailed:
    """Return what stands for a member of a group whose class is not here."""
    return JobFailed(
        f"{member.type}: {member.message}",
        remote_type=member.type,
        remote_message=member.message,
    )


def _set(made: Exception, name: str, value: object) -> None:
    field = getattr_static(type(made), name, None)
    if isinstance(field, _FIELDS):
        with suppress(AttributeError, TypeError):  # cannot be set, or not to this
            field.__set__(made, value)
    else:
        vars(made)[name] = value
