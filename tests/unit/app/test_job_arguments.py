"""The arguments of a job, for those who look for what went wrong."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING

import pytest

from eventmq import EventMQ, JobExpired, JobFailed, chain

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def app() -> Iterator[EventMQ]:
    app = EventMQ("shop", broker="memory://")

    @app.task(name="send")
    def send(to: str, *, subject: str) -> str:
        if to == "nobody":
            raise ValueError("no such person")
        return to + subject

    yield app
    app.close()


def test_a_job_that_waits_shows_its_arguments(app: EventMQ) -> None:
    job = app.tasks["send"].options(countdown=3600).delay("a@b.c", subject="hi")
    info = job.info(args=True)
    assert ((["a@b.c"], {"subject": "hi"}, "")) == (
        info["args"], info["kwargs"], info["args_note"],
    )  # fmt: skip
    assert info["args"] == asyncio.run(job.ainfo(args=True))["args"]
    assert "args" not in job.info()


def test_a_failed_job_shows_them_and_one_that_succeeded_does_not(app: EventMQ) -> None:
    send = app.tasks["send"]
    failed, done = send.delay("nobody", subject="hi"), send.delay("a", subject="b")
    with pytest.raises(JobFailed):
        failed.get(timeout=30)
    assert "ab" == done.get(timeout=30)
    assert ["nobody"] == failed.info(args=True)["args"]
    info = done.info(args=True)
    assert (None, None, "they are not kept") == (info["args"], info["kwargs"], info["args_note"])


def test_a_job_that_keeps_them_shows_them_however_it_has_ended(app: EventMQ) -> None:
    """A job that succeeded, that was cancelled while it waited or while it ran, and an expired one.

    Their error or result is as it would be without.
    """
    begun, end = threading.Event(), threading.Event()

    @app.task(name="hold", keep_arguments=True)
    def hold(n: int, *, waits: bool = False) -> int:
        if waits:
            begun.set()
            end.wait(30)
        return n

    done, running = hold.delay(1), hold.delay(2, waits=True)
    waiting = hold.options(countdown=3600, priority=9).delay(3)
    expired = hold.options(countdown=3600, expires=0.01).delay(4)
    assert done.get(timeout=30) == 1
    assert begun.wait(30)
    assert running.cancel("stop")
    assert waiting.cancel("late")
    end.set()
    with pytest.raises(JobExpired):
        expired.get(timeout=30)
    infos = [job.info(args=True) for job in (done, running, waiting, expired)]
    assert [info["state"] for info in infos] == ["succeeded", "cancelled", "cancelled", "expired"]
    assert [info["args"] for info in infos] == [[1], [2], [3], [4]]
    assert [info["kwargs"] for info in infos] == [{}, {"waits": True}, {}, {}]
    assert [info["error"] and info["error"].message for info in infos] == [
        None, "stop", "late", None,
    ]  # fmt: skip
    assert (infos[2]["priority"], infos[2]["attempts"]) == (9, [])


def test_a_link_of_a_chain_shows_its_own(app: EventMQ) -> None:
    """The result of the one before, which comes first, is not shown."""
    send = app.tasks["send"]
    last = chain(send.options(countdown=3600).s("a", subject="b"), send.s(subject="c")).delay()
    info = last.info(args=True)
    assert ("blocked", [], {"subject": "c"}) == (info["state"], info["args"], info["kwargs"])


def test_no_log_has_them(app: EventMQ, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    job = app.tasks["send"].delay("nobody", subject="hunter2")
    with pytest.raises(JobFailed):
        job.get(timeout=30)
    assert {"subject": "hunter2"} == job.info(args=True)["kwargs"]
    assert caplog.records
    assert "hunter2" not in caplog.text
