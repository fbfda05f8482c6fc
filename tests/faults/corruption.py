"""Damages the files of a store at random, and says what comes of it."""

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
from eventmq.store.reads import FindJobs
from tests.faults.crashes import PAGE
from tests.faults.script import Script, Stuck, finish, run_script
from tests.support.broker_harness import FakeClock

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ALTERED", "DIAGNOSES", "LOST", "Diagnosis", "Store", "is_cut"]

#: What came of a damage, the best first: the broker did not start; it ended, without another
#: receipt; jobs were answered with an error that names them; nothing came of it; only fsck finds
#: it.
DIAGNOSES = ("refused", "ended", "named", "harmless", "found by fsck")

#: What must not be, unless the log was cut: that cannot be told from one that was never longer.
LOST = "lost in silence"

#: What must not be: a job ran with another value, or one is answered.
ALTERED = "value altered"

#: What is done, and how often.
KINDS = ("flip", "flip", "flip", "garbage", "zeros", "truncate")

Diagnosis = tuple[str, str]


class Store:
    """A store that is damaged again and again.

    Args:
        folder: For the copies.
        killed: Its broker was killed, so what it did is in the log; else all is in the file.
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
        """Damage a copy; return what was done, and what came of it."""
        chance = random.Random(seed)
        folder = self.folder / "damaged"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.folder / "sound", folder)
        path = folder / (f"{FILE_NAME}-wal" if self.killed else FILE_NAME)
        data = bytearray(path.read_bytes())
        what = chance.choice(KINDS)
        place = chance.randrange(len(data))
        if what == "flip":
            data[place] ^= 1 << chance.randrange(8)
        elif what == "truncate":
            del data[place:]
        else:
            start, size = place // PAGE * PAGE, min(PAGE, len(data) - place // PAGE * PAGE)
            data[start : start + size] = (
                chance.randbytes(size) if what == "garbage" else bytes(size)
            )
        path.write_bytes(data)
        return f"{what} at byte {place} of {path.name}", self._diagnose(folder)

    def _diagnose(self, folder: Path) -> Diagnosis:
        tools = SqliteTools(folder / FILE_NAME, durable=True)
        try:
            found = "; ".join(f"{f.check}: {f.found}" for f in tools.check())
        except StoreError as error:
            found = str(error)
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
                return ("found by fsck", found) if found else (LOST, str(error))
        named = wrong.pop("named", 0)
        if wrong.keys() & {"bodies", "results"}:
            return ALTERED, str(dict(wrong))
        if named:
            return "named", f"{named} jobs"
        if found:
            return "found by fsck", found
        return (LOST, str(dict(wrong))) if wrong else ("harmless", "")

    def _compare(self, script: Script) -> Counter[str]:
        """Compare what the broker ran and answers with what was submitted."""
        wrong: Counter[str] = Counter(bodies=len(script.promises.altered))
        script.store.submit([FindJobs(self.confirmed)])
        [answer] = script.store.finished()
        if isinstance(answer, Exception):
            raise answer
        [found] = answer
        for job_id in self.confirmed:
            known = found.get(job_id)
            if known is None:
                wrong["ids" if self._has_stranger(script, job_id) else "missing"] += 1
            elif known.job.state == "succeeded" and known.result != job_id.encode():
                wrong["results"] += 1
            elif known.job.damaged or "is damaged in the store" in str(known.result):
                wrong["named"] += 1
        return +wrong

    def _has_stranger(self, script: Script, job_id: str) -> bool:
        """Return whether there is an end of a job that nobody has submitted, where this one was."""
        db, wanted = script.store._db, job_id.encode()
        known = {each.encode() for each in (*self.confirmed, *script.promises.intended)}
        for bucket in buckets(db):
            # What is damaged need not be text.
            for (other,) in db.execute(f"SELECT CAST(id AS BLOB) FROM {bucket_name(bucket)}"):
                differs = sum(map(ne, other, wanted)) if len(other) == len(wanted) else -1
                if differs == 1 and other not in known:
                    return True
        return False


def is_cut(what: str) -> bool:
    """Return whether a damage has cut the log."""
    return what.startswith("truncate") and what.endswith("-wal")
