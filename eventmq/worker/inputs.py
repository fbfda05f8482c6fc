"""Inputs: fetches results that jobs take, before they start, if too large for a REQUEST.

The body of a job with the letter `eventmq.graph.PAGED` has the ids of these results. The manager
requests the results with the CALL ``inputs``, page by page and for one job at a time, and keeps
each page in a spool outside of its memory. The job's process reads them there (`ResultPrepender`).
Meanwhile the chunk is held like any other: it has not started, so it can be handed back, and no
time limit applies.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
import uuid
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from eventmq.errors import ProtocolError, ResultUnavailable
from eventmq.execution import joblog
from eventmq.graph import PAGED, flags_of
from eventmq.job import OutcomeKind
from eventmq.wire import commands
from eventmq.wire.batches import OutcomeRow, pack, unpack
from eventmq.wire.results import ERROR_TYPE, RemoteError, encode_error
from eventmq.worker.session import RESEND_AFTER, RETRY_LATER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from eventmq.wire.batches import ChunkEntry, ChunkIndex
    from eventmq.worker.session import HeldChunk, HeldChunks, WorkerSession

    Start = Callable[[HeldChunk, bytes, float], None]
    Answer = Callable[[HeldChunk, Sequence[OutcomeRow], float], None]

__all__ = ["InputFetcher", "Spool", "SpoolDirectory", "is_paged", "new_spool", "read_spool"]


_log = logging.getLogger(__name__)

#: Bytes in the spool from which no inputs of other jobs are fetched.
MAX_SPOOL_BYTES = 1024 * 1024 * 1024


class Spool(Protocol):
    """Keeps pages by the id of the job, where the process of the job can read them.

    Each method may raise OSError, and blocks only for the disk.
    """

    def begin(self, job_id: str) -> None:
        """Start writing the pages of a job; remove those of an earlier fetch."""

    def add(self, page: bytes) -> None:
        """Add a page of the job of the last `begin`."""

    def end(self) -> None:
        """Publish the pages of the job of the last `begin`, which are complete."""

    def drop(self, job_id: str) -> None:
        """Remove the pages of a job, if there are any."""


def is_paged(index: ChunkIndex) -> bool:
    """Return whether a chunk has jobs whose inputs must be fetched."""
    return any(_flagged(text) for text in index.templates)


def _flagged(text: str) -> bool:
    try:
        return PAGED in flags_of(text)
    except ProtocolError:  # the executor reports malformed headers
        return False


class _Fetch:
    """The fetch of the inputs of one chunk."""

    __slots__ = ("body", "chunk", "cursor", "size", "todo")

    def __init__(self, chunk: HeldChunk, body: bytes) -> None:
        templates, entries = chunk.index.templates, chunk.index.entries
        self.chunk = chunk
        self.body = body
        self.cursor = 0
        self.size = 0
        self.todo: deque[tuple[int, ChunkEntry]] = deque(
            (position, entry)
            for position, entry in enumerate(entries)
            if _flagged(templates[entry.template])
        )


class InputFetcher:
    """Fetches the inputs of the jobs of one session.

    Args:
        session: Sends the CALLs.
        held_chunks: The held chunks.
        spool: Keeps the pages; without it jobs with such inputs fail.
        start: Assigns a chunk whose inputs are complete.
        answer: Answers all jobs of a chunk that did not start.
    """

    def __init__(
        self,
        session: WorkerSession,
        held_chunks: HeldChunks,
        spool: Spool | None,
        start: Start,
        answer: Answer,
    ) -> None:
        self._session = session
        self._held_chunks = held_chunks
        self._spool = spool
        self._start = start
        self._answer = answer
        self.waiting: deque[_Fetch] = deque()
        #: Number of a chunk -> ids of its jobs whose pages are kept, and bytes of these pages.
        self.kept: dict[int, tuple[list[str], int]] = {}
        #: Id of the unanswered CALL, "" for none, and monotonic time at which it is sent again.
        self._call = ""
        self._resend_at = 0.0
        self._registrations = 0

    # From the manager

    def begin(self, chunk: HeldChunk, body: bytes, now: float) -> None:
        """Fetch the inputs of a chunk, then start it.

        Args:
            chunk: The chunk.
            body: Body of its REQUEST.
            now: Monotonic time.
        """
        self._held_chunks.hold(chunk)
        self.waiting.append(_Fetch(chunk, body))
        self.tick(now)

    def cancel(self, job: str, delivery: int) -> HeldChunk | None:
        """Remove the chunk of a delivery, if its inputs are being fetched, and return it."""
        for fetch in self.waiting:
            if fetch.chunk.position_of(job, delivery) is not None:
                self._give_up(fetch)
                return fetch.chunk
        return None

    def take_all(self) -> list[HeldChunk]:
        """Remove all chunks whose inputs are being fetched, and return them."""
        fetches = list(self.waiting)
        for fetch in fetches:
            self._give_up(fetch)
        return [fetch.chunk for fetch in fetches]

    def next_tick(self) -> float:
        """Return when `tick` has something to do."""
        return self._resend_at if self._call and self._session.online else float("inf")

    def tick(self, now: float) -> None:
        """Request the next page, or repeat a request; remove the inputs of ended jobs."""
        if self.kept:
            self._drop_ended()
        if not self.waiting or not self._session.online:
            return
        reconnected = self._registrations != self._session.registrations
        if not self._call:
            if sum(size for _, size in self.kept.values()) < MAX_SPOOL_BYTES:
                self._request_page(now)
        elif reconnected or now >= self._resend_at:
            self._request_page(now)

    def _drop_ended(self) -> None:
        for number in [number for number in self.kept if number not in self._held_chunks.chunks]:
            ids, _ = self.kept.pop(number)
            needed = {job for jobs, _ in self.kept.values() for job in jobs}
            needed |= {entry.id for fetch in self.waiting for _, entry in fetch.todo}
            for job in ids:
                if job not in needed:
                    self._drop(job)

    def _drop(self, job: str) -> None:
        try:
            if self._spool is not None:
                self._spool.drop(job)
        except OSError as error:
            _log.warning("the inputs of job %s could not be removed: %s", job, error)

    # Pages

    def _request_page(self, now: float) -> None:
        fetch = self.waiting[0]
        _, entry = fetch.todo[0]
        if self._spool is None:
            self._fail(fetch, "this worker has no place for the inputs of the job", now)
            return
        arguments = {"id": entry.id, "delivery": entry.delivery, "cursor": fetch.cursor}
        self._registrations = self._session.registrations
        self._call = self._session.new_id()
        self._resend_at = now + RESEND_AFTER
        call = commands.Call(self._call, "inputs", pack(arguments))
        self._session.outbox.append(call.frames())

    def replied(self, reply: commands.Reply, now: float) -> None:
        """Handle a page."""
        if not self._call or reply.request != self._call:
            return  # a repeated request was answered already, or the chunk was removed
        self._call = ""
        fetch = self.waiting[0]
        try:
            rows, cursor = _page(reply.result)
            self._store_page(fetch, pack(rows), cursor, now)
        except (OSError, ProtocolError) as error:
            self._fail(fetch, f"the inputs of the job could not be kept: {error}", now)
        self.tick(now)

    def _store_page(self, fetch: _Fetch, page: bytes, cursor: int, now: float) -> None:
        spool = self._spool
        assert spool is not None  # noqa: S101 - checked by `_request_page`
        _, entry = fetch.todo[0]
        if not fetch.cursor:
            spool.begin(entry.id)
        spool.add(page)
        fetch.size += len(page)
        fetch.cursor = cursor
        if cursor:
            return
        spool.end()
        fetch.todo.popleft()
        if not fetch.todo:
            self.waiting.popleft()
            self._keep_until_it_ends(fetch)
            self._start(fetch.chunk, fetch.body, now)

    def _keep_until_it_ends(self, fetch: _Fetch) -> None:
        index = fetch.chunk.index
        ids = [entry.id for entry in index.entries if _flagged(index.templates[entry.template])]
        self.kept[fetch.chunk.number] = ids, fetch.size

    def refused(self, error: commands.Error, now: float) -> bool:
        """Handle an ERROR; return whether it was about a page."""
        if not self._call or error.request != self._call:
            return False
        if error.code in RETRY_LATER:
            return True  # `tick` sends the CALL again
        self._call = ""
        fetch = self.waiting[0]
        if error.code == "not-held":
            _log.warning("a job is not started: %s", error.text)
            self._give_up(fetch)
            self._answer(fetch.chunk, fetch.chunk.handed_back(), now)
        else:
            self._fail(fetch, f"the broker does not send the inputs of the job: {error.text}", now)
        self.tick(now)
        return True

    def _fail(self, fetch: _Fetch, text: str, now: float) -> None:
        """Fail the job whose inputs cannot be fetched; hand back the other jobs of its chunk."""
        position, entry = fetch.todo[0]
        self._give_up(fetch)
        failure = RemoteError("eventmq.errors.ResultUnavailable", text)
        index = fetch.chunk.index
        kind = OutcomeKind.FAILED
        job, task = joblog.id_and_task(index, position)
        joblog.refused(job, task, index.queue, entry.attempt, kind, failure)
        rows = fetch.chunk.handed_back()
        rows[position] = OutcomeRow(
            position, kind, content_type=ERROR_TYPE, result=encode_error(failure)
        )
        self._answer(fetch.chunk, rows, now)

    def _give_up(self, fetch: _Fetch) -> None:
        if fetch is self.waiting[0]:
            self._call = ""
        self.waiting.remove(fetch)
        self._keep_until_it_ends(fetch)


def _page(result: bytes) -> tuple[list[object], int]:
    """Return the rows of a page, and the cursor of the next one.

    Raises:
        ProtocolError: The result is not a page.
    """
    match unpack(result, "a page of inputs"):
        case {"rows": list(rows), "next": int(cursor)}:
            return rows, cursor
    raise ProtocolError("a page of inputs is a map with rows and next", code="bad-body")


try:
    import fcntl
except ImportError:  # not a Unix: nothing is locked, and spools of killed workers stay
    fcntl = None  # type: ignore[assignment]

#: Prefix of the name of a spool.
_PREFIX = "eventmq-inputs-"

#: Prefix of the name of a new spool that is not locked yet.
_NEW = "eventmq-new-"

#: Name of the lock file in a spool.
_LOCK = "lock"

#: Bytes of the length before each page.
_LENGTH = 8


def new_spool() -> str:
    """Return the path for a new spool, in the directory for temporary files."""
    return str(Path(tempfile.gettempdir(), f"{_PREFIX}{uuid.uuid4().hex}"))


def _name(job_id: str) -> str:
    """Return the file name for a job, which is a hash since ids may be any text."""
    return hashlib.sha256(job_id.encode(errors="surrogatepass")).hexdigest()


def read_spool(path: str, job_id: str) -> Iterator[list[Any]]:
    """Yield the inputs of a job, as lists of id, content type and bytes; called in its process.

    Args:
        path: Path of the spool.
        job_id: Id of the job.

    Raises:
        ResultUnavailable: The inputs do not exist, or cannot be read.
    """
    try:
        with Path(path, _name(job_id)).open("rb") as file:
            while length := file.read(_LENGTH):
                yield from unpack(file.read(int.from_bytes(length, "big")), "a page of inputs")
    except OSError as error:
        msg = f"the inputs of job {job_id} could not be read by its worker: {error}"
        raise ResultUnavailable(msg) from error


class SpoolDirectory:
    """Implements `eventmq.worker.inputs.Spool` with a file per job.

    Args:
        path: Path of the directory, as `new_spool` names it.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._lock = -1
        self._file: BinaryIO | None = None
        self._job = ""

    def begin(self, job_id: str) -> None:
        """Start writing the pages of a job."""
        self._close_file()
        if self._lock < 0:
            self._make()
        self._job = job_id
        self._file = self._part.open("wb")

    @property
    def _part(self) -> Path:
        return self.path / "part"

    def add(self, page: bytes) -> None:
        """Add a page of the job of the last `begin`."""
        assert self._file is not None, "no job was begun"  # noqa: S101 - a bug in the fetcher
        self._file.write(len(page).to_bytes(_LENGTH, "big"))
        self._file.write(page)

    def end(self) -> None:
        """Publish the pages of the job of the last `begin`."""
        self._close_file()
        self._part.replace(self.path / _name(self._job))

    def drop(self, job_id: str) -> None:
        """Remove the pages of a job."""
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
        """Make the directory, locked before it gets its final name; remove unused ones."""
        directory = Path(tempfile.mkdtemp(prefix=_NEW, dir=self.path.parent))
        self._lock = os.open(directory / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        if fcntl is not None:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        directory.rename(self.path)
        for other in self.path.parent.glob(f"{_PREFIX}*"):
            _remove_unused(other)


def _remove_unused(path: Path) -> None:
    """Remove a spool whose worker was killed; those of other users cannot be opened."""
    if fcntl is None:
        return
    with suppress(OSError):
        lock = os.open(path / _LOCK, os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(lock)
