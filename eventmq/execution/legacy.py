"""Legacy jobs: the body that deployed software sends, which names a callable instead of a task.

``["run", {"callable", "path", "args", "kwargs", "class_args", "class_kwargs"}]``; ``path`` is
``pkg.mod``, or ``pkg.mod:Class`` for a method of a new object. **Warning**: whoever may submit
such jobs can call everything that the operator's patterns match. The path is checked before
anything is imported, and the callable must also be defined in a module that matches: ``from os
import system`` in an allowed module does not allow ``os.system``.
"""

from __future__ import annotations

import importlib
import inspect
import json
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq.errors import NotAllowed, SerializationError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["LegacyCall", "encode_legacy", "parse_legacy", "resolve"]


class LegacyCall(NamedTuple):
    """The call that a legacy job names; nothing of it is imported yet."""

    module: str
    cls: str
    name: str
    args: list[Any]
    kwargs: dict[str, Any]
    class_args: list[Any]
    class_kwargs: dict[str, Any]

    @property
    def dotted(self) -> str:
        """Dotted path to compare with patterns: ``pkg.mod[.Class].callable``."""
        return ".".join(part for part in (self.module, self.cls, self.name) if part)


def _is_path(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))


def parse_legacy(payload: bytes) -> LegacyCall:
    """Decode the body of a legacy job.

    Raises:
        SerializationError: The body is not a legacy job.
    """
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise SerializationError("the body of a legacy job is not JSON") from error
    match value:
        case ["run", {"callable": str(name), "path": str(path), **more}]:
            fields: dict[str, Any] = {str(key): item for key, item in more.items()}
            module, colon, cls = path.partition(":")
        case _:
            raise SerializationError('a legacy job is ["run", {"callable", "path", ...}]')
    parts = [fields.get(key) or [] for key in ("args", "class_args")]
    maps = [fields.get(key) or {} for key in ("kwargs", "class_kwargs")]
    valid = name.isidentifier() and _is_path(module) and (cls.isidentifier() or not colon)
    if not valid or not all(isinstance(part, list) for part in parts):
        raise SerializationError("path and callable of a legacy job are names, args a list")
    if not all(isinstance(part, dict) for part in maps):
        raise SerializationError("kwargs and class_kwargs of a legacy job are maps")
    return LegacyCall(module, cls, name, parts[0], maps[0], parts[1], maps[1])


def _admitted(dotted: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(dotted, pattern) for pattern in patterns)


def _origin(target: object) -> str:
    """Return the module path of a function or class, "" for anything else."""
    function = inspect.unwrap(target) if callable(target) else target
    if not (inspect.isroutine(function) or inspect.isclass(function)):
        return ""
    return f"{function.__module__}.{function.__qualname__}"


def _check_origin(target: object, dotted: str, patterns: Sequence[str]) -> None:
    origin = _origin(target)
    if not _admitted(origin, patterns):
        reason = f"is defined as {origin}" if origin else "is neither a function nor a class"
        msg = f"{dotted} {reason}, which no --allow-callables pattern admits"
        raise NotAllowed(msg)


def resolve(call: LegacyCall, patterns: Sequence[str]) -> Callable[..., Any]:
    """Return the callable of a legacy job.

    Raises:
        NotAllowed: No pattern of the operator matches its path.
        Exception: Whatever importing the module or making the object raises.
    """
    if call.name.startswith("__") or not _admitted(call.dotted, patterns):
        msg = f"{call.dotted} is not admitted: no --allow-callables pattern matches it"
        raise NotAllowed(msg)
    owner: Any = importlib.import_module(call.module)
    if call.cls:
        cls = getattr(owner, call.cls)
        if not inspect.isclass(cls):
            raise NotAllowed(f"{call.module}:{call.cls} is not a class")
        _check_origin(cls, f"{call.module}:{call.cls}", patterns)
        method: Callable[..., Any] = getattr(cls(*call.class_args, **call.class_kwargs), call.name)
        return method
    target: Callable[..., Any] = getattr(owner, call.name)
    _check_origin(target, call.dotted, patterns)
    return target


def encode_legacy(value: object) -> bytes:
    """Encode the result of a legacy job.

    Raises:
        SerializationError: It cannot be written as JSON.
    """
    try:
        return json.dumps({"value": value}).encode()
    except (TypeError, ValueError, RecursionError) as error:
        msg = f"the result, a {type(value).__name__}, cannot be written as JSON: {error}"
        raise SerializationError(msg) from error
