"""Transport of kombu: queues of tasks are queues of EventMQ, broadcasts are its topics.

A queue that outlives its consumers is a queue of EventMQ, and its messages are jobs. A queue that
belongs to a connection (exclusive, deleted automatically or by expiry), such as those of remote
control, is a mailbox, which subscribes to topics. Nothing polls: see `mailbox.Inbox`.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote, unquote
from weakref import WeakSet

from kombu.transport import base, virtual
from kombu.utils.url import parse_url
from kombu.utils.uuid import uuid

from eventmq import BrokerUnavailable, MessageTooLarge, ProtocolError, QueueFull, SubmitError
from eventmq import __version__ as version
from eventmq.gateway import Consumer
from eventmq_contrib.kombu.apps import DEFAULT_PORT, app_of
from eventmq_contrib.kombu.mailbox import Inbox, Mailbox
from eventmq_contrib.kombu.messages import decode, encode, headers_of
from eventmq_contrib.kombu.records import Bindings

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventmq import EventMQ
    from eventmq.gateway import Delivery
    from eventmq_contrib.kombu.records import Binding

__all__ = ["Channel", "Transport"]

logger = logging.getLogger(__name__)

#: Largest number of unacknowledged messages of a channel without a limit of its own.
NO_LIMIT = 10_000

#: Seconds in which a broker answers a ``basic_get`` from a queue that has messages.
GET_TIMEOUT = 2.0

#: Messages that are delivered in one iteration of an event loop.
AT_ONCE = 100

#: Arguments of queues that have their effect, or need none.
_ARGUMENTS = frozenset({"x-expires", "x-max-priority", "x-queue-type"})


class Channel(virtual.Channel):  # type: ignore[misc]
    """Channel of the transport: prefetch, acknowledgement and consumers are its own."""

    body_encoding = None

    def __init__(self, connection: Transport, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self.closed: bool = False
        self._app = connection.app
        self._prefetch = NO_LIMIT
        #: The consumer of all queues; those of `basic_get` hold one message each.
        self._taker: Consumer | None = None
        self._getters: WeakSet[Consumer] = WeakSet()
        #: Delivery tag -> who holds it, and the delivery, in the order of the deliveries.
        self._unacked: OrderedDict[str, tuple[Consumer, Delivery]] = OrderedDict()
        #: Consumer tag -> queue, no_ack, callback.
        self._callbacks: dict[str, tuple[str, bool, Callable[..., Any]]] = {}

    # Queues

    def _has_queue(self, queue: str, **options: Any) -> bool:
        return queue in self.connection.mailboxes or self._row(queue) is not None

    def _new_queue(self, queue: str, **options: Any) -> None:
        """Make a mailbox if a queue belongs to its connection; queues of EventMQ need no making."""
        arguments = options.get("arguments") or {}
        for argument in arguments.keys() - _ARGUMENTS:
            logger.warning("argument %r of queue %r has no effect with EventMQ", argument, queue)
        if options.get("auto_delete") or options.get("exclusive") or "x-expires" in arguments:
            mailbox = Mailbox(self._app, self.connection.inbox)
            self.connection.mailboxes.setdefault(queue, mailbox)

    def queue_bind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", *args: Any, **kw: Any
    ) -> None:
        """Bind a queue to an exchange."""
        exchange = exchange or "amq.direct"
        mailbox = self.connection.mailboxes.get(queue)
        kind = self.typeof(exchange)
        if mailbox is None:
            binding = kind.prepare_bind(queue, exchange, routing_key, None)
            self.connection.bindings.set(exchange, binding, bound=True)
        elif kind.type == "topic":
            pattern = kind.key_to_pattern(routing_key)

            def matches(topic: str) -> object:
                return kind._match(pattern, unquote(topic.split("/")[2]))  # noqa: SLF001 - base

            mailbox.bind((exchange, routing_key), _topic(exchange), matches)
        else:
            keys = (exchange, routing_key) if kind.type == "direct" else (exchange,)
            mailbox.bind((exchange, routing_key), _topic(*keys))

    def queue_unbind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", *args: Any, **kw: Any
    ) -> None:
        """Remove a binding."""
        exchange = exchange or "amq.direct"
        mailbox = self.connection.mailboxes.get(queue)
        if mailbox is None:
            binding = self.typeof(exchange).prepare_bind(queue, exchange, routing_key, None)
            self.connection.bindings.set(exchange, binding, bound=False)
        else:
            mailbox.unbind((exchange, routing_key))

    def get_table(self, exchange: str) -> list[Binding]:
        """Return the bindings of an exchange to queues of EventMQ."""
        table: list[Binding] = self.connection.bindings.table(exchange)
        return table

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any
    ) -> None:
        """Delete a queue with its messages."""
        if if_empty and self._size(queue):
            return
        self._purge(queue)
        if (mailbox := self.connection.mailboxes.pop(queue, None)) is not None:
            mailbox.close()
        for exchange in list(self.state.exchanges):  # other threads declare some too
            for binding in self.get_table(exchange):
                if binding[2] == queue:
                    self.connection.bindings.set(exchange, binding, bound=False)

    def _mailbox(self, queue: str) -> Mailbox | None:
        """Return a mailbox that is bound: messages for an unbound one come as jobs."""
        mailbox = self.connection.mailboxes.get(queue)
        return mailbox if mailbox is not None and mailbox.bindings else None

    def _row(self, queue: str) -> dict[str, Any] | None:
        return next((row for row in self._app.ask("queues") if row["name"] == queue), None)

    def _size(self, queue: str) -> int:
        if (mailbox := self._mailbox(queue)) is not None:
            return len(mailbox.messages)
        row = self._row(queue)
        return 0 if row is None else row["waiting"] + row["delayed"]

    def _purge(self, queue: str) -> int:
        if (mailbox := self._mailbox(queue)) is not None:
            count = len(mailbox.messages)
            mailbox.messages.clear()
            return count
        return sum(self._cancel(queue, state) for state in ("queued", "delayed"))

    def _cancel(self, queue: str, state: str) -> int:
        count, cursor = 0, None
        while cursor != "":
            page = self._app.ask("jobs", {"queue": queue, "state": state, "cursor": cursor or ""})
            if ids := [row["id"] for row in page["jobs"]]:
                rows = self._app.ask("cancel", {"ids": ids, "reason": "the queue was purged"})
                count += sum(before != after for _, after, before in rows)
            cursor = page["cursor"]
        return count

    # Messages to the broker

    def basic_publish(
        self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any
    ) -> None:
        """Publish a message; returns when the broker has stored it."""
        delivery_info = message["properties"].setdefault("delivery_info", {})
        delivery_info.update(exchange=exchange, routing_key=routing_key)
        body, queues = encode(message), {routing_key}
        if exchange:
            try:  # for mailboxes, of any process
                self._app.publish_raw(_topic(exchange, routing_key), body)
            except BrokerUnavailable as error:  # no subscriber could have received it either
                logger.warning("a broadcast was lost: %s", error)
            durable = self.state.exchanges.get(exchange, {}).get("durable", True)
            queues = set(self._lookup(exchange, routing_key)) if durable else set()
        for queue in sorted(queues):
            self._app.send_raw(queue, body, headers_of(message, delay=self.connection.delays))

    # Messages from the broker

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **kwargs: Any
    ) -> None:
        """Deliver messages of a queue to a function from now on."""
        self._callbacks[consumer_tag] = queue, no_ack, callback
        if (mailbox := self._mailbox(queue)) is not None:
            mailbox.consume(partial(self._deliver_broadcast, callback))
            if not any(map(self._is_named, mailbox.bindings)):
                return
        if self._taker is None:
            self._taker = Consumer(self._app, self._received, prefetch=self._prefetch)
        self._taker.add_queue(queue)

    def _is_named(self, binding: tuple[str, str]) -> bool:
        """Return whether messages for a queue of a binding come by its name too, as jobs."""
        exchange = self.state.exchanges.get(binding[0], {})
        return bool(exchange.get("type") == "direct" and exchange.get("durable", True))

    def basic_cancel(self, consumer_tag: str) -> None:
        """End a consumer; what it has not acknowledged stays with it."""
        queue, *_ = self._callbacks.pop(consumer_tag, ("",))
        if (mailbox := self._mailbox(queue)) is not None:
            mailbox.consume(None)
        if self._taker is not None and not self._consumers_of(queue):
            self._taker.remove_queue(queue)

    def _consumers_of(self, queue: str) -> list[tuple[bool, Callable[..., Any]]]:
        return [(no_ack, call) for name, no_ack, call in self._callbacks.values() if name == queue]

    def _received(self, delivery: Delivery) -> None:
        """Receive a delivery, in the thread of the consumer."""
        self.connection.inbox.put(partial(self._deliver, delivery))

    def _deliver(self, delivery: Delivery) -> bool:
        taker, consumers = self._taker, self._consumers_of(delivery.queue)
        if taker is None:  # closed, and so it was handed back
            return False
        if not consumers:
            taker.requeue(delivery)
            return False
        no_ack, callback = consumers[0]
        message = self._message(taker, delivery, no_ack=no_ack)
        if message is not None:
            callback(message)
        return message is not None

    def _message(self, taker: Consumer, delivery: Delivery, *, no_ack: bool) -> Any:
        """Return the message of a delivery; None if it is none, which fails the job."""
        try:
            payload = decode(delivery.body)
        except ProtocolError as error:
            logger.error("job %s of queue %s fails: %s", delivery.id, delivery.queue, error)  # noqa: TRY400 - no traceback
            taker.fail(delivery, str(error))
            self._release(taker)
            return None
        tag = f"{delivery.id}.{delivery.number}"
        payload["properties"]["delivery_tag"] = tag
        payload["properties"]["delivery_info"]["redelivered"] = delivery.number > 1
        if no_ack:
            taker.ack(delivery)
            self._release(taker)
        else:
            self._unacked[tag] = taker, delivery
        return self.Message(payload, channel=self)

    def _deliver_broadcast(self, callback: Callable[..., Any], body: bytes) -> None:
        try:
            payload = decode(body)
        except ProtocolError as error:
            logger.warning("a broadcast is dropped: %s", error)
            return
        payload["properties"]["delivery_tag"] = uuid()
        callback(self.Message(payload, channel=self))

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """Return the next message of a queue, None if it is empty."""
        if (mailbox := self._mailbox(queue)) is not None:
            found: list[Any] = []
            if mailbox.messages:
                self._deliver_broadcast(found.append, mailbox.messages.popleft())
            return found[0] if found else None
        row = self._row(queue)
        if row is None or not row["waiting"]:
            return None
        taken: SimpleQueue[Delivery] = SimpleQueue()
        taker = Consumer(self._app, taken.put, queues=[queue])
        self._getters.add(taker)
        taker.start()
        try:
            delivery = taken.get(timeout=GET_TIMEOUT)
        except Empty:  # another consumer was faster
            taker.close()
            return None
        taker.set_prefetch(0)
        return self._message(taker, delivery, no_ack=no_ack)

    # Answers

    def _release(self, taker: Consumer) -> None:
        """Let a consumer of `basic_get` end, whose message has its answer."""
        if taker is not self._taker:
            taker.release()

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """Acknowledge a message, or all up to it. Does nothing after the channel was closed."""
        tags = list(self._unacked) if multiple else [delivery_tag]
        for tag in tags[: tags.index(delivery_tag) + 1] if delivery_tag in tags else ():
            if (held := self._unacked.pop(tag, None)) is not None:
                held[0].ack(held[1])
                self._release(held[0])

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Requeue a message, or let its job fail: failed jobs are kept."""
        if (held := self._unacked.pop(delivery_tag, None)) is not None:
            taker, delivery = held
            if requeue:
                taker.requeue(delivery)
            else:
                taker.fail(delivery, "the consumer rejected the message")
            self._release(taker)

    def basic_recover(self, requeue: bool = False) -> None:
        """Requeue all unacknowledged messages."""
        for tag in list(self._unacked):
            self.basic_reject(tag, requeue=True)

    def basic_qos(
        self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False
    ) -> None:
        """Set how many messages may be unacknowledged; 0 is no limit."""
        self._prefetch = min(prefetch_count, NO_LIMIT) or NO_LIMIT
        if self._taker is not None:
            self._taker.set_prefetch(self._prefetch)

    def close(self) -> None:
        """Cancel the consumers, and requeue what is not acknowledged. Idempotent."""
        if self.closed:
            return
        self.closed = True
        for tag in list(self._callbacks):
            self.basic_cancel(tag)
        takers, self._taker = (self._taker, *self._getters), None
        self._unacked.clear()
        for taker in filter(None, takers):
            taker.close()
        if self.connection is not None:
            self.connection.close_channel(self)


class Transport(virtual.Transport):  # type: ignore[misc]
    """Transport of kombu for ``eventmq://host:port``.

    Options, in ``transport_options`` of kombu or ``broker_transport_options`` of Celery:
    ``eta_in_broker``, whether the broker holds a task until its eta or countdown (True by default;
    if False, a worker holds it), and some settings of EventMQ, see `apps.SETTINGS`.

    Raises:
        ValueError: The URL has a user, a password or a virtual host.
    """

    Channel = Channel

    default_port = DEFAULT_PORT
    driver_type = driver_name = "eventmq"

    connection_errors = (BrokerUnavailable, *base.Transport.connection_errors)
    channel_errors = (MessageTooLarge, QueueFull, SubmitError, *base.Transport.channel_errors)

    implements = base.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset({"direct", "topic", "fanout"}), heartbeats=False
    )

    #: App -> the exchanges that this process has declared, and the bindings in the broker.
    _states: ClassVar[dict[EventMQ, tuple[virtual.BrokerState, Bindings]]] = {}

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        options = client.transport_options
        others = [parse_url(url) for url in client.alt if url.startswith("eventmq:")]
        self.app = app_of([*others, vars(client)], options)
        new = virtual.BrokerState(), Bindings(self.app)
        self.state, self.bindings = self._states.setdefault(self.app, new)
        self.delays = bool(options.get("eta_in_broker", True))
        #: The queues that belong to this connection, by name.
        self.mailboxes: dict[str, Mailbox] = {}
        self.connected = False

    def driver_version(self) -> str:
        """Return the version of EventMQ."""
        return version

    def establish_connection(self) -> Transport:
        """Check that the broker answers.

        Raises:
            BrokerUnavailable: It does not.
        """
        self.app.ask("ping")
        self.inbox = Inbox()
        self.connected = True
        return self

    def verify_connection(self, connection: Transport) -> bool:
        """Return whether the connection is open."""
        return connection.connected

    def close_connection(self, connection: Transport) -> None:
        """Close channels and mailboxes."""
        super().close_connection(connection)
        while self.mailboxes:
            self.mailboxes.popitem()[1].close()
        if self.connected:
            self.connected = False
            self.inbox.close()

    def drain_events(self, connection: Transport, timeout: float | None = None) -> None:
        """Deliver one message.

        Raises:
            TimeoutError: None arrived within ``timeout`` seconds.
        """
        end = float("inf") if timeout is None else time.monotonic() + timeout
        while not self.inbox.get(timeout and min(timeout, max(end - time.monotonic(), 0.0)))():
            pass

    def on_readable(self, connection: Transport, loop: Any) -> None:
        """Deliver what has arrived; the rest in the next iteration of the loop."""
        for _ in range(AT_ONCE):
            try:
                deliver = self.inbox.get(0.0)
            except TimeoutError:
                return
            deliver()

    def register_with_event_loop(self, connection: Transport, loop: Any) -> None:
        """Let an event loop deliver messages when they arrive."""
        loop.add_reader(self.inbox.fileno(), self.on_readable, connection, loop)

    def unregister_from_event_loop(self, connection: Transport, loop: Any) -> None:
        """Take the connection out of an event loop."""
        loop.remove_reader(self.inbox.fileno())


def _topic(*keys: str) -> str:
    """Return the topic of an exchange, or of a routing key in it."""
    return "/".join(["kombu", *(quote(key, safe="") for key in keys), ""])
