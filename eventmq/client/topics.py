"""Topics: published messages reach the current subscribers, and are not stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq.client.requests import News, OneWayMessage
from eventmq.errors import BrokerUnavailable, SerializationError
from eventmq.headers import Headers, format_headers, parse_headers
from eventmq.interfaces import Envelope
from eventmq.wire.commands import Publish

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from eventmq.client.client import ClientRunner, Pending, Steps
    from eventmq.interfaces import Serializer
    from eventmq.wire.outcomes import OutcomeReader

__all__ = ["Message", "Subscription", "TopicClient"]

#: Maximum number of messages that wait in a subscription; the oldest are dropped.
BUFFER = 10_000

_UNCONFIRMED = "no broker confirmed the subscription in time"


class Message(NamedTuple):
    """A published message.

    Attributes:
        topic: The topic.
        value: The value, or its raw bytes if the publisher is other software.
        headers: The header text.
    """

    topic: str
    value: Any
    headers: str = ""


class TopicClient:
    """Publishes and subscribes for one app. Thread-safe.

    Args:
        runner: Exchanges messages with the brokers.
        reader: Decodes messages.
        serializer: Returns the content type and the serializer of published values.
        new_id: Makes message ids.
        timeout: Seconds to hand a message to a connection.
    """

    def __init__(
        self,
        runner: ClientRunner,
        reader: OutcomeReader,
        serializer: Callable[[], tuple[str, Serializer]],
        *,
        new_id: Callable[[], str],
        timeout: float,
    ) -> None:
        self._runner = runner
        self._reader = reader
        self._serializer = serializer
        self._new_id = new_id
        self._timeout = timeout

    def publish(self, topic: str, value: object) -> Pending[None]:
        """Publish a value; the operation ends when a connection has accepted the message.

        Raises:
            SerializationError: The value cannot be encoded.
            BrokerUnavailable: When it is waited for: no broker could be reached in time.
        """
        return self._runner.send(self._encode(topic, value))

    def publish_raw(self, topic: str, headers: str, body: bytes) -> Pending[None]:
        """Publish a raw body with a header text; otherwise like `publish`."""
        return self._runner.send(self._publish_message(self._new_id(), topic, headers, body))

    def _encode(self, topic: str, value: object) -> OneWayMessage:
        name, serializer = self._serializer()
        message_id = self._new_id()
        created = self._runner.clock.now()
        envelope = Envelope(message_id, name, queue=topic, created=created)
        body, signature = serializer.encode(value, envelope)
        headers = Headers(content_type=name)
        if signature:
            extra = (("message", message_id),)
            headers = Headers(content_type=name, created=created, signature=signature, extra=extra)
        return self._publish_message(message_id, topic, format_headers(headers), body)

    def _publish_message(
        self, message_id: str, topic: str, headers: str, body: bytes
    ) -> OneWayMessage:
        frames = Publish(message_id, topic, headers, body).frames()
        return OneWayMessage(frames, id=message_id, deadline=self._runner.deadline(self._timeout))

    def subscribe(self, topics: tuple[str, ...]) -> Subscription:
        """Return a subscription, which collects messages from now on."""
        return Subscription(self._runner, self._reader, topics, timeout=self._timeout)


class Subscription:
    """Endless iterator over published messages, for ``for`` and ``async for``.

    Use it in a ``with`` block, or `close` it; entering the block waits until the broker has
    confirmed the subscription. It survives restarts of the broker; messages that are published
    while there is no connection are missed.

    Attributes:
        dropped: Number of messages dropped because they were not read in time.
    """

    def __init__(
        self,
        runner: ClientRunner,
        reader: OutcomeReader,
        topics: tuple[str, ...],
        *,
        timeout: float,
    ) -> None:
        if not topics or not all(isinstance(topic, str) for topic in topics):
            raise ValueError("subscribe() takes one or more topics as text; '' is every topic")
        self._runner = runner
        self._reader = reader
        self._timeout = timeout
        self._call = runner.new_call(
            "subscribe", {"topics": list(topics)}, timeout=None, limit=BUFFER
        )
        runner.begin(self._call)

    @property
    def dropped(self) -> int:
        """Number of messages dropped because they were not read in time."""
        return self._call.dropped

    def notify(self, function: Callable[[], None]) -> None:
        """Call a function, in the client's thread, whenever messages may have arrived for `poll`.

        For a program with a loop of its own. The function must not block.
        """
        self._call.notify = function
        if self._call.answers:
            function()

    def poll(self) -> Message | None:
        """Return the next message that has arrived; None if there is none. Does not wait."""
        return self._next()

    def close(self) -> None:
        """End the subscription; a waiting iteration ends. Idempotent."""
        self._runner.forget(self._call)

    def __enter__(self) -> Self:
        self._runner.run(self._confirming()).wait()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await self._runner.run(self._confirming())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        message = self._next() or self._runner.run(self._reading()).wait()
        if message is None:
            raise StopIteration
        return message

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        message = self._next() or await self._runner.run(self._reading())
        if message is None:
            raise StopAsyncIteration
        return message

    def _confirming(self) -> Steps[None]:
        """Return the steps until the broker confirms the subscription."""
        if not (yield News((self._call,), self._timeout)):
            self.close()
            raise BrokerUnavailable(_UNCONFIRMED)
        if self._call.error is not None:
            raise self._call.error
        if self._call.answers and self._call.answers[0] is None:
            self._call.answers.popleft()

    def _reading(self) -> Steps[Message | None]:
        """Return the steps to the next message, None at the end."""
        message = None
        while message is None and not self._call.done:
            yield News((self._call,), None)
            message = self._next()
        return message

    def _next(self) -> Message | None:
        """Return the next message that has arrived, or None; skip the confirmation."""
        answers = self._call.answers
        while answers:
            answer = answers.popleft()
            if answer is not None:
                return self._message(answer)
        if self._call.error is not None:
            raise self._call.error
        return None

    def _message(self, answer: Any) -> Message:
        topic, text, body = answer
        headers = parse_headers(text)
        if not headers.content_type:
            return Message(topic, body, text)
        message_id = dict(headers.extra).get("message", "")
        envelope = Envelope(
            message_id,
            headers.content_type,
            queue=topic,
            created=headers.created,
            signature=headers.signature,
        )
        try:
            value = self._reader.content(headers.content_type, body, envelope)
        except SerializationError:
            return Message(topic, body, text)
        return Message(topic, value, text)
