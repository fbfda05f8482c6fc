"""Celery's result backend for ``eventmq://host:port``: results in the broker, without polling.

A result is a record of the broker (`records`), and is announced under a topic that it shares with
some others, to which whoever waits for it subscribes.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, TypeVar
from zlib import crc32

from celery import states
from celery.backends.asynchronous import AsyncBackendMixin, BaseResultConsumer
from celery.backends.base import BaseKeyValueStoreBackend
from celery.canvas import maybe_signature
from celery.exceptions import ChordError
from celery.result import GroupResult, allow_join_result
from celery.utils.functional import _regen as regen
from kombu.utils.encoding import bytes_to_str, ensure_bytes
from kombu.utils.url import parse_url

from eventmq import BrokerUnavailable
from eventmq_contrib.kombu.apps import app_of
from eventmq_contrib.kombu.records import PART, Records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from eventmq import Subscription

__all__ = ["EventMQBackend"]

logger = logging.getLogger(__name__)

#: Queue of the records.
QUEUE = "celery.results"

#: Seconds without an announcement after which results are read: those that were published while
#: there was no connection were missed.
READ_EVERY = 5.0

#: Number of topics of announcements: a client may have 1,000 subscriptions, but wait for more.
BUCKETS = 200

#: Number of further attempts while the broker is away, each as long as ``submit_timeout``.
RETRIES = 20

#: Seconds for which the results in a chord are kept where results never expire.
CHORD_TTL = 30 * 86400

T = TypeVar("T")


class _ResultConsumer(BaseResultConsumer):  # type: ignore[misc]
    """Waits for announced results."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.on_after_fork()
        _consumers.add(self)

    def on_after_fork(self) -> None:
        """Forget the subscriptions of the parent, and the results that it waits for."""
        self._changed = threading.Condition()
        self._lock = threading.RLock()  # results are collected in any thread
        #: Whether announcements may have arrived, and how often some were passed on.
        self._arrived, self._turn = False, 0
        self._read_at = 0.0
        #: The tasks that are waited for, by bucket, and the subscription of each bucket.
        self._waiting: dict[int, set[str]] = {}
        self._subscriptions: dict[int, Subscription] = {}
        for results in self._pending_results:
            results.clear()

    def start(self, initial_task_id: str, **kwargs: Any) -> None:
        """Wait for the result of a first task."""
        self.consume_from(initial_task_id)

    def stop(self) -> None:
        """End all subscriptions."""
        for task_id in self._task_ids():
            self.cancel_for(task_id)

    def _task_ids(self) -> list[str]:
        return [task_id for task_ids in list(self._waiting.values()) for task_id in list(task_ids)]

    def consume_from(self, task_id: object) -> None:
        """Wait for the result of a task too, whose id may be a UUID."""
        bucket = _bucket(task_id)
        with self._lock:
            self._waiting.setdefault(bucket, set()).add(str(task_id))
            if bucket in self._subscriptions:
                return
            if not self._subscriptions:
                self._read_at = time.monotonic() + READ_EVERY
            subscription = self.backend.eventmq.subscribe(f"celery-result/{bucket}/")
            self._subscriptions[bucket] = subscription
        subscription.notify(self._notify)

    def cancel_for(self, task_id: object) -> None:
        """Wait for a task no longer. Does not block."""
        bucket = _bucket(task_id)
        with self._lock:
            waiting = self._waiting.get(bucket, set())
            waiting.discard(str(task_id))
            if not waiting and (subscription := self._subscriptions.pop(bucket, None)) is not None:
                subscription.close()

    def on_wait_for_pending(self, result: Any, **kwargs: Any) -> None:
        """Read the results that were stored before they were waited for."""
        self._read([each.id for each in getattr(result, "results", [result])])

    def _read(self, task_ids: Sequence[str]) -> None:
        keys = [self.backend.get_key_for_task(task_id) for task_id in task_ids]
        try:
            values = self.backend.read(keys)
        except BrokerUnavailable as error:  # it is read again, until the caller's timeout
            logger.warning("results cannot be read now: %s", error)
            return
        for value in filter(None, values):
            self.on_state_change(self.backend.decode_result(value), None)

    def on_state_change(self, meta: dict[str, Any], message: object) -> None:
        """Pass a state on to those who wait for it."""
        super().on_state_change(meta, message)
        if meta["status"] in states.READY_STATES:
            self.cancel_for(meta["task_id"])

    def drain_events(self, timeout: float | None = None) -> None:
        """Pass on what was announced; wait for that at most ``timeout`` seconds."""
        with self._changed:
            turn = self._turn
            self._changed.wait_for(lambda: self._arrived or self._turn != turn, timeout)
            self._arrived = False
        for subscription in list(self._subscriptions.values()):
            while (message := subscription.poll()) is not None:
                _, bucket, task_id = message.topic.split("/", 2)
                if task_id not in self._waiting.get(int(bucket), ()):
                    continue
                if message.value:
                    self.on_state_change(self.backend.decode_result(message.value), message)
                else:
                    self._read([task_id])
        if time.monotonic() > self._read_at:
            self._read_at = time.monotonic() + READ_EVERY
            self._read(self._task_ids())
        with self._changed:
            self._turn += 1
            self._changed.notify_all()

    def _notify(self) -> None:
        with self._changed:
            self._arrived = True
            self._changed.notify_all()


#: Consumers of this process. Celery tells them of forks of its own workers only.
_consumers: weakref.WeakSet[_ResultConsumer] = weakref.WeakSet()


def _in_child() -> None:
    for consumer in list(_consumers):
        consumer._after_fork()  # noqa: SLF001 - Celery's name


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


class EventMQBackend(BaseKeyValueStoreBackend, AsyncBackendMixin):  # type: ignore[misc]
    """Result backend of Celery.

    Options, in ``result_backend_transport_options``: ``result_queue``, the name of the queue of the
    records, and those of the transport that are settings of EventMQ.

    Raises:
        ValueError: The URL has a user, a password or a virtual host.
    """

    ResultConsumer = _ResultConsumer

    supports_autoexpire = True
    supports_native_join = True

    def __init__(self, app: Any, url: str | None = None, **kwargs: Any) -> None:
        super().__init__(app, url=url, **kwargs)
        options = dict(app.conf.result_backend_transport_options or {})
        self.eventmq = app_of(map(parse_url, (url or "eventmq://").split(";")), options)
        self._records = Records(self.eventmq, options.get("result_queue", QUEUE))
        self.result_consumer = self.ResultConsumer(
            self, self.app, self.accept, self._pending_results, self._pending_messages
        )

    def as_uri(self, include_password: bool = False) -> str:
        """Return the URL, which has no password, or those of several brokers."""
        return self.url or "eventmq://"

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, None if there is none."""
        return self.mget([key])[0]

    def mget(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of keys, None where there is none."""
        return self._retrying(self.read, keys)

    def read(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Do the same as `mget`, and raise BrokerUnavailable if the broker does not answer."""
        return self._records.get([bytes_to_str(key) for key in keys])

    def set(self, key: bytes, value: str | bytes) -> None:
        """Set the value of a key."""
        self._retrying(self._records.set, bytes_to_str(key), ensure_bytes(value), self.expires)

    def _store_result(
        self, task_id: str, result: Any, state: str, traceback: Any = None, request: Any = None,
        **kwargs: Any,
    ) -> Any:  # fmt: skip
        """Store a state and announce it, unless the task has succeeded before."""
        task_id = bytes_to_str(task_id)
        meta = self._get_result_meta(result, state, traceback, request)
        key = bytes_to_str(self.get_key_for_task(task_id))
        value = ensure_bytes(self.encode({**meta, "task_id": task_id}))
        if self._retrying(self._records.set, key, value, self.expires, self._has_succeeded):
            announced = value if len(value) <= PART else b""  # then it is read
            try:
                self.eventmq.publish_raw(f"celery-result/{_bucket(task_id)}/{task_id}", announced)
            except BrokerUnavailable as error:
                logger.warning("a result was stored and not announced: %s", error)
        return result

    def on_task_call(self, producer: Any, task_id: object) -> None:
        """Refuse an id under which a worker could not store the result."""
        if (length := len(self._strip_prefix(self.get_key_for_task(task_id)))) > 200:  # noqa: PLR2004 - ids of records are longer, up to 255
            raise ValueError(f"task_id has {length} characters; allowed are 200")

    def _has_succeeded(self, value: bytes) -> bool:
        return bool(self.decode_result(value)["status"] == states.SUCCESS)

    def delete(self, key: bytes) -> None:
        """Delete the value of a key."""
        self._retrying(self._records.delete, bytes_to_str(key))

    # Chords: each task of the header appends its result, and the last one sends the callback

    def set_chord_size(self, group_id: str, chord_size: int) -> None:
        """Set the size of a header, before its last task is sent."""
        self._append(group_id, ".s", ["", chord_size])

    def add_to_chord(self, group_id: str, result: Any) -> None:
        """Count one more task of a header."""
        self._append(group_id, ".s", [result.id, 1])

    def apply_chord(self, header_result_args: Any, body: Any, **kwargs: Any) -> None:
        """Save the structure of a header that has groups."""
        if not isinstance(header_result_args[1], regen):
            header = self.app.GroupResult(*header_result_args)
            if any(isinstance(each, GroupResult) for each in header.results):
                header.save(backend=self)

    def on_chord_part_return(self, request: Any, state: str, result: Any, **kwargs: Any) -> None:
        """Append the result of a task of a header; send the callback if it was the last one."""
        group_id, group_index = request.group, request.group_index
        if not group_id or not request.id:
            return
        part = [request.id, group_index, state, self.encode_result(result, state)]
        number = self._append(group_id, ".j", part)
        before = 0  # the group may have run before, up to this number
        sizes: dict[str, int] = {}
        for name, value in self._appended(group_id, ".s").values():
            if name is None:
                before, sizes = value, {}
            else:
                sizes[name] = value
        total = sum(sizes.values())
        if "" not in sizes or number - before < total:
            return
        found = self._appended(group_id, ".j")
        # A task that ran twice counts once, with its first result.
        parts = {part[0]: part for n, part in reversed(found.items()) if n > before}
        claim = bytes_to_str(self.get_key_for_group(group_id, f".c{before}"))
        owner = ensure_bytes(request.id)  # its message may be delivered again
        if len(parts) < total or not self._retrying(self._records.claim, claim, owner, CHORD_TTL):
            return
        callback = maybe_signature(request.chord, app=self.app)
        try:
            self.app.amqp._retry_publish(  # noqa: SLF001 - as Celery's own backends
                callback.delay, self._chord_results(group_id, parts.values())
            )
        except Exception as error:
            logger.exception("chord %s failed", group_id)
            if not isinstance(error, ChordError):
                error = ChordError(f"Callback error: {error!r}")
            self.chord_error_from_stack(callback, error)
        self._append(group_id, ".s", [None, max(found)])

    def _chord_results(self, group_id: str, parts: Iterable[Any]) -> list[Any]:
        header = GroupResult.restore(group_id, backend=self, app=self.app)
        if header is not None:
            header.on_ready()
            timeout = self.app.conf.result_chord_join_timeout
            with allow_join_result():
                return header.join_native(timeout=timeout, propagate=True)  # type: ignore[no-any-return]
        results = []
        for task_id, _, state, value in sorted(parts, key=_place):
            failed = state in states.EXCEPTION_STATES
            results.append(self.exception_to_python(value) if failed else value)
            if state in states.PROPAGATE_STATES:
                raise ChordError(f"Dependency {task_id} raised {results[-1]!r}") from results[-1]
        return results

    def _append(self, group_id: str, name: str, value: Any) -> int:
        key = bytes_to_str(self.get_key_for_group(group_id, name))
        data = ensure_bytes(self.encode(value))
        return self._retrying(self._records.append, key, data, self.chord_expires or CHORD_TTL)

    def _appended(self, group_id: str, name: str) -> dict[int, Any]:
        key = bytes_to_str(self.get_key_for_group(group_id, name))
        found = self._retrying(self._records.appended, key)
        return {number: self.decode(data) for number, data in found.items()}

    def _retrying(self, call: Callable[..., T], *args: object) -> T:
        """Make a call, again while the broker is away."""
        for _ in range(RETRIES):
            try:
                return call(*args)
            except BrokerUnavailable as error:
                logger.warning("results cannot be read or stored now: %s", error)
        return call(*args)

    def exception_safe_to_retry(self, exc: Exception) -> bool:
        """Return whether an operation may be repeated after an exception."""
        return isinstance(exc, BrokerUnavailable)

    def __reduce__(self, args: Any = (), kwargs: Any = None) -> Any:
        return super().__reduce__(args, {**(kwargs or {}), "url": self.url})


def _bucket(task_id: object) -> int:
    return crc32(str(task_id).encode()) % BUCKETS


def _place(part: Sequence[Any]) -> float:
    """Return the place of a task in its header; tasks without one come last."""
    return float("inf") if part[1] is None else part[1]
