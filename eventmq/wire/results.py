"""Results on the wire: values, errors, references to result backends, and lists of frames.

A success is the serializer's bytes with its content type. Everything else is an error: content
type `ERROR_TYPE`, MessagePack ``[type, message, traceback, arguments]``. Attributes and members
come in a fifth place where there are any. Any client can read an error, whatever serializer the
task uses.

An exception becomes plain data, and is made again, without running any of its own code. The worker
takes it apart (`take_apart`), the client puts one together (`rebuild`). What pickle would do with
it is done by the parts of Python that are written in C: the nearest builtin class makes the object
from the arguments, and the attributes are set on it one by one. So a class with a constructor of
another signature comes back like any other, and a message can make a client call no constructor,
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

#: Frame 5 of the ACK of a REQUEST whose ``reply-requested`` will not be answered (``ended``).
NO_REPLY = b"no-reply"

#: Content type of an error.
ERROR_TYPE = "error"

#: Content type of what a legacy peer answers: JSON ``{"value": ...}`` or any text.
LEGACY_TYPE = "plain"

#: A traceback longer than this many characters loses its middle.
TRACEBACK_LIMIT = 16 * 1024

#: A message longer than this many characters is cut.
MESSAGE_LIMIT = 4 * 1024

#: Bytes that an error may take; of a longer one attributes and members are left out, then its
#: arguments.
ERROR_LIMIT = 64 * 1024

#: What the content type of a reference begins with.
REFERENCE = "reference:"

#: Default limit of a result in bytes: what the broker's default frame limit lets through.
MAX_RESULT = 16 * 1024 * 1024 - 64 * 1024

#: Default seconds to keep the result of a job that names no time.
RESULT_TTL = 86400.0

#: Content type of a body that is frames instead of arguments.
FRAMES_TYPE = "frames"

#: What the names of tasks that take frames begin with; the name of their queue follows.
_FRAMES_TASK = "frames/"

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


class RemoteError(NamedTuple):
    """An exception of a worker.

    Attributes:
        type: Dotted name of its class.
        message: ``str()`` of it.
        traceback: As text.
        arguments: Those that it was made with, if they are plain data.
        state: Its plain attributes by name.
        members: Of a group: the exceptions in it.
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
    """Encode an error; what is not plain data, or too long, is left out."""
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
    more: dict[str, object] = {}
    if error.state and _is_plain(error.state):
        more["state"] = error.state
    if error.members:
        more["members"] = [_row(member) for member in error.members]
    return [*row, more] if more else row


def _is_plain(value: object) -> bool:
    try:
        pack(value)
    except Exception:  # noqa: BLE001 - values of users
        return False
    return True


def legacy_result(state: JobState, result: bytes | None) -> bytes:
    """Return the body of a REPLY to a legacy peer, which is text.

    A job that succeeded without a readable result is answered with a True value (emqp-1.0,
    "Headers", reply-requested), one that failed with the text of its exception, and
    ``TimeoutError`` for a time-out, as deployed peers do.
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
            state, members = _more(rest[0] if rest else None)
            return RemoteError(kind, message, traceback, args, state, members)
    return None


def _more(value: object) -> tuple[Mapping[str, object] | None, tuple[RemoteError, ...]]:
    """Return the attributes and the members of an error."""
    if not isinstance(value, dict):
        return None, ()
    state, members = value.get("state"), value.get("members")
    rows = map(_read, members if isinstance(members, list) else ())
    named = isinstance(state, dict) and all(isinstance(name, str) for name in state)
    return state if named else None, tuple(row for row in rows if row is not None)


def is_reference(content_type: str) -> bool:
    """Return whether the bytes of an outcome are a reference to its result."""
    return content_type.startswith(REFERENCE)


def too_large(size: int, limit: int) -> str:
    """Return why a result cannot be handed to the broker, and what would take it."""
    return (
        f"the result has {size} bytes; the limit is {limit}, from the setting max_frame; a result "
        "backend such as 'sqlite' (setting result_backend) takes larger ones"
    )


class ResultLocation:
    """Where an app keeps its results: a backend, with its name and its limits. Thread-safe.

    Args:
        backend: Keeps results; None, or one whose results travel in the REPLY, leaves them to the
            broker.
        name: Of the backend, as the setting has it.
        max_result: Longest result in bytes that is left to the broker.
        ttl: Seconds that a result is kept whose job names no time.
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
        """Raise `ResultTooLarge` for a result that the broker would not take."""
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
        """Keep a result.

        Args:
            job_id: Of its job.
            content_type: Of the result.
            result: The bytes.
            ttl: Seconds that the job wants it kept, None if it names no time.
            fed: Another job of its graph takes it, at an unknown time: it is kept for the default
                time at least.

        Returns:
            Content type and bytes for the outcome.

        Raises:
            ResultTooLarge: It is too long for the broker, or for the backend.
            PluginError: The backend returned something else than bytes.
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
        """Return content type and bytes of the result of an outcome.

        Raises:
            ResultUnavailable: Another backend has it, or this one has forgotten it.
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
    """Return the task name of the jobs of a queue whose bodies are frames."""
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
        ProtocolError: The body is no list of frames.
    """
    frames = unpack(data, "the body")
    if not isinstance(frames, list) or not all(isinstance(frame, bytes) for frame in frames):
        raise ProtocolError("a body of frames is a list of bytes", code="bad-body")
    return frames


def decode_arguments(data: bytes, _: object) -> tuple[tuple[list[bytes]], dict[str, Any]]:
    """Return the arguments of a task that takes frames: the list of them."""
    return (decode_frames(data),), {}


def encode_value(value: object, _: object) -> tuple[bytes, str]:
    """Encode what a task that takes frames returned or yielded, as frames without a signature.

    None is an empty list.

    Raises:
        SerializationError: It is not bytes, nor a list of bytes.
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
        if isinstance(error, JobFailed) and (notes := attributes.pop("__notes__", None)):
            # The one with the traceback takes much room, and comes back by itself.
            others = [note for note in notes if not note.startswith(TRACEBACK_NOTE)]
            attributes |= {"__notes__": others} if others else {}
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


def rebuild(remote: RemoteError, find: FindClass) -> Exception | None:
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


def _make(kind: type[Exception], remote: RemoteError, find: FindClass) -> Exception:
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
    if isinstance(made, JobFailed):
        made.note_traceback()
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
