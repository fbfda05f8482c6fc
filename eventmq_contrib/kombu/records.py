"""Values by key in a broker: each is the body of a job that never becomes ready, until it expires.

A job id is used once, so a key has numbered values: the ids are ``key~1``, ``key~2`` and so on, of
which the last counts. Whoever stores the next number first has it, which makes counters.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from kombu.utils.functional import LRUCache

from eventmq import JobNotFound
from eventmq.sdk import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from eventmq import EventMQ

    Job = tuple[bytes, dict[str, Any]]
    Predicate = Callable[[bytes], bool]

    #: Routing key, regular expression of a topic exchange, and queue.
    Binding = tuple[str, str | None, str]

__all__ = ["Bindings", "Records"]

#: Seconds until a value would become ready, after any expiry: a hundred years.
NEVER = 3.15e9

#: Bytes of the largest part of a value: a broker shows bodies of up to 1 MiB.
PART = 1_000_000

#: Numbers that the first look at a key asks for, and the largest number of ids in a call.
FIRST, MAX_IDS = 4, 1000

#: Queue of the records of bindings.
BINDINGS = "celery.bindings"

#: Seconds after which a binding of another process has an effect here.
READ_EVERY = 2.0

#: The state of a value that was not deleted, and has not expired.
KEPT = "delayed"


class _Record(NamedTuple):
    """What has an id: the random text of its writer, and the value while it is kept."""

    nonce: str = ""
    value: bytes | None = None


class Records:
    """Values by key. All methods block until the broker has answered.

    Args:
        app: The app.
        queue: Name of the queue of the values; no worker may serve it.
    """

    def __init__(self, app: EventMQ, queue: str) -> None:
        self._app = app
        self._queue = queue
        #: Key -> a number that is taken, of keys to which this process has appended.
        self._numbers = LRUCache(limit=MAX_IDS)

    def set(
        self, key: str, value: bytes, ttl: float | None, final: Predicate | None = None
    ) -> bool:
        """Set the value of a key for ``ttl`` seconds, None for ever.

        Of values that are set at the same time, any may be the last.

        Returns:
            False, and changes nothing, if ``final`` returned True for the value that the key has.
        """
        nonce, job = self._encode(key, value, ttl)
        answer = self._begin_read(f"{key}~1")  # in the same round trip
        self._store(f"{key}~1", job)  # most keys are set once: try that first
        record = self._record(f"{key}~1", answer)
        if record is None or record.nonce == nonce:
            return True
        number, kept = self._last(key)
        if kept and final is not None:
            (record,) = self._read([f"{key}~{number}"])
            if record is not None and record.value is not None and final(record.value):
                return False
        self._store(f"{key}~{number + 1}", job)
        return True

    def append(self, key: str, value: bytes, ttl: float | None) -> int:
        """Add a value to those of a key; return its number, which no other caller gets."""
        nonce, job = self._encode(key, value, ttl)
        number: int = self._numbers.get(key, 0) + 1
        while True:
            job_id = f"{key}~{number}"
            self._store(job_id, job)
            (present,) = self._read([job_id])
            if present is not None and present.nonce == nonce:
                self._numbers[key] = number
                return number
            number = self._last(key, number)[0] + 1

    def appended(self, key: str, first: int = 1) -> dict[int, bytes]:
        """Return number -> value, of the values from a first one on that are kept."""
        records: list[_Record | None] = []
        for ids in _ids(key, first, max(self._numbers.get(key, 0) - first, 0) + FIRST):
            records += self._read(ids)
            if records[-1] is None:
                break
        return {
            n: one.value for n, one in enumerate(records, first) if one and one.value is not None
        }

    def claim(self, key: str, owner: bytes, ttl: float) -> bool:
        """Take a key for ``ttl`` seconds; return False if it had another owner."""
        self._store(f"{key}~1", self._encode(key, owner, ttl)[1])
        (record,) = self._read([f"{key}~1"])
        return record is not None and record.value == owner

    def get(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the values of keys, None where there is none."""
        states = self._states([f"{key}~{number}" for key in keys for number in (1, 2)])
        ids = [
            f"{key}~{self._last(key)[0] if second else 1}" if first else ""
            for key, first, second in zip(keys, states[::2], states[1::2], strict=True)
        ]
        wanted = [job_id for job_id in ids if job_id]
        records = dict(zip(wanted, self._read(wanted), strict=True))
        found = [records.get(job_id) for job_id in ids]
        return [None if record is None else record.value for record in found]

    def delete(self, key: str) -> None:
        """Delete the value of a key."""
        for ids in _ids(key):
            if not self._app.ask("cancel", {"ids": ids})[-1][1]:
                break

    def _last(self, key: str, first: int = 1) -> tuple[int, bool]:
        """Return the last number of a key from a first one on, and whether its value is kept."""
        number, kept, place = first - 1, False, first
        for ids in _ids(key, first):
            for state in self._states(ids):
                if state:
                    number, kept = place, state == KEPT
                place += 1
            if number < place - 1:
                break
        return number, kept

    # Jobs

    def _encode(self, key: str, value: bytes, ttl: float | None) -> tuple[str, Job]:
        """Return a nonce and the job for a value; parts that it has no room for are stored."""
        nonce = os.urandom(8).hex()
        headers: dict[str, Any] = {
            "task": "celery.result", "content-type": "record", "ignore-result": True,
            "countdown": NEVER,
        }  # fmt: skip
        if ttl:
            headers["expires"] = time.time() + ttl
        first, *parts = [value[at : at + PART] for at in range(0, len(value), PART)] or [b""]
        for number, part in enumerate(parts):
            body = pack([nonce, 0, part])
            self._store(f"{key}~{nonce}~{number}", (body, headers))
        return nonce, (pack([nonce, len(parts), first]), headers)

    def _store(self, job_id: str, job: Job) -> None:
        """Store a job, unless there is or was one with its id."""
        self._app.send_raw(self._queue, *job, job_id=job_id)

    def _states(self, ids: Sequence[str]) -> list[str]:
        """Return the states of jobs, "" for those that there never were."""
        # `ask` could overtake a subscription that began before, which then misses an announcement
        answers = [
            self._app.begin_ask("state", {"ids": ids[at : at + MAX_IDS]})
            for at in range(0, len(ids), MAX_IDS)
        ]
        return [state for answer in answers for _, state in answer()]

    def _read(self, ids: Iterable[str]) -> list[_Record | None]:
        """Return what was stored under ids, None where nothing was."""
        answers = [(job_id, self._begin_read(job_id)) for job_id in ids]
        return [self._record(job_id, answer) for job_id, answer in answers]

    def _begin_read(self, job_id: str) -> Callable[[], Any]:
        return self._app.begin_ask("info", {"id": job_id, "args": True})

    def _record(self, job_id: str, answer: Callable[[], Any]) -> _Record | None:
        try:
            info = answer()
        except JobNotFound:
            return None
        if info["state"] != KEPT:
            return _Record()
        nonce, count, value = unpack(info["body"], "a value")
        more = self._read(f"{job_id.rpartition('~')[0]}~{nonce}~{n}" for n in range(count))
        parts = [value, *(part and part.value for part in more)]
        return _Record(nonce, None if None in parts else b"".join(parts))


def _ids(key: str, first: int = 1, size: int = FIRST) -> Iterator[list[str]]:
    """Yield the ids of a key from a number on, more at each time."""
    while True:
        yield [f"{key}~{number}" for number in range(first, first + size)]
        first, size = first + size, min(size * 8, MAX_IDS)


class Bindings:
    """The bindings of queues to exchanges, for all processes: records of binding and unbinding.

    Args:
        app: The app.
    """

    def __init__(self, app: EventMQ) -> None:
        self._records = Records(app, BINDINGS)
        #: Exchange -> when its records were read, the last number, and which bindings hold.
        self._tables: dict[str, tuple[float, int, dict[Binding, bool]]] = {}
        #: Exchange -> the last number that this process has stored.
        self._own: dict[str, int] = {}

    def table(self, exchange: str, *, since: float = READ_EVERY) -> list[Binding]:
        """Return the bindings of an exchange as they were up to ``since`` seconds ago."""
        read_at, last, found = self._tables.get(exchange, (float("-inf"), 0, {}))
        now, own = time.monotonic(), self._own.get(exchange, 0)
        if now - read_at >= since or last < own:
            # Only those that are new; some may have been stored a moment before the last one.
            records = self._records.appended(_key(exchange), max(last - FIRST // 2, 1))
            if last and last not in records:  # they were deleted
                found, last, records = {}, own, self._records.appended(_key(exchange))
            found = {**found}
            for data in records.values():
                bound, *binding = json.loads(data)
                found[tuple(binding)] = bound
            self._tables[exchange] = now, max([last, *records]), found
        return [binding for binding, bound in found.items() if bound]

    def set(self, exchange: str, binding: Binding, *, bound: bool) -> None:
        """Bind a queue, or unbind it; does nothing if that is so already."""
        if (binding in self.table(exchange, since=0.0)) != bound:
            data = json.dumps([bound, *binding]).encode()
            number = self._records.append(_key(exchange), data, None)
            self._own[exchange] = max(number, self._own.get(exchange, 0))


def _key(exchange: str) -> str:
    return f"kombu-exchange-{exchange}"
