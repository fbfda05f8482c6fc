"""Sentences about a store that fails: what it is, why, and what helps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.errors import ProtocolError, StoreError
from eventmq.plugins.database import explain, is_damage

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ALTERED", "ASK", "store_error"]

#: What helps where a file is damaged.
ASK = "ask eventmq fsck what is wrong, and eventmq fsck --salvage DEST copies what can be read"


#: What a value that was altered in the file ends in, where nothing else notices it.
ALTERED = (ProtocolError, LookupError, TypeError, ValueError)


def store_error(
    path: Path | str, error: Exception, problem: str = "cannot be written"
) -> StoreError:
    """Return the error of a store that goes on no more.

    Args:
        path: Of its file.
        error: What went wrong. Where a page or a value in the file may be damaged, the sentence
            says what helps.
        problem: What the store cannot do, unless the file cannot be read.
    """
    why = explain(error)
    if is_damage(error):
        text = f"cannot be read: {why}; {ASK}"
    elif isinstance(error, ALTERED):
        text = f"{problem}: {type(error).__name__}: {why}; {ASK}"
    else:
        text = f"{problem}: {why or type(error).__name__}"  # a MemoryError has no words
    failure = StoreError(f"the store {path} {text}")
    failure.__cause__ = error
    return failure
