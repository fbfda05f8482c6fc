"""Looking after the files of a queue store: what is found, what is repaired, what is copied."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["BackedUp", "Finding", "Lost", "Repaired", "Salvaged", "StoreCare"]


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
    #: `StoreCare.repair` puts it right, and nothing is lost by that.
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


class StoreCare(Protocol):
    """Checks, repairs and copies the files of a store that is not opened here. May block."""

    def check(self) -> Sequence[Finding]:
        """Return what is not as it should be, of one moment, also while a broker runs.

        Raises `StoreError` where there is nothing that can be read.
        """

    def repair(self) -> Repaired:
        """Put right what can be put right without a loss, after copying the files.

        Raises `StoreError`, having done nothing, while a broker has the store open.
        """

    def backup(self, destination: Path, *, replace: bool) -> BackedUp:
        """Write what the store has at one moment into a folder, all of it or nothing, synced.

        A broker may run, and a broker that is started on that folder goes on from that moment.
        Raises `StoreError` where a store is in the folder already, unless ``replace`` is said.
        """

    def salvage(self, destination: Path) -> Salvaged:
        """Copy what can be read of a damaged store into a new one, in a folder that is empty.

        The store itself is only read. Raises `StoreError`, leaving nothing behind, while a broker
        has it open, or where the folder has something in it or cannot be written.
        """
