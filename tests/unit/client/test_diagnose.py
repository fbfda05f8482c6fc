"""What a time-out says of a job: why it has not ended, and what to do."""

from __future__ import annotations

from typing import Any

import pytest

from eventmq.client.handle import diagnose

INFO = {
    "id": "j1", "task": "shop.send", "queue": "mail", "state": "queued", "attempt": 1,
    "headers": "content-type:msgpack,task:shop.send",
}  # fmt: skip
QUEUE = {"name": "mail", "waiting": 4, "running": 2, "paused": False}
WORKER: dict[str, Any] = {
    "name": "w", "queues": [[10, "mail"]], "tasks": ["shop.send"], "seen": 0.1, "plain": False,
}  # fmt: skip


def said(queues: Any = (QUEUE,), workers: Any = (WORKER,), **info: Any) -> str:
    text = diagnose({**INFO, **info}, queues, workers, "10.0 s")
    assert text.startswith("job j1 of task 'shop.send' ")
    return text.removeprefix("job j1 of task 'shop.send' ")


START = "no worker serves the queue 'mail'; start one with: eventmq worker -A MODULE -Q mail"


@pytest.mark.parametrize(
    "workers",
    [[], [{**WORKER, "queues": [[10, "default"]]}], [{**WORKER, "seen": None}]],
    ids=["none", "other queues", "gone"],
)
def test_a_queue_without_workers_comes_with_the_command(workers: Any) -> None:
    assert said(workers=workers) == f"is still queued after 10.0 s: {START}"


def test_the_command_for_a_queue_with_any_name_can_be_pasted() -> None:
    start = said(workers=[], queue="a \x1b[1m; rm -rf ~").partition("start one with: ")[2]
    assert start == r"eventmq worker -A MODULE -Q 'a \x1b[1m; rm -rf ~'"


@pytest.mark.parametrize("change", [{"tasks": ["shop.other"]}, {"plain": True, "tasks": []}])
def test_a_task_that_no_worker_knows_is_named_with_the_workers(change: Any) -> None:
    text = said(workers=[{**WORKER, **change}])
    assert "no worker of the queue 'mail' knows the task 'shop.send'; connected: w" in text


def test_a_job_behind_others_says_how_many() -> None:
    reason = "3 others wait in the queue 'mail' and 2 run; workers that serve it: 1"
    assert said() == f"is still queued after 10.0 s: {reason}"
    assert said(attempt=3).endswith("1 (attempt 3)")
    reason = "1 other waits in the queue 'mail' and 1 runs; workers that serve it: 1"
    assert said(queues=[{**QUEUE, "waiting": 2, "running": 1}]).endswith(reason)


def test_a_job_that_idle_workers_leave_alone_names_its_task() -> None:
    """A worker without a list of tasks may be one that does not know it."""
    text = said(queues=[{**QUEUE, "waiting": 1, "running": 0}], workers=[{**WORKER, "tasks": []}])
    assert text.endswith("from the queue 'mail'; does a worker know the task 'shop.send'?")


def test_a_legacy_job_is_not_looked_for_among_the_tasks() -> None:
    assert "others wait" in said(workers=[{**WORKER, "tasks": ["a"]}], headers="")


def test_a_paused_queue_is_named() -> None:
    text = said(queues=[{**QUEUE, "paused": True}])
    assert text == "is still queued after 10.0 s: the queue 'mail' is paused"


def test_the_limits_of_a_queue_are_named() -> None:
    """Rather than asking whether a worker knows the task."""
    text = said(queues=[{**QUEUE, "running": 0, "limits": "rate=1/m"}])
    reason = "the queue 'mail' is limited to rate=1/m; 3 others wait in it and 0 run"
    assert text == f"is still queued after 10.0 s: {reason}"


def test_a_running_job_names_its_worker_and_since_when() -> None:
    text = said(state="running", worker="w")
    assert text == "is still running after 10.0 s: the worker 'w' has it"
    text = said(state="running", worker="w", leased=86400.0 * 3)
    assert "the worker 'w' has it since 1970-01-0" in text


def test_a_delayed_job_names_the_moment() -> None:
    text = said(state="delayed", due=86400.0 * 3, attempt=2)
    assert text.startswith("is still delayed after 10.0 s: it becomes ready at 1970-01-0")
    assert text.endswith("(attempt 2)")


def test_a_job_that_ended_meanwhile_is_to_be_asked_again() -> None:
    assert said(state="succeeded") == "succeeded just after 10.0 s; call get() again for its result"


def test_what_the_broker_does_not_say_is_left_out() -> None:
    assert said(queues=None, workers=None) == "is still queued after 10.0 s"
    assert "an unknown time" in said(state="delayed")
    assert diagnose({"id": "j", "state": "blocked"}, None, None, "1 s").startswith("job j is still")
