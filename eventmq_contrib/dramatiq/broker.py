"""Broker, consumer and result backend for Dramatiq, whose messages are jobs of EventMQ's queues."""

from __future__ import annotations

import math
import os
import queue
import socket
import threading
import time
import uuid
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

import dramatiq
from dramatiq.common import current_millis, dq_name, q_name
from dramatiq.results import ResultBackend, ResultFailure, ResultMissing, Results, ResultTimeout
from dramatiq.results.backend import DEFAULT_TIMEOUT
from dramatiq.results.result import wrap_exception, wrap_result

import eventmq
from eventmq.gateway import Consumer, Delivery
from eventmq.sdk import FRAMES_TYPE, RemoteError, decode_error, encode_frames

if TYPE_CHECKING:
    from collections.abc import Iterable

    Message = dramatiq.Message[Any]

__all__ = ["DeliveredMessage", "EventMQBackend", "EventMQBroker", "QueueConsumer"]

#: Largest number of messages that a consumer may hold, which Dramatiq's prefetch may exceed.
MAX_PREFETCH = 10_000

#: Characters of the longest name of a queue.
MAX_NAME = 255

#: Milliseconds of the shortest delay of a retry: with none, the same attempt would be repeated.
MIN_DELAY = 1

#: Seconds between two looks at what can only be looked at: at first, and at most.
MIN_WAIT, MAX_WAIT = 0.005, 0.5

#: Bytes of a message around a result.
OVERHEAD = 4096

#: Attribute of an attempt's error that has the options of the next attempt.
OPTIONS = "dramatiq_options"

#: Header by which a client knows the job that it sent from one that another sent with the same id.
SENT_AS = "dramatiq-sent-as"


class DeliveredMessage(dramatiq.MessageProxy):
    """A message that a worker has, until it is answered.

    Attributes:
        consumer: The consumer that received it, and answers it even after a newer one started.
        delivery: The delivery of its job.
        result: Its encoded result, which the acknowledgement stores.
        retry: Options and delay in milliseconds of its next attempt.
    """

    def __init__(self, message: Message, consumer: QueueConsumer, delivery: Delivery) -> None:
        self.consumer = consumer
        self.delivery = delivery
        self.result: bytes | None = None
        self.retry: tuple[dict[str, Any], int] | None = None
        self._sent_options = message.options
        options = consumer.options_of(message, delivery) if delivery.attempt > 1 else {}
        # A worker finds its consumer by the queue, which may not be the one that it was sent to.
        super().__init__(message.copy(queue_name=consumer.queue_name, options=options))
        self._retries = self.options.get("retries", 0)

    def is_retry(self) -> bool:
        """Return whether the middleware ``Retries`` has prepared its next attempt."""
        return self.retry is None and self.options.get("retries", 0) > self._retries

    def error(self) -> RemoteError:
        """Return the error of this attempt, with the options of the next one."""
        error = self._exception or Exception("unknown")
        options = self.options if self.retry is None else self.retry[0]
        sent = self._sent_options
        changed = {
            name: value
            for name, value in options.items()
            if name != "traceback" and (name not in sent or sent[name] != value)
        }
        traceback = _utf8(str(options.get("traceback") or ""))
        try:
            state = {OPTIONS: dramatiq.get_encoder().encode(changed)}
        except Exception as reason:  # noqa: BLE001 - values of users
            text = "the options %s of message %s cannot be encoded, and are not kept: %r"
            self.consumer.logger.warning(text, list(changed), self.message_id, reason)
            return RemoteError(_name(error), _text(error), traceback)
        return RemoteError(_name(error), _text(error), traceback, state=state)


class QueueConsumer(dramatiq.Consumer):
    """Takes the messages of a queue: Dramatiq's worker makes one for each.

    The delay queue ``NAME.DQ`` is empty, since the broker delays messages; it has no connection.
    """

    def __init__(self, broker: EventMQBroker, queue_name: str, prefetch: int, timeout: int) -> None:
        self._broker = broker
        self.logger = broker.logger
        self._timeout = timeout / 1000
        self.queue_name = q_name(queue_name)
        self._inbox: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._held: set[str] = set()
        delays = self.queue_name != queue_name
        self.jobs = Consumer(
            broker.app,
            self._receive,
            queues=() if delays else (broker.job_queue(queue_name),),
            prefetch=min(prefetch, MAX_PREFETCH),
            name=f"dramatiq {queue_name:.100} {socket.gethostname()} {os.getpid()}",
        )
        self.jobs.start()

    def _receive(self, delivery: Delivery) -> None:
        with self._lock:
            if not self._closed:
                self._held.add(delivery.id)
                self._inbox.put(delivery)
                return
        self.jobs.requeue(delivery)

    def __next__(self) -> DeliveredMessage | None:
        """Return the next message; None if none came within the timeout."""
        try:
            delivery = self._inbox.get(timeout=self._timeout)
        except queue.Empty:
            return None
        try:
            message: Message = dramatiq.Message.decode(delivery.body)
            return DeliveredMessage(message, self, delivery)
        except Exception as error:  # noqa: BLE001 - such as options that are no dictionary
            encoder = type(dramatiq.get_encoder()).__name__
            cause = getattr(error, "error", error)
            reason = f"not a message of Dramatiq's encoder {encoder}: {cause}"
            self.logger.error("job %s, %s: %s", delivery.id, delivery.queue, reason)  # noqa: TRY400 - it says all
            self.jobs.fail(delivery, RemoteError(_name(error), reason))
            self._answered(delivery)
            return None

    def options_of(self, message: Message, delivery: Delivery) -> dict[str, Any]:
        """Return the options that the last attempt left for this one."""
        options = {"retries": message.options.get("retries", 0) + delivery.attempt - 1}
        try:
            for attempt in self._broker.app.ask("info", {"id": delivery.id})["attempts"]:
                error = decode_error(attempt["error"])
                left = (error.state or {}).get(OPTIONS)
                if isinstance(left, bytes):
                    options = {**dramatiq.get_encoder().decode(left), "traceback": error.traceback}
        except Exception as reason:  # noqa: BLE001 - then the number of retries has to do
            text = "the options that the last attempt of message %s left are not known: %s"
            self.logger.warning(text, message.message_id, reason)
        return options

    def ack(self, message: dramatiq.MessageProxy) -> None:
        """Acknowledge a message: the job succeeds, or waits for its next attempt."""
        own = _delivered(message)
        jobs = own.consumer.jobs
        if own.retry is not None:
            seconds = max(own.retry[1], MIN_DELAY) / 1000
            jobs.requeue(own.delivery, countdown=seconds, reason=own.error())
        elif own.result is None:
            jobs.ack(own.delivery)
        else:
            jobs.ack(own.delivery, own.result, FRAMES_TYPE)
        own.consumer._answered(own.delivery)  # noqa: SLF001 - of this class

    def nack(self, message: dramatiq.MessageProxy) -> None:
        """Make a message a dead letter: its job is kept among the failed jobs."""
        own = _delivered(message)
        if own.retry is not None:  # it was failed after its retry was decided: both happen
            self._broker.send(own.copy(options=own.retry[0]), own.retry[1])
        own.consumer.jobs.fail(own.delivery, own.error())
        own.consumer._answered(own.delivery)  # noqa: SLF001 - of this class

    def requeue(self, messages: Iterable[dramatiq.MessageProxy]) -> None:
        """Hand messages back that were not processed, to their old places in the queue."""
        for own in map(_delivered, messages):
            own.consumer.jobs.requeue(own.delivery)
            own.consumer._answered(own.delivery)  # noqa: SLF001 - of this class

    def _answered(self, delivery: Delivery) -> None:
        with self._lock:
            self._held.discard(delivery.id)
            last = self._closed and not self._held
        if last:
            self.jobs.close()

    def close(self) -> None:
        """Take no more messages; disconnect once those that are processed are answered."""
        with self._lock:
            self._closed = True
            idle = not self._held
        if idle:
            self.jobs.close()
            return
        self.jobs.set_prefetch(0)
        with suppress(queue.Empty):
            while True:
                delivery = self._inbox.get_nowait()
                self.jobs.requeue(delivery)
                self._answered(delivery)


class EventMQBackend(ResultBackend):
    """Keeps results with the jobs of an `EventMQBroker`, which pushes them to those who wait.

    A result is stored by the acknowledgement of its message, in one commit. Clients that send
    messages need the middleware ``Results`` with this backend as well as workers do.

    Args:
        app: The app, such as ``broker.app``.
        **options: ``namespace`` and ``encoder``, as for every backend of Dramatiq.

    Raises:
        TypeError: ``app`` is no app, but for example the broker.
    """

    def __init__(self, app: eventmq.EventMQ, **options: Any) -> None:
        if not isinstance(app, eventmq.EventMQ):
            raise TypeError(f"EventMQBackend takes an app, such as broker.app, not {app!r:.80}")
        super().__init__(**options)
        self.app = app

    def job_id(self, message: Message) -> str:
        """Return the id of the job of a message that stores its result."""
        return uuid.uuid5(uuid.NAMESPACE_OID, self.build_message_key(message)).hex

    def get_result(
        self, message: Message, *, block: bool = False, timeout: int | None = None
    ) -> Any:
        """Return the result of a message, or of one with the same queue, actor and id.

        Args:
            message: The message.
            block: Whether to wait for the result.
            timeout: Milliseconds to wait, by default 10,000.

        Raises:
            ResultMissing: There is none, and ``block`` is False; or it was not kept.
            ResultTimeout: There was none in time.
            ResultFailure: The actor raised, or the message was flushed, or it killed its workers.
            BrokerUnavailable: The broker has not answered for the setting ``submit_timeout``.
        """
        job_id, wait = self.job_id(message), MIN_WAIT
        end = time.monotonic() + (DEFAULT_TIMEOUT if timeout is None else timeout) / 1000
        while True:
            try:
                job = self.app.job(job_id)
                if not block and not job.ready():
                    raise ResultMissing(message)
                (data,) = job.get(timeout=max(0.0, end - time.monotonic()))
                return self.unwrap_result(self.encoder.decode(data))  # type: ignore[no-untyped-call]
            except eventmq.JobNotFound:  # such as the last message of a pipeline: not sent yet
                if not block:
                    raise ResultMissing(message) from None
            except eventmq.ResultTimeout:
                raise ResultTimeout(message) from None
            except eventmq.ResultUnavailable:
                raise ResultMissing(message) from None
            except eventmq.JobFailed as error:
                _fail(error.remote_type.rpartition(".")[2], error.remote_message)
            except (eventmq.JobCancelled, eventmq.JobExpired) as error:
                _fail(type(error).__name__, str(error))
            left = end - time.monotonic()
            if left <= 0:
                raise ResultTimeout(message)
            time.sleep(min(wait, left))
            wait = min(2 * wait, MAX_WAIT)

    def store_result(self, message: dramatiq.MessageProxy, result: Any, ttl: int) -> None:
        """Keep a result until its message is acknowledged; its ``ttl`` was sent with the message.

        Raises:
            TypeError: The message was not delivered by an `EventMQBroker`.
        """
        own, data = _delivered(message), self.encoder.encode(wrap_result(result))
        limit = self.app.settings.max_frame - OVERHEAD
        if len(data) > limit:
            text = f"the result has {len(data)} bytes; the limit is {limit}"
            data = self.encoder.encode(wrap_exception(eventmq.ResultTooLarge(text)))
        own.result = encode_frames([data])

    def store_exception(self, message: dramatiq.MessageProxy, exception: Any, ttl: int) -> None:
        """Do nothing: the message has become a failed job with this exception."""
        _delivered(message)


class EventMQBroker(dramatiq.Broker):
    """A broker of Dramatiq on one of EventMQ: every message is a durable job.

    ``enqueue`` returns with the receipt of the broker, which also delays messages: no worker holds
    delayed ones. A retry is the next attempt of the same job. Dead letters are failed jobs, which
    ``eventmq failed list --queue dramatiq.default`` shows. Messages of a worker that was killed go
    to others at once::

        dramatiq.set_broker(EventMQBroker(url="tcp://127.0.0.1:47291"))

    Args:
        url: URL of the broker, or several separated by commas; by default the setting ``broker``.
        app: An app with other settings, instead of the URL.
        namespace: Prefix of queues in EventMQ: ``default`` is ``dramatiq.default`` there, so that
            EventMQ's own workers do not take its messages.
        middleware: As for every broker of Dramatiq.

    Raises:
        SettingsError: The URL is not allowed, or is ``memory://``.
        ValueError: Both ``url`` and ``app`` were given.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        app: eventmq.EventMQ | None = None,
        namespace: str = "dramatiq",
        middleware: list[dramatiq.Middleware] | None = None,
    ) -> None:
        if url is not None and app is not None:
            raise ValueError("give either url or app: an app has its own setting broker")
        super().__init__(middleware=middleware)
        self.queues: set[str] = set()
        self.namespace = namespace
        self._own_app = app is None
        address = None if url is None else url.replace("eventmq://", "tcp://")
        self.app = app or eventmq.EventMQ("dramatiq", broker=address)
        if "memory://" in self.app.settings.broker:
            raise eventmq.SettingsError(
                "EventMQBroker needs a broker that it can connect to, not memory://"
            )
        self._consumers: weakref.WeakSet[QueueConsumer] = weakref.WeakSet()

    def job_queue(self, queue_name: str) -> str:
        """Return the name in EventMQ of a queue, or of its delay queue."""
        return f"{self.namespace}.{q_name(queue_name)}".removeprefix(".")

    def declare_queue(self, queue_name: str) -> None:
        """Declare a queue. Idempotent; EventMQ makes it with its first message.

        Raises:
            SettingsError: With the namespace its name has more than 255 characters.
        """
        name = q_name(queue_name)
        if len(self.job_queue(name)) > MAX_NAME:
            raise eventmq.SettingsError(
                f"queue {self.job_queue(name)!r} has a name of more than {MAX_NAME} characters"
            )
        if name not in self.queues:
            self.emit_before("declare_queue", name)
            self.queues.add(name)
            self.emit_after("declare_queue", name)
            self.delay_queues.add(dq_name(name))
            self.emit_after("declare_delay_queue", dq_name(name))

    def get_declared_queues(self) -> set[str]:
        """Return the names of the declared queues."""
        return set(self.queues)

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 30_000) -> QueueConsumer:
        """Return a consumer of a queue; ``timeout`` is the milliseconds that it waits at a time.

        Raises:
            QueueNotFound: The queue was not declared.
        """
        if q_name(queue_name) not in self.queues:
            raise dramatiq.QueueNotFound(queue_name)
        consumer = QueueConsumer(self, queue_name, prefetch, timeout)
        self._consumers.add(consumer)
        return consumer

    def enqueue(self, message: Message, *, delay: int | None = None) -> Message:
        """Send a message; return a copy of it once the broker has stored it.

        Its option ``broker_priority``, 0 to 255, is the priority of the job: higher first.

        Args:
            message: The message.
            delay: Milliseconds after which workers get it; by default until its option ``eta``.

        Raises:
            ConnectionClosed: There was no receipt in time: it may have been stored.
            SettingsError: ``broker_priority``, ``result_ttl``, ``eta`` or the delay is not allowed.
            SubmitError: The broker refuses it.
        """
        name, eta = q_name(message.queue_name), message.options.get("eta")
        delivered, message = message, message.copy()
        if delay is not None:
            eta = current_millis() + _milliseconds("the delay", delay)
            message = message.copy(queue_name=dq_name(name), options={"eta": eta})
        elif isinstance(eta, (int, float)):
            delay = max(0, int(_milliseconds("eta", eta)) - current_millis())
        self.emit_before("enqueue", message, delay)
        body = message.copy(queue_name=name)
        body.options.pop("eta", None)  # what is no number is no delay
        if isinstance(delivered, DeliveredMessage) and delivered.is_retry():
            delivered.retry = body.options, delay or 0
        else:
            self.send(body, delay or 0)
        self.emit_after("enqueue", message, delay)
        return message

    def send(self, message: Message, delay: int) -> None:
        """Send a message as it is, to be delivered after milliseconds; see `enqueue`."""
        headers: dict[str, Any] = {"task": message.actor_name, "content-type": "dramatiq"}
        if message.options.get("broker_priority") is not None:
            headers["priority"] = message.options["broker_priority"]
        if delay > 0:
            headers["countdown"] = delay / 1000
        job_id, ttl = self._result_of(message)
        job_queue, body = self.job_queue(message.queue_name), message.encode()
        try:
            if job_id is not None:
                kept = {**headers, "result-ttl": ttl / 1000}
                if self._send_first(job_queue, body, kept, job_id):
                    return
            self.app.send_raw(job_queue, body, {**headers, "ignore-result": True})
        except eventmq.BrokerUnavailable as error:
            raise dramatiq.ConnectionClosed(error) from error

    def _send_first(
        self, job_queue: str, body: bytes, headers: dict[str, Any], job_id: str
    ) -> bool:
        """Send a message unless the same one was sent before: the job of that has its result."""
        if self._headers_of(job_id) is not None:
            return False
        sent_as = uuid.uuid4().hex
        self.app.send_raw(job_queue, body, {**headers, SENT_AS: sent_as}, job_id=job_id)
        # The broker keeps one of those that are sent at the same time. A job that has ended by now
        # may have lost the header: it is taken for this one, which would run twice otherwise.
        try:
            found = self._headers_of(job_id) or ""
        except eventmq.BrokerUnavailable:
            return True
        return SENT_AS not in found or sent_as in found

    def _headers_of(self, job_id: str) -> str | None:
        """Return the headers of a job, None if there is none."""
        with suppress(eventmq.JobNotFound):
            return str(self.app.ask("info", {"id": job_id})["headers"])
        return None

    def _result_of(self, message: Message) -> tuple[str | None, float]:
        """Return the id of the job that keeps the result, None for none; and milliseconds."""
        actor = self.actors.get(message.actor_name)
        options = {**(actor.options if actor else {}), **message.options}
        for results in self.middleware:
            if (
                isinstance(results, Results)
                and isinstance(results.backend, EventMQBackend)
                # Workers know whether an actor that is not declared here has results.
                and options.get("store_results", results.store_results or actor is None)
            ):
                ttl = options.get("result_ttl", results.result_ttl)
                return results.backend.job_id(message), _milliseconds("result_ttl", ttl)
        return None, 0.0

    def flush(self, queue_name: str) -> None:
        """Drop all messages of a queue that no worker has, and its dead letters."""
        name = self.job_queue(queue_name)
        with suppress(eventmq.QueueNotFound):
            self._bulk(action="cancel", queue=name, reason="flushed", operation="purge")
            self._bulk(action="drop", queue=name)

    def _bulk(self, **arguments: Any) -> None:
        arguments["id"] = uuid.uuid4().hex
        while not self.app.ask("bulk", arguments)["done"]:
            time.sleep(MIN_WAIT)

    def flush_all(self) -> None:
        """Flush all declared queues."""
        for name in self.get_declared_queues():
            self.flush(name)

    def join(self, queue_name: str, *, interval: int = 100, timeout: int | None = None) -> None:
        """Wait until all messages of a queue are processed, also delayed ones. For tests.

        Args:
            queue_name: Name of the queue.
            interval: Milliseconds between two looks at the queue, at most.
            timeout: Milliseconds to wait, None for no limit.

        Raises:
            QueueJoinTimeout: Some were not processed in time.
        """
        name, wait = self.job_queue(queue_name), MIN_WAIT
        end = None if timeout is None else time.monotonic() + timeout / 1000
        while any(
            row["waiting"] or row["delayed"] or row["running"]
            for row in self.app.ask("queues")
            if row["name"] == name
        ):
            if end is not None and time.monotonic() >= end:
                raise dramatiq.QueueJoinTimeout(queue_name)
            time.sleep(wait)
            wait = min(2 * wait, interval / 1000)

    def close(self) -> None:
        """Hand back what its consumers hold, and disconnect. Idempotent."""
        for consumer in list(self._consumers):
            consumer.jobs.close()
        if self._own_app:
            self.app.close()


def _delivered(message: object) -> DeliveredMessage:
    if not isinstance(message, DeliveredMessage):
        raise TypeError(f"{message!r} was not delivered by an EventMQBroker")
    return message


def _milliseconds(name: str, value: Any) -> Any:
    with suppress(TypeError, OverflowError):
        if math.isfinite(value):
            return value
    raise eventmq.SettingsError(f"{name} is {value!r:.80}; allowed is a number of milliseconds")


def _name(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")


def _text(error: BaseException) -> str:
    try:
        return _utf8(str(error))
    except Exception:  # noqa: BLE001 - an exception of the user that cannot be shown
        return f"{type(error).__name__} (its text cannot be shown)"


def _utf8(text: str) -> str:
    return text.encode(errors="replace").decode()


def _fail(kind: str, text: str) -> NoReturn:
    raise ResultFailure(f"actor raised {kind}: {text}", kind, text) from None
