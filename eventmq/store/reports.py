"""What the tools of a store report of its files: checks, repairs, backups and salvage."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["BackedUp", "Finding", "Lost", "Repaired", "Salvaged"]


class Finding(NamedTuple):
    """Something in a store that is not as it should be, in sentences."""

    #: Name of the check that found it; the same in later versions.
    check: str
    #: The table or file where it is.
    where: str
    found: str
    #: What comes of it.
    means: str
    #: What would help.
    help: str
    #: `StoreTools.repair` puts it right, and nothing is lost by that.
    repairable: bool


class Repaired(NamedTuple):
    """What a repair has done."""

    #: The folder with a copy of the files as they were, "" where nothing was done.
    kept: str
    done: Sequence[str]
    #: What is not as it should be now.
    left: Sequence[Finding]


class BackedUp(NamedTuple):
    """A backup: its file, and its size in bytes."""

    path: str
    size: int


class Lost(NamedTuple):
    """Something that could not be read of a damaged store."""

    #: The table or file where it was.
    table: str
    #: The row, the page and between which rows it was, or the range.
    where: str
    #: Of the job, or the name of the schedule or queue; "" where it is not known.
    id: str
    why: str


class Salvaged(NamedTuple):
    """What was copied of a damaged store."""

    #: The file of the new store.
    path: str
    #: Table -> rows.
    copied: Mapping[str, int]
    lost: Sequence[Lost]
    #: What is not as it should be in the new store.
    left: Sequence[Finding]
