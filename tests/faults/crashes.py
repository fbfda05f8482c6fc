"""Crashes: the stores that a crash leaves at any byte that a broker writes.

A commit appends frames to the log, then syncs it. So a crash leaves the log cut at some byte; after
the last sync, frames may also be missing in the middle. `Tape` records what each commit of a script
wrote, and which receipts had been sent by then.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from bisect import bisect_right
from typing import TYPE_CHECKING
from unittest.mock import patch

from eventmq.plugins.database import connect
from eventmq.plugins.queue_stores.sqlite import wal
from eventmq.plugins.queue_stores.sqlite.disk import FILE_NAME
from eventmq.plugins.queue_stores.sqlite.wal import inspect_log
from tests.faults.script import Script, finish, run_script
from tests.support.broker_harness import FakeClock
from tests.support.store_rules import audit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = ["FINAL", "HEADER", "Lost", "Tape", "states"]

#: Bytes before the first frame, of a page, and of a frame.
HEADER, PAGE = 32, 4096
FRAME = 24 + PAGE

FINAL = {"succeeded", "failed", "cancelled", "expired"}


class Lost(AssertionError):
    """A guarantee was broken after a crash."""


class Tape:
    """Run of a script, with the length of the log after each commit.

    Args:
        folder: Folder of the stores.
        jobs: Number of jobs of the script.
    """

    def __init__(self, folder: Path, jobs: int) -> None:
        self.folder = folder
        self.ends: list[int] = []
        self.times: list[float] = []
        with patch.object(wal, "NOTIFY_FRAMES", 1 << 30):  # keep everything in the log
            script = Script(folder / "live")
            path = folder / "live" / FILE_NAME
            log = path.with_name(f"{FILE_NAME}-wal")

            def note() -> None:
                self.ends.append(log.stat().st_size)
                self.times.append(script.clock.time)

            note()
            script.ended = note
            run_script(script, jobs)
        self.promises, self.requests = script.promises, script.requests
        self.database, self.log = path.read_bytes(), log.read_bytes()
        assert len(self.log) == self.ends[-1]
        script.close()
        shutil.rmtree(folder / "live")
        path = self.write_store("moved", self.log) / FILE_NAME
        with contextlib.closing(connect(path, busy=0.0)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self.moved = path.read_bytes()

    @property
    def frames(self) -> int:
        """Number of frames that the script wrote."""
        return (len(self.log) - self.ends[0]) // FRAME

    def points(self) -> Iterator[int]:
        """Yield the offsets of crashes from the last on: the end and the middle of each frame."""
        for end in range(len(self.log), self.ends[0] - 1, -FRAME):
            yield end
            if end > self.ends[0]:
                yield end - FRAME // 2

    def commits_at(self, offset: int) -> int:
        """Return how many commits are complete in a log that ends at an offset."""
        return bisect_right(self.ends, offset) - 1

    def write_store(self, name: str, log: bytes, database: bytes = b"") -> Path:
        """Write a store as a crash leaves it; return its folder."""
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / FILE_NAME).write_bytes(database or self.database)
        (folder / f"{FILE_NAME}-wal").write_bytes(log)
        return folder

    # Reading a cut log

    def check_cuts(self, offsets: Sequence[int]) -> int:
        """Check that a log cut at an offset has exactly the commits that were complete.

        No commit with a receipt is missing, none is read in part, and the cut is not taken for
        damage.
        """
        folder = self.write_store("sweep", self.log)
        log = folder / f"{FILE_NAME}-wal"
        for offset in sorted(offsets, reverse=True):
            os.truncate(log, offset)
            self._expect(folder, self.commits_at(offset), offset)
        return len(offsets)

    def holes(self, seed: int, number: int) -> int:
        """Check the same with a frame missing in the middle of the last commit."""
        chance = random.Random(seed)
        wide = [n for n in range(len(self.ends) - 1) if self.ends[n + 1] - self.ends[n] > FRAME]
        chance.shuffle(wide)
        for commit in wide[:number]:
            start, end = self.ends[commit], self.ends[commit + 1]
            hole = start + FRAME * chance.randrange((end - start) // FRAME)
            log = self.log[:hole] + bytes(FRAME) + self.log[hole + FRAME : end]
            self._expect(self.write_store("hole", log), commit, hole)
        return min(number, len(wide))

    def _expect(self, folder: Path, commits: int, offset: int) -> None:
        end = inspect_log(folder / FILE_NAME)
        frames = (self.ends[commits] - HEADER) // FRAME
        if end.frames != frames or end.damaged:
            raise Lost(f"crash at byte {offset} of the log: {end}, {frames} pages were whole")

    # Restarting

    def resume(self, commits: int) -> dict[str, int]:
        """Start a broker on the store that a crash after some commits leaves, and run all jobs."""
        folder = self.write_store("resume", self.log[: self.ends[commits]])
        return self._restart_and_run(folder, commits)

    def resume_torn(self, seed: int) -> dict[str, int]:
        """Do so after a crash during a checkpoint, with some pages of the log in the database."""
        chance = random.Random(seed)
        pages = max(len(self.database), len(self.moved)) // PAGE
        mixed = b"".join(
            (self.moved if chance.random() < 0.5 else self.database)[n * PAGE : (n + 1) * PAGE]
            or bytes(PAGE)
            for n in range(pages)
        )
        return self._restart_and_run(
            self.write_store("resume", self.log, mixed), len(self.ends) - 1
        )

    def _restart_and_run(self, folder: Path, commits: int) -> dict[str, int]:
        promises = self.promises
        script = Script(folder, FakeClock(self.times[commits]))
        with contextlib.closing(script):
            script._ids = 1_000_000
            confirmed = [i for i, n in promises.confirmed.items() if n <= commits]
            self._must_know(script, confirmed, commits)
            for sent, ids, message in self.requests:  # resend requests without a receipt
                if sent <= commits and not set(ids) <= set(confirmed):
                    script.ask(ids, message)
            script.join("second")
            finish(script)
            submitted = [i for i, n in promises.submitted.items() if n <= commits]
            self._must_end(script, set(confirmed) | set(script.promises.confirmed), commits)
            executed = {job_id for _, job_id in script.promises.executions}
        settled = {i for i, n in promises.settled.items() if n <= commits}
        if again := settled & executed:
            raise Lost(f"after {commits} commits: ended jobs run again: {sorted(again)[:5]}")
        if phantoms := executed - set(submitted):
            raise Lost(
                f"after {commits} commits: jobs that were never submitted: {sorted(phantoms)[:5]}"
            )
        if findings := audit(folder):
            raise Lost(f"after {commits} commits: {findings}")
        before = {job_id for n, job_id in promises.executions if n <= commits}
        return {"confirmed": len(confirmed), "twice": len(before & executed)}

    def _must_know(self, script: Script, ids: Sequence[str], commits: int) -> None:
        missing = [i for i, state in states(script, ids).items() if not state]
        if missing:
            raise Lost(
                f"after {commits} commits: {len(missing)} confirmed jobs are lost: {missing[:5]}"
            )

    def _must_end(self, script: Script, ids: set[str], commits: int) -> None:
        open_ = {i: s for i, s in states(script, sorted(ids)).items() if s not in FINAL}
        if open_:
            raise Lost(f"after {commits} commits: jobs that do not end: {open_}")


def states(script: Script, ids: Sequence[str]) -> dict[str, str]:
    """Return the states of jobs by id, "" for an unknown one."""
    states_by_id: dict[str, str] = {}
    for start in range(0, len(ids), 500):
        states_by_id |= dict(script.call("state", ids=list(ids[start : start + 500])))
    return states_by_id
