"""Writes and reads of a broker: the shape that contributed stores rely on."""

from __future__ import annotations

from typing import get_args

from eventmq.job import JobRecord, JobState
from eventmq.store import Write, reads, writes
from eventmq.store.reads import JobRow
from eventmq.store.recovery import QueueCounts, Recovered
from eventmq.store.writes import Admit, Chunk, Finished, LeaseChunk, WriteResult


def test_every_write_says_what_its_result_is() -> None:
    """The docstring is the contract."""
    for write in get_args(Write):
        assert "Result: " in (write.__doc__ or ""), write.__name__


def test_every_write_is_public() -> None:
    public = {*writes.__all__, *reads.__all__}
    assert {write.__name__ for write in get_args(Write)} <= public


def test_writes_are_tuples_of_what_their_names_say() -> None:
    """They are made in hot loops, so they must be cheap."""
    job = JobRecord("1", "q", "", b"")
    assert Admit([job]) == ([job], ())
    assert LeaseChunk(Chunk("s", 1, [(job, 2), (None, 0)])).chunk.leases[0] == (job, 2)
    assert WriteResult("full") == ("full", "", ())


def test_an_end_without_a_start_is_possible() -> None:
    """A job can expire or be cancelled before any worker has it."""
    job = JobRecord("1", "q", "", b"")
    ended = Finished(job, JobState.EXPIRED, 1.0, 60.0, "", b"")
    assert (ended.started, ended.run_time, ended.worker) == (0.0, 0.0, "")
    assert JobRow(job).result is None


def test_a_new_store_has_nothing() -> None:
    recovered = Recovered("id", 1)
    assert (recovered.counts, recovered.chunks, recovered.next_ready_at) == ({}, [], None)
    assert recovered.next_seq == 1
    assert QueueCounts() == QueueCounts(queued=0, delayed=0, failed=0)
