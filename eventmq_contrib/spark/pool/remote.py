"""Spark task of a slot: a prefork pool of one process, driven by messages of the job manager.

The task sends the events of the pool back. It ends when the manager requests it, when the manager
is silent for too long, or with its executor; the process that runs jobs ends with it.

Messages between the two are MessagePack lists. To the slot: ``assign epoch chunk count body``,
``take number``, ``keep number``, ``interrupt chunk position``, ``credit chunk position taken``,
``kill``, ``stop grace``, ``ping``. From it: ``hello token pid``, ``failed text``, ``event name
fields...``, ``note chunk position seconds``, ``taken number count``, ``bye``. The epoch is the
number of deaths that the slot has reported: a chunk with an earlier epoch was assigned before the
manager knew of a death, and is lost. ``keep`` cancels the request ``take`` with that number, after
the slot was silent for too long.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import zmq

from eventmq import sdk
from eventmq.errors import EventMQError
from eventmq.sdk import JobsEnded, PartsYielded, PoolEvent, ProcessPool, ProgressReported, SlotDied

__all__ = [
    "PING_INTERVAL",
    "Remote",
    "Ticket",
    "pack",
    "pack_event",
    "read_event",
    "serve",
    "unpack",
]

#: Seconds after which each side sends a heartbeat.
PING_INTERVAL = 1.0

#: Seconds of silence that show that the link was cut off or a process was stopped.
PAUSE = 1.5 * PING_INTERVAL

#: Seconds after such a pause within which a message may cancel an earlier one.
_CATCH_UP_TIME = 0.3

#: Milliseconds between two checks of the running job: within a second of a change, and after that.
_ACTIVE_POLL, _IDLE_POLL = 5, 50

_EVENTS: Mapping[str, type[Any]] = {kind.__name__: kind for kind in (
    JobsEnded, SlotDied, ProgressReported, PartsYielded,
)}  # fmt: skip

_FIELDS = {name: [field.name for field in fields(kind)] for name, kind in _EVENTS.items()}


class Ticket(NamedTuple):
    """Parameters of a slot; they travel with the Spark task."""

    #: Address and public key of the manager.
    endpoint: str
    server_key: bytes
    #: Identity of the slot, and the token that authenticates it.
    identity: str
    token: str
    #: Function that makes the executor of jobs, and its keyword arguments.
    loader: str
    arguments: Mapping[str, Any]
    start_timeout: float
    #: Seconds of silence after which the other side counts as lost.
    link_timeout: float
    #: Folders that are searched last for modules, if they exist.
    path: tuple[str, ...]


def pack(*message: object) -> bytes:
    """Encode a message."""
    return sdk.pack(message)


def unpack(data: bytes) -> list[Any]:
    """Decode a message."""
    message: list[Any] = sdk.unpack(data, "a message of a slot")
    return message


def pack_event(event: PoolEvent) -> bytes:
    """Encode a pool event."""
    name = type(event).__name__
    return pack("event", name, *(getattr(event, field) for field in _FIELDS[name]))


def read_event(slot: int, name: str, values: list[Any]) -> PoolEvent:
    """Return the event of a pool on an executor, as that of a slot of this pool."""
    decoded = dict(zip(_FIELDS[name], values, strict=True)) | {"slot": slot}
    if "positions" in decoded:
        decoded["positions"] = tuple(decoded["positions"])
    event: PoolEvent = _EVENTS[name](**decoded)
    return event


# The task


def serve(ticket: Ticket) -> Iterator[int]:
    """Serve one slot; the function of a Spark task."""
    sys.path += [
        folder for folder in ticket.path if folder not in sys.path and Path(folder).is_dir()
    ]
    with zmq.Context() as context, context.socket(zmq.DEALER) as sock:
        sock.linger = 2000
        sock.rcvhwm = sock.sndhwm = 0
        sock.routing_id = ticket.identity.encode()
        sock.curve_serverkey = ticket.server_key
        sock.curve_publickey, sock.curve_secretkey = zmq.curve_keypair()
        sock.connect(ticket.endpoint)
        yield _serve(ticket, sock)


def _serve(ticket: Ticket, sock: zmq.Socket[bytes]) -> int:
    pool = ProcessPool(
        concurrency=1, loader=ticket.loader, arguments=ticket.arguments,
        start_timeout=ticket.start_timeout,
    )  # fmt: skip
    try:
        pool.start()
    except EventMQError as error:
        sock.send(pack("failed", ticket.token, f"{type(error).__name__}: {error}"))
        return 0
    try:
        sock.send(pack("hello", ticket.token, os.getpid()))
        return Remote(pool, sock, ticket.link_timeout).run()
    finally:
        pool.stop(0.0)


class Remote:
    """Passes messages of the manager to a pool, and events of the pool to the manager.

    Args:
        pool: Pool of one slot, started.
        sock: Socket to the manager.
        link_timeout: Seconds of silence after which the manager counts as lost.
    """

    def __init__(self, pool: ProcessPool, sock: zmq.Socket[bytes], link_timeout: float) -> None:
        self._pool, self._sock, self._link_timeout = pool, sock, link_timeout
        self._deaths = 0
        self._running: tuple[int, int] = (0, -1)
        self._changed_at = self._last_sent = self._last_seen = time.monotonic()
        #: Time at which all messages of a pause have arrived, and the withdrawal request that waits
        #: for it.
        self._caught_up_at, self._withdrawal = 0.0, 0
        self._ended = False
        self._handlers: dict[str, Callable[..., None]] = {
            "assign": self._assign,
            "take": self._request_withdrawal,
            "keep": self._cancel_withdrawal,
            "interrupt": lambda *arguments: pool.interrupt(0, *arguments),
            "credit": lambda *arguments: pool.credit(0, *arguments),
            "kill": lambda: pool.kill(0),
            "stop": self._stop,
            "ping": lambda: None,
        }

    def run(self) -> int:
        """Serve until the end; return how often the slot has died."""
        poller = zmq.Poller()
        for descriptor in (self._sock, *self._pool.filenos()):
            poller.register(descriptor, zmq.POLLIN)
        while not self._ended:
            now = time.monotonic()
            poller.poll(_ACTIVE_POLL if now - self._changed_at < 1.0 else _IDLE_POLL)
            self._receive()
            if self._ended:
                break
            self._send_running()
            if time.monotonic() - self._last_seen > self._link_timeout:
                break
        return self._deaths

    def _receive(self) -> None:
        while self._sock.poll(0, zmq.POLLIN):
            name, *arguments = unpack(self._sock.recv())
            now = time.monotonic()
            if now - self._last_seen > PAUSE:
                self._caught_up_at = now + _CATCH_UP_TIME
            self._last_seen = now
            self._handlers[name](*arguments)
        if self._withdrawal and time.monotonic() >= self._caught_up_at:
            self._withdraw(self._withdrawal)

    def _send_running(self) -> None:
        """Send the events, the running job when it changes, and heartbeats."""
        self._send_events()
        running = self._pool.running(0)
        running_job = (0, -1) if running is None else (running.chunk, running.position)
        now = time.monotonic()
        if running_job != self._running or now - self._last_sent > PING_INTERVAL:
            if running_job != self._running:
                self._changed_at = now
            self._running, self._last_sent = running_job, now
            self._sock.send(
                pack("note", *running_job, 0.0 if running is None else now - running.since)
            )

    def _send_events(self) -> None:
        for event in self._pool.poll():
            self._changed_at = time.monotonic()
            if isinstance(event, SlotDied):
                self._deaths += 1
            self._sock.send(pack_event(event))

    def _assign(self, epoch: int, chunk: int, count: int, body: bytes) -> None:
        self._changed_at = time.monotonic()
        if epoch == self._deaths:
            self._pool.assign(0, chunk, body, count)

    def _request_withdrawal(self, request: int) -> None:
        self._withdrawal = request
        if time.monotonic() >= self._caught_up_at:
            self._withdraw(request)

    def _cancel_withdrawal(self, _: int) -> None:
        self._withdrawal = 0

    def _withdraw(self, request: int) -> None:
        self._withdrawal = 0
        count = self._pool.take_back(0)
        # Earlier events are sent first.
        self._send_events()
        self._sock.send(pack("taken", request, count))

    def _stop(self, grace: float) -> None:
        self._pool.stop(grace)
        self._send_events()
        self._sock.send(pack("bye"))
        self._ended = True
