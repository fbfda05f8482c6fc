"""Streams and progress inside a test, where nothing runs by itself."""

from __future__ import annotations

import asyncio

import pytest

from eventmq.app import EventMQ
from eventmq.errors import JobFailed, NotAllowed, ResultTimeout, ResultUnavailable, StreamRestarted
from eventmq.interfaces import current_job
from eventmq.testing import use_app
from eventmq.wire.streams import WINDOW


@pytest.fixture(name="inline")
def inline_app():
    with EventMQ("test") as app, use_app(app) as inline:
        yield inline


def test_asking_for_the_first_part_runs_the_job(inline):
    @inline.app.task
    def count(to):
        yield from range(to)
        return "done"

    job = count.delay(3)
    assert job.state == "queued"
    assert list(job.stream()) == [0, 1, 2]
    assert job.get() == "done"


def test_a_stream_longer_than_the_window_needs_no_reader(inline):
    @inline.app.task
    async def count(to):
        for number in range(to):
            yield number

    job = count.delay(3 * WINDOW)
    inline.drain()
    assert job.get() is None
    assert list(job.stream()) == list(range(3 * WINDOW))
    with pytest.raises(ResultUnavailable):
        next(job.stream())


def test_a_coroutine_of_the_test_reads_too(inline):
    @inline.app.task
    def count(to):
        yield from range(to)

    async def read():
        return [part async for part in (await count.adelay(3)).stream()]

    assert asyncio.run(read()) == [0, 1, 2]


def test_a_job_that_is_tried_again_streams_again(inline):
    @inline.app.task(retries=1, retry_policy="none")
    def never():
        yield 1
        raise ValueError("never")

    job = never.delay()
    stream = job.stream()
    assert next(stream) == 1
    with pytest.raises((StreamRestarted, JobFailed)):
        list(stream)


def test_a_job_without_parts_is_told_from_one_that_cannot_have_any(inline):
    @inline.app.task
    def add(a, b):
        return a + b

    @inline.app.task
    def nothing():
        yield from ()

    with pytest.raises(NotAllowed, match="only generators"):
        next(add.delay(1, 2).stream())
    assert list(nothing.delay().stream()) == []


def test_a_stream_that_cannot_begin_says_what_it_waits_for(inline):
    @inline.app.task
    def count():
        yield 1

    job = count.options(countdown=60).delay()
    with pytest.raises(ResultTimeout, match="travel there first"):
        next(job.stream())


def test_progress_can_be_told_and_is_gone_with_the_job(inline):
    @inline.app.task
    def tell():
        current_job().progress(1, 3, "telling")
        return "told"

    job = tell.delay()
    assert job.get() == "told"
    assert job.info()["progress"] is None


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [(("1",), TypeError), ((True,), TypeError), ((1, "2"), TypeError), ((1, 2, 3), TypeError),
     ((float("nan"),), ValueError), ((1, 1e300), ValueError)],
)  # fmt: skip
def test_bad_progress_fails_where_it_is_told(inline, arguments, kind):
    @inline.app.task
    def tell():
        with pytest.raises(kind):
            current_job().progress(*arguments)
        return "told"

    assert tell.delay().get() == "told"
