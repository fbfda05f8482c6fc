"""What arrives for a connection: its inbox, and the queues that live as long as it."""

from __future__ import annotations

import socket
from collections import deque
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventmq import EventMQ, Subscription

__all__ = ["Inbox", "Mailbox"]


class Inbox:
    """Functions that deliver a message, or return False; its descriptor is readable with any.

    Consumers and subscriptions add them in their threads, the thread of the connection calls them.
    """

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.settimeout(0)
        self._writer.settimeout(0)
        self._arrived: SimpleQueue[Callable[[], bool]] = SimpleQueue()
        self.fileno = self._reader.fileno

    def put(self, deliver: Callable[[], bool]) -> None:
        """Add a function, from any thread."""
        self._arrived.put(deliver)
        self._set()

    def _set(self) -> None:
        with suppress(OSError):  # full, so it is readable; or closed
            self._writer.send(b"!")

    def get(self, timeout: float | None) -> Callable[[], bool]:
        """Return the next function.

        Raises:
            TimeoutError: There was none within ``timeout`` seconds.
            OSError: The connection was closed.
        """
        with suppress(BlockingIOError):
            self._reader.recv(65536)
        try:
            deliver = self._arrived.get(timeout=timeout)
        except Empty:
            raise TimeoutError("no message arrived in time") from None
        if not self._arrived.empty():
            self._set()
        return deliver

    def close(self) -> None:
        """Close the descriptor."""
        self._reader.close()
        self._writer.close()


class Mailbox:
    """A queue of one connection: subscriptions to the topics of the exchanges it is bound to.

    Attributes:
        messages: Bodies of messages that no consumer has received yet.
        bindings: The subscriptions by exchange and routing key.
    """

    def __init__(self, app: EventMQ, inbox: Inbox) -> None:
        self.messages: deque[bytes] = deque()
        self.bindings: dict[tuple[str, str], Subscription] = {}
        self._app = app
        self._inbox = inbox
        self._deliver: Callable[[bytes], None] | None = None

    def bind(
        self, binding: tuple[str, str], topic: str, matches: Callable[[str], object] = bool
    ) -> None:
        """Receive messages of a topic from now on, filtered by their full topics."""
        if binding not in self.bindings:
            subscription = self.bindings[binding] = self._app.subscribe(topic)
            subscription.__enter__()  # waits until the broker has confirmed it
            read = partial(self._read, subscription, matches)
            subscription.notify(partial(self._inbox.put, read))

    def unbind(self, binding: tuple[str, str]) -> None:
        """End a binding. Idempotent."""
        subscription = self.bindings.pop(binding, None)
        if subscription is not None:
            subscription.close()

    def consume(self, deliver: Callable[[bytes], None] | None) -> None:
        """Deliver messages to a function from now on; None keeps them."""
        self._deliver = deliver
        self._inbox.put(self._flush)

    def _read(self, subscription: Subscription, matches: Callable[[str], object]) -> bool:
        while (message := subscription.poll()) is not None:
            if matches(message.topic):
                self.messages.append(message.value)
        return self._flush()

    def _flush(self) -> bool:
        """Deliver one message, and the others in the next turns."""
        if self._deliver is None or not self.messages:
            return False
        self._deliver(self.messages.popleft())
        if self.messages:
            self._inbox.put(self._flush)
        return True

    def close(self) -> None:
        """End all bindings. Idempotent."""
        self._deliver = None
        for binding in list(self.bindings):
            self.unbind(binding)
