"""Values by key in a broker: each is the body of a job that never becomes ready, until it expires.

A job id is used once, so a key has numbered values: the ids are ``key~1``, ``key~2`` and so on, of
which the last counts. Whoever stores the next number first has it, which makes counters.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq import JobNotFound
from eventmq.sdk import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from eventmq import EventMQ

__all__ = ["Records"]

#: Seconds until a value would become ready, after any expiry: a hundred years.
NEVER = 3.15e9

#: Bytes of the largest part of a value: a broker shows bodies of up to 1 MiB.
PART = 1_000_000

#: Numbers that the first look at a key asks for; most keys have one or two values.
FIRST = (1, 2, 3, 4)

#: Numbers that a further look asks for at once.
AT_ONCE = 500

#: Bytes of the random text by which who appends a value knows it again.
NONCE = 12

#: The state of a value that was not deleted, and has not expired.
KEPT = "delayed"


class _Place(NamedTuple):
    """The last value of a key: its number, 0 for none, and the state of its job."""

    number: int
    state: str

    @property
    def kept(self) -> bool:
        return self.state == KEPT


class Records:
    """Values by key. All methods block until the broker has answered.

    Args:
        app: The app.
        queue: Name of the queue of the values; no worker may serve it.
    """

    def __init__(self, app: EventMQ, queue: str) -> None:
        self._app = app
        self._queue = queue

    def set(self, key: str, value: bytes, ttl: float | None) -> None:
        """Set the value of a key for ``ttl`` seconds, None for ever."""
        self._store(key, self._last([key])[key].number + 1, value, ttl)

    def append(self, key: str, value: bytes, ttl: float | None) -> int:
        """Add a value to those of a key; return its number, which no other caller gets."""
        number = self._last([key])[key].number
        value = os.urandom(NONCE) + value
        while True:
            number += 1
            self._store(key, number, value, ttl)
            if self._read([f"{key}~{number}"])[0] == value:
                return number

    def appended(self, key: str) -> list[bytes]:
        """Return all values of a key that were appended, and not deleted."""
        last = self._last([key])[key].number
        states = self._states([f"{key}~{number}" for number in range(1, last + 1)])
        kept = [job_id for job_id, state in states.items() if state == KEPT]
        return [value[NONCE:] for value in self._read(kept) if value is not None]

    def claim(self, key: str, ttl: float) -> bool:
        """Take a key for ``ttl`` seconds; return False if another client holds it."""
        last = self._last([key])[key]
        return not last.kept and self.append(key, b"", ttl) == last.number + 1

    def get(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the values of keys, None where there is none."""
        places = self._last(keys)
        kept = [key for key in keys if places[key].kept]
        values = dict(
            zip(kept, self._read([f"{key}~{places[key].number}" for key in kept]), strict=True)
        )
        return [values.get(key) for key in keys]

    def delete(self, key: str) -> None:
        """Delete the value of a key."""
        last = self._last([key])[key].number
        for first in range(1, last + 1, AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, last + 1))
            self._app.ask("cancel", {"ids": [f"{key}~{number}" for number in numbers]})

    def _store(self, key: str, number: int, value: bytes, ttl: float | None) -> None:
        job_id = f"{key}~{number}"
        parts = [value[start : start + PART] for start in range(0, len(value), PART)] or [b""]
        for place, part in enumerate(parts[1:], 1):
            self._send(f"{job_id}~{place}", pack([1, part]), ttl)
        self._send(job_id, pack([len(parts), parts[0]]), ttl)

    def _send(self, job_id: str, body: bytes, ttl: float | None) -> None:
        headers: dict[str, Any] = {
            "task": "celery.result", "content-type": "record", "ignore-result": True,
            "countdown": NEVER,
        }  # fmt: skip
        if ttl:
            headers["expires"] = time.time() + ttl
        self._app.send_raw(self._queue, body, headers, job_id=job_id)

    def _read(self, job_ids: Sequence[str]) -> list[bytes | None]:
        """Return the values that are kept under ids."""
        calls = [self._app.begin_ask("info", {"id": each, "args": True}) for each in job_ids]
        values: list[bytes | None] = []
        for job_id, call in zip(job_ids, calls, strict=True):
            try:
                count, first = unpack(call()["body"], "a value")
            except JobNotFound:
                values.append(None)
                continue
            rest = self._read([f"{job_id}~{place}" for place in range(1, count)])
            values.append(b"".join([first, *(part or b"" for part in rest)]))
        return values

    def _last(self, keys: Iterable[str]) -> dict[str, _Place]:
        """Return the last value of each key."""
        keys = list(dict.fromkeys(keys))
        states = self._states([f"{key}~{number}" for key in keys for number in FIRST])
        last = {}
        for key in keys:
            known = [number for number in FIRST if states[f"{key}~{number}"]]
            number = max(known, default=0)
            place = _Place(number, states.get(f"{key}~{number}", ""))
            last[key] = place if number < FIRST[-1] else self._search(key, place)
        return last

    def _search(self, key: str, low: _Place) -> _Place:
        """Return the last value of a key that has many: first by doubling, then in between."""
        high = 0
        while not high or high - low.number > 1:
            step = max(1, (high - low.number) // AT_ONCE)
            doubled = [low.number << shift for shift in range(1, 24)]
            numbers = range(low.number + step, high, step) if high else doubled
            states = self._states([f"{key}~{number}" for number in numbers])
            for number in numbers:
                state = states[f"{key}~{number}"]
                if not state:
                    high = number
                    break
                low = _Place(number, state)
        return low

    def _states(self, job_ids: Sequence[str]) -> dict[str, str]:
        states: dict[str, str] = {}
        for first in range(0, len(job_ids), 1000):
            states.update(self._app.ask("state", {"ids": list(job_ids[first : first + 1000])}))
        return states
