"""The seal log of a journal: for each broker, the sealed files with their checksums.

``_seals/<broker>.jsonl`` gets a line after each sealed file, so it may be one file behind and is
never ahead. Each line has a checksum over itself and the line before it. From the log an audit
knows where the journal begins and ends, and what was in each file. ``_seals/begin.json`` has the
first number that is kept, if older files were forgotten. With `trim_seals` the lines of forgotten
files are later removed: one line in their place has the last removed number, and the checksum that
the next line follows. ``_seals/trim.json`` has the number before which lines may be removed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from eventmq.sdk.events import FileName
from eventmq_contrib.atomic import sync_folder, write_file

__all__ = [
    "BEGIN",
    "SEALS",
    "TRIM",
    "Seal",
    "SealLog",
    "SealRecord",
    "parse_begins",
    "seal_of",
    "trimmed",
    "write_begins",
]

logger = logging.getLogger("eventmq.journal")

#: Folder of the logs, in the folder of the journal.
SEALS = "_seals"

#: File of that folder: broker -> the first number that is kept.
BEGIN = "begin.json"

#: File of that folder: broker -> the number before which lines of forgotten files may be removed.
TRIM = "trim.json"

_SUFFIX = ".jsonl"

#: Bytes of lines of forgotten files that are removed at once, and their minimum share of the log,
#: which is rewritten for that.
TRIM_BYTES, TRIM_SHARE = 1024 * 1024, 8


class Seal(NamedTuple):
    """A sealed file: its numbers, its folder, its length in bytes and its SHA-256."""

    first: int
    last: int
    hour: str
    size: int
    sha256: str


def seal_of(name: FileName, hour: str, data: bytes | memoryview) -> Seal:
    """Return the seal of a file.

    Args:
        name: Name of the file.
        hour: Folder of the file, as from `eventmq.events.partition`.
        data: Content of the file.
    """
    return Seal(name.first, name.last, hour, len(data), hashlib.sha256(data).hexdigest())


@dataclass(slots=True)
class SealRecord:
    """Content of the seal log of one broker.

    Attributes:
        broker: Id of the broker.
        seals: Numbers of a file -> its seal, including files that were sealed again later.
        begin: The first number that was ever sealed, 0 for none.
        head: The first number of the files that must exist, 0 for none.
        last: The last number of the files that must exist, 0 for none.
        end: The last number that was ever sealed, 0 for none.
        unproven: Last number of the files that were sealed without a log; 0 for none.
        trimmed: Last number of the files whose lines were removed; 0 for none.
        damage: Problems of the log itself, as sentences.
    """

    broker: str
    seals: dict[tuple[int, int], Seal] = field(default_factory=dict)
    begin: int = 0
    head: int = 0
    last: int = 0
    end: int = 0
    unproven: int = 0
    trimmed: int = 0
    damage: list[str] = field(default_factory=list)
    #: Checksum of the last line, and number of bytes of complete lines.
    chain: str = ""
    whole: int = 0
    #: Numbers of the files that must exist.
    valid: set[tuple[int, int]] = field(default_factory=set)

    @classmethod
    def parse(cls, broker: str, data: bytes) -> SealRecord:
        """Read a log; an incomplete line at its end does not count."""
        record = cls(broker)
        *lines, tail = data.split(b"\n")
        record.whole = len(data) - len(tail)
        for number, line in enumerate(lines, 1):
            record.add(number, line)
        return record

    @classmethod
    def brief(cls, broker: str, data: bytes) -> SealRecord:
        """Read only where the files of a log begin and end, without parsing each line."""
        if b'"restart"' in data:
            return cls.parse(broker, data)
        record = cls(broker)
        at = data.find(b'{"first"')
        end = data.rfind(b"\n", 0, data.rfind(b"\n")) + 1
        trimmed = data.find(b'{"trimmed"', 0, max(at, 0))
        for start in (*([trimmed] if trimmed >= 0 else []), at, end) if at >= 0 else ():
            record.add(0, data[start : data.find(b"\n", start)])
        record.damage.clear()
        return record

    def add(self, number: int, line: bytes) -> None:
        """Add a line; ``number`` is its number, for messages about damage."""
        try:
            entry: dict[str, Any] = json.loads(line)
            chain = entry.pop("chain")
            expected = _chained(self.chain, entry)
            self.chain = str(chain)
            if chain != expected:
                self._spoilt(number)
            if "trimmed" in entry:
                self._trim(entry)
            elif "unproven" in entry:
                self.unproven = max(self.unproven, int(entry["unproven"]))
            elif "restart" in entry:
                after = int(entry["restart"])
                self.expect({numbers for numbers in self.valid if numbers[1] <= after}, after)
            elif "first" in entry:
                self._seal(Seal(*(entry[name] for name in Seal._fields)))
        except (ValueError, KeyError, TypeError, AttributeError):
            self._spoilt(number)

    def _spoilt(self, number: int) -> None:
        self.damage.append(
            f"line {number} of the seal log of the broker {self.broker} is damaged, or one before "
            "it is gone"
        )

    def _seal(self, seal: Seal) -> None:
        numbers = seal[:2]
        self.seals[numbers] = seal
        self.valid.add(numbers)
        self.begin = min(self.begin or seal.first, seal.first)
        self.head = min(self.head or seal.first, seal.first)
        self.last = max(self.last, seal.last)
        self.end = max(self.end, seal.last)

    def _trim(self, entry: Mapping[str, Any]) -> None:
        self.trimmed = self.last = int(entry["trimmed"])
        self.begin, self.end = int(entry["begin"]), int(entry["end"])
        self.head = self.begin if self.trimmed else 0
        self.unproven = int(entry["unproven"])
        self.chain = str(entry["after"])

    def expect(self, valid: set[tuple[int, int]], after: int | None = None) -> None:
        """Set the files that must exist.

        Args:
            valid: Numbers of the files.
            after: Highest number of any file, None if it is not lower than before.
        """
        trimmed = self.trimmed if after is None else min(self.trimmed, after)
        self.valid = valid
        self.last = max((last for _, last in valid), default=trimmed)
        self.head = self.begin if trimmed else min((first for first, _ in valid), default=0)


def trimmed(
    broker: str, data: bytes, first_kept: int, exists: Callable[[Seal], bool]
) -> bytes | None:
    """Return a log without the lines of forgotten files, None to leave it unchanged.

    No line is removed from a damaged part of a log, and never the last line. The remaining lines
    are unchanged, and the line in the place of the removed ones has the checksum that they follow,
    so that later alterations are still detected.

    Args:
        broker: Id of the broker.
        data: The log.
        first_kept: The first number that is kept.
        exists: Returns whether a file still exists.
    """
    record, start = SealRecord(broker), 0
    while (end := data.find(b"\n", start) + 1) < len(data) and end:
        line = data[start : end - 1]
        seal = _seal_in(line)
        if seal is not None and (seal.last >= first_kept or exists(seal)):
            break
        record.add(0, line)
        if record.damage:
            return None
        start = end
    if not record.end or start < max(TRIM_BYTES, len(data) // TRIM_SHARE):
        return None
    entry = {
        "trimmed": record.last, "begin": record.begin, "end": record.end,
        "unproven": record.unproven, "after": record.chain,
    }  # fmt: skip
    first = _line("", {"version": 1, "broker": broker})
    return first[0] + _line(first[1], entry)[0] + data[start:]


def _seal_in(line: bytes) -> Seal | None:
    """Return the seal of a line, None if it has none or cannot be read."""
    try:
        entry = json.loads(line)
        return Seal(*(entry[name] for name in Seal._fields))
    except (ValueError, KeyError, TypeError):
        return None


def _line(before: str, entry: Mapping[str, Any]) -> tuple[bytes, str]:
    """Return a line after one with the checksum ``before``, and its own checksum."""
    chain = _chained(before, entry)
    return json.dumps({**entry, "chain": chain}).encode() + b"\n", chain


def _chained(before: str, entry: Mapping[str, Any]) -> str:
    """Return the checksum over a line and all lines before it."""
    text = before + json.dumps(entry, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class SealLog:
    """Writes the seal log of one broker.

    Args:
        folder: Folder of the journal.
        broker: Id of the broker.
    """

    def __init__(self, folder: Path, broker: str) -> None:
        self._folder = folder / SEALS
        self._path = self._folder / f"{broker}{_SUFFIX}"
        self._broker = broker
        self._chain = ""
        #: Time of the last record of the lines that may be removed.
        self._requested = 0

    def open(self, files: Sequence[tuple[FileName, Path]]) -> None:
        """Make or continue the log: append files that were sealed last and are not in it.

        Args:
            files: The sealed files of the broker.

        Raises:
            OSError: The log cannot be read or written.
        """
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            unproven = max((name.last for name, _ in files), default=0)
            lines = [{"version": 1, "broker": self._broker}]
            lines += [{"unproven": unproven}] if unproven else []
            write_file(self._path, b"".join(map(self._line, lines)))
            sync_folder(self._folder.parent)
            return
        record = SealRecord.parse(self._broker, data)
        self._chain = record.chain
        if record.whole < len(data):
            with self._path.open("r+b") as file:
                file.truncate(record.whole)
                os.fsync(file.fileno())
        for damage in record.damage:
            logger.warning("%s: an audit of this journal is no longer a proof", damage)
        self._catch_up(record, sorted(files))
        self._trim()

    def _catch_up(self, record: SealRecord, files: Sequence[tuple[FileName, Path]]) -> None:
        """Append files that are newer than the log, and record that newest files are missing."""
        reach = max((name.last for name, _ in files), default=0)
        if reach < record.last:
            logger.warning(
                "files with the events %d to %d of the broker %s were sealed and are missing; "
                "events that the broker still has are read again",
                reach + 1, record.last, self._broker,
            )  # fmt: skip
            self._write({"restart": reach})
            return
        newer = [(name, path) for name, path in files if name.last > record.last]
        if len(newer) > 1:
            # A journal that was killed leaves one: the log is an older one, or files were brought.
            self._write({"unproven": reach})
            return
        for name, path in newer:
            self.append(seal_of(name, "/".join(path.parts[-3:-1]), path.read_bytes()))

    def append(self, seal: Seal) -> None:
        """Append a sealed file.

        Raises:
            OSError: The log cannot be written.
        """
        self._write(seal._asdict())
        self._trim()

    def _trim(self) -> None:
        """Remove the lines of forgotten files, if that was requested and is not done yet.

        Only the journal does this, as the only writer of the log. It can be killed meanwhile: the
        log is replaced atomically. If that fails, as on a full disk, the log stays unchanged.
        """
        try:
            requested = (self._folder / TRIM).stat().st_mtime_ns
            if requested == self._requested:
                return
            self._requested = requested
            texts = [(self._folder / name).read_text(encoding="utf-8") for name in (TRIM, BEGIN)]
            first_kept = min(parse_begins(text).get(self._broker, 0) for text in texts)
            data = self._path.read_bytes()
            trimmed_data = trimmed(self._broker, data, first_kept, self._exists)
            if trimmed_data is not None:
                write_file(self._path, trimmed_data)
        except FileNotFoundError:  # it was not requested
            return
        except (OSError, ValueError) as error:
            logger.warning("the seal log %s keeps lines of forgotten files: %s", self._path, error)

    def _exists(self, seal: Seal) -> bool:
        name = FileName(self._broker, seal.first, seal.last)
        return (self._folder.parent / seal.hour / str(name)).exists()

    def _write(self, entry: dict[str, Any]) -> None:
        with self._path.open("ab") as file:
            file.write(self._line(entry))
            file.flush()
            os.fsync(file.fileno())

    def _line(self, entry: dict[str, Any]) -> bytes:
        line, self._chain = _line(self._chain, entry)
        return line


# Where a journal begins


def parse_begins(text: str | None) -> dict[str, int]:
    """Return broker -> first number that is kept, for the brokers in the text.

    Raises:
        ValueError: The text is not from the file `BEGIN`.
    """
    if text is None:
        return {}
    begins = json.loads(text)
    if not isinstance(begins, dict) or not all(isinstance(n, int) for n in begins.values()):
        raise ValueError(text[:80])
    return begins


def write_begins(folder: Path, begins: Mapping[str, int], name: str = BEGIN) -> None:
    """Record the first number that is kept, by broker.

    Args:
        folder: Folder of the journal.
        begins: Numbers of all brokers.
        name: `BEGIN`; or `TRIM`, to record the number before which lines may be removed.
    """
    write_file(folder / SEALS / name, json.dumps(dict(begins)))
