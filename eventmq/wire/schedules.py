"""Converts a SCHEDULE into a stored schedule: identity, trigger, and the headers of its jobs.

The broker uses it, and the scheduler if a legacy broker keeps no schedules.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from eventmq.errors import ProtocolError, SettingsError
from eventmq.headers import format_headers, parse_headers
from eventmq.schedule import Schedule
from eventmq.wire.batches import is_text

if TYPE_CHECKING:
    from eventmq.headers import Headers
    from eventmq.wire.commands import Schedule as Message

__all__ = ["PREFIX", "identity", "read_schedule"]

#: Prefix of the names of schedules that SCHEDULE brought.
PREFIX = "wire:"

#: Headers that belong to the schedule or the message, and not to its jobs; with their defaults.
_NOT_OF_JOBS: dict[str, Any] = {
    "nohaste": False, "run_count": None, "interval": None, "cron": "",
    "ack_requested": False, "late_ack": False, "reply_requested": False,
}  # fmt: skip


def identity(body: bytes, task: str) -> str:
    """Return the name of a schedule, which identifies it as deployed software does.

    It is a hash of path, callable and arguments; for other bodies, of task and body. Trigger and
    queue do not count.
    """
    content: object = [task, hashlib.sha256(body).hexdigest()]
    try:
        value = json.loads(body)
        if isinstance(value, list) and len(value) > 1 and isinstance(value[1], dict):
            call = value[1]
            parts = ("path", "callable", "args", "kwargs", "class_args", "class_kwargs")
            content = [task, *(call.get(part) or None for part in parts)]
    except (ValueError, RecursionError):
        pass
    text = json.dumps(content, sort_keys=True)
    return PREFIX + hashlib.sha256(text.encode()).hexdigest()[:32]


def read_schedule(message: Message) -> Schedule:
    """Return the schedule of a SCHEDULE; for an UNSCHEDULE, one that only has the name.

    Raises:
        ProtocolError: The message is invalid: ``no-trigger``, ``bad-trigger``, ``bad-header`` or
            ``bad-body``.
    """
    headers = parse_headers(message.headers)
    name = identity(message.body, headers.task)
    if message.remove:
        return Schedule(name=name)
    if not headers.content_type and not is_text(message.body):
        raise ProtocolError(
            "a job without content-type is text: legacy workers read nothing else", code="bad-body"
        )
    if headers.run_count is not None and headers.run_count < 1:
        raise ProtocolError("run_count is a whole number from 1", code="bad-header")
    sent: tuple[str, ...] = (message.headers,)
    if message.interval is not None:
        sent = (message.headers, message.interval, message.cron or "")
    try:
        return Schedule(
            name=name, task=headers.task, queue=message.queue, body=message.body,
            headers=format_headers(replace(headers, **_NOT_OF_JOBS)),
            trigger=_trigger(message, headers), source="wire", nohaste=headers.nohaste,
            run_count=headers.run_count, sent=sent,
        ).check()  # fmt: skip
    except SettingsError as error:
        raise ProtocolError(str(error), code="bad-body") from error


def _trigger(message: Message, headers: Headers) -> str:
    """Return the trigger of a message: an interval, or a cron expression in UTC."""
    cron = message.cron or headers.cron
    try:
        seconds = headers.interval if message.interval is None else float(message.interval or "-1")
    except ValueError:
        raise ProtocolError(
            f"the interval is {message.interval!r}; allowed are seconds, or -1 with a cron",
            code="bad-trigger",
        ) from None
    if cron:
        return f"cron:{json.dumps({'expression': cron})}"
    if seconds is None or (message.interval is not None and not message.interval):
        raise ProtocolError(
            "SCHEDULE needs a header interval:SECONDS or cron:EXPRESSION, or nine frames",
            code="no-trigger",
        )
    if not 0 < seconds < 1e9:  # noqa: PLR2004 - not nan, inf or nonsense
        raise ProtocolError(
            f"the interval is {seconds:g} s; allowed is more than 0", code="bad-trigger"
        )
    return f"every:{json.dumps({'seconds': seconds})}"
