"""Arguments of a CALL, each checked: what a handler gets is of the type that it expects."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from eventmq.errors import ProtocolError
from eventmq.wire.calls import MAX_IDS, MAX_ROWS

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["flag", "limit", "number", "numbers", "text", "texts", "time"]


def text(arguments: Mapping[str, Any], name: str) -> str:
    """Return a text, "" where it was left out."""
    value = arguments.get(name, "")
    if not isinstance(value, str):
        raise ProtocolError(f"argument {name!r} is a str", code="bad-arguments")
    return value


def texts(arguments: Mapping[str, Any], name: str) -> list[str]:
    """Return a list of texts."""
    value = arguments.get(name)
    if (
        not isinstance(value, list)
        or len(value) > MAX_IDS
        or not all(isinstance(item, str) for item in value)
    ):
        msg = f"argument {name!r} is a list of at most {MAX_IDS} str"
        raise ProtocolError(msg, code="bad-arguments")
    return value


def flag(arguments: Mapping[str, Any], name: str) -> bool:
    """Return a bool, false where it was left out."""
    value = arguments.get(name, False)
    if not isinstance(value, bool):
        raise ProtocolError(f"argument {name!r} is a bool", code="bad-arguments")
    return value


def number(arguments: Mapping[str, Any], name: str) -> int:
    """Return a whole number from 0, 0 where it was left out."""
    value = arguments.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise ProtocolError(f"argument {name!r} is a whole number from 0", code="bad-arguments")
    return value


def numbers(arguments: Mapping[str, Any], name: str) -> list[int]:
    """Return a list of whole numbers, an empty one where it was left out."""
    value = arguments.get(name)
    if value is None:
        return []
    if (
        not isinstance(value, list)
        or len(value) > MAX_IDS
        or not all(type(item) is int and 0 <= item < 1 << 63 for item in value)
    ):
        msg = f"argument {name!r} is a list of at most {MAX_IDS} whole numbers from 0"
        raise ProtocolError(msg, code="bad-arguments")
    return value


def time(arguments: Mapping[str, Any], name: str) -> float:
    """Return a Unix time in seconds, 0.0 where it was left out."""
    value = arguments.get(name, 0.0)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ProtocolError(f"argument {name!r} is a Unix time in seconds", code="bad-arguments")
    return float(value)


def limit(arguments: Mapping[str, Any]) -> int:
    """Return how many rows are wanted, as many as are allowed where it was left out."""
    value = arguments.get("limit", MAX_ROWS)
    if not isinstance(value, int) or not 0 < value <= MAX_ROWS:
        raise ProtocolError(f"limit is 1 to {MAX_ROWS}", code="bad-arguments")
    return value
