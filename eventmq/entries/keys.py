"""What the headers of a job say to the store: its lane in the queue, its unique key."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from eventmq.errors import ProtocolError
from eventmq.headers import parse_headers
from eventmq.job import TERMINAL, JobState

__all__ = ["LaneKey", "UniqueRule", "lane_of", "unique_rule"]


class LaneKey(NamedTuple):
    """What tells the jobs of a queue apart: those with the same key are a *lane*.

    What a worker takes, or does not know, it takes or does not know as a whole; what is limited
    is limited as a whole.
    """

    #: None for plain jobs.
    task: str | None
    #: The header ``limit-key``, "" without one.
    key: str = ""


@lru_cache(maxsize=16_384)
def lane_of(headers: str) -> LaneKey:
    """Return the lane of a job in its queue."""
    known = parse_headers(headers)
    return LaneKey(known.task, known.limit_key) if known.content_type else LaneKey(None)


class UniqueRule(NamedTuple):
    """What the headers of a job say about its unique key."""

    key: str
    #: ``reject``, ``replace`` or ``keep_last``.
    mode: str
    #: Seconds after its admission in which a job that ran blocks the key; 0.0 for none.
    period: float
    #: The states in which another job with the key counts.
    states: frozenset[JobState]


_MODES = ("reject", "replace", "keep_last")

#: The states that count unless the headers say others.
_UNFINISHED = frozenset(JobState) - TERMINAL


def unique_rule(headers: str) -> UniqueRule | None:
    """Return what a header text says about a unique key, None for most.

    Raises:
        ProtocolError: The mode or a state is none.
    """
    return _rule(headers) if "unique:" in headers else None


@lru_cache(maxsize=1024)
def _rule(text: str) -> UniqueRule | None:
    headers = parse_headers(text)
    if not headers.unique:
        return None
    mode = headers.unique_mode or "reject"
    if mode not in _MODES:
        msg = f"unique-mode is {mode[:80]!r}; allowed are {', '.join(_MODES)}"
        raise ProtocolError(msg, code="bad-header")
    names = [name for name in headers.unique_states.split("+") if name]
    try:
        states = frozenset(map(JobState, names)) or _UNFINISHED
    except ValueError:
        known = ", ".join(JobState)
        msg = f"unique-states is {headers.unique_states[:80]!r}; allowed are {known}, joined by +"
        raise ProtocolError(msg, code="bad-header") from None
    return UniqueRule(headers.unique, mode, headers.unique_period, states)
