"""An app whose broker is a router of EventMQ 0.3, or knows the published document only."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from typing import TYPE_CHECKING, Any

import pytest

from eventmq.app import EventMQ
from eventmq.errors import BrokerUnavailable, EventMQError, ProtocolError, SerializationError
from tests.integration.original_router import OriginalRouter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    MakeApp = Callable[..., EventMQ]

PLAIN = b'["run", {"callable": "add", "path": "jobs", "args": [1, 2]}]'

#: Seconds in which nothing that waits for a receipt of 5 seconds is over.
SOON = 3.0


@pytest.fixture
def router() -> Iterator[OriginalRouter]:
    router = OriginalRouter()
    yield router
    router.stop()


@pytest.fixture
def document() -> Iterator[OriginalRouter]:
    """A broker that acknowledges the INFORM of a client, and has no FEATURES."""
    router = OriginalRouter(answers_clients=True)
    yield router
    router.stop()


@pytest.fixture
def make() -> Iterator[MakeApp]:
    apps: list[EventMQ] = []

    def make(router: OriginalRouter, **settings: Any) -> EventMQ:
        apps.append(EventMQ("legacy", broker=router.address, **settings))
        return apps[-1]

    yield make
    for app in apps:
        app.close()


def test_a_router_of_old_survives_our_inform_and_the_error_names_the_setting(
    router: OriginalRouter, make: MakeApp
) -> None:
    """It answers none of a client, so nothing else is sent."""
    app = make(router, submit_timeout=0.5)
    with pytest.raises(BrokerUnavailable, match=r"INFORM is not answered.*legacy_broker") as error:
        app.send_raw("default", PLAIN)
    assert not error.value.maybe_accepted
    app.close()
    assert router.commands() == {"INFORM"}
    assert router.ended == ""


def test_told_so_a_job_is_sent_and_nothing_is_waited_for(
    router: OriginalRouter, make: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has one line about the consequences, and the handle knows it for its job."""
    app = make(router, legacy_broker=True)
    start = time.monotonic()
    with caplog.at_level(logging.WARNING):
        jobs = [app.send_raw("default", PLAIN) for _ in range(3)]
    assert time.monotonic() - start < SOON
    requests = router.requests(3)
    assert [[job.id, "default", PLAIN.decode()] for job in jobs] == [
        [id, queue, body] for id, queue, _, body in requests
    ]
    assert [job.confirmed for job in jobs] == [False] * 3
    assert router.commands() == {"REQUEST"}
    [record] = caplog.records
    assert "it gives no receipts" in record.getMessage()


@pytest.mark.parametrize("warned", [True, False])
def test_a_job_in_json_goes_to_a_broker_without_features(
    router: OriginalRouter, document: OriginalRouter, make: MakeApp, warned: bool
) -> None:
    """A broker that acknowledges the INFORM of EventMQ is recognized by that."""
    broker = router if warned else document
    app = make(broker, serializer="json", legacy_broker=warned)

    @app.task(name="shop.add")
    def add(a: int, b: int) -> int:
        return a + b

    start = time.monotonic()
    job = add.delay(1, 2)
    assert time.monotonic() - start < SOON
    assert not job.confirmed
    [[id, queue, headers, body]] = broker.requests(1)
    assert [id, queue] == [job.id, "default"]
    assert "task:shop.add" in headers.split(",")
    assert json.loads(body) == [[1, 2], {}]


def test_a_body_that_would_end_the_router_is_not_sent(
    router: OriginalRouter, make: MakeApp
) -> None:
    """The error names it, and what would be right."""
    app = make(router, legacy_broker=True)
    task = app.task(name="shop.add")(lambda a, b: a + b)
    with pytest.raises(SerializationError, match=r"not UTF-8.*serializer='json'.*app\.send_raw"):
        task.delay(1, 2)
    with pytest.raises(SerializationError, match="not UTF-8"):
        app.send_raw("default", b"\xff")
    with pytest.raises(SerializationError, match="not UTF-8"):
        app.publish("topic", b"\xff")
    app.send_raw("default", PLAIN)
    assert len(router.requests(1)) == 1
    assert router.ended == ""


def test_so_it_is_in_a_coroutine(router: OriginalRouter, make: MakeApp) -> None:
    app = make(router, legacy_broker=True)
    task = app.task(name="shop.add")(lambda a, b: a + b)

    async def main() -> bool:
        with pytest.raises(SerializationError, match="not UTF-8"):
            await task.adelay(1, 2)
        return (await app.asend_raw("default", PLAIN)).confirmed

    assert asyncio.run(main()) is False
    assert len(router.requests(1)) == 1


def test_an_operation_that_the_broker_does_not_support_is_refused_at_once(
    router: OriginalRouter, make: MakeApp
) -> None:
    """States and results stay there; nothing waits for them in vain."""
    app = make(router, legacy_broker=True)
    job = app.send_raw("default", PLAIN)
    start = time.monotonic()
    operations: list[Callable[[], object]] = [
        job.get, lambda: job.state, job.cancel, lambda: app.ask("status"),
    ]  # fmt: skip
    for operation in operations:
        with pytest.raises(ProtocolError, match=r"legacy one.*it answers no calls"):
            operation()
    assert time.monotonic() - start < SOON
    assert router.commands() <= {"REQUEST"}


def test_a_call_is_refused_before_it_submits_a_job(router: OriginalRouter, make: MakeApp) -> None:
    """The error is that of ``delay().get()``, and no job runs in vain."""
    app = make(router, legacy_broker=True)

    @app.task(serializer="json")
    def add(a: int, b: int) -> int:
        return a + b

    with pytest.raises(ProtocolError, match=r"legacy one.*it answers no calls"):
        add.call(2, 3)
    with pytest.raises(ProtocolError, match=r"legacy one.*it answers no calls"):
        asyncio.run(add.acall(2, 3, timeout=0.5))
    assert router.commands() == set()


def test_many_jobs_in_one_message_are_refused(router: OriginalRouter, make: MakeApp) -> None:
    """The document has no such message."""
    app = make(router, serializer="json", legacy_broker=True)
    task = app.task(name="shop.add")(lambda a, b: a + b)
    with pytest.raises(EventMQError, match="submit jobs one by one"):
        task.map([(1, 2), (3, 4)])
    assert router.commands() == set()


def test_a_job_that_was_not_sent_is_an_error(make: MakeApp) -> None:
    """Nothing was promised, and nothing went out."""
    router = OriginalRouter()
    router.stop()
    app = make(router, legacy_broker=True, submit_timeout=0.5)
    with pytest.raises(BrokerUnavailable, match="nothing could be sent to broker") as error:
        app.send_raw("default", PLAIN)
    assert not error.value.maybe_accepted


def test_a_job_of_a_broker_of_ours_is_confirmed() -> None:
    with EventMQ("ours", broker="memory://") as app:
        app.task(name="one")(lambda: 1)
        assert app.send("one").confirmed
        with app.batch():
            job = app.send("one")
            assert not job.confirmed
        assert job.confirmed


def test_a_scheduler_of_ours_informs_at_a_router_of_old(
    router: OriginalRouter, make: MakeApp
) -> None:
    """That is answered; so it learns that there are no FEATURES, and sends no other body."""
    app = make(router, legacy_broker=True, schedule_store="memory")
    app.inform_as("scheduler")
    task = app.task(name="shop.add")(lambda a, b: a + b)
    with pytest.raises(SerializationError, match="not UTF-8"):
        task.delay(1, 2)
    app.send_raw("default", PLAIN)
    assert len(router.requests(1)) == 1
    assert router.commands() == {"INFORM", "REQUEST"}
    assert router.ended == ""
