"""Arguments and results in the events of a commit: stored only where they are wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from eventmq.app import EventMQ
from eventmq.broker.limits import Limits
from eventmq.events import EventColumns, Field, rows_of, unpack_blocks
from eventmq.graph import Signature
from eventmq.interfaces import PluginContext
from eventmq.job import JobRecord, OutcomeKind
from eventmq.plugins.queue_stores import memory
from eventmq.plugins.queue_stores.sqlite import store
from eventmq.store.reads import ReadEvents
from eventmq.store.writes import Admit
from eventmq.wire.batches import encode_batch, pack
from eventmq.wire.commands import Request
from tests.support.broker_harness import TASK, Broker, FakeClock, row
from tests.support.graph_jobs import run
from tests.support.graph_jobs import submit as submit_graph

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from eventmq.store.reads import EventRow

#: Bytes of values in a row; a value may have 64.
MAX_BYTES = 1024

FREE = "guarantee:False"


@pytest.fixture
def keen(tmp_path: Path) -> Iterator[Broker]:
    """A broker that stores values."""
    broker = Broker(tmp_path, values=MAX_BYTES)
    yield broker
    broker.close()


def values_of(rows: Sequence[EventRow]) -> list[tuple[str, str, Any, Any]]:
    """Return number of the kind, job, content type and value of all events."""
    names = list(EventColumns().values)
    kind, job = names.index("kind"), names.index("job_id")
    event_values = []
    for first, _, body in rows:
        table = EventColumns()
        table.add("b", first, body)
        events = list(zip(*table.values.values(), strict=True))
        blocks = unpack_blocks(body)
        types = [v for block in blocks for v in block.column(Field.CONTENT_TYPE)]
        values = [v for block in blocks for v in block.column(Field.VALUE)]
        event_values += [
            (event[kind], event[job], *pair)
            for event, *pair in zip(events, types, values, strict=True)
        ]
    return event_values


def kept(broker: Broker, after: int = 0) -> list[tuple[str, Any, Any]]:
    """Return kind, content type and value of the events of a broker."""
    return [(kind, *more) for kind, _, *more in values_of(broker.event_rows(after))]


def done(broker: Broker, **outcome: Any) -> None:
    """Answer the last chunk."""
    broker.answer(b"worker", broker.dispatched[-1], [row(**outcome)])


def test_a_broker_without_a_redactor_keeps_no_values(broker: Broker) -> None:
    """It stores no byte of them."""
    broker.worker()
    broker.submit(body=b"secret")
    done(broker, result=b"hidden")
    rows = broker.event_rows()
    assert len(rows) == 2
    for _, _, body in rows:
        assert b"secret" not in body
        assert b"hidden" not in body
        for block in unpack_blocks(body):
            assert not {Field.CONTENT_TYPE, Field.VALUE} & {*block.common, *block.columns}


def test_a_job_has_its_arguments_when_it_comes_and_its_result_when_it_succeeds(
    keen: Broker,
) -> None:
    keen.worker()
    keen.submit(body=b"in")
    done(keen, result=b"out")
    assert kept(keen) == [("enqueued", "msgpack", b"in"), ("succeeded", "msgpack", b"out")]


def test_what_reads_events_without_a_redactor_shows_none(keen: Broker) -> None:
    """Neither observers nor a journal without a redactor."""
    keen.worker()
    keen.submit(body=b"in")
    done(keen, result=b"out")
    for event in keen.events():
        assert not {"arguments", "result"} & event.keys()
        assert b"in" not in event.values()
    table = EventColumns()
    for first, _, body in keen.event_rows():
        table.add("b", first, body)
    assert table.values["arguments"] == table.values["result"] == [None, None]


def test_a_redactor_is_asked_for_the_values_and_for_nothing_else(keen: Broker) -> None:
    keen.worker()
    keen.submit(body=b"in")
    done(keen, kind=int(OutcomeKind.RETRY), countdown=1.0)
    keen.ready(b"worker", 1, 1)
    keen.wait(2.0)
    done(keen, result=b"out")
    table = EventColumns(lambda name, block: [f"{name} {v!r}" for v in block.column(Field.VALUE)])
    for first, _, body in keen.event_rows():
        table.add("b", first, body)
    shown = [table.values[name] for name in ("kind", "arguments", "result")]
    assert list(zip(*shown, strict=True)) == [
        ("enqueued", "arguments b'in'", None),
        ("retry", None, None),
        ("enqueued", None, None),
        ("succeeded", None, "result b'out'"),
    ]


def test_a_job_that_waits_for_its_time_has_its_arguments_once(keen: Broker) -> None:
    """In the event of its admission, not when it becomes ready."""
    keen.submit(headers="countdown:5", body=b"in")
    keen.wait(6.0)
    assert kept(keen) == [("delayed", "msgpack", b"in"), ("enqueued", None, None)]


@pytest.mark.parametrize("kind", [OutcomeKind.FAILED, OutcomeKind.CANCELLED, OutcomeKind.EXPIRED])
def test_other_ends_have_no_value(keen: Broker, kind: OutcomeKind) -> None:
    """An error is not a result."""
    keen.worker()
    keen.submit()
    done(keen, kind=int(kind), result=b"e")
    assert kept(keen, 1) == [(kind.name.lower(), None, None)]


def test_a_result_that_a_task_keeps_to_itself_is_none(keen: Broker) -> None:
    keen.worker()
    keen.submit()
    done(keen, result=b"", content_type="")
    assert kept(keen, 1) == [("succeeded", None, None)]


def test_a_duplicate_has_no_arguments(keen: Broker) -> None:
    """Only the event of the first job has arguments."""
    job_id, _ = keen.submit(body=b"first")
    for body in (b"second", b"third"):
        keen.put(b"client", Request(job_id, "default", TASK, body))
    keen.tick()
    assert kept(keen) == [
        ("enqueued", "msgpack", b"first"), ("duplicate", None, None), ("duplicate", None, None),
    ]  # fmt: skip


@pytest.mark.parametrize("mode", ["replace", "keep_last"])
def test_a_job_that_takes_the_place_of_another_has_its_own_arguments(
    keen: Broker, mode: str
) -> None:
    headers = f"unique:k,unique-mode:{mode},countdown:9"
    keen.submit(headers=headers, body=b"old")
    keen.submit(headers=headers, body=b"new")
    assert kept(keen) == [
        ("delayed", "msgpack", b"old"), ("cancelled", None, None), ("delayed", "msgpack", b"new"),
    ]  # fmt: skip


def test_the_jobs_of_a_graph_have_the_arguments_that_they_were_given(keen: Broker) -> None:
    """Inputs from other jobs are in the events of those as results."""
    submit_graph(keen, Signature("a") | Signature("b"))
    run(keen)
    events = values_of(keen.event_rows())
    admitted = [(kind, value) for kind, _, _, value in events if kind != "succeeded"]
    assert admitted == [("enqueued", b"a"), ("delayed", b"b"), ("enqueued", None)]
    assert [value for kind, _, _, value in events if kind == "succeeded"] == [b"a", b"b(a)"]


def test_a_job_without_guarantee_has_its_result_only(keen: Broker) -> None:
    """Its first event is that of its end."""
    keen.worker()
    keen.submit(headers=FREE, body=b"in")
    done(keen, result=b"out")
    keen.wait(1.0)
    assert kept(keen) == [("succeeded", "msgpack", b"out")]


def test_a_legacy_job_has_an_empty_content_type(keen: Broker) -> None:
    keen.tell(b"client", Request(keen.new_id(), "default", "ack-requested", b"[]"))
    assert kept(keen) == [("enqueued", "", b"[]")]


def test_what_a_signature_covers_goes_with_the_arguments(keen: Broker) -> None:
    keen.submit(headers="signature:abc,created:1800000000.25,expires:1800000900.5", body=b"in")
    signed = "msgpack;abc;1800000000.25;1800000900.5"
    assert kept(keen) == [("enqueued", signed, b"in")]


# Sizes


def test_a_long_value_is_left_out(keen: Broker) -> None:
    """Value and content type together may have a sixteenth of the bytes of a row."""
    keen.submit(body=b"x" * 57)
    keen.submit(body=b"x" * 58)
    assert kept(keen) == [("enqueued", "msgpack", b"x" * 57), ("enqueued", None, None)]


def batch(keen: Broker, bodies: Sequence[bytes], tasks: Sequence[str] = (TASK,)) -> list[str]:
    """Submit jobs in one commit."""
    ids = [keen.new_id() for _ in bodies]
    templates = [n % len(tasks) for n in range(len(ids))]
    jobs = list(zip(ids, templates, bodies, strict=True))
    body = encode_batch([("default", task) for task in tasks], jobs)
    keen.tell(b"client", Request(keen.new_id(), "", f"batch:{len(ids)}", body))
    return ids


@pytest.mark.parametrize("tasks", [(TASK,), (TASK, "task:b,content-type:json", "task:c")])
def test_a_commit_with_much_in_it_makes_several_rows(keen: Broker, tasks: Sequence[str]) -> None:
    """Each with limited bytes; no event is missing, and values stay with their events."""
    bodies = [b"%03d" % n * (n % 19) for n in range(400)]
    ids = batch(keen, bodies, tasks)
    rows = keen.event_rows()
    assert len(rows) > 10
    for _, _, body in rows:
        values = [v for block in unpack_blocks(body) for v in block.column(Field.VALUE)]
        assert sum(len(value) for value in values) <= MAX_BYTES
    events = values_of(rows)
    assert {job_id: value for _, job_id, _, value in events} == dict(zip(ids, bodies, strict=True))
    assert [event["seq"] for event in keen.events()] == list(range(1, 401))
    ends = [(first, first + n) for first, n, _ in rows]
    assert [end for _, end in ends[:-1]] == [first for first, _ in ends[1:]]


def test_a_journal_elsewhere_gets_no_answer_longer_than_a_frame(tmp_path: Path) -> None:
    """Even with the values of a row that the setting allows."""
    limits = Limits(max_frame=65_536)
    broker = Broker(tmp_path, limits=limits, values=limits.max_frame // 8)
    bodies = [b"%03d" % n * 150 for n in range(100)]
    for part in range(0, 1000, 100):
        batch(broker, [body + b"%d" % part for body in bodies])
    after, sizes = 0, []
    while answer := broker.call("events.read", client=b"admin", after=after):
        if not answer["rows"]:
            break
        sizes.append(len(pack(answer)))
        first, n, _ = answer["rows"][-1]
        after = first + n - 1
    broker.close()
    assert after == 1000
    assert limits.max_frame // 2 < max(sizes) < limits.max_frame


def test_a_value_that_all_jobs_share_is_kept_once(keen: Broker) -> None:
    batch(keen, [b"shared!"] * 50)
    [(_, _, body)] = keen.event_rows()
    assert body.count(b"shared!") == 1
    assert [value for _, _, _, value in values_of(keen.event_rows())] == [b"shared!"] * 50


# Stores, and the setting


@pytest.mark.parametrize("module", [store, memory])
def test_both_stores_take_the_option(tmp_path: Path, module: Any) -> None:
    options = {"directory": str(tmp_path), "reserve": 0, "events_values": MAX_BYTES}
    store = module.make_store(PluginContext("store", options, FakeClock()))
    store.open()
    store.submit([Admit([JobRecord("i", "q", TASK, b"in", seq=1)]), ReadEvents(0, 1)])
    store.finished()
    store.submit([ReadEvents(0, 1)])
    [[(rows, _)]] = store.finished()
    store.close()
    assert [value for *_, value in values_of(rows)] == [b"in"]


@pytest.mark.parametrize(
    ("settings", "max_bytes"),
    [
        ({}, 0),
        ({"redactor": "shop.secrets:redact"}, 262_144),
        ({"redactor": "shop.secrets:redact", "max_frame": 65_536}, 8192),
    ],
)
def test_the_setting_decides_and_a_row_fits_a_frame(
    tmp_path: Path, settings: dict[str, Any], max_bytes: int
) -> None:
    """The broker does not import the redactor's module, which does not exist here."""
    app = EventMQ("shop", data_dir=str(tmp_path), **settings)
    runner = app.make_broker(binds={})
    assert runner.store.engine._events[2] == max_bytes
    app.close()


def test_observers_are_told_of_no_values(keen: Broker) -> None:
    keen.submit(body=b"in")
    [(first, _, body)] = keen.event_rows()
    [event] = rows_of("b", first, body)
    assert b"in" in body
    assert not {"arguments", "result"} & event.keys()
