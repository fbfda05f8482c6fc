"""What of EventMQ's own errors is behind an error of Spark, which has it as text among traces."""

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

__all__ = ["cause_of"]

_LINE = re.compile(r"^\s*eventmq\S*\.(\w+): (.+)$", re.MULTILINE)

_KINDS: Mapping[str, type[EventMQError]] = {
    "BatchError": SubmitError,
    "BrokerUnavailable": BrokerUnavailable,
    "JournalError": StoreError,
    "NotAllowed": NotAllowed,
    "SettingsError": SettingsError,
    "StoreError": StoreError,
}


def cause_of(error: Exception) -> EventMQError | None:
    """Return the error that a Spark task of ours, or the data source, has raised; None for none.

    Args:
        error: Of Spark.
    """
    found = None
    for kind, text in _LINE.findall(str(error)):
        if kind in _KINDS:
            found = _KINDS[kind](text)
    return found
