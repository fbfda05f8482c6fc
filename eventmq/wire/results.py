"""Results on the wire: values, errors, references to result backends, and lists of frames.

A success is the serializer's bytes with its content type. Everything else is an error: content type
`ERROR_TYPE`, MessagePack ``[type, message, traceback, arguments]``, with attributes and members as
fifth element if there are any. Any client can read an error, whatever serializer the task uses.

An exception is converted to plain data and rebuilt without running any of its own code. The worker
takes it apart (`take_apart`), and the client rebuilds it (`rebuild`). Both steps do what pickle
does, but call only methods that are written in C: the nearest builtin class makes the object from
the arguments, and the attributes are set one by one. So a class whose constructor has another
signature is rebuilt like any other, and a message cannot make a client call a constructor,
``__reduce__`` or ``__setattr__`` that is written in Python.
"""

from __future__ import annotations

import builtins
import json
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

from eventmq.errors import (
    TRACEBACK_NOTE,
    EventMQError,
    JobFailed,
    PluginError,
    ProtocolError,
    ResultTooLarge,
    ResultUnavailable,
    SerializationError,
)
from eventmq.job import JobState
from eventmq.wire.batches import is_text, pack, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from eventmq.interfaces import ResultBackend

    FindClass = Callable[[str], type[Exception] | None]

__all__ = [
    "ENDED",
    "ERROR_TYPE",
    "FRAMES_TYPE",
    "LEGACY_TYPE",
    "NO_REPLY",
    "REFERENCE",
    "ExceptionParts",
    "RemoteError",
    "ResultLocation",
    "decode_arguments",
    "decode_error",
    "decode_frames",
    "encode_error",
    "encode_frames",
    "encode_value",
    "frames_task",
    "is_reference",
    "legacy_result",
    "rebuild",
    "serves_frames",
    "shorten",
    "take_apart",
    "too_large",
]

#: OUTCOME of a REPLY that carries the row of an ended job (extension ``ended``).
ENDED = "ended"

#: Frame 5 of the ACK of a REQUEST that will get no REPLY although it requested one (``ended``).
NO_REPLY = b"no-reply"

#: Content type of an error.
ERROR_TYPE = "error"

#: Content type of the answers of legacy peers: JSON ``{"value": ...}`` or any text.
LEGACY_TYPE = "plain"

#: Characters of the longest traceback; a longer one is sent without its middle.
TRACEBACK_LIMIT = 16 * 1024

#: Characters of the longest message of an error; a longer one is cut.
MESSAGE_LIMIT = 4 * 1024

#: Bytes of the longest error. A longer one is sent without attributes and members, then also
#: without its arguments.
ERROR_LIMIT = 64 * 1024

#: Prefix of the content type of a reference.
REFERENCE = "reference:"

#: Default limit of the bytes of a result: it fits in the default frame limit of the broker.
MAX_RESULT = 16 * 1024 * 1024 - 64 * 1024

#: Seconds for which a result is kept by default.
RESULT_TTL = 86400.0

#: Content type of a body that has frames instead of arguments.
FRAMES_TYPE = "frames"

#: Prefix of the names of tasks that take frames; the name of their queue follows.
_FRAMES_TASK = "frames/"

#: Types of methods that are written in C, as attributes of their class.
_NATIVE = (BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType)

#: Types of slots, and of attributes that are written in C, as attributes of their class.
_FIELDS = (MemberDescriptorType, GetSetDescriptorType)

#: Bytes that the attributes of an exception may have together. Those of a `JobFailed` that a task
#: does not catch include a traceback.
STATE_LIMIT = 24 * 1024

#: Largest number of exceptions of a group that are sent.
MEMBERS = 32

#: The class of exception groups, None before Python 3.11.
_GROUP: type[BaseException] | None = getattr(builtins, "BaseExceptionGroup", None)


class RemoteError(NamedTuple):
    """An exception of a worker.

    Attributes:
        type: Dotted name of its class.
        message: ``str()`` of the exception.
        traceback: Traceback as text.
        arguments: Arguments of its constructor, None if they are not plain data.
        state: Its plain attributes by name.
        members: The exceptions in it, if it is a group.
    """

    type: str
    message: str
    traceback: str = ""
    arguments: tuple[object, ...] | None = None
    state: Mapping[str, object] | None = None
    members: tuple[RemoteError, ...] = ()


def shorten(text: str) -> str:
    """Return a traceback without its middle, if it is long."""
    if len(text) <= TRACEBACK_LIMIT:
        return text
    half = TRACEBACK_LIMIT // 2
    return f"{text[:half]}\n  [...]\n{text[-half:]}"


def encode_error(error: RemoteError) -> bytes:
    """Encode an error; leave out data that is not plain or too long."""
    packed = pack(_row(error))
    if len(packed) > ERROR_LIMIT:
        packed = pack(_row(error._replace(state=None, members=())))
    return packed if len(packed) <= ERROR_LIMIT else pack(_row(RemoteError(*error[:3])))


def _row(error: RemoteError) -> list[object]:
    arguments = error.arguments if _is_plain(error.arguments) else None
    row: list[object] = [
        error.type,
        error.message[:MESSAGE_LIMIT],
        shorten(error.traceback),
        arguments,
    ]
    extra: dict[str, object] = {}
    if error.state and _is_plain(error.state):
        extra["state"] = error.state
    if error.members:
        extra["members"] = [_row(member) for member in error.members]
    return [*row, extra] if extra else row


def _is_plain(value: object) -> bool:
    try:
        pack(value)
    except Exception:  # noqa: BLE001 - values of users
        return False
    return True


def legacy_result(state: JobState, result: bytes | None) -> bytes:
    """Return the body of a REPLY to a legacy peer, which is text.

    For a job that succeeded without a readable result it is the value True (emqp-1.0, "Headers",
    reply-requested); for a failed one it is the text of its exception, or ``TimeoutError`` for a
    timeout, as deployed peers do.
    """
    if state is JobState.SUCCEEDED:
        return result if result and is_text(result) else _legacy_value(value=True)
    if not result or state is JobState.CANCELLED:
        return _legacy_value(state.value)
    error = decode_error(result)
    if error.type.endswith("TimeLimitExceeded"):
        return _legacy_value("TimeoutError")
    return _legacy_value(error.message or error.type)


def _legacy_value(value: object) -> bytes:
    return json.dumps({"value": value}).encode()


def decode_error(data: bytes) -> RemoteError:
    """Decode an error; other bytes become the message of an error of type ``""``."""
    try:
        error = _read(unpack(data, "the error"))
    except ProtocolError:
        error = None
    return error or RemoteError("", data[:MESSAGE_LIMIT].decode(errors="replace"))


def _read(value: object) -> RemoteError | None:
    match value:
        case [str(kind), str(message), str(traceback), arguments, *rest]:
            args = tuple(arguments) if isinstance(arguments, list) else None
            state, members = _extra(rest[0] if rest else None)
            return RemoteError(kind, message, traceback, args, state, members)
    return None


def _extra(value: object) -> tuple[Mapping[str, object] | None, tuple[RemoteError, ...]]:
    """Return the attributes and the members of an error."""
    if not isinstance(value, dict):
        return None, ()
    state, members = value.get("state"), value.get("members")
    rows = map(_read, members if isinstance(members, list) else ())
    named = isinstance(state, dict) and all(isinstance(name, str) for name in state)
    return state if named else None, tuple(row for row in rows if row is not None)


def is_reference(content_type: str) -> bool:
    """Return whether the content type is that of a reference to a result."""
    return content_type.startswith(REFERENCE)


def too_large(size: int, limit: int) -> str:
    """Return the text of the error for a result that is too large for the broker."""
    return (
        f"the result has {size} bytes; the limit is {limit}, from the setting max_frame; a result "
        "backend such as 'sqlite' (setting result_backend) takes larger ones"
    )


class ResultLocation:
    """Where an app stores its results: in a backend, or in the broker. Thread-safe.

    Args:
        backend: The result backend. With None, or a backend whose results travel in the REPLY, the
            broker stores results.
        name: Name of the backend in the setting.
        max_result: Bytes of the longest result that the broker may store.
        ttl: Seconds for which a result is kept if its job sets no time.
    """

    __slots__ = ("_backend", "_name", "_ttl", "inline", "max_result")

    def __init__(
        self,
        backend: ResultBackend | None = None,
        name: str = "",
        *,
        max_result: int = MAX_RESULT,
        ttl: float = RESULT_TTL,
    ) -> None:
        self._backend = None if backend is None or backend.inline else backend
        self._name = name or "broker"
        self.max_result = max_result
        self._ttl = ttl
        #: Whether results travel in the REPLY; else `put` and `get` may block.
        self.inline = self._backend is None

    def check(self, result: bytes) -> None:
        """Raise `ResultTooLarge` for a result that is too large for the broker."""
        if len(result) > self.max_result:
            raise ResultTooLarge(too_large(len(result), self.max_result))

    def put(
        self,
        job_id: str,
        content_type: str,
        result: bytes,
        ttl: float | None,
        *,
        fed: bool = False,
    ) -> tuple[str, bytes]:
        """Store a result.

        Args:
            job_id: Id of the job.
            content_type: Content type of the result.
            result: The encoded result.
            ttl: Seconds for which the job wants it kept, None for the default.
            fed: Whether another job of its graph takes the result, at an unknown time; then it is
                kept at least for the default time.

        Returns:
            Content type and bytes for the outcome.

        Raises:
            ResultTooLarge: The result is too large for the broker, or for the backend.
            PluginError: The backend did not return bytes.
        """
        if self._backend is None:
            self.check(result)
            return content_type, result
        seconds = self._ttl if ttl is None else max(ttl, self._ttl) if fed else ttl
        if seconds <= 0:
            return "", b""
        reference = self._backend.put(job_id, result, seconds)
        if not isinstance(reference, bytes):
            raise PluginError(
                f"put() of the result backend {self._name!r} returned a {type(reference).__name__} "
                "as reference; it must return bytes"
            )
        return f"{REFERENCE}{self._name};{content_type}", reference

    def get(self, job_id: str, content_type: str, data: bytes) -> tuple[str, bytes]:
        """Return content type and bytes of a result, from those of its outcome.

        Raises:
            ResultUnavailable: Another backend has the result, or this one no longer has it.
        """
        if not is_reference(content_type):
            return content_type, data
        name, _, content_type = content_type.removeprefix(REFERENCE).partition(";")
        if self._backend is None or name != self._name:
            msg = f"the result of job {job_id} is kept by the result backend {name!r}, and this "
            msg += f"program has {self._name!r}: give it the same setting result_backend"
            raise ResultUnavailable(msg)
        try:
            return content_type, self._backend.get(data)
        except EventMQError:
            raise
        except Exception as error:
            msg = f"the result of job {job_id}: the result backend {name!r} failed: "
            raise ResultUnavailable(f"{msg}{type(error).__name__}: {error}") from error


def frames_task(queue: str) -> str:
    """Return the task name of jobs in a queue whose bodies are frames."""
    return f"{_FRAMES_TASK}{queue}"


def serves_frames(task: str) -> bool:
    """Return whether a task name is one of `frames_task`."""
    return task.startswith(_FRAMES_TASK)


def encode_frames(frames: Sequence[bytes]) -> bytes:
    """Return frames as a body."""
    return pack(list(map(bytes, frames)))


def decode_frames(data: bytes) -> list[bytes]:
    """Return the frames of a body.

    Raises:
        ProtocolError: The body is not a list of frames.
    """
    frames = unpack(data, "the body")
    if not isinstance(frames, list) or not all(isinstance(frame, bytes) for frame in frames):
        raise ProtocolError("a body of frames is a list of bytes", code="bad-body")
    return frames


def decode_arguments(data: bytes, _: object) -> tuple[tuple[list[bytes]], dict[str, Any]]:
    """Return the arguments of a task that takes frames: one list of frames."""
    return (decode_frames(data),), {}


def encode_value(value: object, _: object) -> tuple[bytes, str]:
    """Encode a value that a task with frames returned or yielded, as frames without a signature.

    None is encoded as an empty list.

    Raises:
        SerializationError: The value is neither bytes nor a list of bytes.
    """
    if value is None:
        value = []
    if isinstance(value, (bytes, bytearray, memoryview)):
        value = [value]
    if isinstance(value, (list, tuple)) and all(
        isinstance(frame, (bytes, bytearray, memoryview)) for frame in value
    ):
        return encode_frames(value), ""
    kind = type(value).__name__
    raise SerializationError(
        f"a task that takes frames returns bytes or a list of bytes, not {kind}"
    )


class ExceptionParts(NamedTuple):
    """Arguments, plain attributes and, for a group, members of an exception."""

    arguments: tuple[object, ...]
    state: dict[str, object]
    members: tuple[BaseException, ...] = ()


def _native(kind: type, name: str) -> Any:
    """Return the first method with a name in the MRO of a class that is written in C."""
    for base in kind.__mro__:
        attribute = vars(base).get(name)
        if isinstance(attribute, _NATIVE):
            return attribute
    raise TypeError(name)


def _is_settable(name: object) -> bool:
    """Return whether an attribute may be set: not a method, and not one of Python's own."""
    if not isinstance(name, str) or hasattr(BaseException, name):
        return False
    return name == "__notes__" or not name.startswith("__")


# Taking apart


def take_apart(error: BaseException) -> ExceptionParts:
    """Return the parts of an exception. Never raises, whatever its class does."""
    if _GROUP is not None and isinstance(error, _GROUP):
        group: Any = error
        state = _plain(vars(error).items())
        return ExceptionParts((group.message,), state, tuple(group.exceptions[:MEMBERS]))
    try:
        _, arguments, *more = _native(type(error), "__reduce__")(error)
        attributes = dict(more[0]) if more and more[0] else {}
        if isinstance(error, JobFailed) and (notes := attributes.pop("__notes__", None)):
            # The note with the traceback is long, and `rebuild` makes it again.
            others = [note for note in notes if not note.startswith(TRACEBACK_NOTE)]
            attributes |= {"__notes__": others} if others else {}
        return ExceptionParts(arguments, _plain([*attributes.items(), *_slots(error)]))
    except Exception:  # noqa: BLE001 - a class of a user may raise anything
        return ExceptionParts((), {})


def _slots(error: BaseException) -> Iterable[tuple[str, object]]:
    for base in type(error).__mro__:
        for name in vars(base).get("__slots__", ()):
            if type(vars(base).get(name)) is MemberDescriptorType:
                with suppress(AttributeError):  # not set
                    yield name, vars(base)[name].__get__(error)


def _plain(items: Iterable[tuple[object, object]]) -> dict[str, object]:
    """Return the plain attributes that fit into `STATE_LIMIT`."""
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


# Rebuilding


def rebuild(remote: RemoteError, find: FindClass) -> Exception | None:
    """Return the worker's exception rebuilt, or None if that is not possible.

    Args:
        remote: The exception as the worker sent it.
        find: Returns the class with a dotted name, None if it does not exist here.
    """
    kind = find(remote.type)
    if kind is None:
        return None
    try:
        return _make(kind, remote, find)
    except Exception:  # noqa: BLE001 - the class may refuse the arguments
        return None


def _make(kind: type[Exception], remote: RemoteError, find: FindClass) -> Exception:
    arguments: tuple[object, ...]
    if _GROUP is not None and issubclass(kind, _GROUP):
        members = [rebuild(member, find) or _stand_in(member) for member in remote.members]
        arguments = (*(remote.arguments or (remote.message,))[:1], members)
    else:
        arguments = (remote.message,) if remote.arguments is None else remote.arguments
    exception: Exception = _native(kind, "__new__")(kind, *arguments)
    _native(kind, "__init__")(exception, *arguments)
    for name, value in (remote.state or {}).items():
        if _is_settable(name):
            _set(exception, name, value)
    if isinstance(exception, JobFailed):
        exception.note_traceback()
    return exception


def _stand_in(member: RemoteError) -> JobFailed:
    """Return a `JobFailed` in place of a member of a group whose class does not exist here."""
    return JobFailed(
        f"{member.type}: {member.message}",
        remote_type=member.type,
        remote_message=member.message,
    )


def _set(exception: Exception, name: str, value: object) -> None:
    field = getattr_static(type(exception), name, None)
    if isinstance(field, _FIELDS):
        with suppress(AttributeError, TypeError):  # it is read-only, or refuses the value
            field.__set__(exception, value)
    else:
        vars(exception)[name] = value
