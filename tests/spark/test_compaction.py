"""``eventmq journal compact``: small files of hours that have ended, as one."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from eventmq.errors import StoreError
from eventmq_contrib.journal.compaction import Compaction
from eventmq_contrib.journal.parquet import read_rows
from tests.broker_harness import Broker
from tests.spark.journal_harness import command, drained, failure

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


def compacted(out: Path) -> list[dict[str, Any]]:
    manifest = json.loads((out / "manifest.json").read_text())
    rows = [row for entry in manifest["files"] for row in read_rows(out / entry["path"])]
    return sorted(rows, key=lambda row: row["seq"])


def test_hours_that_have_ended_are_compacted(broker: Broker, tmp_path: Path) -> None:
    """Beside the journal, whose own files stay; the newest hour has not ended."""
    out = tmp_path / "journal"
    hourly(broker, out, 3)
    before = sorted(out.glob("date=*/hour=*/*"))
    result = command("journal", "compact", "--out", str(out))
    assert (result.exit_code, result.stdout) == (0, "compacted 4 files into 2\n")
    assert sorted(out.glob("date=*/hour=*/*")) == before
    rows = compacted(tmp_path / "compacted")
    assert [row["seq"] for row in rows] == list(range(1, 9))
    small = [row for path in before[:4] for row in read_rows(path)]
    assert rows == sorted(small, key=lambda row: row["seq"])


def test_compaction_goes_on_where_it_was(broker: Broker, tmp_path: Path) -> None:
    out, target = tmp_path / "journal", tmp_path / "large"
    hourly(broker, out, 2)
    assert Compaction(out, target).run() == (2, 1)
    assert Compaction(out, target).run() == (0, 0)
    hourly(broker, out, 2)
    assert Compaction(out, target).run() == (4, 2)
    assert [row["seq"] for row in compacted(target)] == list(range(1, 13))


def test_days_that_were_removed_are_forgotten(broker: Broker, tmp_path: Path) -> None:
    """From the journal and from what was compacted; what is left is as it was."""
    out, target = tmp_path / "journal", tmp_path / "large"
    hourly(broker, out, 3)
    assert Compaction(out, target).run() == (4, 2)
    first = min(path.relative_to(out).parent for path in out.glob("date=*/hour=*/*"))
    for folder in (out, target):
        shutil.rmtree(folder / first)
    assert Compaction(out, target).run() == (0, 0)
    assert [row["seq"] for row in compacted(target)] == list(range(5, 9))


def test_a_compaction_that_is_killed_leaves_what_was_there(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, target = tmp_path / "journal", tmp_path / "large"
    hourly(broker, out, 3)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Compaction, "_write", killed)
        with pytest.raises(KeyboardInterrupt):
            Compaction(out, target).run()
    assert not (target / "manifest.json").exists()
    assert Compaction(out, target).run() == (4, 2)
    assert len(compacted(target)) == 8


def test_a_torn_file_is_not_compacted(broker: Broker, tmp_path: Path) -> None:
    out = tmp_path / "journal"
    hourly(broker, out, 2)
    first = min(out.glob("date=*/hour=*/*"))
    first.write_bytes(first.read_bytes()[:-3])
    with pytest.raises(StoreError, match="is torn: move it away"):
        Compaction(out, tmp_path / "large").run()


def test_there_must_be_a_journal_to_compact(tmp_path: Path) -> None:
    code, said = failure("journal", "compact", "--out", str(tmp_path / "none"))
    assert (code, said.count("\n")) == (1, 1)
    assert "there is no journal in" in said
    (tmp_path / "manifest.json").write_text("[")
    with pytest.raises(StoreError, match="is not the manifest of a compaction"):
        Compaction(tmp_path, tmp_path).run()
