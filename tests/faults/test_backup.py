"""Backups of a running broker's store, and brokers that start from a backup."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from eventmq import EventMQ
from eventmq.cli.program import program
from eventmq.cli.store import Copies
from eventmq.clock import SystemClock
from eventmq.errors import StoreError
from eventmq.plugins.queue_stores.sqlite.disk import FILE_NAME
from eventmq.plugins.queue_stores.sqlite.reading import SqliteEventLogReader
from eventmq.plugins.queue_stores.sqlite.store import SqliteStore
from eventmq.plugins.queue_stores.sqlite.tools import copy
from eventmq.plugins.queue_stores.sqlite.tools.fsck import SqliteTools
from eventmq.store.reads import ReadEvents
from eventmq.store.writes import SealEvents
from tests.faults.script import Script, finish, run_script
from tests.support.shell import Shell
from tests.support.store_rules import audit
from tests.support.system import until

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Script]:
    """Return a broker that has worked for a while."""
    script = Script(tmp_path / "data")
    run_script(script, 150)
    yield script
    script.close()


def back_up(folder: Path, to: Path, *, replace: bool = False) -> Any:
    return SqliteTools(folder / FILE_NAME, durable=True).backup(to, replace=replace)


def run(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(program, ["backup", *arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


def test_a_broker_continues_from_a_backup(script: Script, tmp_path: Path) -> None:
    """Every job with a receipt before the backup ends there too."""
    back_up(tmp_path / "data", tmp_path / "copy")
    confirmed = dict(script.promises.confirmed)
    script.batch(30, "task:later,content-type:json")
    assert audit(tmp_path / "copy") == []
    restored = Script(tmp_path / "copy", script.clock)
    restored.join("another")
    finish(restored)
    states = dict(restored.call("state", ids=list(confirmed)))
    assert set(states.values()) <= {"succeeded", "failed", "cancelled"}, states
    later = [job_id for job_id in script.promises.confirmed if job_id not in confirmed]
    assert {state for _, state in restored.call("state", ids=later)} == {""}
    assert audit(tmp_path / "copy") == []
    restored.close()


def test_a_worker_that_ran_on_after_the_backup_is_recognised(
    script: Script, tmp_path: Path
) -> None:
    """It has received chunks, and holds one, that the backup does not have."""
    back_up(tmp_path / "data", tmp_path / "copy")
    script.work(lambda job_id, attempt: False, chunks=4)
    seen = script.received + 2
    restored = Script(tmp_path / "copy", script.clock)
    restored.join("first", received=seen, held=(seen,))
    finish(restored)
    confirmed = list(script.promises.confirmed)
    assert set(dict(restored.call("state", ids=confirmed)).values()) <= {
        "succeeded", "failed", "cancelled",
    }  # fmt: skip
    restored.close()


def test_a_restored_store_has_an_id_of_its_own(script: Script, tmp_path: Path) -> None:
    """Resent messages and the journal belong to the original store."""
    script.store.submit([SealEvents("journal", 5, 1.0, 30.0)])
    script.store.finished()
    first, epoch = script.core.state.store_id, script.core.state.epoch
    back_up(tmp_path / "data", tmp_path / "copy")
    reader = SqliteEventLogReader(tmp_path / "copy")
    ids = {first, reader.store_id}
    reader.close()
    for _ in range(2):
        store = SqliteStore(tmp_path / "copy", SystemClock(), reserve=0)
        recovered = store.open()
        store.submit([ReadEvents(0, 1 << 30)])
        [[(rows, head)]] = store.finished()
        store.close()
        ids.add(recovered.store_id)
        assert recovered.epoch > epoch + 1000
        assert (head.journal, head.sealed) == ("", 0)
        assert rows
    assert len(ids) == 3, "opened once more it is the same"


def test_two_restores_of_one_backup_are_two_stores(script: Script, tmp_path: Path) -> None:
    back_up(tmp_path / "data", tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / FILE_NAME).write_bytes((tmp_path / "a" / FILE_NAME).read_bytes())
    ids = set()
    for name in "ab":
        store = SqliteStore(tmp_path / name, SystemClock(), reserve=0)
        ids.add(store.open().store_id)
        store.close()
    assert len(ids) == 2


def test_a_failed_backup_leaves_the_earlier_one(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves no other file."""
    target = tmp_path / "copy"
    back_up(tmp_path / "data", target)
    before = (target / FILE_NAME).read_bytes()

    def broken(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(copy, "sync", broken)
    with pytest.raises(StoreError, match="nothing was written"):
        back_up(tmp_path / "data", target, replace=True)
    assert (target / FILE_NAME).read_bytes() == before
    assert sorted(path.name for path in target.iterdir()) == ["lock", FILE_NAME]


def test_a_backup_is_for_its_owner_only(script: Script, tmp_path: Path) -> None:
    """Whatever the umask."""
    before = os.umask(0)
    try:
        back_up(tmp_path / "data", tmp_path / "copy")
    finally:
        os.umask(before)
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in (tmp_path / "copy").iterdir()}
    assert {FILE_NAME: "0o600", "lock": "0o600"} == modes
    assert "0o700" == oct((tmp_path / "copy").stat().st_mode & 0o777)


def test_a_store_is_not_overwritten(script: Script, tmp_path: Path) -> None:
    """Unless the command allows it, and never while it is in use."""
    data, target = tmp_path / "data", tmp_path / "copy"
    command = [str(target), "--data-dir", str(data), "--json"]
    code, output, _ = run(*command)
    assert (code, json.loads(output)["path"]) == (0, str(target / FILE_NAME))
    code, _, errors = run(*command)
    assert (code, "already" in errors) == (1, True)
    assert run(*command, "--replace")[0] == 0
    assert "in use by another broker" in run(str(data), "--data-dir", str(data), "--replace")[2]
    used = Script(target)
    assert run(*command, "--replace")[0] == 1, "a broker runs there"
    used.store._db.execute("PRAGMA wal_autocheckpoint")
    log = (target / f"{FILE_NAME}-wal").read_bytes()
    used.close()
    (target / f"{FILE_NAME}-wal").write_bytes(log)
    assert "was in use and has a log" in run(*command, "--replace")[2]


def test_a_backup_under_load_has_every_confirmed_job(tmp_path: Path) -> None:
    """With a real broker: its clients are served meanwhile, and a broker starts on the copy."""
    shell = Shell(tmp_path)
    broker = shell.start("broker", "--bind", "tcp://127.0.0.1:0", "--data-dir", "data")
    app = EventMQ("client", broker=broker.ready()["main"])

    @app.task(name="shop.order")
    def task(number: int) -> None:
        """Stand in for a task; there is no worker."""

    confirmed: list[str] = []
    stop = threading.Event()

    def submit() -> None:
        while not stop.is_set():
            confirmed.extend(job.id for job in task.map([(n,) for n in range(200)]))

    client = threading.Thread(target=submit)
    client.start()
    try:
        until(lambda: len(confirmed) >= 2000, "it is under load")
        for copy in range(3):
            before = len(confirmed)
            assert back_up(tmp_path / "data", tmp_path / f"copy{copy}").size > 0
            assert len(confirmed) >= before
    finally:
        stop.set()
        client.join()
        app.close()
        shell.close()
    assert audit(tmp_path / "copy2") == []
    restored = Shell(tmp_path)
    broker = restored.start("broker", "--bind", "tcp://127.0.0.1:0", "--data-dir", "copy2")
    app = EventMQ("client", broker=broker.ready()["main"])
    try:
        early = confirmed[:before]
        states = [app.job(job_id).state for job_id in early[:: max(1, len(early) // 200)]]
        assert set(states) == {"queued"}
        assert app.ask("queues")[0]["waiting"] >= len(early)
    finally:
        app.close()
        restored.close()


def test_copies_are_made_at_times_and_the_newest_are_kept(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that are not copies, or on which a broker was started, stay."""
    copies = tmp_path / "copies"
    (copies / "20200101T000000Z").mkdir(parents=True)  # a copy that was killed
    (copies / "20200101T000000Z" / ".queue.sqlite.7.tmp").touch()
    (copies / "20200102T000000Z").mkdir()
    (copies / "20200102T000000Z" / "ballast").touch()
    (copies / "notes").mkdir()
    monkeypatch.setattr("eventmq.cli.store.ticks", lambda every: iter([None] * 3))
    code, out, errors = run(
        str(copies), "--data-dir", str(tmp_path / "data"), "--every", "60", "--keep", "2", "--json"
    )
    assert (0, "") == (code, errors)
    made = [Path(json.loads(line)["path"]).parent.name for line in out.splitlines()]
    assert 4 == len(set(made))
    assert made == sorted(made), "in order, though all were made within a second"
    assert {*made[-2:], "20200102T000000Z", "notes"} == {each.name for each in copies.iterdir()}
    assert audit(copies / made[-1]) == []


def test_a_copy_is_the_newest_though_the_clock_was_set_back(script: Script, tmp_path: Path) -> None:
    (tmp_path / "copies" / "29990101T000000Z").mkdir(parents=True)
    made = Copies(SqliteTools(tmp_path / "data" / FILE_NAME, durable=True), tmp_path / "copies", 1)
    assert "29990101T000001Z" == Path(made.make().path).parent.name
    assert ["29990101T000001Z"] == [each.name for each in (tmp_path / "copies").iterdir()]


def test_a_copy_that_fails_is_logged_and_tried_again(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Except for the first one, before the copies are known to work."""
    copies, working = tmp_path / "copies", [True, False, True]

    def sync(path: Path) -> None:
        if not working[0]:
            raise OSError(28, "No space left on device")

    def ticks(every: float) -> Iterator[None]:
        assert 60 == every
        while len(working) > 1:
            working.pop(0)
            yield

    monkeypatch.setattr(copy, "sync", sync)
    monkeypatch.setattr("eventmq.cli.store.ticks", ticks)
    command = (str(copies), "--data-dir", str(tmp_path / "data"), "--every", "60")
    code, out, errors = run(*command)
    assert (0, 2, 1) == (code, len(out.splitlines()), errors.count("error: cannot write"))
    assert 2 == len(list(copies.iterdir())), "the one that failed left nothing"
    working[:] = [False]
    code, out, errors = run(*command)
    assert (1, "", 1) == (code, out, errors.count("error: cannot write"))


def test_copies_come_until_the_command_is_ended(script: Script, tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    command = shell.start("backup", "copies", "--data-dir", "data", "--every", "1")
    try:
        lines = [command.line() for _ in range(2)]
        assert 0 == command.stop()
    finally:
        shell.close()
    folders = [Path(line.partition(": ")[0]).parent.name for line in lines]
    assert folders == sorted(set(folders))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--keep", "3"), "--keep is the number of copies that --every keeps"),
        (("--every", "60", "--replace"), "--every never replaces a backup"),
        (("--every", "0"), "--every"),
        (("--every", "60", "--keep", "0"), "--keep"),
    ],
)
def test_wrong_options_of_copies_are_wrong_usage(
    tmp_path: Path, options: tuple[str, ...], why: str
) -> None:
    code, _, errors = run(str(tmp_path / "copies"), *options)
    assert (2, True) == (code, why in errors), errors
    assert not (tmp_path / "copies").exists()
