"""Inspection of a journal: compares files with their names, checksums and the seal log.

This module reads the `Facts` of files in folders; Spark reads those of files at addresses.
`evaluate` compares them with the catalog and the seal logs, without opening a file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from eventmq.sdk.events import COLUMNS, SCHEMA_VERSION, FileName, partition
from eventmq_contrib.journal.catalog import Catalog, JournalError, JournalFile

if TYPE_CHECKING:
    from eventmq_contrib.journal.seals import SealRecord

__all__ = [
    "Facts", "Inspection", "check_file", "check_version", "evaluate", "facts_of", "inspect",
    "joined", "without",
]  # fmt: skip

#: Columns that every event must have. Other columns may be missing: they are null then.
_NEEDED = ("broker_id", "seq", "ts_us", "kind")

_VERSION_KEY = b"eventmq.schema_version"

#: Files that are read at once: reading and checksums need no lock of Python.
_THREADS = 4


class Facts(NamedTuple):
    """Facts read from a file.

    Attributes:
        rows: Number of events.
        first: Lowest number of an event.
        last: Highest number of an event.
        brokers: Lowest and highest id of a broker.
        times: First and last time of an event, in microseconds.
        version: Version of the schema.
        size: Length of the file in bytes, -1 if not read.
        sha256: Checksum of the file, "" if not computed.
        wrong: Why the file cannot be read, "" if it can.
        irregular: Problem of the numbers, "" if there is none, or if they were not checked.
    """

    rows: int = 0
    first: int = 0
    last: int = 0
    brokers: tuple[str, str] = ("", "")
    times: tuple[int, int] = (0, 0)
    version: int = SCHEMA_VERSION
    size: int = -1
    sha256: str = ""
    wrong: str = ""
    irregular: str = ""


@dataclass(slots=True)
class Inspection:
    """Findings about the files of a journal.

    Attributes:
        sound: Readable files, with their real broker and numbers.
        damage: Problems, as sentences that name files and numbers.
        unproven: Reasons why missing or altered events cannot be ruled out, as sentences.
        unanchored: Brokers whose last event was not compared with anything outside the journal,
            as sentences.
        bounds: Broker -> first and last number that must exist.
        doubtful: Paths of files with problems.
        suspect: Broker, first and last number of damaged files.
        missing: Broker, first and last number of ranges that no sound file has.
    """

    sound: list[JournalFile] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    unproven: list[str] = field(default_factory=list)
    unanchored: list[str] = field(default_factory=list)
    bounds: dict[str, tuple[int, int]] = field(default_factory=dict)
    doubtful: set[str] = field(default_factory=set)
    suspect: list[tuple[str, int, int]] = field(default_factory=list)
    missing: list[tuple[str, int, int]] = field(default_factory=list)


# Facts of a file


def facts_of(path: str, *, checksum: str | None = None) -> Facts:
    """Return the facts of a file of this machine.

    Args:
        path: Path of the file.
        checksum: Expected SHA-256 of the file, "" if not known: all bytes are read. If the checksum
            differs, each page and each number is checked as well. None to read the footer only.
    """
    try:
        if checksum is None:
            return _footer(pq.ParquetFile(path), path)
        data = Path(path).read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        facts = _footer(file, path)._replace(size=len(data), sha256=digest)
        if digest != checksum and not facts.wrong:
            wrong, irregular = _content(file)
            facts = facts._replace(wrong=wrong, irregular=irregular)
    except (pa.ArrowException, OSError) as error:
        return Facts(wrong=f"{path} is torn or cannot be read ({_line(error)})")
    return facts


def _footer(file: Any, path: str) -> Facts:
    """Return the facts in the footer; columns are read only for facts that it lacks."""
    footer = file.metadata
    wrong = _foreign(file.schema_arrow, path)
    if wrong:
        return Facts(rows=footer.num_rows, wrong=wrong)
    version = int((file.schema_arrow.metadata or {}).get(_VERSION_KEY, SCHEMA_VERSION))
    if not footer.num_rows:
        return Facts(version=version)
    seq, brokers, times = (_bounds(file, name) for name in ("seq", "broker_id", "ts_us"))
    return Facts(footer.num_rows, *seq, brokers, times, version)


def _foreign(schema: Any, path: str) -> str:
    """Return why these are not columns of events, "" if they are."""
    for name in _NEEDED:
        if name not in schema.names:
            return f"{path} has no events, it lacks the column {name}"
    for column in (column for column in COLUMNS if column.name in schema.names):
        kind = schema.field(column.name).type
        if str(kind) != column.type:
            return f"{path} has the column {column.name} as {kind}, not {column.type}"
    return ""


def _bounds(file: Any, name: str) -> tuple[Any, Any]:
    footer = file.metadata
    index = file.schema_arrow.names.index(name)
    groups = [footer.row_group(n).column(index).statistics for n in range(footer.num_row_groups)]
    if all(each is not None and each.has_min_max for each in groups):
        return min(each.min for each in groups), max(each.max for each in groups)
    bounds = pc.min_max(file.read(columns=[name]).column(name)).as_py()
    return bounds["min"], bounds["max"]


def _content(file: Any) -> tuple[str, str]:
    """Read the whole file; return why it cannot be read, and the problem of its numbers."""
    try:
        seq = file.read().column("seq").combine_chunks()
    except (pa.ArrowException, OSError) as error:
        return f"a page is damaged ({_line(error)})", ""
    follows = pc.all(pc.equal(pc.subtract(seq[1:], seq[:-1]), 1)).as_py()
    if len(seq) > 1 and not follows:
        return "", f"its {len(seq)} events do not have consecutive numbers"
    return "", ""


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


# Comparison with names and seals


def disagreements(file: JournalFile, facts: Facts) -> Iterator[str]:
    """Yield the contradictions between a file and its name and folder.

    Args:
        file: The file.
        facts: Facts of the file.
    """
    if facts.version > SCHEMA_VERSION:
        yield _newer(file.path, facts.version)
        return
    if facts.wrong:
        path = "" if facts.wrong.startswith(file.path) else f"{file.path}: "
        yield f"{path}{facts.wrong}: move it away, the others are unharmed"
        return
    if not facts.rows:
        yield f"{file.path} is empty: move it away"
        return
    if facts.irregular:
        yield f"{file.path}: {facts.irregular}"
    rows = file.last - file.first + 1
    if facts.rows != rows:
        yield f"{file.path} has {facts.rows} events, not {rows} as its name says"
    if (facts.first, facts.last) != (file.first, file.last):
        yield f"{file.path} has the events {facts.first} to {facts.last}, not those of its name"
    for broker in dict.fromkeys(facts.brokers):
        if broker != file.broker:
            yield f"{file.path} has events of the broker {broker}, not of that of its name"
    hours = {partition(time) for time in facts.times}
    if hours != {file.hour}:
        yield f"{file.path} has events of {' and '.join(sorted(hours))}, not of its folder's hour"


def check_file(file: JournalFile) -> None:
    """Check that a file of this machine agrees with its name, by its footer.

    Raises:
        JournalError: The file is torn, foreign or of a newer EventMQ, or its name is wrong.
    """
    for wrong in disagreements(file, facts_of(file.path)):
        raise JournalError(wrong)


def check_version(path: Path | str, metadata: Mapping[bytes, bytes] | None) -> None:
    """Check that this EventMQ knows the schema version of a file.

    Args:
        path: Path of the file.
        metadata: Metadata of its schema.

    Raises:
        JournalError: The file is of a newer EventMQ.
    """
    version = int((metadata or {}).get(_VERSION_KEY, SCHEMA_VERSION))
    if version > SCHEMA_VERSION:
        raise JournalError(_newer(path, version))


def _newer(path: Path | str, version: int) -> str:
    return (
        f"{path} is of a newer EventMQ: its events have schema version {version}, this one knows "
        f"up to {SCHEMA_VERSION}; update this one"
    )


# The whole journal


def inspect(catalog: Catalog, sealed: Mapping[str, int] | None = None) -> Inspection:
    """Read every file of a folder, and return the findings about the journal.

    Args:
        catalog: As from `Catalog.read`, with the entries of the seal logs.
        sealed: Broker -> the last sealed number as the broker reports it.
    """
    files = [*(entry.file for entry in catalog.large), *catalog.own]
    with ThreadPoolExecutor(_THREADS, "inspection") as pool:
        facts = list(pool.map(lambda file: facts_of(file.path, checksum=file.sha256), files))
    return evaluate(
        catalog, {file.path: entry for file, entry in zip(files, facts, strict=True)}, sealed
    )


def evaluate(
    catalog: Catalog, facts: Mapping[str, Facts], sealed: Mapping[str, int] | None = None
) -> Inspection:
    """Return the findings about a journal, from the facts of its files.

    Args:
        catalog: As from `Catalog.read`, with the entries of the seal logs.
        facts: Facts of each file, by its path.
        sealed: Broker -> the last sealed number as the broker reports it.
    """
    sealed = sealed or {}
    foreign = "is not a file of a journal, by its name: move it away"
    inspection = Inspection(damage=[f"{path} {foreign}" for path in catalog.foreign])
    current = catalog.current()
    read = {file.path for file in current}
    for file in (*(entry.file for entry in catalog.large), *catalog.own):
        fact = facts[file.path]
        wrong = [*disagreements(file, fact), *_altered(file, fact)]
        wrong += _unsealed(file, catalog.logs.get(file.broker))
        inspection.damage += wrong
        if wrong:
            inspection.doubtful.add(file.path)
            inspection.suspect += {file[:3], (file.broker, fact.first, fact.last)}
        readable = fact.version <= SCHEMA_VERSION
        if file.path in read and readable and fact.rows and not fact.wrong:
            present = file._replace(broker=fact.brokers[0], first=fact.first, last=fact.last)
            inspection.sound.append(present)
    brokers = {file.broker for file in (*current, *inspection.sound)} | {
        *catalog.logs,
        *filter(sealed.get, sealed),
    }
    for broker in sorted(brokers):
        _evaluate_broker(inspection, broker, catalog, sealed.get(broker, 0))
    return inspection


def _altered(file: JournalFile, facts: Facts) -> Iterator[str]:
    """Yield a sentence if a file differs from what was sealed, as far as that is known."""
    if file.sha256 and facts.sha256 and file.sha256 != facts.sha256:
        length = (
            "" if file.size == facts.size else f", of {facts.size} bytes instead of {file.size}"
        )
        yield f"{file.path} was altered after it was written: its checksum is another one{length}"


def _unsealed(file: JournalFile, record: SealRecord | None) -> Iterator[str]:
    """Yield a sentence if a file is not in the seal log of the journal."""
    if record is None or file.sha256 or file.last <= record.unproven:
        return
    if file.first <= record.last:
        forgotten = file.last <= record.trimmed
        why = "files before that were forgotten" if forgotten else "this journal has not sealed it"
        yield f"{file.path} is not in the seal log: {why} there"


def _evaluate_broker(inspection: Inspection, broker: str, catalog: Catalog, sealed: int) -> None:
    record = catalog.logs.get(broker)
    ranges = joined(file[1:3] for file in inspection.sound if file.broker == broker)
    begin, end = (ranges[0][0], ranges[-1][1]) if ranges else (1, 0)
    if record is None:
        inspection.unproven.append(
            f"there is no seal log of the broker {broker}: whether files are missing at the "
            "beginning or the end, or were altered, cannot be known"
        )
    else:
        inspection.damage += record.damage
        first_kept = catalog.begins.get(broker, 0)
        if first_kept or (record.valid and not record.unproven):
            begin = first_kept or record.begin
        end = max(end, record.end)
        if record.unproven and record.unproven >= first_kept:
            inspection.unproven.append(
                f"the events of the broker {broker} up to {record.unproven} were sealed while "
                "there was no seal log"
            )
        newer = [
            file for file in catalog.own
            if file.broker == broker and file.first > record.last and not file.sha256
        ]  # fmt: skip
        if len(newer) > 1 and record.unproven <= record.last:
            numbers = f"{newer[0].first} to {newer[-1].last}"
            inspection.unproven.append(
                f"{len(newer)} files of the broker {broker} are newer than its seal log, with the "
                f"events {numbers}: copy the log again, or start the journal once"
            )
        inspection.damage += _missing_files(broker, record, first_kept, catalog, ranges)
    if not sealed:
        inspection.unanchored.append(
            f"not anchored: the end of the events of the broker {broker}, number {end}, was not "
            "compared with the broker's own: eventmq spark audit --broker tcp://HOST:PORT does that"
        )
    end = max(end, sealed)
    inspection.bounds[broker] = (begin, end)
    inspection.missing += [(broker, *span) for span in without(ranges, begin, end)]


def _missing_files(
    broker: str,
    record: SealRecord,
    first_kept: int,
    catalog: Catalog,
    ranges: Sequence[tuple[int, int]],
) -> Iterator[str]:
    """Yield a sentence for each missing sealed file whose events no other file has."""
    present = {file[1:3] for file in catalog.own if file.broker == broker}
    for numbers in sorted(record.valid - present):
        seal = record.seals[numbers]
        if seal.last >= first_kept and without(ranges, max(seal.first, first_kept), seal.last):
            name = FileName(broker, seal.first, seal.last)
            yield f"{catalog.name}/{seal.hour}/{name} was sealed and is gone"


# Ranges of numbers


def joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return sorted ranges of numbers; those that touch or overlap are merged."""
    result: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if result and first <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(result[-1][1], last))
        else:
            result.append((first, last))
    return result


def without(ranges: Iterable[tuple[int, int]], first: int, last: int) -> list[tuple[int, int]]:
    """Return the parts of ``first`` to ``last`` that are in none of some sorted ranges."""
    missing = []
    for begin, end in ranges:
        if begin > last:
            break
        if begin > first:
            missing.append((first, begin - 1))
        first = max(first, end + 1)
    return [*missing, *([(first, last)] if first <= last else [])]
