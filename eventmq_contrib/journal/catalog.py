"""Catalog: lists the files of a journal and the events in each, for every reader of a journal.

The name of a file has its broker and its first and last number. Large files, made by a compaction,
replace the files that they were made from. Names and small texts are read by a `JournalLocation`: a
local folder, or an address that Spark knows. No file of events is opened.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Protocol

from eventmq.errors import StoreError
from eventmq.sdk.events import FileName
from eventmq_contrib.atomic import write_file
from eventmq_contrib.journal.seals import BEGIN, SEALS, SealRecord, parse_begins

__all__ = [
    "COMPACTED",
    "HOUR",
    "MANIFEST",
    "Catalog",
    "FolderLocation",
    "JournalError",
    "JournalFile",
    "JournalLocation",
    "covered",
    "hour_start",
    "sort_key",
    "split_overlapping",
    "unlisted",
    "write_manifest",
]

#: Seconds of an hour; the files of each hour have a folder of their own.
HOUR = 3600.0

#: Name of the file that lists the valid large files.
MANIFEST = "manifest.json"

#: Folder of the large files, beside the journal.
COMPACTED = "compacted"


class JournalError(StoreError):
    """A journal is missing, empty or incomplete, or a file in it is torn or foreign."""


class JournalFile(NamedTuple):
    """A file of events.

    Attributes:
        broker: Id of the broker of the events.
        first: Number of the first event.
        last: Number of the last event.
        path: Path on this machine, or an address.
        hour: Folder of the file, as from `eventmq.events.partition`.
        size: Length in bytes when it was written, -1 if not known.
        sha256: Checksum of its bytes when it was written, "" if not known.
        large: Whether a compaction made it.
    """

    broker: str
    first: int
    last: int
    path: str
    hour: str
    size: int = -1
    sha256: str = ""
    large: bool = False


class JournalLocation(Protocol):
    """A location of the files of a journal; ``name`` is for messages."""

    name: str

    def paths(self) -> list[str]:
        """Return the paths of the Parquet files of all hours.

        Raises:
            JournalError: There is no such location.
        """

    def text(self, name: str) -> str | None:
        """Return the text of a file, None if there is none."""

    def logs(self) -> dict[str, bytes]:
        """Return the seal logs by broker."""

    def beside(self, name: str) -> JournalLocation | None:
        """Return the location of another name beside this one, None if there can be none."""


class FolderLocation:
    """A folder of this machine.

    Args:
        folder: Path of the folder.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder).absolute()
        self.name = str(self.folder)

    def paths(self) -> list[str]:
        """See `JournalLocation`."""
        if not self.folder.is_dir():
            raise JournalError(
                f"there is no journal in {self.folder}: name its folder, or begin one with "
                '"eventmq journal"'
            )
        hours = (hour for date in _entries(self.name, "date=") for hour in _entries(date, "hour="))
        paths = (path for hour in hours for path in _entries(hour))
        return sorted(path for path in paths if path.endswith(".parquet"))

    def text(self, name: str) -> str | None:
        """See `JournalLocation`."""
        try:
            return (self.folder / name).read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise JournalError(f"cannot read {self.folder / name}: {error}") from error

    def logs(self) -> dict[str, bytes]:
        """See `JournalLocation`."""
        paths = (self.folder / SEALS).glob("[!_.]*.jsonl")
        try:
            return {path.stem: path.read_bytes() for path in paths}
        except OSError as error:
            raise JournalError(f"cannot read the seal logs of {self.name}: {error}") from error

    def beside(self, name: str) -> JournalLocation | None:
        """See `JournalLocation`."""
        return FolderLocation(self.folder.parent / name)


def _entries(folder: str, begin: str = "") -> list[str]:
    """Return the paths in a folder with a prefix, without files that are being written."""
    try:
        with os.scandir(folder) as entries:
            return [e.path for e in entries if e.name.startswith(begin) and e.name[0] not in "_."]
    except (FileNotFoundError, NotADirectoryError):  # a day that is being removed, or no folder
        return []


class Large(NamedTuple):
    """A file made by a compaction, and the numbers of the files that it was made from."""

    file: JournalFile
    of: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """Files of a journal, by their names.

    Attributes:
        name: Name of the journal, for messages.
        own: Files that the journal sealed, by broker and number.
        large: Existing files that a compaction made.
        missing: Files of the manifest that do not exist.
        foreign: Parquet files whose names are not those of a journal.
        logs: Broker -> its seal log.
        begins: Broker -> first number that is kept, for brokers whose older events were removed.
    """

    name: str
    own: Sequence[JournalFile]
    large: Sequence[Large] = ()
    missing: Sequence[JournalFile] = ()
    foreign: Sequence[str] = ()
    logs: Mapping[str, SealRecord] = field(default_factory=dict)
    begins: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def read(
        cls,
        location: JournalLocation,
        large: JournalLocation | None = None,
        *,
        sealed: bool = False,
    ) -> Catalog:
        """Read the catalog of a journal and its compacted files, or of compacted files only.

        A journal may be writing meanwhile, so the log is read before and after the files are
        listed. The files of the earlier log must exist, and the later log describes them.

        Args:
            location: Location of the journal, or of its compacted files.
            large: Location of the compacted files; default: ``compacted`` beside the journal.
            sealed: Read all entries of the seal logs, not only where the logs begin and end.

        Raises:
            JournalError: There is no journal, or the manifest or a log cannot be read.
        """
        if location.text(MANIFEST) is not None:
            present, missing = _compacted(location)
            return cls(name=location.name, own=(), large=present, missing=missing)
        before = _records(location, sealed=sealed)
        begins = _begins(location)
        large = large or location.beside(COMPACTED)
        # The manifest names files, so it is read before the files are listed.
        present, missing = ([], []) if large is None else _compacted(large)
        paths = location.paths()
        logs = before
        if sealed:
            logs = _records(location, sealed=True)
            for broker, record in logs.items():
                # Only the files that the log had before the listing are expected.
                earlier = before.get(broker) or SealRecord(broker)
                record.expect(record.valid & earlier.valid)
                record.end = earlier.end
        files = {path: _file_at(path, logs) for path in paths}
        own = [file for file in files.values() if file is not None]
        # Two journals side by side may share the folder of the compacted files.
        brokers = {file.broker for file in own} | set(logs)
        if own or logs:
            present = [entry for entry in present if entry.file.broker in brokers]
            missing = [entry for entry in missing if entry.broker in brokers]
        return cls(
            name=location.name, own=sorted(own, key=sort_key), large=present, missing=missing,
            foreign=[path for path, file in files.items() if file is None], logs=logs,
            begins=begins,
        )  # fmt: skip

    def current(self) -> list[JournalFile]:
        """Return the files to read, by broker and number, large files before the others."""
        replaced = {(entry.file.broker, *numbers) for entry in self.large for numbers in entry.of}
        own = (file for file in self.own if file[:3] not in replaced)
        return sorted([*(entry.file for entry in self.large), *own], key=sort_key)

    def files(self, *, since: float | None = None, until: float | None = None) -> list[JournalFile]:
        """Return the files with the events of a time range, by broker and number.

        Args:
            since: Unix time in seconds: files of hours before it are left out.
            until: Unix time in seconds: files of hours after it are left out.

        Raises:
            JournalError: A file is foreign, the beginning is missing, or there are no events.
        """
        files = self.current()
        self.check(files)
        if not files:
            raise JournalError(
                f"the journal {self.name} has no events yet: eventmq journal seals them after a "
                "minute, or after --seal-after"
            )
        return [
            file for file, start in [(file, hour_start(file)) for file in files]
            if (until is None or start < until) and (since is None or start + HOUR > since)
        ]  # fmt: skip

    def check(self, files: Iterable[JournalFile]) -> None:
        """Check that no file is foreign, and that no events are missing at the beginning.

        Raises:
            JournalError: A file is foreign, or the beginning is missing.
        """
        if self.foreign:
            raise JournalError(
                f"{self.foreign[0]} is not a file of a journal, by its name: move it away"
            )
        first: dict[str, int] = {}
        for file in files:
            first[file.broker] = min(file.first, first.get(file.broker, file.first))
        for broker, record in sorted(self.logs.items()):
            begin = max(record.head, self.begins.get(broker, 0))
            present = first.get(broker, record.last + 1)
            if record.head and present > begin:
                raise JournalError(
                    f"the journal {self.name} lacks its beginning: the events {begin} to "
                    f"{present - 1} of the broker {broker} were sealed and are gone; put their "
                    "files back, or, if they are to be gone: eventmq journal forget"
                )
        for file in self.missing:
            if not covered(file, self.current(), self.begins.get(file.broker, 0)):
                raise JournalError(
                    f"{file.path} is gone, and it is in the manifest of a compaction: put it back"
                    ", or, if it is to be gone: eventmq journal forget"
                )


def sort_key(file: JournalFile) -> tuple[str, int, int]:
    """Return the sort key of a file: of two with the same first number the longer one is first."""
    return file.broker, file.first, -file.last


def split_overlapping(files: Iterable[JournalFile]) -> tuple[list[JournalFile], list[JournalFile]]:
    """Return the files whose events no other file has, and the files that overlap with others.

    Args:
        files: As from `Catalog.files`.
    """
    groups: list[list[JournalFile]] = []
    reach = 0
    for file in sorted(files, key=sort_key):
        if not groups or groups[-1][0].broker != file.broker or file.first > reach:
            groups.append([])
            reach = 0
        groups[-1].append(file)
        reach = max(reach, file.last)
    single = [group[0] for group in groups if len(group) == 1]
    return single, [file for group in groups if len(group) > 1 for file in group]


def hour_start(file: JournalFile) -> float:
    """Return the Unix time at which the hour of a file begins, in seconds, from its path.

    Raises:
        JournalError: The file is not in the folder of an hour.
    """
    try:
        return datetime.strptime(f"{file.hour} +0000", "date=%Y-%m-%d/hour=%H %z").timestamp()
    except ValueError as error:
        raise JournalError(f"{file.path} is not in the folder of an hour: move it away") from error


def covered(file: JournalFile, files: Iterable[JournalFile], begin: int = 0) -> bool:
    """Return whether other files have all events of a file that the journal still keeps.

    Args:
        file: The file.
        files: The other files, of any broker.
        begin: Number of the first event that is kept: earlier events of the file do not count.
    """
    after = max(file.first, begin) - 1
    for other in sorted(files, key=sort_key):
        if other.broker == file.broker and other.first <= after + 1:
            after = max(after, other.last)
    return after >= file.last


def unlisted(location: FolderLocation, journal: Path) -> list[JournalFile]:
    """Return the large files that exist and that the manifest does not name.

    A later compaction replaced them, or a killed one left them; temporary files count too.

    Args:
        location: Location of the large files.
        journal: Folder of the journal; if it is the same folder, all its files are the journal's.

    Raises:
        JournalError: The manifest cannot be read.
    """
    folder = location.folder
    if not folder.is_dir() or folder.resolve() == journal.resolve() or (folder / SEALS).exists():
        return []
    present, missing = _compacted(location)
    named = {file.path for file in (*missing, *(entry.file for entry in present))}
    temporaries = folder.glob("date=*/hour=*/_*.parquet")
    paths = {path: path for path in location.paths() if path not in named}
    paths |= {
        str(temporary): str(temporary.with_name(temporary.name[1:])) for temporary in temporaries
    }
    files = ((path, _file_at(final, {})) for path, final in paths.items())
    return [file._replace(path=path, large=True) for path, file in files if file is not None]


# The texts of the manifest and of the seal logs


def _records(location: JournalLocation, *, sealed: bool) -> dict[str, SealRecord]:
    read = SealRecord.parse if sealed else SealRecord.brief
    return {broker: read(broker, data) for broker, data in location.logs().items()}


def _begins(location: JournalLocation) -> dict[str, int]:
    try:
        return parse_begins(location.text(f"{SEALS}/{BEGIN}"))
    except ValueError as error:
        raise JournalError(
            f"{SEALS}/{BEGIN} of {location.name} does not name the beginning of the journal: "
            'remove it, and run "eventmq journal forget" again'
        ) from error


def write_manifest(target: Path, entries: Iterable[Mapping[str, Any]]) -> None:
    """Write the manifest of a folder of large files, atomically."""
    manifest = {"version": 1, "files": sorted(entries, key=lambda e: e["path"])}
    write_file(target / MANIFEST, json.dumps(manifest, indent=1))


def _file_at(path: str, logs: Mapping[str, SealRecord]) -> JournalFile | None:
    pure = PurePosixPath(path)
    name = FileName.parse(pure.name)
    if name is None:
        return None
    hour = "/".join(pure.parts[-3:-1])
    record = logs.get(name.broker)
    seal = None if record is None else record.seals.get((name.first, name.last))
    if seal is None or seal.hour != hour:
        return JournalFile(*name, path, hour)
    return JournalFile(*name, path, hour, seal.size, seal.sha256)


@lru_cache(maxsize=4)
def _listed(manifest: str) -> list[dict[str, Any]]:
    """Return the entries of a manifest, cached: a stream reads it at every batch."""
    entries: list[dict[str, Any]] = json.loads(manifest)["files"]
    return entries


def _compacted(location: JournalLocation) -> tuple[list[Large], list[JournalFile]]:
    """Return the files that a manifest names: the existing and the missing ones."""
    manifest = location.text(MANIFEST)
    if manifest is None:
        return [], []
    try:
        files = [
            Large(
                JournalFile(
                    e["broker"], e["first"], e["last"], f"{location.name}/{e['path']}", e["hour"],
                    e["bytes"], e["sha256"], large=True,
                ),
                tuple((first, last) for first, last in e["of"]),
            )
            for e in _listed(manifest)
        ]  # fmt: skip
    except (ValueError, KeyError, TypeError) as error:
        raise JournalError(
            f"{location.name}/{MANIFEST} is not the manifest of a compaction: move it away"
        ) from error
    paths = set(location.paths())
    present = [entry for entry in files if entry.file.path in paths]
    return present, [entry.file for entry in files if entry.file.path not in paths]
