"""Application data of EMP 1: requests and responses in JSON (document: "Application data").

Both directions, strict: what the document does not allow is ERROR 4, not a guess.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple, NoReturn

from eventmq.errors import EventMQError
from eventmq.plugins.gateways.emp_1.messages import Code, EmpError

__all__ = [
    "Failure",
    "Operation",
    "Result",
    "decode_operation",
    "decode_result",
    "encode_operation",
    "encode_result",
]

_BOM = b"\xef\xbb\xbf"


class Operation(NamedTuple):
    """What a request asks for."""

    op: str
    data: dict[str, Any]


class Result(NamedTuple):
    """What a response says; ``code`` and ``description`` are "" for a success."""

    ok: bool
    data: dict[str, Any]
    code: str = ""
    description: str = ""


class Failure(EventMQError):
    """A ``failure`` response.

    Attributes:
        code: Names the cause, as ``unknown_job``.
        description: For people.
        data: More about it.
    """

    def __init__(self, code: str, description: str, data: dict[str, Any] | None = None) -> None:
        super().__init__(f"{code}: {description}" if code else description)
        self.code = code
        self.description = description
        self.data = data or {}


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def _load(data: bytes, what: str) -> dict[str, Any]:
    """Return the JSON object that the application data are."""
    if data.startswith(_BOM):
        raise EmpError(Code.BAD_REQUEST, f"the {what} begins with a byte order mark")
    try:
        value = json.loads(data.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise EmpError(Code.BAD_REQUEST, f"the {what} is not JSON in UTF-8") from None
    if not isinstance(value, dict):
        raise EmpError(Code.BAD_REQUEST, f"the {what} is no JSON object")
    return value


def _object(value: dict[str, Any], what: str) -> dict[str, Any]:
    data = value.get("data", {})
    if not isinstance(data, dict):
        raise EmpError(Code.BAD_REQUEST, f"data of the {what} is no JSON object")
    return data


def encode_operation(op: str, data: dict[str, Any] | None = None) -> bytes:
    """Return the data of a request; None is sent as ``{}``.

    The document says that ``data`` is optional, but deployed servers refuse a request without it.

    Raises:
        TypeError: The data cannot be written as JSON.
        ValueError: As before.
    """
    return _dump({"op": op, "data": {} if data is None else data})


def decode_operation(data: bytes) -> Operation:
    """Read the data of a request.

    Raises:
        EmpError: Code 4: they are not what the document says.
    """
    value = _load(data, "request")
    op = value.get("op")
    if not isinstance(op, str):
        raise EmpError(Code.BAD_REQUEST, "the request has no op that is a string")
    return Operation(op, _object(value, "request"))


def encode_result(result: Result) -> bytes:
    """Return the data of a response.

    Raises:
        TypeError: The data cannot be written as JSON.
        ValueError: As before.
    """
    value: dict[str, Any] = {"status": "success" if result.ok else "failure"}
    if not result.ok:
        value |= {"code": result.code, "description": result.description}
    if result.data:
        value["data"] = result.data
    return _dump(value)


def decode_result(data: bytes) -> Result:
    """Read the data of a response.

    Raises:
        EmpError: Code 4: they are not what the document says.
    """
    value = _load(data, "response")
    code, description = value.get("code", ""), value.get("description", "")
    if not isinstance(code, str) or not isinstance(description, str):
        raise EmpError(Code.BAD_REQUEST, "code and description of a response are strings")
    found = _object(value, "response")
    match value.get("status"):
        case "success":
            return Result(True, found, code, description)  # noqa: FBT003 - a tuple
        case "failure" if "description" in value:
            return Result(False, found, code, description)  # noqa: FBT003
        case "failure":
            raise EmpError(Code.BAD_REQUEST, "a failure has a description")
    raise EmpError(Code.BAD_REQUEST, "the status of a response is success or failure")
