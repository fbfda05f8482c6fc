"""Damages the files of a store at random, and diagnoses the result."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections import Counter
from operator import ne
from typing import TYPE_CHECKING

from eventmq.errors import StoreError
from eventmq.plugins.queue_stores.sqlite.disk import FILE_NAME
from eventmq.plugins.queue_stores.sqlite.schema import bucket_name, buckets
from eventmq.plugins.queue_stores.sqlite.tools.fsck import SqliteTools
from eventmq.plugins.queue_stores.sqlite.wal import inspect_log
from eventmq.store.reads import FindJobs
from tests.faults.crashes import PAGE
from tests.faults.script import Script, Stuck, finish, run_script
from tests.support.broker_harness import FakeClock

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ALTERED", "DIAGNOSES", "LOST", "Diagnosis", "Store", "is_cut"]

#: Results of a damage, the best first: the broker did not start; it ended, and gave no further
#: receipt; an error named the damaged jobs; no effect; only fsck finds it.
DIAGNOSES = ("refused", "ended", "named", "harmless", "found by fsck")

#: Forbidden result: jobs are lost without an error. Allowed if the log was cut, since a cut log
#: looks like one that was never longer.
LOST = "lost in silence"

#: Forbidden result: a job ran with another value, or has another result.
ALTERED = "value altered"

#: Kinds of damage; the frequent ones are listed more than once.
KINDS = ("flip", "flip", "flip", "garbage", "zeros", "truncate")

Diagnosis = tuple[str, str]


class Store:
    """Store of which copies are damaged.

    Args:
        folder: Folder of the copies.
        killed: Whether its broker was killed, so that its commits are in the log; otherwise they
            are in the database file.
        jobs: Jobs of the script that fills it.
    """

    def __init__(self, folder: Path, *, killed: bool, jobs: int = 100) -> None:
        self.folder = folder
        self.killed = killed
        script = Script(folder / "live")
        run_script(script, jobs)
        self.confirmed = sorted(script.promises.confirmed)
        self.now = script.clock.time
        if killed:
            shutil.copytree(folder / "live", folder / "sound")
        script.close()
        if not killed:
            shutil.copytree(folder / "live", folder / "sound")
        (folder / "sound" / f"{FILE_NAME}-shm").unlink(missing_ok=True)

    def damage(self, seed: int) -> tuple[str, Diagnosis]:
        """Damage a copy; return the damage and its diagnosis."""
        chance = random.Random(seed)
        folder = self.folder / "damaged"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.folder / "sound", folder)
        path = folder / (f"{FILE_NAME}-wal" if self.killed else FILE_NAME)
        data = bytearray(path.read_bytes())
        kind = chance.choice(KINDS)
        offset = chance.randrange(len(data))
        if kind == "flip":
            data[offset] ^= 1 << chance.randrange(8)
        elif kind == "truncate":
            del data[offset:]
        else:
            start, size = offset // PAGE * PAGE, min(PAGE, len(data) - offset // PAGE * PAGE)
            data[start : start + size] = (
                chance.randbytes(size) if kind == "garbage" else bytes(size)
            )
        path.write_bytes(data)
        end = inspect_log(folder / FILE_NAME) if self.killed else None
        torn = ", as of a crash" if end is not None and end.beyond == 1 else ""
        return f"{kind} at byte {offset} of {path.name}{torn}", self._diagnose(folder)

    def _diagnose(self, folder: Path) -> Diagnosis:
        tools = SqliteTools(folder / FILE_NAME, durable=True)
        try:
            findings = "; ".join(f"{f.check}: {f.found}" for f in tools.check())
        except StoreError as error:
            findings = str(error)
        try:
            script = Script(folder, FakeClock(self.now))
        except StoreError as error:
            return "refused", str(error)
        with contextlib.closing(script):
            try:
                script.join("second")
                finish(script)
                wrong = self._compare(script)
            except StoreError as error:
                return "ended", str(error)
            except Stuck as error:
                return ("found by fsck", findings) if findings else (LOST, str(error))
        named = wrong.pop("named", 0)
        if wrong.keys() & {"bodies", "results"}:
            return ALTERED, str(dict(wrong))
        if named:
            return "named", f"{named} jobs"
        if findings:
            return "found by fsck", findings
        return (LOST, str(dict(wrong))) if wrong else ("harmless", "")

    def _compare(self, script: Script) -> Counter[str]:
        """Compare the executed jobs and their results with the submitted ones."""
        wrong: Counter[str] = Counter(bodies=len(script.promises.altered))
        script.store.submit([FindJobs(self.confirmed)])
        [answer] = script.store.finished()
        if isinstance(answer, Exception):
            raise answer
        [stored] = answer
        for job_id in self.confirmed:
            row = stored.get(job_id)
            if row is None:
                wrong["ids" if self._has_altered_id(script, job_id) else "missing"] += 1
            elif row.job.state == "succeeded" and row.result != job_id.encode():
                wrong["results"] += 1
            elif row.job.damaged or "is damaged in the store" in str(row.result):
                wrong["named"] += 1
        return +wrong

    def _has_altered_id(self, script: Script, job_id: str) -> bool:
        """Return whether the outcome of this job is stored under an id with one altered byte."""
        db, expected = script.store._db, job_id.encode()
        known_ids = {job_id.encode() for job_id in (*self.confirmed, *script.promises.intended)}
        for bucket in buckets(db):
            # A damaged id need not be text.
            for (other,) in db.execute(f"SELECT CAST(id AS BLOB) FROM {bucket_name(bucket)}"):
                differs = sum(map(ne, other, expected)) if len(other) == len(expected) else -1
                if differs == 1 and other not in known_ids:
                    return True
        return False


def is_cut(damage: str) -> bool:
    """Return whether a damage cut the log, or looks like a half-written last commit.

    So it does where the end of the commit before the last is damaged as well.
    """
    return (damage.startswith("truncate") and damage.endswith("-wal")) or "-wal, as of" in damage
