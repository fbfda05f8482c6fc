"""Jobs that are followed to their end by a call back."""

from __future__ import annotations

import queue
import time

import pytest

from eventmq.app import EventMQ
from eventmq.errors import BrokerUnavailable, JobFailed, MessageTooLarge

#: Seconds that anything may take.
DEADLINE = 20.0


@pytest.fixture
def app():
    with EventMQ("following", broker="memory://", max_frame=100_000) as app:

        @app.task(majordomo="echo")
        def echo(frames):
            if frames == [b"fail"]:
                raise ValueError("no")
            return frames

        yield app


@pytest.fixture
def ends():
    return queue.Queue()


def follow(app, ends, *frames, job_id="j1"):
    return app.follow_raw(
        "echo", list(frames), job_id=job_id, on_end=lambda job, error: ends.put((job, error))
    )


def test_the_end_of_a_job_is_called_back_once_with_its_result(app, ends):
    started = [follow(app, ends, b"x", b"%d" % n, job_id=f"j{n}") for n in range(50)]
    calls = [ends.get(timeout=DEADLINE) for _ in started]
    assert [None] * 50 == [error for _, error in calls]
    assert set(map(id, started)) == {id(job) for job, _ in calls}
    results = {job.id: job.get(timeout=0) for job, _ in calls}
    assert {f"j{n}": [b"x", b"%d" % n] for n in range(50)} == results
    assert ends.empty()


def test_a_job_that_failed_has_ended_too(app, ends):
    follow(app, ends, b"fail")
    job, error = ends.get(timeout=DEADLINE)
    assert error is None
    with pytest.raises(JobFailed, match="ValueError: no"):
        job.get(timeout=0)


def test_a_job_that_had_ended_before_is_called_back_at_once(app, ends):
    """Its id is known: it is not done twice."""
    for frames in ([b"first"], [b"second"]):
        follow(app, ends, *frames)
        job, error = ends.get(timeout=DEADLINE)
        assert error is None
        assert [b"first"] == job.get(timeout=0)


def test_a_refused_job_is_called_back_with_the_error(app, ends):
    follow(app, ends, b"x" * 200_000)
    job, error = ends.get(timeout=DEADLINE)
    assert isinstance(error, MessageTooLarge)
    assert not job.origin.sent


def test_a_callback_that_fails_harms_no_other_job(app, ends, caplog):
    def broken(*_):
        raise RuntimeError("oops")

    app.follow_raw("echo", [b"x"], job_id="j1", on_end=broken)
    follow(app, ends, b"y", job_id="j2")
    assert ends.get(timeout=DEADLINE)[1] is None
    deadline = time.monotonic() + DEADLINE
    while "oops" not in caplog.text and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "oops" in caplog.text


def test_a_broker_that_is_away_is_an_error_at_the_deadline(ends):
    with EventMQ("away", broker="tcp://127.0.0.1:1", submit_timeout=0.3) as app:
        follow(app, ends, b"x")
        assert isinstance(ends.get(timeout=DEADLINE)[1], BrokerUnavailable)


def test_jobs_in_flight_when_the_app_is_closed_are_called_back(app, ends):
    app.send_raw("nobody", [b"x"], job_id="j1")
    app.follow_raw("nobody", [b"x"], job_id="j1", on_end=lambda job, error: ends.put((job, error)))
    app.close()
    assert isinstance(ends.get(timeout=DEADLINE)[1], BrokerUnavailable)
