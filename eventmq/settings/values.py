"""What the value of a setting may be, and how it is read from text, TOML or an argument.

Rules are (text for people, check of the read value); readers turn what a source holds into the
field's type and raise `ValueError` where they cannot.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from eventmq.rates import parse_rate, show_limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = [
    "ANY_TEXT",
    "BIND",
    "BROKERS",
    "DEFAULT_WEIGHT",
    "FLAG",
    "FUNCTION",
    "NAMES",
    "PATH",
    "POSITIVE",
    "QUEUES",
    "QUEUE_LIMITS",
    "QUEUE_ROUTING_STRATEGIES",
    "READERS",
    "SIDE_BIND",
    "SOME",
    "TEXT",
    "Rule",
    "at_least",
    "choice",
    "hide_passwords",
    "show",
]

#: The weight of a queue that comes without one.
DEFAULT_WEIGHT = 10

_TCP = re.compile(r"tcp://(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):(\d{1,5})")
#: What a limit of a queue is called in a table, and in text -> place in the value.
_LIMITS = {"rate_limit": 1, "rate": 1, "max_concurrency": 2, "concurrency": 2}

_FUNCTION = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*(?:\.[^\W\d]\w*)*")

_PASSWORD = re.compile(r"(://[^\s:/@]*):[^\s@/]*@")

Rule = tuple[str, "Callable[[Any], bool]"]


def _port(url: str) -> int:
    found = _TCP.fullmatch(url)
    return int(found[2]) if found else -1


def _is_ipc(url: str) -> bool:
    return url.startswith("ipc://") and len(url) > len("ipc://")


def _connects(url: str) -> bool:
    return 0 < _port(url) < 65536 or _is_ipc(url) or url == "memory://"  # noqa: PLR2004


def _binds(url: str) -> bool:
    return 0 <= _port(url) < 65536 or _is_ipc(url)  # noqa: PLR2004


def _queue_pairs(pairs: tuple[tuple[int, str], ...]) -> bool:
    names = [name for _, name in pairs]
    good = all(weight > 0 and name for weight, name in pairs)
    return bool(pairs) and good and len(set(names)) == len(names)


def _named_pairs(pairs: tuple[tuple[str, str], ...]) -> bool:
    names = [name for name, _ in pairs]
    return all(all(pair) for pair in pairs) and len(set(names)) == len(names)


def _queue_limits(rows: tuple[tuple[str, str, int], ...]) -> bool:
    names = [name for name, _, _ in rows]
    for _, rate, max_running in rows:
        if rate:
            parse_rate(rate)
        if max_running < 0 or not (rate or max_running):
            return False
    return all(names) and len(set(names)) == len(names)


def choice(*names: str) -> Rule:
    """Return the rule that a value is one of ``names``."""
    return f"{', '.join(names[:-1])} or {names[-1]}", names.__contains__


def at_least(bound: float) -> Rule:
    """Return the rule that a value is a number from ``bound``."""
    return f"{bound:.15g} or more", lambda value: bound <= value < float("inf")


POSITIVE: Rule = ("more than 0", lambda value: 0 < value < float("inf"))
TEXT: Rule = ("any text but none", bool)
ANY_TEXT: Rule = ("any text; empty: none", lambda _: True)
PATH: Rule = ("a path; empty: none", lambda _: True)
NAMES: Rule = ("a list of names", all)
SOME: Rule = ("a list of at least one name", lambda names: bool(names) and all(names))
BIND: Rule = ("tcp://host:port or ipc://path", _binds)
SIDE_BIND: Rule = (f"{BIND[0]}; empty: not opened", lambda url: not url or _binds(url))
BROKERS: Rule = (
    "tcp://host:port, ipc://path or memory://, at least one",
    lambda urls: bool(urls) and all(map(_connects, urls)),
)
FUNCTION: Rule = (
    "module:function; empty: none",
    lambda text: not text or bool(_FUNCTION.fullmatch(text)),
)
FLAG: Rule = ("true or false", lambda _: True)
QUEUE_ROUTING_STRATEGIES: Rule = ("queue:strategy pairs, no queue twice", _named_pairs)
QUEUE_LIMITS: Rule = (
    (
        'queue:limits as "email:rate=100/m,concurrency=5,reports:concurrency=2", or as a table '
        'with email = {rate_limit = "100/m", max_concurrency = 5}; a rate is such as 5/s, 100/m, '
        "1000/h or 2/10s, a concurrency 1 or more; no queue twice"
    ),
    _queue_limits,
)
QUEUES: Rule = ("name:weight pairs, weights from 1, no name twice", _queue_pairs)


def _split(value: object) -> Iterable[object]:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    if isinstance(value, (list, tuple)):
        return value
    raise ValueError(value)


def _text(value: object) -> str:
    if isinstance(value, (str, PurePath)):
        return str(value)
    raise ValueError(value)


def _number(value: object) -> float:
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        return float(value)
    raise ValueError(value)


def _integer(value: object) -> int:
    if isinstance(value, (int, str)) and not isinstance(value, bool):
        return int(value)
    raise ValueError(value)


def _boolean(value: object) -> bool:
    word = str(value).lower()
    if word in {"true", "yes", "on", "1"}:
        return True
    if word in {"false", "no", "off", "0"}:
        return False
    raise ValueError(value)


def _pair(item: object) -> tuple[int, str]:
    if isinstance(item, str):
        name, colon, weight = item.rpartition(":")
        return (int(weight), name) if colon else (DEFAULT_WEIGHT, item)
    if isinstance(item, (list, tuple)):
        weight, name = item
        return _integer(weight), _text(name)
    raise ValueError(item)


def _named(item: object) -> tuple[str, str]:
    if isinstance(item, str):
        name, _, value = item.rpartition(":")
        return name, value
    if isinstance(item, (list, tuple)):
        name, value = item
        return _text(name), _text(value)
    raise ValueError(item)


def _table(value: object) -> tuple[tuple[str, str], ...]:
    """Read name:value pairs from text, or a table, as TOML has it."""
    return tuple(map(_named, value.items() if isinstance(value, Mapping) else _split(value)))


def _limits_of(queue: object, items: Iterable[tuple[object, object]]) -> tuple[str, str, int]:
    row: list[Any] = [_text(queue), "", 0]
    for name, value in items:
        place = _LIMITS.get(_text(name))
        bound = _text(value) if place == 1 else _integer(value)
        if place is None or row[place] or not bound:
            raise ValueError(name)
        row[place] = bound
    return row[0], row[1], row[2]


def _limits_text(value: object) -> Iterable[tuple[str, list[tuple[str, str]]]]:
    """Read queue:limit=value,limit=value,queue:limit=value, as names with what they are given."""
    found: list[tuple[str, list[tuple[str, str]]]] = []
    for part in _split(value):
        queue, colon, limit = _text(part).rpartition(":")
        name, equals, bound = limit.partition("=")
        if not equals or not (colon or found):
            raise ValueError(part)
        if colon:
            found.append((queue, []))
        found[-1][1].append((name.strip(), bound.strip()))
    return found


def _limits(value: object) -> tuple[tuple[str, str, int], ...]:
    """Read the limits of queues from text, from tables, or as this returns them."""
    if isinstance(value, Mapping):
        tables = value.items()
        if not all(isinstance(table, Mapping) for _, table in tables):
            raise ValueError(value)
        return tuple(_limits_of(queue, table.items()) for queue, table in tables)
    if isinstance(value, (list, tuple)):
        rows = [item for item in value if isinstance(item, (list, tuple)) and len(item) == 3]  # noqa: PLR2004
        if len(rows) != len(value):
            raise ValueError(value)
        return tuple(
            (_text(queue), _text(rate), _integer(max_running)) for queue, rate, max_running in rows
        )
    return tuple(_limits_of(queue, items) for queue, items in _limits_text(value))


#: Type of a field as written -> its reader.
READERS: Mapping[str, Callable[[object], object]] = {
    "str": _text,
    "int": _integer,
    "float": _number,
    "bool": _boolean,
    "tuple[str, ...]": lambda value: tuple(map(_text, _split(value))),
    "tuple[tuple[int, str], ...]": lambda value: tuple(map(_pair, _split(value))),
    "tuple[tuple[str, str], ...]": _table,
    "tuple[tuple[str, str, int], ...]": _limits,
}


def _item(item: Any) -> str:
    if not isinstance(item, tuple):
        return str(item)
    if len(item) == 3:  # noqa: PLR2004 - the limits of a queue
        queue, rate, max_running = item
        return f"{queue}:{show_limits(rate, max_running)}"
    first, second = item
    return f"{second}:{first}" if isinstance(first, int) else f"{first}:{second}"


def show(value: object) -> str:
    """Write a value as its environment variable would say it."""
    if isinstance(value, tuple):
        return ",".join(map(_item, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def hide_passwords(text: str) -> str:
    """Return the text with ``***`` for passwords in URLs."""
    return _PASSWORD.sub(r"\1:***@", text)
