"""What the value of a setting may be, and how it is read from text, TOML or an argument.

A rule says in words what is allowed, and checks what the type does not. Lists of pairs have a text
form, which is parsed here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from eventmq.rates import parse_rate, show_limits

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "BIND",
    "BROKERS",
    "DEFAULT_WEIGHT",
    "FUNCTION",
    "NAMES",
    "PATH",
    "QUEUES",
    "QUEUE_LIMITS",
    "QUEUE_ROUTING_STRATEGIES",
    "SIDE_BIND",
    "SOME_NAMES",
    "TEXT",
    "TEXT_OR_NONE",
    "Rule",
    "hide_passwords",
    "show",
]

#: The weight of a queue that is named without one.
DEFAULT_WEIGHT = 10

_TCP = re.compile(r"tcp://(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):(\d{1,5})")
#: A limit's name in TOML or text -> its index in (queue, rate, concurrency).
_LIMITS = {"rate_limit": 1, "rate": 1, "max_concurrency": 2, "concurrency": 2}

_DOTTED = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_FUNCTION = f"{_DOTTED}:{_DOTTED}"

_PASSWORD = re.compile(r"(://[^\s:/@]*):[^\s@/]*@")


def _port(url: str) -> int:
    found = _TCP.fullmatch(url)
    return int(found[2]) if found else -1


def _is_ipc(url: str) -> bool:
    return url.startswith("ipc://") and len(url) > len("ipc://")


def _is_connectable(url: str) -> bool:
    return 0 < _port(url) < 65536 or _is_ipc(url) or url == "memory://"  # noqa: PLR2004


def _is_bindable(url: str) -> bool:
    return 0 <= _port(url) < 65536 or _is_ipc(url)  # noqa: PLR2004


def _are_queue_weights(pairs: tuple[tuple[int, str], ...]) -> bool:
    names = [name for _, name in pairs]
    good = all(weight > 0 and name for weight, name in pairs)
    return bool(pairs) and good and len(set(names)) == len(names)


def _are_named_pairs(pairs: tuple[tuple[str, str], ...]) -> bool:
    names = [name for name, _ in pairs]
    return all(all(pair) for pair in pairs) and len(set(names)) == len(names)


def _are_queue_limits(rows: tuple[tuple[str, str, int], ...]) -> bool:
    names = [name for name, _, _ in rows]
    for _, rate, max_running in rows:
        if rate:
            parse_rate(rate)
        if max_running < 0 or not (rate or max_running):
            return False
    return all(names) and len(set(names)) == len(names)


# Readers: from text or TOML to the shape that msgspec converts


def _items(value: object) -> list[Any]:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    if isinstance(value, (list, tuple)):
        return list(value)
    raise ValueError(value)


def _weights(value: object) -> list[object]:
    """Read name:weight pairs."""
    return [_weight(item) if isinstance(item, str) else item for item in _items(value)]


def _weight(text: str) -> tuple[object, str]:
    name, colon, weight = text.rpartition(":")
    return (weight.strip(), name) if colon else (DEFAULT_WEIGHT, text)


def _pairs(value: object) -> list[object]:
    """Read name:value pairs from text, or a table, as TOML has it."""
    items = value.items() if isinstance(value, Mapping) else _items(value)
    return [item.rpartition(":")[::2] if isinstance(item, str) else item for item in items]


def _limits(value: object) -> list[object]:
    """Read the limits of queues from text, from tables, or from its own result."""
    if isinstance(value, str):
        return [_limits_of(queue, items) for queue, items in _limits_text(value)]
    if isinstance(value, Mapping):
        if not all(isinstance(table, Mapping) for table in value.values()):
            raise ValueError(value)
        return [_limits_of(queue, table.items()) for queue, table in value.items()]
    return _items(value)


def _limits_of(queue: object, items: Iterable[tuple[str, object]]) -> list[object]:
    row: list[object] = [queue, "", 0]
    for name, value in items:
        place = _LIMITS.get(name, 0)
        if not place or row[place] or not value:
            raise ValueError(name)
        row[place] = value
    return row


def _limits_text(value: str) -> Iterable[tuple[str, list[tuple[str, str]]]]:
    """Parse ``q:limit=value,limit=value,q2:...`` to (queue, [(limit, value)])."""
    found: list[tuple[str, list[tuple[str, str]]]] = []
    for part in _items(value):
        queue, colon, limit = part.rpartition(":")
        name, equals, bound = limit.partition("=")
        if not equals or not (colon or found):
            raise ValueError(part)
        if colon:
            found.append((queue, []))
        found[-1][1].append((name.strip(), bound.strip()))
    return found


#: How a setting is read and checked: keyword arguments of `eventmq.conversion.option`.
Rule = Mapping[str, Any]

TEXT: Rule = {"allowed": "any non-empty text", "min_length": 1}
TEXT_OR_NONE: Rule = {"allowed": "any text; empty means not set"}
PATH: Rule = {"allowed": "a path; empty means not set"}
NAMES: Rule = {"allowed": "a list of names", "check": all}
SOME_NAMES: Rule = {"allowed": "a list of at least one name", "min_length": 1, "check": all}
BIND: Rule = {"allowed": "tcp://host:port or ipc://path", "check": _is_bindable}
SIDE_BIND: Rule = {
    "allowed": f"{BIND['allowed']}; empty means not opened",
    "check": lambda url: not url or _is_bindable(url),
}
BROKERS: Rule = {
    "allowed": "tcp://host:port, ipc://path or memory://, at least one",
    "min_length": 1,
    "check": lambda urls: all(map(_is_connectable, urls)),
}
FUNCTION: Rule = {
    "allowed": "module:function; empty means not set",
    "pattern": f"^({_FUNCTION})?$",
}
QUEUE_ROUTING_STRATEGIES: Rule = {
    "allowed": "queue:strategy pairs, no queue twice",
    "parse": _pairs,
    "check": _are_named_pairs,
}
QUEUE_LIMITS: Rule = {
    "allowed": (
        'queue:limits as "email:rate=100/m,concurrency=5,reports:concurrency=2", or as a table '
        'with email = {rate_limit = "100/m", max_concurrency = 5}; a rate is written 5/s, '
        "100/m, 1000/h or 2/10s, a concurrency is 1 or more; no queue twice"
    ),
    "parse": _limits,
    "check": _are_queue_limits,
}
QUEUES: Rule = {
    "allowed": "name:weight pairs, weights from 1, no name twice",
    "parse": _weights,
    "check": _are_queue_weights,
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
    """Return a value as text, as in its environment variable."""
    if isinstance(value, tuple):
        return ",".join(map(_item, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def hide_passwords(text: str) -> str:
    """Return the text with ``***`` for passwords in URLs."""
    return _PASSWORD.sub(r"\1:***@", text)
