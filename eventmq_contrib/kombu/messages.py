"""Messages of kombu as jobs of EventMQ: the body of a job has all of the message."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from kombu.utils.json import dumps, loads

from eventmq.errors import EventMQError, ProtocolError
from eventmq.sdk import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["decode", "encode", "headers_of"]

#: Version of the format; a later one cannot be read.
VERSION = 1

#: Properties of messages: those of AMQP that are not among the headers, and kombu's.
PROPERTIES = frozenset({
    "app_id", "cluster_id", "correlation_id", "delivery_info", "delivery_mode", "expiration",
    "message_id", "priority", "reply_to", "timestamp", "type", "user_id",
})  # fmt: skip

#: Name of the task of a message that has none.
NO_TASK = "kombu"

#: Characters of the longest name of a task in the headers of a job.
MAX_TASK = 200


def encode(message: Mapping[str, Any]) -> bytes:
    """Return the body of the job for a message as `Channel.prepare_message` makes it."""
    body, properties = message["body"], message["properties"]
    kept = {name: properties[name] for name in PROPERTIES & properties.keys()}
    about = [message[name] for name in ("content-type", "content-encoding", "headers")]
    text = isinstance(body, str)
    raw = body.encode() if text else bytes(body or b"")
    return pack([VERSION, dumps([*about, kept]), text, raw])


def decode(data: bytes) -> dict[str, Any]:
    """Return the message in the body of a job.

    Raises:
        ProtocolError: It is not such a body.
    """
    try:
        version, about, text, raw = unpack(data, "a message")
        if version != VERSION:
            raise ProtocolError(
                f"the message has format {version}, and this worker reads {VERSION}: it is too old"
            )
        content_type, encoding, headers, properties = loads(about)
        return {
            "body": raw.decode() if text else raw,
            "content-type": content_type,
            "content-encoding": encoding,
            "headers": {**headers},
            "properties": {**properties},
        }
    except EventMQError:
        raise
    except Exception as error:
        raise ProtocolError(f"the job was not sent through kombu: {error}") from error


def headers_of(message: Mapping[str, Any], *, delay: bool) -> dict[str, Any]:
    """Return the headers of the job for a message.

    Args:
        message: The message.
        delay: Whether the broker holds a task until its ``eta``, which a countdown is as well.
    """
    headers, properties = message["headers"], message["properties"]
    task = headers.get("task")
    found: dict[str, Any] = {
        "task": task[:MAX_TASK] if isinstance(task, str) and task else NO_TASK,
        "content-type": message["content-type"] or "kombu",
        "ignore-result": True,
    }
    if properties.get("priority"):
        found["priority"] = max(0, min(int(properties["priority"]), 255))
    if properties.get("expiration"):
        found["expires"] = time.time() + int(properties["expiration"]) / 1000
    if delay and (eta := _timestamp(headers.get("eta"))) > time.time():
        found["eta"] = eta
    return found


def _timestamp(eta: object) -> float:
    """Return the Unix time of an ``eta``, 0.0 if there is none that can be read."""
    try:
        moment = datetime.fromisoformat(eta.replace("Z", "+00:00"))  # type: ignore[attr-defined]
    except (AttributeError, ValueError):
        return 0.0
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
