"""``eventmq journal compact``: small files of hours that have ended, as one."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from eventmq.clock import SystemClock
from eventmq.errors import StoreError
from eventmq_contrib.journal import compaction, lock, parquet, retention
from eventmq_contrib.journal.catalog import Catalog, FolderLocation
from eventmq_contrib.journal.compaction import Compaction
from eventmq_contrib.journal.lock import hold_lock
from eventmq_contrib.journal.retention import forget
from tests.support.broker_harness import Broker
from tests.support.journal_harness import command, drained, failure

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path / "data")
    yield broker
    broker.close()


def hourly(broker: Broker, out: Path, hours: int) -> None:
    """Write two files for each of some hours."""
    for _ in range(hours):
        for _ in range(2):
            broker.submit()
            broker.submit()
            drained(broker, out)
        broker.clock.time += 3600.0


@pytest.fixture
def now(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of the command is that of the broker."""
    monkeypatch.setattr(SystemClock, "now", lambda _: broker.clock.time)


def compacted(out: Path) -> list[dict[str, Any]]:
    manifest = json.loads((out / "manifest.json").read_text())
    rows = [
        row
        for entry in manifest["files"]
        for row in pq.ParquetFile(out / entry["path"]).read().to_pylist()
    ]
    return sorted(rows, key=lambda row: row["seq"])


@pytest.mark.usefixtures("now")
def test_each_hour_that_has_ended_is_compacted(broker: Broker, tmp_path: Path) -> None:
    """Beside the journal, whose files stay; also hours with one file, but not the current hour."""
    out = tmp_path / "journal"
    hourly(broker, out, 2)
    broker.submit()
    drained(broker, out)
    broker.clock.time += 3600.0
    broker.submit()
    drained(broker, out)
    before = sorted(out.glob("date=*/hour=*/*"))
    result = command("journal", "compact", "--out", str(out))
    assert (result.exit_code, result.stdout) == (0, "compacted 5 files into 3\n")
    assert sorted(out.glob("date=*/hour=*/*")) == before
    rows = compacted(tmp_path / "compacted")
    assert [row["seq"] for row in rows] == list(range(1, 10))
    small = [row for path in before[:5] for row in pq.ParquetFile(path).read().to_pylist()]
    assert rows == sorted(small, key=lambda row: row["seq"])


def test_what_an_hour_gets_later_joins_its_large_file(broker: Broker, tmp_path: Path) -> None:
    """Even if the small files are missing: a clock was set back, or the journal was unavailable."""
    out, target = tmp_path / "journal", tmp_path / "large"
    hourly(broker, out, 1)
    assert Compaction(out, target).run(broker.clock.time) == (2, 1)
    for path in out.glob("date=*/hour=*/*"):
        if not path.name.endswith("-3-4.parquet"):
            path.unlink()
    broker.clock.time -= 3600.0
    broker.submit()
    drained(broker, out)
    broker.clock.time += 3600.0
    assert Compaction(out, target).run(broker.clock.time) == (1, 1)
    assert [row["seq"] for row in compacted(target)] == [1, 2, 3, 4, 5]
    assert len(json.loads((target / "manifest.json").read_text())["files"]) == 1


def test_a_large_file_has_no_hole(broker: Broker, tmp_path: Path) -> None:
    """Its name has its numbers; between them the clock was in another hour."""
    out, target = tmp_path / "journal", tmp_path / "large"
    for step in (0.0, 3600.0, -3600.0):
        broker.clock.time += step
        broker.submit()
        drained(broker, out)
    broker.clock.time += 9999.0
    assert Compaction(out, target).run(broker.clock.time) == (3, 3)
    files = Catalog.read(FolderLocation(out), FolderLocation(target)).files()
    assert [(file.first, file.last, file.large) for file in files] == [
        (1, 1, True), (2, 2, True), (3, 3, True),
    ]  # fmt: skip


def test_files_that_have_events_in_common_are_left_alone(broker: Broker, tmp_path: Path) -> None:
    """The audit has to decide which of them is right."""
    out, target = tmp_path / "journal", tmp_path / "large"
    hourly(broker, out, 1)
    [path] = out.glob("date=*/hour=*/*-1-2.parquet")
    rows = pq.ParquetFile(path).read()
    pq.write_table(rows[1:], path.with_name(path.name.replace("-1-2.", "-2-2.")))
    assert Compaction(out, target).run(broker.clock.time) == (0, 0)


def test_compaction_goes_on_where_it_was(broker: Broker, tmp_path: Path) -> None:
    out, target = tmp_path / "journal", tmp_path / "large"
    hourly(broker, out, 2)
    assert Compaction(out, target).run(broker.clock.time) == (4, 2)
    assert Compaction(out, target).run(broker.clock.time) == (0, 0)
    hourly(broker, out, 1)
    assert Compaction(out, target).run(broker.clock.time) == (2, 1)
    assert [row["seq"] for row in compacted(target)] == list(range(1, 13))


def test_what_is_forgotten_is_forgotten_by_both(broker: Broker, tmp_path: Path) -> None:
    """The journal begins later from then on; its newest file stays, as it records the progress."""
    out, target = tmp_path / "journal", tmp_path / "compacted"
    hour = broker.clock.time // 3600 * 3600
    hourly(broker, out, 3)
    assert Compaction(out).run(broker.clock.time) == (6, 3)
    store = broker.core.state.store_id
    assert forget(out, before=hour + 3599.0) == (0, {store: 1})
    assert forget(out, before=hour + 3600.0) == (3, {store: 5})
    assert [row["seq"] for row in compacted(target)] == list(range(5, 13))
    assert len(list(out.glob("date=*/hour=*"))) == 2
    assert Compaction(out).run(broker.clock.time) == (0, 0)
    assert forget(out, before=broker.clock.time + 9999.0) == (4, {store: 9})
    assert [file[1:3] for file in Catalog.read(FolderLocation(out)).files()] == [(9, 12)]


def test_a_manifest_may_name_what_was_forgotten(broker: Broker, tmp_path: Path) -> None:
    """A manifest of an earlier day was restored; the next compaction repairs it."""
    out, target = tmp_path / "journal", tmp_path / "compacted"
    hour = broker.clock.time // 3600 * 3600
    hourly(broker, out, 3)
    Compaction(out).run(broker.clock.time)
    earlier = (target / "manifest.json").read_bytes()
    forget(out, before=hour + 3600.0)
    (target / "manifest.json").write_bytes(earlier)
    assert [file[1:3] for file in Catalog.read(FolderLocation(out)).files()] == [(5, 8), (9, 12)]
    assert Compaction(out).run(broker.clock.time) == (0, 0)
    assert [row["seq"] for row in compacted(target)] == list(range(5, 13))
    (target / "manifest.json").write_bytes(earlier)
    for path in [*large(target)[:1], *sorted(out.glob("date=*/hour=*/*"))[:2]]:
        path.unlink()
    with pytest.raises(StoreError, match=r"lacks its beginning: the events 5 to 8 of the broker"):
        Catalog.read(FolderLocation(out)).files()


def test_a_large_file_that_is_gone_is_missed_where_its_events_are_not_forgotten(
    broker: Broker, tmp_path: Path
) -> None:
    out, target = tmp_path / "journal", tmp_path / "compacted"
    hour = broker.clock.time // 3600 * 3600
    hourly(broker, out, 4)
    Compaction(out).run(broker.clock.time)
    forget(out, before=hour + 3600.0)
    for path in [large(target)[1], *sorted(out.glob("date=*/hour=*/*"))[2:4]]:
        path.unlink()
    with pytest.raises(StoreError, match=r"-9-12\.parquet is gone, and it is in the manifest"):
        Catalog.read(FolderLocation(out)).files()


@pytest.mark.usefixtures("now")
def test_files_removed_by_hand_are_missing_until_they_are_declared_forgotten(
    broker: Broker, tmp_path: Path
) -> None:
    """A compaction does not hide it."""
    out = tmp_path / "journal"
    hourly(broker, out, 3)
    Compaction(out).run(broker.clock.time)
    first = min(path.relative_to(out).parent for path in out.glob("date=*/hour=*/*"))
    for folder in (out, tmp_path / "compacted"):
        shutil.rmtree(folder / first)
    with pytest.raises(StoreError, match="lacks its beginning: the events 1 to 4 of the broker"):
        Compaction(out).run(broker.clock.time)
    result = command("journal", "forget", "--out", str(out))
    store = broker.core.state.store_id
    expected = f"removed 0 files\nthe events of the broker {store} begin with 5\n"
    assert (result.exit_code, result.stdout) == (0, expected)
    assert Compaction(out).run(broker.clock.time) == (0, 0)
    assert [row["seq"] for row in compacted(tmp_path / "compacted")] == list(range(5, 13))


def test_the_lines_of_a_seal_log_are_removed_only_on_request(
    broker: Broker, tmp_path: Path
) -> None:
    """A copy elsewhere may keep the files, and need the lines."""
    out = tmp_path / "journal"
    hourly(broker, out, 2)
    record = out / "_seals" / "trim.json"
    forgotten = ("journal", "forget", "--out", str(out), "--before", "2100-01-01")
    assert (command(*forgotten).exit_code, record.exists()) == (0, False)
    assert command(*forgotten, "--trim-seals").exit_code == 0
    assert json.loads(record.read_text()) == {broker.core.state.store_id: 7}
    assert record.read_text() == record.with_name("begin.json").read_text()


def sealed_late(broker: Broker, out: Path, target: Path) -> list[Path]:
    """Compact an hour before its last file is sealed, and once more; return the large files."""
    broker.submit()
    drained(broker, out)
    broker.submit()
    broker.clock.time += 3600.0
    Compaction(out, target).run(broker.clock.time)
    broker.clock.time -= 3600.0
    drained(broker, out)
    broker.clock.time += 3600.0
    assert Compaction(out, target).run(broker.clock.time) == (1, 1)
    return large(target)


def large(target: Path) -> list[Path]:
    return sorted(target.glob("date=*/hour=*/*.parquet"))


def test_a_large_file_is_removed_by_the_compaction_after_that_which_replaced_it(
    broker: Broker, tmp_path: Path
) -> None:
    """Readers of the earlier manifest may read it until then."""
    out, target = tmp_path / "journal", tmp_path / "compacted"
    replaced, whole = sealed_late(broker, out, target)
    assert (replaced.name[-12:], whole.name[-12:]) == ("-1-1.parquet", "-1-2.parquet")
    assert Compaction(out).run(broker.clock.time) == (0, 0)
    assert large(target) == [whole]
    assert [row["seq"] for row in compacted(target)] == [1, 2]


def test_a_large_file_with_events_that_no_other_file_has_stays(
    broker: Broker, tmp_path: Path
) -> None:
    """The manifest of an earlier day was restored, and the small files are missing."""
    out, target = tmp_path / "journal", tmp_path / "compacted"
    hourly(broker, out, 1)
    Compaction(out).run(broker.clock.time)
    earlier = (target / "manifest.json").read_bytes()
    hourly(broker, out, 1)
    Compaction(out).run(broker.clock.time)
    (target / "manifest.json").write_bytes(earlier)
    for path in out.glob("date=*/hour=*/*"):
        path.unlink()
    before = large(target)
    Compaction(out).run(broker.clock.time)
    assert large(target) == before
    assert len(before) == 2


def test_large_files_beside_a_lost_manifest_stay(broker: Broker, tmp_path: Path) -> None:
    out, target = tmp_path / "journal", tmp_path / "compacted"
    before = sealed_late(broker, out, target)
    (target / "manifest.json").unlink()
    Compaction(out).run(broker.clock.time)
    assert large(target) == before


def test_files_of_a_journal_are_not_removed_where_large_ones_are_beside_them(
    broker: Broker, tmp_path: Path
) -> None:
    out = tmp_path / "journal"
    hourly(broker, out, 1)
    before = sorted(out.glob("date=*/hour=*/*"))
    for _ in range(2):
        Compaction(out, out).run(broker.clock.time)
    assert set(before) < set(out.glob("date=*/hour=*/*"))


def test_a_large_file_that_was_replaced_is_forgotten_with_its_hour(
    broker: Broker, tmp_path: Path
) -> None:
    """Its events were declared forgotten; without --before no file is removed."""
    out, target = tmp_path / "journal", tmp_path / "compacted"
    hour = broker.clock.time // 3600 * 3600
    before = sealed_late(broker, out, target)
    broker.submit()
    drained(broker, out)
    store = broker.core.state.store_id
    assert forget(out) == (0, {store: 1})
    assert large(target) == before
    assert forget(out, before=hour + 3600.0) == (4, {store: 3})
    assert large(target) == []


def test_a_compaction_that_is_killed_leaves_what_was_there(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, target = tmp_path / "journal", tmp_path / "large"
    hourly(broker, out, 3)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(compaction, "write_manifest", killed)
        with pytest.raises(KeyboardInterrupt):
            Compaction(out, target).run(broker.clock.time)
    assert not (target / "manifest.json").exists()
    assert Compaction(out, target).run(broker.clock.time) == (6, 3)
    assert len(compacted(target)) == 12


@pytest.mark.parametrize("then", ["compact", "forget"])
def test_the_draft_of_a_compaction_that_was_killed_is_removed(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """It has events, too: also those of an hour that is to be forgotten."""
    out, target = tmp_path / "journal", tmp_path / "compacted"
    hour = broker.clock.time // 3600 * 3600
    sealed_late(broker, out, target)
    hourly(broker, out, 2)

    def killed(temporary: Path, _: object) -> None:
        temporary.write_bytes(b"PAR1")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(compaction, "write_tables", killed)
        with pytest.raises(KeyboardInterrupt):
            Compaction(out).run(broker.clock.time)
    [temporary_file] = target.glob("date=*/hour=*/_*.parquet")
    temporary_file = temporary_file.rename(
        temporary_file.with_name(temporary_file.name.replace("-3-6.", "-3-4."))
    )  # of a part
    if then == "compact":
        Compaction(out).run(broker.clock.time)
        assert [row["seq"] for row in compacted(target)] == list(range(1, 11))
    else:
        forget(out, before=hour + 7200.0)
    assert not temporary_file.exists()
    assert not list(target.glob("date=*/hour=*/_*"))


def test_a_compaction_and_a_forgetting_exclude_each_other(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second names the running command, and works when that has ended, even by an error."""
    out = tmp_path / "journal"
    hourly(broker, out, 2)
    monkeypatch.setattr(lock, "TIMEOUT", 0.0)
    works = rf"compacted is in use by eventmq journal %s \(process {os.getpid()}\)"
    with monkeypatch.context() as patch:
        patch.setattr(compaction, "write_manifest", lambda *_: forget(out))
        with pytest.raises(StoreError, match=works % "compact"):
            Compaction(out).run(broker.clock.time)
    with monkeypatch.context() as patch:
        patch.setattr(retention, "write_begins", lambda *_: Compaction(out).run(broker.clock.time))
        with pytest.raises(StoreError, match=works % "forget"):
            forget(out)
    assert Compaction(out).run(broker.clock.time) == (4, 2)
    assert forget(out) == (0, {broker.core.state.store_id: 1})


def test_a_compaction_waits_for_another_command(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cron may start both in the same minute."""
    out, other = tmp_path / "journal", contextlib.ExitStack()
    hourly(broker, out, 1)
    other.enter_context(hold_lock(tmp_path / "compacted", "eventmq journal forget"))
    waited: list[bool] = []

    def ends() -> None:
        waited.append((tmp_path / "compacted" / "manifest.json").exists())
        other.close()

    monkeypatch.setattr(lock.time, "sleep", lambda _: ends())
    assert Compaction(out).run(broker.clock.time) == (2, 1)
    assert waited == [False]


def test_a_torn_file_is_not_compacted(broker: Broker, tmp_path: Path) -> None:
    out = tmp_path / "journal"
    hourly(broker, out, 2)
    first = min(out.glob("date=*/hour=*/*"))
    first.write_bytes(first.read_bytes()[:-3])
    with pytest.raises(StoreError, match="is torn or cannot be read"):
        Compaction(out, tmp_path / "large").run(broker.clock.time)


def test_a_file_that_was_altered_is_not_compacted(broker: Broker, tmp_path: Path) -> None:
    """Else the large one would be right, and would hide it."""
    out = tmp_path / "journal"
    hourly(broker, out, 1)
    first = min(out.glob("date=*/hour=*/*"))
    pq.write_table(pq.ParquetFile(first).read(), first)
    with pytest.raises(StoreError, match="was altered after it was written"):
        Compaction(out, tmp_path / "large").run(broker.clock.time)


def _everything(folder: Path) -> dict[Path, tuple[int, bytes]]:
    """Return time and content of all files, and of folders their times."""
    return {
        path: (path.stat().st_mtime_ns, b"" if path.is_dir() else path.read_bytes())
        for path in [folder, *folder.rglob("*")]
    }


@pytest.mark.usefixtures("now")
def test_nothing_is_written_where_there_is_nothing_to_compact(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither beside a journal whose hour goes on, nor where all was compacted: who looks whether
    there is something to do need not be able to write.
    """
    out, target = tmp_path / "shared" / "journal", tmp_path / "shared" / "compacted"
    broker.submit()
    drained(broker, out)

    def compact() -> str:
        result = command("journal", "compact", "--out", str(out))
        assert result.exit_code == 0
        return result.stdout

    def unwritable(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    for done in (False, True):
        assert target.exists() is done
        before = _everything(tmp_path / "shared")
        with monkeypatch.context() as patch:
            patch.setattr(lock.os, "open", unwritable)
            assert compact() == "nothing to compact\n"
        assert _everything(tmp_path / "shared") == before
        broker.clock.time += 3600.0
        if not done:
            assert compact() == "compacted 1 files into 1\n"
    broker.submit()
    drained(broker, out)
    broker.clock.time += 3600.0
    monkeypatch.setattr(lock.os, "open", unwritable)
    code, message = failure("journal", "compact", "--out", str(out))
    assert (code, "Read-only file system" in message) == (1, True)


def test_there_must_be_a_journal_to_compact(tmp_path: Path) -> None:
    code, message = failure("journal", "compact", "--out", str(tmp_path / "none"))
    assert (code, message.count("\n")) == (1, 1)
    assert "there is no journal in" in message
    (tmp_path / "manifest.json").write_text("[")
    with pytest.raises(StoreError, match="is not the manifest of a compaction"):
        Compaction(tmp_path, tmp_path).run(0.0)


@pytest.mark.usefixtures("now")
def test_files_of_an_earlier_version_are_read_beside_those_of_this_one(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 1 had no actor and no operation: they are null."""
    out = tmp_path / "journal"
    with monkeypatch.context() as earlier:
        earlier.setattr(parquet, "SCHEMA_VERSION", 1)
        known = [c for c in parquet.COLUMNS if c.name not in {"actor", "operation"}]
        earlier.setattr(parquet, "COLUMNS", known)
        broker.submit()
        drained(broker, out)
    broker.call("pause", queue="default", actor="anna")
    drained(broker, out)
    versions = [pq.read_schema(path).metadata for path in sorted(out.rglob("*.parquet"))]
    assert [v[b"eventmq.schema_version"] for v in versions] == [b"1", b"2"]
    broker.clock.time += 7200.0
    command("journal", "compact", "--out", str(out))
    first, second = compacted(tmp_path / "compacted")
    assert (first["kind"], first["operation"], first["actor"]) == ("enqueued", None, None)
    assert (second["kind"], second["operation"], second["actor"]) == ("operation", "pause", "anna")
