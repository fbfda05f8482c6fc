"""Whose a job is: its parent and the root of its tree, in all of its events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from eventmq import EventMQ, chain, chord, group
from eventmq.client.submit import LineageMarker, with_lineage
from eventmq.client.templates import EncodedJob
from eventmq.events import pack_blocks, rows_of
from eventmq.graph import Chain, Chord, Group, Signature
from eventmq.interfaces import JobContext, current
from eventmq.job import OutcomeKind
from eventmq.store.events import _known_label, events_of
from tests.support.broker_harness import Broker, row
from tests.support.graph_jobs import submit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from eventmq.client.handle import Job

A, B, C, D, E = map(Signature, "abcde")


def lineage(events: Sequence[dict[str, Any]], ids: Sequence[str]) -> list[set[tuple[str, str]]]:
    """Return what the events of each job say of its root and its parent: one pair, if all agree."""
    return [
        {(e.get("root_id", ""), e.get("parent_id", "")) for e in events if e.get("job_id") == job}
        for job in ids
    ]


def run(broker: Broker, *, fails: bool = False) -> None:
    """Let a worker do all that it gets; the first one fails if told so."""
    broker.worker()
    for done in range(50):
        if len(broker.dispatched) <= done:
            break
        kind = OutcomeKind.FAILED if fails and not done else OutcomeKind.SUCCEEDED
        broker.answer(b"worker", broker.dispatched[done], [row(kind=kind)])
        broker.ready(b"worker", 1, done + 1)


# Graphs


def test_all_events_of_all_jobs_of_a_graph_say_root_and_parent(broker: Broker) -> None:
    """A link comes after the one before it, members after the link, a callback after the first."""
    ids = submit(broker, Chain((A, Chord(Group((B, C)), D), E)))
    run(broker)
    a, b, _, d, _ = ids
    expected = [{(a, "")}, {(a, a)}, {(a, a)}, {(a, b)}, {(a, d)}]
    assert lineage(broker.events(), ids) == expected
    assert [event["kind"] for event in broker.events()].count("succeeded") == 5


def test_an_error_callback_comes_after_the_first_job_that_it_watches(broker: Broker) -> None:
    ids = submit(broker, Chain((A, B)).on_error(Signature("x")))
    run(broker, fails=True)
    a = ids[0]
    assert lineage(broker.events(), ids) == [{(a, "")}, {(a, a)}, {(a, a)}]


def test_a_failed_job_that_is_queued_again_is_still_of_its_graph(broker: Broker) -> None:
    """The same holds on a broker that was restarted."""
    ids = submit(broker, Chain((A, B)))
    broker.worker()
    broker.answer(b"worker", broker.dispatched[0], [row(kind=OutcomeKind.FAILED)])
    broker.crash()
    broker.call("retry", ids=[ids[0]])
    kinds = [e["kind"] for e in broker.events() if e["job_id"] == ids[0]]
    assert kinds == ["enqueued", "failed", "replayed"]
    assert lineage(broker.events(), ids) == [{(ids[0], "")}, {(ids[0], ids[0])}]


def test_members_without_a_link_before_them_have_no_parent(broker: Broker) -> None:
    ids = submit(broker, Group((A, B, C)))
    run(broker)
    assert lineage(broker.events(), ids) == [{(ids[0], "")}] * 3


# Jobs that jobs submit


def test_a_job_of_a_job_of_a_graph_has_the_root_of_the_graph(broker: Broker) -> None:
    """Its submitter knows only its own id; and so on, down the tree."""
    a, b = submit(broker, Chain((A, B)))
    child, _ = broker.submit(headers=f"task:c,root-id:{b},parent-id:{b}")
    grandchild, _ = broker.submit(headers=f"task:d,root-id:{b},parent-id:{child}")
    assert lineage(broker.events(), [child, grandchild]) == [{(a, b)}, {(a, child)}]


def test_a_graph_that_a_job_submits_has_the_root_of_the_job(broker: Broker) -> None:
    """The first jobs in it have the job as their parent, the others the job that they wait for."""
    marks = ",root-id:r,parent-id:p"
    ids = submit(broker, Chain((A, Group((B, C)))), a=marks, b=marks, c=marks)
    assert lineage(broker.events(), ids) == [{("r", "p")}, {("r", ids[0])}, {("r", ids[0])}]


def test_legacy_jobs_cost_no_look_up() -> None:
    """Only labels of graphs, and of jobs that say a root, are longer than what is stored."""
    assert len(_known_label("task:t,content-type:msgpack,trace-id:x")) == 6
    assert len(_known_label("task:t,graph:n")) == 7
    assert len(_known_label("task:t,root-id:r")) == 7


def test_without_a_store_that_knows_graphs_events_are_as_their_headers_say(broker: Broker) -> None:
    from eventmq.job import JobRecord
    from eventmq.store.writes import Admit

    job = JobRecord("j", "q", "task:t,graph:n,root-id:r", b"", created=1.0)
    blocks = events_of([Admit([job])], [{}])
    [event] = rows_of("b", 1, pack_blocks(blocks))
    assert (event["task"], event["root_id"]) == ("t", "r")


# Headers


def context(headers: str = "") -> JobContext:
    return JobContext("p1", "shop.add", "default", 1, 1, headers)


@pytest.fixture
def app() -> Iterator[EventMQ]:
    app = EventMQ("shop", broker="memory://", release="2026.11")

    @app.task(name="leaf")
    def leaf(x: int = 0) -> int:
        return x

    @app.task(name="total")
    def total(values: list[int]) -> int:
        return sum(values)

    @app.task(name="tree")
    def tree() -> list[str]:
        jobs: list[Job[Any]] = [leaf.delay(1), *leaf.map([(2,), (3,)]), app.send("leaf", (4,))]
        jobs.append(leaf.options(headers={"parent-id": "mine"}).delay(5))
        with app.batch():
            jobs.append(leaf.delay(6))
        links = chain(leaf.s(7), leaf.s()).delay()
        sums = chord([leaf.s(8), leaf.s(9)], total.s()).delay()
        app.wait([*jobs, links, sums], timeout=20)
        return [job.id for job in (*jobs, links, sums)]

    yield app
    app.close()


def events(app: EventMQ) -> list[dict[str, Any]]:
    rows = app.ask("events.read", {"after": 0})["rows"]
    return [dict(event) for first, _, body in rows for event in rows_of("b", first, body)]


def test_what_a_task_submits_says_whose_it_is(app: EventMQ) -> None:
    """By any way, with the trace of the task; what the caller says itself is left alone."""
    job = app.send("tree", headers={"trace-id": "t9"})
    *jobs, link, sums = job.get(timeout=30)
    logged = events(app)
    expected = [{(job.id, job.id)}] * 4 + [{(job.id, "mine")}, {(job.id, job.id)}]
    assert lineage(logged, jobs) == expected
    assert {event["trace_id"] for event in logged if event["job_id"] in jobs} == {"t9"}
    assert {event["root_id"] for event in logged if event["job_id"] != job.id} == {job.id}
    first = min(e["job_id"] for e in logged if e["job_id"] > jobs[-1])
    assert lineage(logged, [first, link]) == [{(job.id, job.id)}, {(job.id, first)}]
    [(_, member)] = lineage(logged, [sums])[0:1][0]
    assert lineage(logged, [member]) == [{(job.id, job.id)}]
    assert {event.get("release") for event in logged} == {"2026.11"}


def test_outside_of_jobs_nothing_is_said(app: EventMQ) -> None:
    template = app.tasks["leaf"].template
    assert LineageMarker().mark(template) is template
    written = EncodedJob("j", "q", "task:t", b"")
    assert with_lineage(written) is written


def test_a_mark_is_made_once_for_many_jobs_of_a_task(app: EventMQ) -> None:
    """It has the root and the trace of the running job."""
    template, mark = app.tasks["leaf"].template, LineageMarker().mark
    token = current.set(context("task:x,root-id:r,trace-id:t"))
    try:
        marked = mark(template)
        assert mark(template) is marked
        assert mark(marked) is marked
        graph = EncodedJob("g", "", "nodes:2", b"")
        assert with_lineage(graph) is graph
        assert (
            with_lineage(EncodedJob("j", "q", "", b"")).headers
            == "root-id:r,parent-id:p1,trace-id:t"
        )
    finally:
        current.reset(token)
    assert marked.text.endswith("root-id:r,parent-id:p1,trace-id:t")


def test_a_group_in_a_task_has_the_task_as_parent(app: EventMQ) -> None:
    token = current.set(context())
    try:
        jobs = group(app.tasks["leaf"].s(n) for n in range(3)).delay()
    finally:
        current.reset(token)
    jobs.get(timeout=20)
    assert {(e["root_id"], e["parent_id"]) for e in events(app)} == {("p1", "p1")}
