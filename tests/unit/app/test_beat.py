"""What a beat says of a job that the broker did not take."""

from __future__ import annotations

import logging

import pytest

from eventmq.app.beat import _submit_result
from eventmq.errors import DuplicateJob, QueueFull, UnknownTask
from eventmq.scheduler.runner import ScheduledJob

JOB = ScheduledJob("j1", "shop.report", "mail", "task:shop.report", b"")


@pytest.mark.parametrize(
    ("cause", "line"),
    [
        (DuplicateJob("there is one", job_id="j0"), ("INFO", "not needed: there is one")),
        (UnknownTask("nobody knows it"), ("ERROR", "refused: nobody knows it")),
    ],
)
def test_a_job_that_will_not_be_is_one_line_with_its_fields(
    caplog: pytest.LogCaptureFixture, cause: Exception, line: tuple[str, str]
) -> None:
    caplog.set_level(logging.INFO, "eventmq.scheduler")
    assert _submit_result(JOB, cause) is None
    [record] = caplog.records
    level, text = line
    assert record.levelname == level
    assert record.getMessage() == f"job j1 of task 'shop.report' is {text}"
    fields = [vars(record)[f"eventmq_{name}"] for name in ("job", "task", "queue", "attempt")]
    assert fields == ["j1", "shop.report", "mail", 1]


def test_a_job_that_is_submitted_again_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "eventmq.scheduler")
    assert _submit_result(JOB, QueueFull("later")) is False
    assert _submit_result(JOB, None) is False
    assert caplog.records == []
