"""The gateway ``mc0``: its ROUTER, and two threads that bridge messages from and to topics.

Messages between mc0 clients go through the machine alone, so they do not need the broker.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eventmq.errors import ContentError, EventMQError
from eventmq.gateway import WITH_KEYS, RouterLoop, check_reach, split_address
from eventmq.sdk import option
from eventmq_contrib.gateways.mc0.machine import (
    Mc0Limits,
    Mc0Machine,
    command_of,
    origin_of,
    publication_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq import EventMQ, Message, Subscription
    from eventmq.gateway import GatewayAuthenticator
    from eventmq.sdk import Clock
    from eventmq_contrib.gateways.mc0.machine import Mc0Message, Publication

__all__ = ["Mc0Gateway", "Mc0Options"]

logger = logging.getLogger(__name__)

#: Maximum number and bytes of publications that wait for the broker; the oldest are dropped.
WAITING, WAITING_BYTES = 10_000, 64 * 1024 * 1024

#: Number of dropped publications per log line.
LOG_EVERY = 1000

#: Seconds that the start waits for the broker, and between two attempts to subscribe.
BROKER_TIMEOUT = 2.0

#: Seconds within which a thread must end.
END = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mc0Options:
    """Options of the gateway.

    Attributes:
        bind: Address of the gateway.
        insecure: Whether other machines may reach it, without encryption.
        keys_dir: Folder of its CURVE keys and of those of its clients; "" for none.
        any_key: Whether clients may have keys that are not in ``keys_dir``.
        max_frame: Maximum bytes of a frame.
        max_unsent_bytes: Maximum bytes that wait for one client that does not read.
        max_peers: Maximum number of clients.
        max_topics: Maximum number of topics of one client.
    """

    bind: str = "tcp://127.0.0.1:61616"
    insecure: bool = False
    keys_dir: str = ""
    any_key: bool = False
    max_frame: int = option(16 * 1024 * 1024, gt=0)
    max_unsent_bytes: int = option(64 * 1024 * 1024, gt=0)
    max_peers: int = option(10_000, gt=0)
    max_topics: int = option(1000, gt=0)


class Mc0Gateway:
    """Implements `eventmq.interfaces.Gateway`.

    Args:
        app: An `eventmq.app.EventMQ`.
        options: Address and limits.
        authenticator: Authenticator of clients, None for no keys.
        clock: Reads time.
        gateway_id: Id of this gateway, unique among all.

    Raises:
        PluginError: The address is invalid.
    """

    def __init__(
        self,
        app: EventMQ,
        options: Mc0Options,
        *,
        authenticator: GatewayAuthenticator | None,
        clock: Clock,
        gateway_id: str,
    ) -> None:
        split_address(options.bind)
        self._app = app
        self._options = options
        self._gateway_id = gateway_id
        self._keys = authenticator is not None
        limits = Mc0Limits(clients=options.max_peers, topics=options.max_topics)
        self._machine = Mc0Machine(limits, self._published)
        self._router = RouterLoop(
            self._machine,
            {"main": options.bind},
            clock=clock,
            name="eventmq-gateway-mc0",
            max_frame=options.max_frame,
            authenticator=authenticator,
            max_unsent_bytes=options.max_unsent_bytes,
        )
        self._waiting: deque[Publication] = deque()
        #: Bytes of these publications; both are changed under the lock.
        self._size = 0
        self._lock = threading.Lock()
        self._dropped = 0
        self._news = threading.Semaphore(0)
        self._ending = threading.Event()
        self._subscribed = threading.Event()
        self._subscription: Subscription | None = None
        self._threads: list[threading.Thread] = []

    def start(self) -> Sequence[str]:
        """Bind and serve; return the bound address."""
        options = self._options
        if not self._keys:
            check_reach(options.bind, insecure=options.insecure, protected=WITH_KEYS)
        addresses = self._router.start()
        for name, main in (("in", self._receive_topics), ("out", self._publish_waiting)):
            name = f"eventmq-gateway-mc0-{name}"  # noqa: PLW2901 - its full name
            thread = threading.Thread(target=main, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)
        if not self._subscribed.wait(BROKER_TIMEOUT):
            logger.warning(
                "no broker yet: topics from the broker reach mc0 clients once it answers"
            )
        return list(addresses.values())

    def running(self) -> bool:
        """Return whether the gateway runs."""
        return self._router.running()

    def turns(self) -> Sequence[int]:
        """Return the number of iterations of its loop."""
        return (self._router.turns(),)

    def stop(self, grace: float) -> None:
        """Stop serving; publish waiting messages within the grace. Idempotent."""
        self._router.stop()
        self._ending.set()
        self._news.release()
        if self._subscription is not None:
            self._subscription.close()
        for thread in self._threads:
            thread.join(max(grace, END))
        self._threads.clear()

    # From mc0 to topics

    def _published(self, topic: bytes, message: Mc0Message) -> None:
        publication = publication_of(topic, message, self._gateway_id)
        if publication is None:
            logger.debug("a topic that is not UTF-8 is not published at the broker")
            return
        with self._lock:
            self._waiting.append(publication)
            self._size += len(publication.body)
            while len(self._waiting) > WAITING or self._size > WAITING_BYTES:
                self._size -= len(self._waiting.popleft().body)
                if self._dropped % LOG_EVERY == 0:
                    what = "the broker is too slow for mc0 clients: dropping the oldest messages"
                    logger.warning(what)
                self._dropped += 1
        self._news.release()

    def _next(self) -> Publication | None:
        """Wait for the oldest publication and return it; None at the end."""
        self._news.acquire()
        with self._lock:
            if not self._waiting:
                return None
            publication = self._waiting.popleft()
            self._size -= len(publication.body)
            return publication

    def _publish_waiting(self) -> None:
        while not (self._ending.is_set() and not self._waiting):
            publication = self._next()
            if publication is None:
                continue
            try:
                self._app.publish_raw(*publication)
            except EventMQError as error:
                logger.warning("a message of an mc0 client was not published: %s", error)
                if self._ending.is_set():
                    return

    # From topics to mc0

    def _receive_topics(self) -> None:
        while not self._ending.is_set():
            try:
                with self._app.subscribe("") as subscription:
                    self._subscription = subscription
                    self._subscribed.set()
                    self._follow(subscription)
            except EventMQError as error:
                logger.debug("not subscribed: %s", error)
                self._ending.wait(BROKER_TIMEOUT)
            finally:
                self._subscription = None

    def _follow(self, subscription: Subscription) -> None:
        while not self._ending.is_set():
            try:
                message = next(subscription)
            except StopIteration:
                return
            except ContentError as error:
                logger.debug("a message cannot be decoded: %s", error)
                continue
            if origin_of(message.headers) != self._gateway_id:
                self._deliver(message)

    def _deliver(self, message: Message) -> None:
        command = command_of(message.topic, message.value, message.headers)
        topic = message.topic.encode()
        self._router.call(lambda now: self._machine.deliver(topic, command, now))
