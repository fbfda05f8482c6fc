"""Redacts arguments and results for a journal: decodes them and calls the user's function.

A value that cannot be redacted becomes null, and a warning without any part of the value is logged
once per task and kind. An error of the function neither stops the journal nor loses an event.
"""

from __future__ import annotations

import inspect
import json
import logging
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eventmq.cli import import_named
from eventmq.errors import (
    AppNotFound,
    ContentNotAllowed,
    PluginError,
    SettingsError,
    SignatureError,
)
from eventmq.sdk import FRAMES_TYPE, EndRow, Envelope, OutcomeReader, is_reference, parse_legacy
from eventmq.sdk.events import Block, Field

if TYPE_CHECKING:
    from eventmq import EventMQ

__all__ = ["MAX_TEXT", "Redactor", "redactor_of"]

logger = logging.getLogger("eventmq.journal")

#: Maximum bytes of JSON of one value.
MAX_TEXT = 64 * 1024

#: Maximum bytes of JSON of the events of one commit, which may have thousands of events.
MAX_COMMIT = 32 * 1024 * 1024

#: Maximum number of (task, kind) pairs with a warning: clients may name any number of tasks.
_MAX_WARNINGS = 1000

#: Maximum characters of a task name, and of a reason, in a warning.
_MAX_LENGTH = 255

#: Errors whose text contains no part of the value.
_SAFE = (ContentNotAllowed, SignatureError, PluginError)


class _Refused(Exception):
    """A value was left out; the text is the reason and contains no part of the value."""


class Redactor:
    """Redacts arguments and results. Not thread-safe.

    Args:
        function: The user's function. Its arguments are the name of the task, "" for a legacy job;
            ``arguments`` or ``result``; and the value.
        reader: Decodes values.
    """

    def __init__(self, function: Callable[[str, str, Any], object], reader: OutcomeReader) -> None:
        self._function = function
        self._reader = reader
        self._warned: set[tuple[str, str]] = set()
        #: Bytes of JSON so far, and remaining bytes for the events of this commit.
        self.written = 0
        self._remaining = MAX_COMMIT

    def begin(self) -> None:
        """Begin the events of another commit."""
        self._remaining = MAX_COMMIT

    def __call__(self, kind: str, block: Block) -> list[str | None]:
        """Return the redacted values of a block of events, as JSON.

        Args:
            kind: ``arguments`` or ``result``.
            block: The events, which must have values.
        """
        task, queue = block.common[Field.LABEL][0], block.common[Field.QUEUE]
        types, values = block.column(Field.CONTENT_TYPE), block.column(Field.VALUE)
        rows = zip(block.ids, types, values, strict=True)
        return [self._text(kind, task, queue, *row) for row in rows]

    def _text(  # noqa: PLR0917 - called once
        self, kind: str, task: str, queue: str, job_id: str, content_type: str, data: bytes | None
    ) -> str | None:
        # Values in a result backend are not fetched: their length has no bound.
        if data is None or is_reference(content_type):
            return None
        try:
            if kind == "result":
                value = self._reader.value(EndRow(job_id, "succeeded", content_type, data))
            else:
                value = self._arguments(task, queue, job_id, content_type, data)
        except BaseException as error:  # noqa: BLE001 - serializers are plugins
            self._warn(kind, task, f"it cannot be decoded here: {_reason(error)}")
            return None
        try:
            return self._redact(task, kind, value)
        except _Refused as error:
            self._warn(kind, task, str(error))
            return None

    def _arguments(
        self, task: str, queue: str, job_id: str, content_type: str, data: bytes
    ) -> dict[str, Any]:
        if not content_type:
            call = parse_legacy(data)
            return {"args": call.args, "kwargs": call.kwargs}
        name, signed, more = content_type.partition(";")
        signature, created, expires = more.rsplit(";", 2) if signed else ("", "0", "0")
        times = float(created), float(expires)
        envelope = Envelope(job_id, name, task, queue, *times, signature)
        value = self._reader.content(name, data, envelope)
        args, kwargs = ([value], {}) if name == FRAMES_TYPE else value
        return {"args": list(args), "kwargs": dict(kwargs)}

    def _redact(self, task: str, kind: str, value: object) -> str | None:
        """Return the result of the user's function for a value, as JSON."""
        # Signals raise nothing in a journal: any exception here is from the function.
        try:
            redacted = self._function(task, kind, value)
        except BaseException as error:
            raise _Refused(f"the redactor raised {_error_location(error)}") from error
        if redacted is None:
            return None
        try:
            text = json.dumps(redacted, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            size = len(text.encode())
        except BaseException as error:
            raise _Refused(
                f"the redactor returned a {type(redacted).__name__} that JSON cannot write"
                f" ({type(error).__name__})"
            ) from error
        if size > MAX_TEXT:
            raise _Refused(f"the redactor returned more than {MAX_TEXT} bytes of JSON")
        if size > self._remaining:
            raise _Refused(f"the redactor returned more than {MAX_COMMIT} bytes for one commit")
        self._remaining -= size
        self.written += size
        return text

    def _warn(self, kind: str, task: str, why: str) -> None:
        """Log once why a value was left out."""
        warning = (task[:_MAX_LENGTH], kind)
        if warning in self._warned or len(self._warned) >= _MAX_WARNINGS:
            return
        self._warned.add(warning)
        logger.warning(
            "the journal leaves out the %s of a job of task %r (logged once per task and kind): "
            "%s", kind, warning[0], why[:_MAX_LENGTH],
        )  # fmt: skip


def _reason(error: BaseException) -> str:
    """Return the text of an error, or only its type if the text may contain part of the value."""
    kind = type(error).__name__
    return f"{kind}: {error}" if isinstance(error, _SAFE) else kind


def _error_location(error: BaseException) -> str:
    """Return the type of an error and the line that raised it, without its text."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} ({Path(frame.filename).name}, line {frame.lineno})"


# The setting


def redactor_of(app: EventMQ) -> Redactor | None:
    """Return the redactor that an app's settings name, None for none.

    Raises:
        SettingsError: It cannot be imported, or is not a function.
    """
    text = app.settings.redactor
    if not text:
        return None
    reader = OutcomeReader(app.plugins.serializer, app.settings.accept_content)
    return Redactor(_function(text, app.settings.source("redactor")), reader)


def _function(text: str, source: str) -> Callable[[str, str, Any], object]:
    setting = f"setting 'redactor' from {source}"
    module, _, path = text.partition(":")
    try:
        value: Any = import_named(module, setting)
    except AppNotFound as error:
        raise SettingsError(str(error)) from error
    for part in path.split("."):
        value = getattr(value, part, None)
    if not callable(value) or inspect.iscoroutinefunction(value):
        raise SettingsError(
            f"{setting}: {text} is not a function that can be called as redact(task, kind, value)"
        )
    function: Callable[[str, str, Any], object] = value
    return function
