"""Typed arguments and results end to end, with broker and worker in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from pathlib import Path
from uuid import UUID

import attrs
import pydantic
import pytest

from eventmq import EventMQ, chain, chord, every, group, shared_task
from eventmq.errors import ArgumentError, JobFailed, SerializationError
from eventmq.gateway import call_task


class Size(Enum):
    SMALL = "S"
    LARGE = "L"


@dataclass(frozen=True)
class Order:
    id: UUID
    total: Decimal
    size: Size = Size.SMALL
    due: datetime | None = None


@attrs.frozen
class Receipt:
    order: Order
    file: Path


class Address(pydantic.BaseModel):
    street: str
    number: int


ORDER = Order(UUID(int=3), Decimal("9.90"), Size.LARGE, datetime(2026, 1, 2, tzinfo=timezone.utc))
RECEIPT = Receipt(ORDER, Path("3.pdf"))


@pytest.fixture(scope="module", params=["threads", "asyncio"])
def app(request):
    with EventMQ("typed", broker="memory://", pool=request.param) as app:
        yield app


@pytest.fixture(scope="module")
def charge(app):
    @app.task(name="charge", retries=3)
    def charge(order: Order, *, tip: Decimal = Decimal(0)) -> Order:
        return replace(order, total=order.total + tip)

    return charge


@pytest.fixture(scope="module")
def acharge(app):
    @app.task(name="acharge")
    async def acharge(order: Order) -> Order:
        return replace(order, total=order.total + 1)

    return acharge


@pytest.fixture(scope="module")
def total(app):
    @app.task(name="total")
    def total(orders: list[Order], start: Decimal = Decimal(0)) -> Decimal:
        return sum((order.total for order in orders), start)

    return total


def plus(amount: str) -> Order:
    return replace(ORDER, total=ORDER.total + Decimal(amount))


def test_arguments_and_results_come_back_as_their_classes(app, charge, acharge):
    """However the job is submitted and waited for."""
    assert charge.delay(ORDER, tip=Decimal("0.10")).get(timeout=20) == plus("0.10")
    assert charge.call(ORDER, timeout=20) == ORDER
    assert charge.options(priority=3).delay(ORDER).get(timeout=20) == ORDER
    assert charge.apply_async((ORDER,), {"tip": 1}).get(timeout=20) == plus("1")
    assert [job.get(timeout=20) for job in charge.map([(ORDER,), (ORDER,)])] == [ORDER, ORDER]
    with app.batch():
        job = charge.delay(ORDER)
    assert job.get(timeout=20) == ORDER
    assert acharge.delay(ORDER).get(timeout=20) == plus("1")

    async def coroutines() -> list[Order]:
        return [
            await (await charge.adelay(ORDER)).aget(timeout=20),
            await acharge.acall(ORDER, timeout=20),
        ]

    assert asyncio.run(coroutines()) == [ORDER, plus("1")]


def test_results_of_graphs_are_arguments_of_the_next_job(charge, acharge, total):
    """Links, members and callbacks get values of their annotated types, and so does the caller."""
    tipped = chain(charge.s(ORDER), acharge.s(), charge.s(tip=Decimal(1))).delay()
    assert tipped.get(timeout=20) == plus("2")
    both = group(charge.s(ORDER), acharge.s(ORDER)).delay()
    assert both.get(timeout=20) == [ORDER, plus("1")]
    whole = chord([charge.s(ORDER), acharge.s(ORDER)], total.s(start=Decimal(1))).delay()
    assert whole.get(timeout=20) == Decimal("21.80")
    with pytest.raises(
        ArgumentError, match="task charge: argument 'tip': expected Decimal, got list"
    ):
        chain(charge.s(ORDER), charge.s(tip=[])).delay()


def test_attrs_and_pydantic_classes_travel_too(app):
    @app.task(name="ship")
    def ship(receipt: Receipt, to: list[Address]) -> tuple[Receipt, Address]:
        return receipt, to[0]

    address = Address(street="Long Road", number=3)
    assert ship.delay(RECEIPT, [address]).get(timeout=20) == (RECEIPT, address)


def test_parts_of_a_stream_come_back_as_their_class(app):
    @app.task(name="split")
    def split(order: Order, days: int) -> Generator[Order, None, Size]:
        for day in range(days):
            yield replace(order, due=order.due + timedelta(days=day))
        return order.size

    @app.task(name="asplit")
    async def asplit(order: Order) -> AsyncIterator[Order]:
        yield order

    job = split.delay(ORDER, 2)
    later = replace(ORDER, due=ORDER.due + timedelta(days=1))
    assert list(job.stream(timeout=20)) == [ORDER, later]
    assert job.get(timeout=20) is Size.LARGE
    assert list(asplit.delay(ORDER).stream(timeout=20)) == [ORDER]


def test_delay_refuses_what_does_not_fit_before_anything_is_sent(app, charge):
    """`delay` has the function, so the error is the caller's."""
    for submit in (charge.delay, charge.options(priority=1).delay, charge.call):
        with pytest.raises(ArgumentError, match="argument 'order': expected Order, got str"):
            submit("order")
    with pytest.raises(ArgumentError, match="argument 'order': expected Order, got int"):
        charge.map([(3,)])
    with pytest.raises(ArgumentError, match=r"argument 'order.total': invalid decimal string"):
        charge.delay({"id": str(ORDER.id), "total": "much"})


def test_a_job_whose_arguments_do_not_fit_fails_before_it_runs_and_is_not_retried(app, charge):
    """A client that submits by name has no function to check against."""
    job = app.send("charge", ({"id": str(ORDER.id), "total": [1]},))
    with pytest.raises(JobFailed) as caught:
        job.get(timeout=20)
    assert caught.value.remote_message == (
        "task charge: argument 'order.total': expected Decimal, got list"
    )
    assert isinstance(caught.value.__cause__, ArgumentError)
    assert caught.value.__cause__.argument == "order"
    assert caught.value.remote_traceback.startswith("eventmq.errors.ArgumentError: task charge: ")
    assert (job.info()["attempt"], len(job.info()["attempts"])) == (1, 1)


def test_plain_data_by_name_arrives_as_the_class(app, charge):
    """Other programs, and the command line, pass plain values; `app.job` returns plain data."""
    job = app.send("charge", (ORDER,), {"tip": "0.10"})
    again = app.send("charge", ({"id": str(ORDER.id), "total": "10"},))
    plain = job.get(timeout=20)
    assert plain["total"] == Decimal("10.00")
    assert plain["size"] == "L"
    assert again.get(timeout=20)["total"] == Decimal(10)


def test_a_result_that_does_not_fit_its_annotation_is_reported_and_not_lost(app):
    @app.task(name="sloppy")
    def sloppy() -> Order:
        return {"id": 3}

    job = sloppy.delay()
    with pytest.raises(
        SerializationError, match="does not fit the annotation of task sloppy at id"
    ):
        job.get(timeout=20)
    assert job.state == "succeeded"
    assert app.job(job.id).get(timeout=20) == {"id": 3}


def test_without_annotations_a_task_gets_plain_data(app):
    @app.task(name="bare")
    def bare(value):
        return type(value).__name__, value

    assert bare.delay(RECEIPT).get(timeout=20)[0] == "dict"


def test_a_gateway_hands_on_plain_results(charge):
    """Its peers have none of the classes."""

    async def called():
        given = {"order": {"id": str(ORDER.id), "total": "1"}}
        job = await call_task(charge, (), given, timeout=20)
        return await job.aget()

    assert asyncio.run(called())["total"] == Decimal(1)


def test_schedules_and_shared_tasks_have_types_too(app):
    """The arguments of a schedule are checked when it is made; an app's view of a shared task."""

    @shared_task(name="shared_charge")
    def shared(order: Order) -> Order:
        return order

    with pytest.raises(ArgumentError, match="argument 'order': expected Order, got int"):
        app.schedule("hourly", app.tasks["shared_charge"].s(3), every(hours=1))
    assert app.tasks["shared_charge"].delay(ORDER).get(timeout=20) == ORDER
    assert app.tasks["shared_charge"].plans is shared.plans
