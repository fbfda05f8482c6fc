"""Results end to end, with broker and worker in this process."""

from __future__ import annotations

import asyncio
import re
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from eventmq import EventMQ
from eventmq.errors import (
    JobFailed,
    JobNotFound,
    NotAllowed,
    ProtocolError,
    QueueNotFound,
    ResultTooLarge,
    ResultUnavailable,
)
from tests.support.page_files import ROOT


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
    with pytest.raises(ResultTooLarge, match="keeps 8000000 at most") as caught:
        job.get(timeout=20)
    assert isinstance(caught.value, JobFailed)
    assert caught.value.job_id == job.id
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


def test_many_threads_and_coroutines_wait_for_one_job(app):
    """Each gets the result, and the loop runs while its coroutines wait."""
    go = threading.Event()
    job = app.task(name="gate")(lambda: go.wait(20)).delay()

    async def coroutines():
        waiting = [asyncio.ensure_future(app.job(job.id).aget(timeout=20)) for _ in range(20)]
        await asyncio.sleep(0)  # each has asked
        asyncio.get_running_loop().call_soon(go.set)
        return await asyncio.gather(*waiting)

    with ThreadPoolExecutor(20) as pool:
        threads = [pool.submit(app.job(job.id).get, timeout=20) for _ in range(10)]
        threads += [pool.submit(job.get, timeout=20) for _ in range(10)]
        assert asyncio.run(coroutines()) == [True] * 20
        assert [thread.result() for thread in threads] == [True] * 20


def test_ten_thousand_jobs_are_waited_for_together(app):
    @app.task(name="nothing", ignore_result=True)
    def nothing():
        pass

    jobs = nothing.map([()] * 10_000)
    assert app.wait(jobs, timeout=30) == (jobs, [])


def test_jobs_come_in_the_order_of_their_ends(app):
    """Including jobs that had ended before the first wait."""
    events = [threading.Event() for _ in range(4)]

    @app.task(name="turn", ignore_result=True)
    def turn(number):
        events[number].wait(20)

    jobs = [turn.delay(number) for number in range(4)]
    ended = app.as_completed(jobs, timeout=20)
    order = [2, 0, 3, 1]
    for number in order[:2]:
        events[number].set()
        app.wait([app.job(jobs[number].id)], timeout=20)
    outcomes = []
    for job in ended:
        outcomes.append(jobs.index(job))
        if len(outcomes) >= 2 and len(outcomes) < 4:
            events[order[len(outcomes)]].set()
    assert outcomes == order


def test_without_such_a_backend_the_failure_names_one_that_fits():
    with EventMQ(broker="memory://", max_frame=1024 * 1024) as app:
        job = app.task(name="fill")(lambda n: "x" * n).delay(1_000_000)
        with pytest.raises(JobFailed, match="from the setting max_frame; a result backend such as"):
            job.get(timeout=20)


def test_the_page_about_calls_of_the_broker_is_correct():
    page = (ROOT / "docs/reference/api.rst").read_text(encoding="utf-8")
    blocks = re.findall(r"code-block:: python\n\n((?:   .*\n|\n)+)", page)
    names = {"__name__": "calls_page"}
    try:
        exec(textwrap.dedent("".join(blocks)), names)
    finally:
        names["app"].close()


def test_what_ask_refuses():
    """Each with one sentence, and nothing waits until a timeout."""
    with EventMQ("asking", broker="memory://") as app:
        for name, method in (("get", "job.get"), ("stream", "job.stream"), ("subscribe", "app")):
            with pytest.raises(NotAllowed, match=rf"{name!r} is made by {method}"):
                app.ask(name, {"ids": ["a"]})
        with pytest.raises(NotAllowed, match=r"made by job\.get"):
            app.begin_ask("get")
        with pytest.raises(TypeError, match="mapping of names to values, not list"):
            app.ask("info", ["a"])
        with pytest.raises(ProtocolError, match="unknown call 'quues'; known are get"):
            asyncio.run(app.aask("quues"))
        with pytest.raises(TypeError, match="'info' has no argument 'id', which is: str"):
            app.ask("info")
        with pytest.raises(JobNotFound, match="no job with id 'nonsense'"):
            app.ask("info", {"id": "nonsense"})
        with pytest.raises(QueueNotFound, match="nonsense"):
            app.ask("pause", {"queue": "nonsense"})
