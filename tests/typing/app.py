"""What type checkers know of an app; checked by mypy and pyright, never run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eventmq import EventMQ, Job, JobFailed, current_job

if TYPE_CHECKING:
    from typing_extensions import assert_type  # noqa: TC004 - nothing here is ever run


def jobs(app: EventMQ) -> None:
    assert_type(app.job("id"), Job[Any])
    assert_type(app.send("shop.add", (1, 2), {}, queue=None), Job[Any])
    assert_type(app.send_raw("queue", b"body", headers={}), Job[Any])
    assert_type(app.job("id").state, str)
    assert_type(app.job("id").ready(), bool)
    assert_type(app.job("id").info(), dict[str, Any])
    assert_type(app.wait([app.job("id")], timeout=10).done, list[Job[Any]])
    for job in app.as_completed([app.job("id")]):
        assert_type(job, Job[Any])
    with app.batch():
        app.send("shop.add")


def topics(app: EventMQ) -> None:
    app.publish("topic", {"a": 1})
    for message in app.subscribe("topic", "other"):
        assert_type(message.topic, str)
        assert_type(message.value, Any)


async def coroutines(app: EventMQ) -> None:
    async for job in app.as_completed([await app.ajob("id")], timeout=None):
        assert_type(job, Job[Any])
    async with app.subscribe("topic") as messages:
        async for message in messages:
            assert_type(message.headers, str)


def errors() -> None:
    try:
        assert_type(current_job().attempt, int)
    except JobFailed as error:
        assert_type(error.remote_traceback, str)


def contexts() -> None:
    with EventMQ("shop", broker=["tcp://a:1"], submit_timeout=2.0) as app:
        assert_type(app, EventMQ)
