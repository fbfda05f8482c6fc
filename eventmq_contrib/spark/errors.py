"""Maps errors of Spark, which contain EventMQ's errors as text, back to EventMQ's classes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from eventmq.errors import (
    BrokerUnavailable,
    EventMQError,
    NotAllowed,
    SettingsError,
    StoreError,
    SubmitError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["map_error"]

_LINE = re.compile(r"^\s*eventmq\S*\.(\w+): (.+)$", re.MULTILINE)

_KINDS: Mapping[str, type[EventMQError]] = {
    "BatchError": SubmitError,
    "BrokerUnavailable": BrokerUnavailable,
    "JournalError": StoreError,
    "NotAllowed": NotAllowed,
    "SettingsError": SettingsError,
    "StoreError": StoreError,
}


def map_error(error: Exception) -> EventMQError | None:
    """Return the EventMQ error that caused an error of Spark, None if it was another one.

    Args:
        error: An exception of Spark.
    """
    mapped = None
    for kind, text in _LINE.findall(str(error)):
        if kind in _KINDS:
            mapped = _KINDS[kind](text)
    return mapped
