"""The seal log of a journal: for each broker, which files were sealed, with a checksum of each.

``_seals/<broker>.jsonl`` gets a line after each file that was sealed, so that it may be one file
behind and is never ahead. Each line has a checksum over itself and the one before it. With it an
audit knows where the journal begins and ends and what was in each file. ``_seals/begin.json`` says
from which number on a journal is kept, where older files were forgotten.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from eventmq.events import FileName

__all__ = [
    "BEGIN",
    "SEALS",
    "Seal",
    "SealLog",
    "SealRecord",
    "parse_begins",
    "seal_of",
    "sync_folder",
    "write_begins",
]

logger = logging.getLogger("eventmq.journal")

#: Folder of the logs, in that of the journal.
SEALS = "_seals"

#: File of that folder: broker -> the first number that is kept.
BEGIN = "begin.json"

_SUFFIX = ".jsonl"


class Seal(NamedTuple):
    """A file that was sealed: its numbers, its folder, its length in bytes and its SHA-256."""

    first: int
    last: int
    hour: str
    size: int
    sha256: str


def seal_of(name: FileName, hour: str, data: bytes | memoryview) -> Seal:
    """Return the seal of a file.

    Args:
        name: Of the file.
        hour: Its folder, as from `eventmq.events.partition`.
        data: What is in it.
    """
    return Seal(name.first, name.last, hour, len(data), hashlib.sha256(data).hexdigest())


@dataclass(slots=True)
class SealRecord:
    """What the seal log of one broker says.

    Attributes:
        broker: Whose.
        seals: By the numbers of the file; also of files that were sealed again later.
        begin: The first number that was ever sealed, 0 for none.
        head: The first number of the files that are to be there, 0 for none.
        last: The last number of the files that are to be there, 0 for none.
        end: The last number that was ever sealed, 0 for none.
        unproven: Up to this number files were sealed while there was no log; 0 for none.
        damage: What is wrong with the log itself, as sentences.
    """

    broker: str
    seals: dict[tuple[int, int], Seal] = field(default_factory=dict)
    begin: int = 0
    head: int = 0
    last: int = 0
    end: int = 0
    unproven: int = 0
    damage: list[str] = field(default_factory=list)
    #: Checksum of the last line, and how many bytes are whole lines.
    chain: str = ""
    whole: int = 0
    #: Numbers of the files that are to be there.
    valid: set[tuple[int, int]] = field(default_factory=set)

    @classmethod
    def parse(cls, broker: str, data: bytes) -> SealRecord:
        """Read a log; a line at its end that was not finished does not count."""
        record = cls(broker)
        *lines, rest = data.split(b"\n")
        record.whole = len(data) - len(rest)
        for number, line in enumerate(lines, 1):
            record._add(number, line)
        return record

    @classmethod
    def brief(cls, broker: str, data: bytes) -> SealRecord:
        """Read of a log only where the files begin and end: what needs no look at each line."""
        if b'"restart"' in data:
            return cls.parse(broker, data)
        record = cls(broker)
        at = data.find(b'{"first"')
        end = data.rfind(b"\n", 0, data.rfind(b"\n")) + 1
        for place in (at, end) if at >= 0 else ():
            record._add(0, data[place : data.find(b"\n", place)])
        record.damage.clear()
        return record

    def _add(self, number: int, line: bytes) -> None:
        try:
            said: dict[str, Any] = json.loads(line)
            chain = said.pop("chain")
            expected = _chained(self.chain, said)
            self.chain = str(chain)
            if chain != expected:
                self._spoilt(number)
            if "unproven" in said:
                self.unproven = max(self.unproven, int(said["unproven"]))
            elif "restart" in said:
                self._restart(int(said["restart"]))
            elif "first" in said:
                self._seal(Seal(*(said[name] for name in Seal._fields)))
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

    def _restart(self, after: int) -> None:
        self.valid = {numbers for numbers in self.valid if numbers[1] <= after}
        self.head = min((first for first, _ in self.valid), default=0)
        self.last = max((last for _, last in self.valid), default=0)


def _chained(before: str, said: Mapping[str, Any]) -> str:
    """Return the checksum of a line and all before it."""
    text = before + json.dumps(said, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class SealLog:
    """Writes the seal log of one broker.

    Args:
        folder: Of the journal.
        broker: Whose log.
    """

    def __init__(self, folder: Path, broker: str) -> None:
        self._folder = folder / SEALS
        self._path = self._folder / f"{broker}{_SUFFIX}"
        self._broker = broker
        self._chain = ""

    def open(self, files: Sequence[tuple[FileName, Path]]) -> None:
        """Make the log, or go on with it: note what was sealed last and is not in it.

        Args:
            files: The sealed files of the broker.

        Raises:
            OSError: It cannot be read or written.
        """
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            self._create(max((name.last for name, _ in files), default=0))
            return
        record = SealRecord.parse(self._broker, data)
        self._chain = record.chain
        if record.whole < len(data):
            with self._path.open("r+b") as file:
                file.truncate(record.whole)
                os.fsync(file.fileno())
        for said in record.damage:
            logger.warning("%s: an audit of this journal is no proof any more", said)
        self._catch_up(record, sorted(files))

    def _create(self, unproven: int) -> None:
        lines = [{"version": 1, "broker": self._broker}]
        if unproven:
            lines.append({"unproven": unproven})
        self._folder.mkdir(exist_ok=True)
        draft = self._folder / f"_{self._path.name}"
        with draft.open("wb") as file:
            file.write(b"".join(map(self._line, lines)))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._path)
        sync_folder(self._folder)
        sync_folder(self._folder.parent)

    def _catch_up(self, record: SealRecord, files: Sequence[tuple[FileName, Path]]) -> None:
        """Note files that are newer than the log, and that some of the newest are gone."""
        reach = max((name.last for name, _ in files), default=0)
        if reach < record.last:
            logger.warning(
                "files with the events %d to %d of the broker %s were sealed and are gone; what "
                "the broker still has is taken again",
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
        """Note a file that is sealed.

        Raises:
            OSError: It cannot be written.
        """
        self._write(seal._asdict())

    def _write(self, said: dict[str, Any]) -> None:
        with self._path.open("ab") as file:
            file.write(self._line(said))
            file.flush()
            os.fsync(file.fileno())

    def _line(self, said: dict[str, Any]) -> bytes:
        self._chain = _chained(self._chain, said)
        return json.dumps({**said, "chain": self._chain}).encode() + b"\n"


# Where a journal begins


def parse_begins(text: str | None) -> dict[str, int]:
    """Return from which number on each broker's events are kept, of those that are said.

    Raises:
        ValueError: The text is not of the file `BEGIN`.
    """
    if text is None:
        return {}
    said = json.loads(text)
    if not isinstance(said, dict) or not all(isinstance(n, int) for n in said.values()):
        raise ValueError(text[:80])
    return said


def write_begins(folder: Path, begins: Mapping[str, int]) -> None:
    """Note from which number on events are kept.

    Args:
        folder: Of the journal.
        begins: Of all brokers.
    """
    path = folder / SEALS / BEGIN
    path.parent.mkdir(exist_ok=True)
    draft = path.with_name(f"_{BEGIN}")
    with draft.open("w", encoding="utf-8") as file:
        json.dump(dict(begins), file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make sure that the names in a folder are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
