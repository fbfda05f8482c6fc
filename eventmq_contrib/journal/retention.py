"""Removes the oldest files of a journal, and records where it begins from then on."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from pathlib import Path

from eventmq.errors import StoreError
from eventmq_contrib.journal.catalog import (
    COMPACTED,
    HOUR,
    MANIFEST,
    Catalog,
    FolderLocation,
    JournalFile,
    hour_start,
    unlisted,
    write_manifest,
)
from eventmq_contrib.journal.lock import hold_lock
from eventmq_contrib.journal.seals import TRIM, write_begins

__all__ = ["forget"]


def forget(
    journal: Path,
    target: Path | None = None,
    *,
    before: float | None = None,
    trim_seals: bool = False,
) -> tuple[int, dict[str, int]]:
    """Remove the files of hours that ended before some time, and record where the journal begins.

    The newest file of each broker stays: its name records the progress of the journal. The
    beginning is recorded before files are removed, so that this can be killed and run again. Large
    files that the manifest no longer lists are removed like the others.

    Args:
        journal: Folder of the journal, which may be running.
        target: Folder of the large files; by default ``compacted`` beside the journal.
        before: Unix time in seconds; None to remove no file, and to accept the present beginning.
        trim_seals: Let the journal remove the lines of forgotten files from its seal log, when it
            seals the next file or is started. A seal log that is copied after that no longer proves
            a copy elsewhere that keeps such files.

    Returns:
        The number of removed files, and broker -> first number that is kept.

    Raises:
        StoreError: There is no journal, it cannot be written, or another command locks the folder
            of the large files for too long.
    """
    FolderLocation(journal).paths()  # raises if there is no journal
    target = target or journal.absolute().parent / COMPACTED
    try:
        with hold_lock(target, "eventmq journal forget"):
            removed, begins = _remove_before(journal, FolderLocation(target), before)
            if trim_seals:
                write_begins(journal, begins, TRIM)
            return removed, begins
    except OSError as error:
        raise StoreError(f"cannot remove files of {journal}: {error}") from error


def _remove_before(
    journal: Path, location: FolderLocation, before: float | None
) -> tuple[int, dict[str, int]]:
    catalog = Catalog.read(FolderLocation(journal), location)
    files = [*catalog.own, *(entry.file for entry in catalog.large)]
    brokers = sorted({file.broker for file in files} | set(catalog.logs))
    cuts = {broker: _cut(broker, files, catalog, before) for broker in brokers}
    old = [file for file in files if file.last < cuts[file.broker]]
    if before is not None:
        extra = (file for file in unlisted(location, journal) if file.broker in cuts)
        old += [file for file in extra if file.last < cuts[file.broker]]
    remaining = [file for file in files if file.last >= cuts[file.broker]]
    begins = dict(catalog.begins)
    for broker, cut in cuts.items():
        first = min((file.first for file in remaining if file.broker == broker), default=cut)
        begins[broker] = max(first, begins.get(broker, 0))
    write_begins(journal, begins)
    _remove_entries(location, {file.path for file in (*old, *catalog.missing)})
    for file in old:
        Path(file.path).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # other files are in it
            Path(file.path).parent.rmdir()
            Path(file.path).parent.parent.rmdir()
    return len(old), {broker: begins[broker] for broker in cuts}


def _cut(broker: str, files: Iterable[JournalFile], catalog: Catalog, before: float | None) -> int:
    """Return the first number that is kept: files that end before it are forgotten."""
    own = [file for file in files if file.broker == broker]
    if not own:
        return catalog.logs[broker].last + 1
    bounds = [file.first for file in own if before is None or hour_start(file) + HOUR > before]
    newest = sorted((file.last, file.first) for file in own if not file.large)[-1:]
    bounds += [first for _, first in newest]
    return min(bounds, default=max(file.last for file in own) + 1)


def _remove_entries(location: FolderLocation, paths: set[str]) -> None:
    """Remove files from the manifest."""
    text = location.text(MANIFEST)
    if text is None:
        return
    entries = json.loads(text)["files"]
    remaining = [entry for entry in entries if f"{location.name}/{entry['path']}" not in paths]
    if len(remaining) < len(entries):
        write_manifest(location.folder, remaining)
