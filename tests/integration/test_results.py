"""Results end to end, with broker and worker in this process."""

from __future__ import annotations

import asyncio

import pytest

from eventmq import EventMQ
from eventmq.errors import JobFailed, ResultTooLarge, ResultUnavailable


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def app(folder):
    """Frames of 1 MiB, and a file for results."""
    backend = f"sqlite:///{folder}/results.sqlite?max_result=8000000"
    with EventMQ(broker="memory://", max_frame=1024 * 1024, result_backend=backend) as app:
        yield app


@pytest.fixture(scope="module")
def fill(app):
    @app.task(name="fill")
    def fill(n):
        return "x" * n

    return fill


def test_a_result_above_the_frame_limit_is_kept_by_the_backend(fill):
    assert len(fill.delay(5_000_000).get(timeout=20)) == 5_000_000
    assert len(asyncio.run(_aget(fill.delay(5_000_000)))) == 5_000_000


async def _aget(job):
    return await job.aget(timeout=20)


def test_a_result_that_the_backend_does_not_take_fails_the_job(fill):
    job = fill.delay(8_000_000)
    with pytest.raises(JobFailed, match="keeps 8000000 at most") as caught:
        job.get(timeout=20)
    assert isinstance(caught.value.__cause__, ResultTooLarge)
    assert job.state == "failed"


def test_a_result_whose_file_is_gone_is_unavailable_and_its_job_has_succeeded(app, fill, folder):
    job = fill.delay(3)
    app.wait([job], timeout=20)
    (folder / "results.sqlite").rename(folder / "away")
    try:
        with pytest.raises(ResultUnavailable, match="not on this host"):
            job.get(timeout=20)
    finally:
        (folder / "away").rename(folder / "results.sqlite")
    assert job.state == "succeeded"
    assert job.get(timeout=20) == "xxx"


def test_without_such_a_backend_the_failure_says_what_would_take_it():
    with EventMQ(broker="memory://", max_frame=1024 * 1024) as app:
        job = app.task(name="fill")(lambda n: "x" * n).delay(1_000_000)
        with pytest.raises(JobFailed, match="from the setting max_frame; a result backend such as"):
            job.get(timeout=20)
