"""The spool of a worker: a directory for what its jobs take and no REQUEST can carry.

It is made when it is first needed, for its owner only, and removed when the worker ends. Where a
worker was killed, the next one of the user that makes a spool removes what it left: a spool that
nobody uses is not locked.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from eventmq.errors import ResultUnavailable
from eventmq.wire.bulk import unpack

if TYPE_CHECKING:
    from collections.abc import Iterator

try:
    import fcntl
except ImportError:  # not a Unix: nothing is locked, and what a killed worker leaves stays
    fcntl = None  # type: ignore[assignment]

__all__ = ["SpoolDirectory", "new_spool", "read_spool"]

_PREFIX = "eventmq-inputs-"

#: Of a spool that is being made: it has no lock yet.
_NEW = "eventmq-new-"

_LOCK = "lock"

#: Bytes that say how long a page is.
_LENGTH = 8


def new_spool() -> str:
    """Return the path of a spool that is not there yet, in the directory for temporary files."""
    return str(Path(tempfile.gettempdir(), f"{_PREFIX}{uuid.uuid4().hex}"))


def _name(job_id: str) -> str:
    """Return the name of a job's file: ids are any text."""
    return hashlib.sha256(job_id.encode(errors="surrogatepass")).hexdigest()


def read_spool(path: str, job_id: str) -> Iterator[list[Any]]:
    """Yield what a job takes, as lists of id, content type and bytes. In the job's process.

    Args:
        path: Of the spool.
        job_id: Of the job.

    Raises:
        ResultUnavailable: It is not there, or cannot be read.
    """
    try:
        with Path(path, _name(job_id)).open("rb") as file:
            while length := file.read(_LENGTH):
                yield from unpack(file.read(int.from_bytes(length, "big")), "a page of inputs")
    except OSError as error:
        msg = f"what job {job_id} takes could not be read by its worker: {error}"
        raise ResultUnavailable(msg) from error


class SpoolDirectory:
    """Implements `eventmq.worker.inputs.Spool` with a file per job.

    Args:
        path: Of the directory, as `new_spool` names it.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._lock = -1
        self._file: BinaryIO | None = None
        self._job = ""

    def begin(self, job_id: str) -> None:
        """Begin the pages of a job."""
        self._close_file()
        if self._lock < 0:
            self._make()
        self._job = job_id
        self._file = self._part.open("wb")

    @property
    def _part(self) -> Path:
        return self.path / "part"

    def add(self, page: bytes) -> None:
        """Add a page of the job that was begun last."""
        assert self._file is not None, "no job was begun"  # noqa: S101 - a mistake of ours
        self._file.write(len(page).to_bytes(_LENGTH, "big"))
        self._file.write(page)

    def end(self) -> None:
        """Let the job find its pages."""
        self._close_file()
        self._part.replace(self.path / _name(self._job))

    def drop(self, job_id: str) -> None:
        """Forget the pages of a job."""
        (self.path / _name(job_id)).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove everything. Idempotent."""
        self._close_file()
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _make(self) -> None:
        """Make the directory, which has its lock before it has its name."""
        made = Path(tempfile.mkdtemp(prefix=_NEW, dir=self.path.parent))
        self._lock = os.open(made / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        if fcntl is not None:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        made.rename(self.path)
        for other in self.path.parent.glob(f"{_PREFIX}*"):
            _remove_unused(other)


def _remove_unused(path: Path) -> None:
    """Remove a spool whose worker was killed; one of another user cannot be opened."""
    if fcntl is None:
        return
    with suppress(OSError):
        lock = os.open(path / _LOCK, os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(lock)
