"""Writes the many files of an hour as one, in a second folder that a manifest describes.

The files of the journal stay unchanged. A large file is valid once the manifest lists it. The
manifest is replaced atomically, so a compaction that is killed changes nothing.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from eventmq.errors import StoreError
from eventmq.sdk.events import FileName
from eventmq_contrib.atomic import sync_folder
from eventmq_contrib.journal.catalog import (
    COMPACTED,
    HOUR,
    MANIFEST,
    Catalog,
    FolderLocation,
    JournalFile,
    covered,
    hour_start,
    sort_key,
    unlisted,
    write_manifest,
)
from eventmq_contrib.journal.inspection import disagreements, facts_of
from eventmq_contrib.journal.lock import hold_lock
from eventmq_contrib.journal.parquet import arrow_schema, write_tables
from eventmq_contrib.journal.seals import seal_of

__all__ = ["Compaction"]

logger = logging.getLogger("eventmq.journal")


@dataclass(slots=True)
class _Plan:
    """Plan of a compaction.

    Attributes:
        missing: Missing files of the manifest whose events are in other files.
        replaced: Large and temporary files to be removed.
        runs: Files of one hour that become one file.
        mixed: Files that share events with others.
    """

    missing: list[JournalFile] = field(default_factory=list)
    replaced: list[JournalFile] = field(default_factory=list)
    runs: list[list[JournalFile]] = field(default_factory=list)
    mixed: list[JournalFile] = field(default_factory=list)

    @property
    def has_work(self) -> bool:
        """Whether there are files to write or remove."""
        return bool(self.missing or self.replaced or self.runs)

    def add(self, files: Sequence[JournalFile]) -> None:
        """Add the groups of files of an hour that become one file each, if the hour has new files.

        Files with common events are left alone: the compaction cannot know which of them is right.
        """
        groups: list[list[JournalFile]] = []
        reach = -1
        for file in sorted(files, key=sort_key):
            if file.first <= reach:
                self.mixed.append(file)
            elif file.first != reach + 1:
                groups.append([])
            groups[-1].append(file)
            reach = max(reach, file.last)
        for group in groups:
            mixed = any(one.last >= other.first for one, other in pairwise(group))
            if not mixed and not all(file.large for file in group):
                self.runs.append(group)

    def warn(self) -> None:
        """Log a warning about files that are left alone."""
        for file in self.mixed:
            logger.warning("%s is not compacted: other files have some of its events", file.path)


class Compaction:
    """Compacts the files of hours that have ended.

    Events of such an hour that are sealed later are merged with the large file by the next
    compaction. The compaction after that removes the replaced large file: until then, readers that
    have read the older manifest may read it.

    Args:
        journal: Folder of the journal.
        target: Folder of the large files, made if it is missing; by default ``compacted`` beside
            the journal.
    """

    def __init__(self, journal: Path, target: Path | None = None) -> None:
        self._journal, self._target = journal, target or journal.absolute().parent / COMPACTED
        #: Path of a large file -> its entry of the manifest.
        self._entries: dict[str, dict[str, Any]] = {}

    def run(self, now: float) -> tuple[int, int]:
        """Compact the new files; return the numbers of files before and after.

        If there is nothing to compact, nothing is written, and the folder of the large files is
        neither made nor checked.

        Args:
            now: Unix time in seconds: hours that end later are left alone.

        Raises:
            StoreError: There is no journal, a file cannot be read or written, or another command
                locks the folder of the large files for too long.
        """
        if not self._journal.is_dir():
            raise StoreError(f"there is no journal in {self._journal}: name its folder with --out")
        try:
            if not self._has_work(now):
                return 0, 0
            with hold_lock(self._target, "eventmq journal compact"):
                return self._run(self._plan(now))
        except OSError as error:
            raise StoreError(f"cannot compact {self._journal}: {error}") from error

    def _has_work(self, now: float) -> bool:
        """Return False if there is nothing to write, True if there is or that needs the lock."""
        try:
            plan = self._plan(now)
        except StoreError:  # another command may be writing: checked again under the lock
            return True
        if not plan.has_work:
            plan.warn()
        return plan.has_work

    def _plan(self, now: float) -> _Plan:
        """Return the plan of the compaction, without writing."""
        location = FolderLocation(self._target)
        text = location.text(MANIFEST)
        catalog = Catalog.read(FolderLocation(self._journal), location, sealed=True)
        listed = [] if text is None else json.loads(text)["files"]
        self._entries = {f"{location.name}/{entry['path']}": entry for entry in listed}
        current = catalog.current()
        catalog.check(current)
        plan = _Plan(missing=list(catalog.missing))
        if text is not None:
            # A file with events that no other file has stays: an older manifest may have been
            # restored.
            plan.replaced += [
                file
                for file in unlisted(location, self._journal)
                if covered(file, current, catalog.begins.get(file.broker, 0))
            ]
        hours: dict[tuple[str, str], list[JournalFile]] = defaultdict(list)
        for file in current:
            if hour_start(file) + HOUR <= now:
                hours[file.hour, file.broker].append(file)
        for _, files in sorted(hours.items()):
            plan.add(files)
        return plan

    def _run(self, plan: _Plan) -> tuple[int, int]:
        plan.warn()
        for file in plan.missing:  # other files have its events
            self._entries.pop(file.path, None)
        if plan.missing:
            write_manifest(self._target, list(self._entries.values()))
        for file in plan.replaced:
            logger.info("removing %s, which the manifest no longer lists", file.path)
            Path(file.path).unlink(missing_ok=True)
        for run in plan.runs:
            self._merge(run)
        return sum(not file.large for run in plan.runs for file in run), len(plan.runs)

    def _merge(self, files: Sequence[JournalFile]) -> None:
        """Write files with consecutive numbers as one file, and the manifest that lists it."""
        of: list[list[int]] = []
        for file in files:
            of += self._entries[file.path]["of"] if file.large else [[file.first, file.last]]
        name = FileName(files[0].broker, files[0].first, files[-1].last)
        hour = files[0].hour
        folder = self._target / hour
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f"_{name}"
        write_tables(temporary, _tables(files))
        seal = seal_of(name, hour, temporary.read_bytes())
        temporary.replace(folder / str(name))
        sync_folder(folder)
        for file in files:
            self._entries.pop(file.path, None)
        self._entries[f"{self._target.absolute()}/{hour}/{name}"] = {
            "path": f"{hour}/{name}", "hour": hour, "broker": name.broker, "first": name.first,
            "last": name.last, "rows": name.last - name.first + 1, "of": sorted(of),
            "bytes": seal.size, "sha256": seal.sha256,
        }  # fmt: skip
        write_manifest(self._target, list(self._entries.values()))


def _tables(files: Sequence[JournalFile]) -> Iterator[Any]:
    """Yield the events of files, each checked against its seal.

    Raises:
        StoreError: A file differs from what was sealed.
    """
    schema = arrow_schema()
    for file in files:
        facts = facts_of(file.path, checksum=file.sha256)
        for wrong in disagreements(file, facts):
            raise StoreError(wrong)
        if file.sha256 and facts.sha256 != file.sha256:
            raise StoreError(f"{file.path} was altered after it was written: move it away")
        table = pq.ParquetFile(file.path).read()
        for column in schema:  # an earlier EventMQ did not write all of them
            if column.name not in table.column_names:
                table = table.append_column(column, pa.nulls(table.num_rows, column.type))
        yield table.select(schema.names).cast(schema)
