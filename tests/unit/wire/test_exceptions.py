"""Exceptions that a worker takes apart and a client rebuilds."""

from __future__ import annotations

import builtins
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from eventmq.errors import JobFailed, JobNotFound
from eventmq.execution.failures import describe
from eventmq.wire.batches import pack
from eventmq.wire.outcomes import original
from eventmq.wire.results import (
    ERROR_LIMIT,
    MEMBERS,
    MESSAGE_LIMIT,
    STATE_LIMIT,
    TRACEBACK_LIMIT,
    RemoteError,
    decode_error,
    encode_error,
)

if TYPE_CHECKING:
    from typing_extensions import Self

#: Names of code that ran although it must not.
CALLED: list[str] = []


class Named(Exception):
    """An exception whose constructor takes only keyword arguments, and keeps them."""

    def __init__(self, *, code: int) -> None:
        CALLED.append("Named")
        super().__init__(f"code {code}")
        self.code = code


class Wrapped(Exception):
    """An exception whose constructor changes its text."""

    def __init__(self, path: str, line: int) -> None:
        CALLED.append("Wrapped")
        super().__init__(f"{path}:{line}")
        self.path, self.line = path, line


class Reduced(Exception):
    """An exception with its own ``__reduce__``."""

    def __reduce__(self) -> tuple[object, ...]:
        CALLED.append("Reduced")
        return print, ("pwned",)


class New(Exception):
    def __new__(cls, *args: object) -> Self:
        CALLED.append("New")
        return super().__new__(cls, *args)


class Watched(Exception):
    @property
    def code(self) -> int:
        return 7

    @code.setter
    def code(self, value: int) -> None:
        CALLED.append("code")

    def __setattr__(self, name: str, value: object) -> None:
        CALLED.append("setattr")
        super().__setattr__(name, value)


class Slotted(Exception):
    __slots__ = ("code", "unset")

    def __init__(self, code: int) -> None:
        super().__init__("slotted")
        self.code = code


@dataclass
class Data(Exception):
    code: int
    why: str = "none"


class NoText(Exception):
    def __str__(self) -> str:
        raise ValueError("no")

    args = property(lambda self: 1 / 0)  # type: ignore[assignment]


class Elsewhere(OSError):
    def __init__(self, name: str) -> None:
        super().__init__(2, "not there", name)


def sent(error: BaseException) -> RemoteError:
    """Return an exception as it arrives on the wire."""
    return decode_error(encode_error(describe(error)))


def came(error: BaseException) -> Exception:
    """Return the exception that the client rebuilds, without running code of its class."""
    CALLED.clear()
    made = original(sent(error))
    assert made is not None
    assert CALLED == []
    return made


@pytest.mark.parametrize(
    "error",
    [
        ValueError(),
        KeyError("a", 2),
        ZeroDivisionError("division by zero"),
        Named(code=3),
        Wrapped("a.py", 7),
        Reduced("x"),
        New(1),
        Watched("x"),
        Slotted(5),
        Data(1),
        Data(code=4, why="x"),
        FileNotFoundError(2, "no such file", "a.txt"),
        Elsewhere("b.txt"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        json.JSONDecodeError("expecting value", "{", 1),
        ImportError("no module", name="x", path="y"),
        JobNotFound("j1"),
        JobFailed("no", job_id="j", remote_type="x.Y", remote_traceback="t" * TRACEBACK_LIMIT),
        JobFailed("no", job_id="j"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_comes_back_with_its_text_arguments_and_attributes(error: Exception) -> None:
    made = came(error)
    assert type(made) is type(error)
    assert (str(made), made.args) == (str(error), error.args)
    assert vars(made) == vars(error)
    for name in ("code", "errno", "strerror", "filename", "name", "path", "reason", "start"):
        assert getattr(made, name, None) == getattr(error, name, None)


def test_attributes_that_are_not_plain_or_too_long_are_left_out() -> None:
    error = ValueError("x")
    vars(error).update(a=1, response=object(), text="x" * STATE_LIMIT, b=[2], c=float)
    assert vars(came(error)) == {"a": 1, "b": [2]}


def test_what_belongs_to_python_cannot_be_set() -> None:
    """The exception is rebuilt without such an attribute."""
    state = {"__class__": 1, "args": [9], "with_traceback": 1, "__cause__": 2, "x": 3}
    made = original(RemoteError("builtins.ValueError", "m", "", ("m",), state))
    assert made is not None
    assert (made.args, vars(made), made.__cause__) == (("m",), {"x": 3}, None)


def test_a_setter_is_not_called() -> None:
    CALLED.clear()
    made = original(RemoteError(f"{__name__}.Watched", "m", "", (), {"code": 1}))
    assert isinstance(made, Watched)
    assert (made.code, CALLED) == (7, [])


def test_notes_come_along() -> None:
    error = ValueError("x")
    error.__notes__ = ["while cooking"]
    assert came(error).__notes__ == ["while cooking"]


def test_arguments_that_cannot_be_written_are_the_message_instead() -> None:
    made = came(ValueError(object))
    assert made.args == (str(object),)
    assert sent(ValueError("\ud800")).message == "?"


def test_an_exception_that_breaks_everything_is_told_of_by_its_name() -> None:
    remote = sent(NoText("x"))
    assert remote.type == f"{__name__}.NoText"
    assert remote.message == "NoText (its text cannot be shown)"


def test_whatever_is_raised_its_error_is_bounded() -> None:
    error = ValueError("x" * 10_000_000, ["y" * 1_000_000])
    error.text = "z" * 10_000_000  # type: ignore[attr-defined]
    error.parts = {str(n): "z" * 100 for n in range(10_000)}  # type: ignore[attr-defined]
    remote = describe(error)
    assert len(remote.message) == MESSAGE_LIMIT
    assert len(encode_error(remote)) <= ERROR_LIMIT


def test_a_recursion_is_told_of() -> None:
    def deeper(n: int) -> int:
        return deeper(n + 1)

    with pytest.raises(RecursionError) as caught:
        deeper(0)
    assert isinstance(came(caught.value), RecursionError)


def test_a_class_of_a_function_has_no_name_to_be_found_by() -> None:
    class Local(Exception):
        pass

    assert original(sent(Local("x"))) is None


@pytest.mark.parametrize(
    "more",
    [7, [], {"state": [1]}, {"state": {1: 2}}, {"members": 5}, {"members": [5, ["a"]]}, {"x": 1}],
)
def test_a_fifth_place_of_another_shape_says_nothing(more: object) -> None:
    assert decode_error(pack(["t", "m", "", [1], more])) == RemoteError("t", "m", "", (1,))


# Groups


needs_groups = pytest.mark.skipif(
    not hasattr(builtins, "ExceptionGroup"), reason="groups are from Python 3.11 on"
)


def group(*members: Exception, text: str = "several") -> Exception:
    return builtins.ExceptionGroup(text, list(members))  # type: ignore[attr-defined,no-any-return]


def members(error: BaseException) -> list[BaseException]:
    return list(error.exceptions)  # type: ignore[attr-defined]


@needs_groups
def test_a_group_comes_back_with_its_members() -> None:
    made = came(group(ValueError("a"), group(Named(code=1), KeyError("k"), text="inner")))
    assert str(made) == "several (2 sub-exceptions)"
    first, inner = members(made)
    assert (type(first), first.args) == (ValueError, ("a",))
    assert [type(member) for member in members(inner)] == [Named, KeyError]


@needs_groups
def test_a_member_that_is_not_imported_here_is_a_failure_with_its_name() -> None:
    class Local(Exception):
        pass

    _, member = members(came(group(ValueError("a"), Local("b"))))
    assert isinstance(member, JobFailed)
    assert member.remote_type.endswith("<locals>.Local")
    assert member.remote_message == "b"


@needs_groups
def test_groups_are_bounded_in_width_and_depth() -> None:
    wide = came(group(*[ValueError(n) for n in range(1000)]))
    assert len(members(wide)) == MEMBERS
    deep: Exception = ValueError("x")
    for _ in range(200):
        deep = group(deep)
    remote = sent(deep)
    assert remote.members[0].members[0].members[0].members == ()
    assert len(encode_error(remote)) <= ERROR_LIMIT


def test_a_failed_job_keeps_the_notes_of_its_task_beside_its_traceback() -> None:
    error = JobFailed("no", remote_traceback="in sell")
    note = error.__notes__[0]
    error.__notes__ = ["asked twice", note]
    assert came(error).__notes__ == ["asked twice", note]
