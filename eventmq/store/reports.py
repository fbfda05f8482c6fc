"""Reports of the tools of a store about its files: checks, repairs, backups and salvage."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["BackedUp", "Finding", "Lost", "Repaired", "Salvaged"]


class Finding(NamedTuple):
    """A defect of a store, described in sentences for people."""

    #: Name of the check that found it; the same in later versions.
    check: str
    #: The table or file that has the defect.
    where: str
    #: The defect.
    found: str
    #: Its consequences.
    means: str
    #: What to do about it.
    help: str
    #: Whether `StoreTools.repair` repairs it without loss.
    repairable: bool


class Repaired(NamedTuple):
    """The result of a repair."""

    #: The folder with a copy of the files before the repair, "" if there was nothing to repair.
    kept: str
    #: The repairs, in sentences.
    done: Sequence[str]
    #: The defects that remain.
    left: Sequence[Finding]


class BackedUp(NamedTuple):
    """A backup: its file, and its size in bytes."""

    path: str
    size: int


class Lost(NamedTuple):
    """Data of a damaged store that could not be read."""

    #: The table or file that had the data.
    table: str
    #: The row; or the page, with the rows before and after it; or the range of rows.
    where: str
    #: Id of the job, or name of the schedule or queue; "" if it is not known.
    id: str
    #: Why it could not be read.
    why: str


class Salvaged(NamedTuple):
    """The result of copying the readable data of a damaged store."""

    #: The file of the new store.
    path: str
    #: Table -> number of copied rows.
    copied: Mapping[str, int]
    lost: Sequence[Lost]
    #: The defects of the new store.
    left: Sequence[Finding]
