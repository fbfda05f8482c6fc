"""How benchmarks compare with peers: what jobs note, what is asked for, what is left out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from benchmarks import bare
from benchmarks.figures import Figures
from benchmarks.peers import board, compare, measure, servers
from benchmarks.peers.catalog import PEERS
from benchmarks.peers.compare import ratios

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(board.FOLDER, str(tmp_path))
    monkeypatch.setattr(board, "_mine", None)
    return tmp_path


def test_a_board_counts_the_starts_of_all_processes(folder: Path) -> None:
    seen = board.Board(folder)
    board.note(0.5)
    code = "from benchmarks.peers.board import note; note(0.25); note(0.125)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
    assert seen.count() == 3
    assert sorted(seen.delays()) == [0.125, 0.25, 0.5]
    assert seen.processes() == 2
    seen.clear()
    assert seen.count() == 0
    board.note()
    assert seen.count() == 1


def test_a_board_counts_what_threads_note_at_the_same_time(folder: Path) -> None:
    """The first notes of all of them find no file yet: it is made once."""
    begin = threading.Barrier(8)

    def run() -> None:
        begin.wait()
        for _ in range(500):
            board.note(0.5)

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 4000 == board.Board(folder).count()
    assert {0.5} == set(board.Board(folder).delays())


def test_what_a_server_starts_in_a_session_of_its_own_is_of_its_kin() -> None:
    """As PostgreSQL starts what serves a connection."""
    started = "subprocess.Popen(['sleep', '60'], start_new_session=True)"
    code = f"import subprocess; child = {started}; print(child.pid, flush=True); child.wait()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        child = int(server.stdout.readline())
        try:
            assert measure.descendants_of([server.pid]) == {server.pid, child}
        finally:
            os.kill(child, signal.SIGKILL)
    assert measure.descendants_of([server.pid]) == {server.pid}, "a process is left"


def test_a_peer_that_fails_is_left_out_and_told_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(name: str, *_: object) -> dict[str, float]:
        if name == "rq":
            raise RuntimeError("its worker died")
        return {"per_second": 1.0}

    monkeypatch.setattr(compare, "one_run", run)
    figures = Figures("drain")
    compare.compare(figures, "drain", ["rq", "huey-redis"])
    assert ["eventmq per_second", "huey-redis per_second"] == list(figures.series)
    assert "rq is left out: its worker died" in capsys.readouterr().err


def test_ratios_are_of_medians_and_of_what_both_measured() -> None:
    figures = Figures("drain")
    for ours, theirs in ((100.0, 10.0), (300.0, 30.0), (200.0, 25.0)):
        figures.add(**{"eventmq per_second": ours, "rq per_second": theirs, "rq other": 1.0})
        figures.add(**{"eventmq patience_s": 5.0, "rq patience_s": 5.0})
    assert list(ratios(figures, "drain", ["rq", "huey-redis"])) == [
        "  drain per_second: 8 times that of rq"
    ]


def test_what_keeps_jobs_in_postgresql_is_compared_as_well() -> None:
    figures = Figures("drain")
    figures.add(**{"eventmq per_second": 100.0, "eventmq-postgresql per_second": 50.0})
    figures.add(**{"pgqueuer per_second": 10.0})
    assert list(ratios(figures, "drain", ["eventmq-postgresql", "pgqueuer"])) == [
        "  drain per_second: 10 times that of pgqueuer",
        "  drain per_second: with PostgreSQL 5 times that of pgqueuer",
    ]


def test_two_systems_on_one_kind_of_server_name_its_package_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def version(query: list[str], **_: object) -> str:
        asked.append(query[-1])
        return "15\n"

    monkeypatch.setattr(subprocess, "check_output", version)
    versions = servers.server_versions(["postgresql", "eventmq-postgresql", "none"])
    assert versions == {"postgresql": "15"}
    assert asked == ["postgresql"]


def test_so_many_processes_of_a_worker_are_started_and_waited_for(tmp_path: Path) -> None:
    code = f"import os; open(f'{tmp_path}/{{os.getpid()}}', 'w').close()"
    command = [sys.executable, "-m", "benchmarks.peers.several", "3", "-c", code]
    subprocess.run(command, check=True, cwd=ROOT)
    assert len(list(tmp_path.iterdir())) == 3


def test_a_server_that_is_not_there_is_named_with_its_package() -> None:
    with pytest.raises(servers.Missing, match="apt-get install no-such-package"):
        servers.program("no-such-server", "no-such-package")


def test_every_peer_says_what_it_promises_and_has_a_server() -> None:
    for peer in PEERS.values():
        assert peer.server in servers.SERVERS
        assert peer.on_disk.startswith(("yes", "no"))
        assert peer.killed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["drain", "--against", "sidekiq"], "no peer is called sidekiq; there are: celery-redis"),
        (["backlog", "--against", "rq"], "backlog has no peers; with --against: enqueue_one"),
        (["report", "no such folder"], "no such folder has no JSON files"),
    ],
)
def test_what_cannot_be_compared_is_said(arguments: list[str], said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        capture_output=True, text=True, cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert said in done.stderr


def test_a_run_against_more_peers_is_shorter_so_that_all_fit_into_the_time() -> None:
    assert compare.span("flow", ["rq"], 60.0) == compare.SPAN
    assert compare.span("flow", ["rq", "saq"], 22.0) == pytest.approx((22.0 - 3 * 4) / 3)
    assert compare.span("drain", ["rq"], 1.0) == 1.0
    slow, quick = (
        compare.span("flow", ["celery-rabbitmq"], 20.0),
        compare.span("flow", ["rq"], 20.0),
    )
    assert slow < quick


@pytest.mark.parametrize(("only", "syncs"), [("receipts", 1), ("results", 2), ("", 2)])
def test_a_bare_call_waits_for_a_sync_each_way(tmp_path: Path, only: str, syncs: int) -> None:
    synced = tmp_path / "synced"
    times = bare.times_of(20, synced, only=only)
    assert len(times) == 20
    assert min(times) > 0.0
    assert synced.read_bytes().count(b"x" * 4096) == syncs * (20 + bare.WARM)
