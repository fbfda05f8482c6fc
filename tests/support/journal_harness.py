"""A journal over the store of a broker harness, its commands, and its sealed files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
from click.testing import CliRunner, Result

from eventmq.cli.program import Program
from eventmq.errors import StoreError
from eventmq.events import FileName
from eventmq.store.reads import ReadEvents
from eventmq.store.writes import SealEvents
from eventmq_contrib.journal import eventmq_add_commands
from eventmq_contrib.journal.drain import Drain
from eventmq_contrib.journal.folder import JournalFolder

if TYPE_CHECKING:
    from pathlib import Path

    from eventmq.store.reads import EventLogHead, EventRow
    from eventmq_contrib.journal.redactor import Redactor
    from tests.support.broker_harness import Broker

__all__ = ["HarnessSource", "command", "drained", "failure", "hours_of", "names_of", "rows_in"]


class HarnessSource:
    """The store of a harness, whose broker always answers."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.broker_id: str = broker.core.state.store_id
        self.sealed_reports: list[int] = []

    def read(self, after: int, max_bytes: int) -> tuple[list[EventRow], EventLogHead]:
        self.broker.store.submit([ReadEvents(after, max_bytes)])
        [[write_result]] = self.broker.store.finished()
        return write_result

    def seal(self, journal: str, sealed: int) -> bool:
        entry = SealEvents(journal, sealed, self.broker.clock.now(), 30.0)
        self.broker.store.submit([entry])
        [[(_, refused)]] = self.broker.store.finished()
        if refused:
            raise StoreError("another journal")
        self.sealed_reports.append(sealed)
        return True


def drained(
    broker: Broker, out: Path, *, rows: int = 65_536, age: float = 60.0,
    redactor: Redactor | None = None,
) -> Drain:  # fmt: skip
    """Seal all events in a folder, like a journal that is then stopped."""
    folder = JournalFolder(out)
    try:
        folder.open()
        source = HarnessSource(broker)
        drain = Drain(source, folder, broker.clock, rows=rows, age=age, redactor=redactor)
        drain.start()
        while drain.step():
            pass
        drain.finish()
    finally:
        folder.close()
    return drain


def rows_in(out: Path) -> list[dict[str, Any]]:
    """Return the rows of all sealed files by number, without null values."""
    events = []
    for path in out.glob("date=*/hour=*/*.parquet"):
        name = FileName.parse(path.name)
        if name is not None:
            rows = pq.ParquetFile(path).read().to_pylist()
            assert [row["seq"] for row in rows] == list(range(name.first, name.last + 1))
            events += rows
    events.sort(key=lambda row: row["seq"])
    return [{name: value for name, value in row.items() if value is not None} for row in events]


def names_of(out: Path) -> list[tuple[int, int]]:
    """Return the first and last numbers of the sealed files."""
    names = [FileName.parse(path.name) for path in out.glob("date=*/hour=*/*.parquet")]
    return sorted((name.first, name.last) for name in names if name is not None)


def hours_of(out: Path) -> list[str]:
    """Return the folders with sealed files."""
    return sorted({path.parent.name for path in out.glob("date=*/hour=*/[!_]*.parquet")})


def command(*arguments: str) -> Result:
    """Run a command of the plugin like the program."""
    program = Program("eventmq")
    eventmq_add_commands(program)
    result = CliRunner().invoke(program, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def failure(*arguments: str) -> tuple[int, str]:
    """Run a command that fails; return its exit code and its error."""
    result = command(*arguments)
    assert result.stdout == ""
    return result.exit_code, result.stderr
