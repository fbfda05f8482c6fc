"""Graphs on the broker's core: the effects of an end are in the same commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from eventmq.broker.limits import Limits
from eventmq.graph import Expression, Group, Signature
from eventmq.job import OutcomeKind
from eventmq.wire.batches import encode_outcomes, pack, unpack
from eventmq.wire.commands import Ack, Error, Reply, Request
from eventmq.wire.results import decode_error
from tests.support.broker_harness import Broker, chunks, row
from tests.support.graph_jobs import A, B, C, D, Worker, request, run, states, submit

if TYPE_CHECKING:
    from pathlib import Path


def counts(broker: Broker) -> tuple[int, int, int, int]:
    """Return the counts of the queue as listed, and its blocked jobs."""
    [queue] = broker.call("queues", client=b"looker")
    blocked = broker.core.state.queues["default"].counts.blocked
    return queue["waiting"], queue["running"], queue["failed"], blocked


# Running


@pytest.mark.parametrize(
    ("expression", "last"),
    [
        (A | B | C, "c(b(a))"),
        (Group((A, B)) | C, "c([a b])"),
        (A | Group((B, C | D)) | C, "c([b(a) d(c(a))])"),
        (Group((A, Group((B, C)))) | D, "d([a [b c]])"),
        (Group((A, B)) | Group((C, D)) | A, "a([c([a b]) d([a b])])"),
        (A | Signature("b", immutable=True) | C, "c(b)"),
        (A | Group(()) | Signature("b", immutable=True) | C, "c(b)"),
    ],
    ids=str,
)
def test_a_graph_runs_to_its_end(broker: Broker, expression: Expression, last: str) -> None:
    ids = submit(broker, expression)
    assert run(broker)[-1] == last
    assert set(states(broker, ids)) == {"s"}
    assert counts(broker) == (0, 0, 0, 0)


def test_a_job_of_a_graph_waits_from_the_end_of_what_it_waited_for(broker: Broker) -> None:
    """In its events: it was not ready before, whenever it was submitted."""
    first, second = submit(broker, A | B)
    Worker(broker).join()
    for seconds in (5.0, 2.0):
        broker.clock.time += seconds
        answer = row(started=broker.clock.now() - 0.5, run_time=0.5)
        broker.answer(b"w1", broker.dispatched[-1], [answer])
        broker.ready(b"w1", 3, received=len(broker.dispatched))
    waits = {e["job_id"]: e["wait_us"] for e in broker.events() if e["kind"] == "succeeded"}
    assert waits == {first: 4_500_000, second: 1_500_000}


def test_what_waits_is_blocked_until_its_turn(broker: Broker) -> None:
    ids = submit(broker, A | Group((B, C)) | D)
    assert states(broker, ids) == "qbbb"
    assert counts(broker) == (1, 0, 0, 3)
    [(chunk, _)] = chunks(broker.worker())
    assert states(broker, ids) == "rbbb"
    broker.answer(b"worker", chunk, [row()])
    assert states(broker, ids) == "srqb"
    assert counts(broker) == (1, 1, 0, 1)


def test_the_reply_of_a_link_and_the_next_one_are_one_commit(broker: Broker) -> None:
    """Between two commits either both effects are visible, or none."""
    ids = submit(broker, A | B)
    [(chunk, _)] = chunks(broker.worker())
    seen = []
    real = broker.store.submit

    def watch(entries: Any) -> None:
        real(entries)
        sql = "SELECT id, state FROM jobs ORDER BY seq"
        seen.append(broker.store._db.execute(sql).fetchall())

    broker.store.submit = watch
    broker.answer(b"worker", chunk, [row()])
    assert seen[0] == [(ids[1], 2)]


class Dead(Exception):
    """The broker was killed."""


def killed_after(broker: Broker, commits: int) -> None:
    """Kill the broker after a number of commits, before it can send anything about the last one."""
    real = broker.store.submit
    remaining = [commits]

    def submit(entries: Any) -> None:
        real(entries)
        remaining[0] -= 1
        if not remaining[0]:
            raise Dead

    broker.store.submit = submit


@pytest.mark.parametrize("commits", range(1, 16))
def test_a_graph_survives_a_restart_after_any_commit(tmp_path: Path, commits: int) -> None:
    """Each kill is followed by a new session; the last job ends once, with the same result."""
    broker = Broker(tmp_path)
    ids, message = request(broker, A | Group((B, C | D, Group((A, B)))) | C)
    ran: list[str] = []
    worker = Worker(broker)
    for _ in range(30):
        killed_after(broker, commits)
        try:
            broker.tell(b"client", message)
            worker.join()
            worker.work()
            ran += worker.ran
            break
        except Dead:
            ran += worker.ran
            sessions = worker.sessions
            worker = Worker(broker)
            worker.sessions = sessions
            broker.dispatched.clear()
            broker.crash()
            broker.wait(broker.limits.heartbeat_timeout + 1.0)
            if commits < 5:  # otherwise it would never make progress
                commits += 1
    broker.store.submit = type(broker.store).submit.__get__(broker.store)
    last = "c([b(a) d(c(a)) [a(a) b(a)]])"
    assert last in ran
    assert {text for text in ran if text.startswith("c([")} == {last}
    assert set(states(broker, ids)) == {"s"}
    assert counts(broker) == (0, 0, 0, 0)
    broker.close()


def test_a_restarted_broker_knows_what_is_blocked(broker: Broker) -> None:
    ids = submit(broker, A | B | C)
    broker.crash()
    assert states(broker, ids) == "qbb"
    assert counts(broker) == (1, 0, 0, 2)
    assert run(broker) == ["a", "b(a)", "c(b(a))"]


def test_the_same_graph_again_is_acknowledged_again(broker: Broker) -> None:
    ids, message = request(broker, A | B)
    for _ in range(2):
        assert [type(got) for got in broker.tell(b"client", message)] == [Ack]
    assert run(broker) == ["a", "b(a)"]
    assert [type(got) for got in broker.tell(b"client", message)] == [Ack]
    assert states(broker, ids) == "ss"


# Failures


def test_a_failed_link_cancels_the_rest_and_says_so(broker: Broker) -> None:
    """The result of the last job has the reason."""
    ids = submit(broker, A | B | C)
    assert broker.call("get", ids=[ids[2]]) is None
    assert run(broker, lambda text: text.startswith("b")) == ["a", "b(a)"]
    assert states(broker, ids) == "sfc"
    [answer] = broker.took(b"client")
    [[_, state, _, error]] = unpack(answer.result, "rows")
    assert (state, decode_error(error).message) == ("cancelled", f"dependency: job {ids[1]} failed")
    assert counts(broker) == (0, 0, 1, 0)


def test_an_expired_member_counts(broker: Broker) -> None:
    ids = submit(broker, Group((A, B), on_failure="continue") | C, b=",expires:1800000005")
    broker.wait(6.0)
    assert run(broker) == ["a", "c([a])"]
    assert states(broker, ids) == "ses"


def test_a_member_that_no_worker_takes_expires_and_counts(broker: Broker) -> None:
    """Also a member that expires before it is ready."""
    expires = ",expires:1800000005"
    ids = submit(broker, Group((A | B, C), on_failure="continue") | D, b=expires, c=expires)
    broker.wait(6.0)
    assert states(broker, ids) == "qbeb"
    assert run(broker) == ["a", "d([])"]
    assert states(broker, ids) == "sees"


def test_a_job_that_is_tried_again_is_waited_for(broker: Broker) -> None:
    ids = submit(broker, A | B)
    [(chunk, _)] = chunks(broker.worker())
    broker.answer(b"worker", chunk, [row(kind=OutcomeKind.RETRY, countdown=5.0)])
    assert states(broker, ids) == "db"


def test_a_cancelled_member_counts(broker: Broker) -> None:
    """Waiting or running, by id or by queue, with a policy or without."""
    ids = submit(broker, Group((A, B), on_failure="continue") | C)
    broker.call("cancel", ids=[ids[1]])
    assert run(broker) == ["a", "c([a])"]
    broker.call("pause", queue="default")
    more = submit(broker, Group((A, B)) | C)
    broker.call("bulk", id="s", action="cancel", task="a")
    broker.tick()
    assert states(broker, more) == "cqc"
    assert states(broker, ids) == "scs"


def test_error_callbacks_are_called_once(broker: Broker) -> None:
    handler = Signature("x")
    ids = submit(broker, Group((A, B, C)).on_error(handler) | D)
    ran = run(broker, lambda text: text in "abc")
    assert ran[-1] == "x(failed)"
    assert states(broker, ids) == "fffcs"


def test_error_callbacks_without_an_error_are_cancelled(broker: Broker) -> None:
    ids = submit(broker, (A | B).on_error(Signature("x")))
    assert run(broker) == ["a", "b(a)"]
    assert states(broker, ids) == "ssc"
    assert counts(broker) == (0, 0, 0, 0)


# Deadlines


def test_a_member_that_never_ends_is_cancelled_at_the_deadline(broker: Broker) -> None:
    """The group continues without it or not, as its policy says; also after a restart."""
    part = Group((A, B), on_failure="continue", deadline=10)
    ids = submit(broker, part | C, b=",countdown:9999")
    assert run(broker) == ["a"]
    broker.crash()
    broker.wait(9.0)
    assert states(broker, ids) == "sdb"
    broker.wait(2.0)
    assert run(broker) == ["c([a])"]
    assert states(broker, ids) == "scs"
    assert counts(broker) == (0, 0, 0, 0)


# The whole


def test_a_graph_is_cancelled_whole_wherever_its_jobs_are(broker: Broker) -> None:
    ids = submit(broker, Group((A, B)) | C)
    [(_, _)] = chunks(broker.worker())
    answer = broker.call("cancel_graph", id=ids[2], reason="enough")
    assert answer == {"id": ids[0], "count": 3}
    assert states(broker, ids) == "ccc"
    assert counts(broker) == (0, 0, 0, 0)
    error = broker.call("cancel_graph", id="nobody")
    assert isinstance(error, Error)
    assert error.code == "job-not-found"


def test_a_graph_that_is_cancelled_at_once_leaves_no_results(broker: Broker) -> None:
    """Results held for a callback are deleted in the commit that ends the graph."""
    broker.worker(b"w", "w", window=1)
    ids = submit(broker, Group((A, B)) | C, b=",countdown:50.0")
    broker.answer(b"w", broker.dispatched[-1], [row()])
    held = "SELECT count(*) FROM member_results"
    assert (states(broker, ids), broker.store._db.execute(held).fetchone()) == ("sdb", (1,))
    assert broker.call("cancel_graph", id=ids[0])
    assert (states(broker, ids), broker.store._db.execute(held).fetchone()) == ("scc", (0,))


def test_a_result_is_not_held_for_a_callback_that_was_cancelled(broker: Broker) -> None:
    ids = submit(broker, Group((A, B, D)) | C)
    [(chunk, _)] = chunks(broker.worker(b"w", "w"))
    broker.answer(b"w", chunk, [row(kind=OutcomeKind.FAILED)])
    broker.ready(b"w", 1)
    broker.answer(b"w", broker.dispatched[-1], [row()])
    held = "SELECT count(*) FROM member_results"
    assert (states(broker, ids), broker.store._db.execute(held).fetchone()) == ("fsrc", (0,))


@pytest.mark.parametrize(("policy", "ends"), [("continue", "cq"), ("cancel", "cc")])
def test_what_many_ends_cause_is_read_together(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, policy: str, ends: str
) -> None:
    """The number of queries does not grow with that of graphs, for a store behind a network."""
    store = broker.store.engine.tables.store
    queries: list[str] = []

    def noted(verb: str, read: Any) -> Any:
        def ask(*args: Any, **more: Any) -> Any:
            before = len(queries)
            answer = read(*args, **more)
            queries[before:] = [f"{verb} {args[0]}"]  # nested queries do not count
            return answer

        return ask

    for verb in ("get", "scan", "heads", "measure"):
        monkeypatch.setattr(store, verb, noted(verb, getattr(store, verb)))
    reads = []
    expression = Group((A,), on_failure=policy) | Signature("b", immutable=True)
    for count in (2, 10, 60):  # the first one has new task names
        ids = [submit(broker, expression) for _ in range(count)]
        queries.clear()
        broker.call("cancel", ids=[jobs[0] for jobs in ids])
        reads.append(list(queries))
        assert {states(broker, jobs) for jobs in ids} == {ends}
    assert reads[1] == reads[2]


def test_a_graph_can_be_looked_at(broker: Broker) -> None:
    ids = submit(broker, Group((A, B)) | C)
    run(broker, lambda text: text == "b")
    page = broker.call("graph", id=ids[1])
    assert (page["id"], page["size"]) == (ids[0], 3)
    assert [(job["task"], job["state"]) for job in page["jobs"]] == [
        ("a", "succeeded"), ("b", "failed"), ("c", "cancelled"),
    ]  # fmt: skip
    info = broker.call("info", id=ids[2])
    assert (info["root"], info["parent"]) == (ids[0], ids[0])
    job_id, _ = broker.submit()
    info = broker.call("info", id=job_id)
    assert (info["root"], info["parent"]) == ("", "")


# Refusals


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        (",unique:k", "bad-header"),
        (",guarantee:False", "bad-header"),
        (",batch:2", "bad-header"),
        (",graph:", "bad-header"),
        (",priority:x", "bad-header"),
    ],
)
def test_a_graph_with_a_bad_job_is_refused_whole(broker: Broker, headers: str, code: str) -> None:
    ids, message = request(broker, A | B, b=headers)
    [error] = broker.tell(b"client", message)
    assert (error.request, error.code) == (ids[0], code)
    assert states(broker, ids) == ""


def test_bounds_refuse_from_outside_and_never_in_between(tmp_path: Path) -> None:
    """Blocked jobs count for the queue, so jobs that become ready are not checked again."""
    broker = Broker(tmp_path, Limits(max_queue_length=3))
    submit(broker, A | B | C)
    _, message = request(broker, A | B)
    [error] = broker.tell(b"client", message)
    assert error.code == "queue-full"
    assert run(broker) == ["a", "b(a)", "c(b(a))"]
    broker.close()


def test_the_jobs_of_a_graph_fill_a_queue_together(tmp_path: Path) -> None:
    """Whatever their headers, and together with another graph in the same tick."""
    broker = Broker(tmp_path, Limits(max_queue_length=2))
    _, message = request(broker, A | B | C)
    [error] = broker.tell(b"client", message)
    assert (error.code, "max_queue_length" in error.text) == ("queue-full", True)
    for _ in range(2):
        broker.put(b"client", request(broker, A | B)[1])
    broker.tick()
    assert sum(isinstance(answer, Error) for answer in broker.took(b"client")) == 1
    assert broker.core.state.queues["default"].length == 2
    broker.close()


@pytest.mark.parametrize(
    ("count", "body"),
    [
        (2, b"x"),
        (2, pack([])),
        (2, pack([[["q", "graph:n"]], [["a", 0, b""], ["a", 0, b""]], [[-1, -1], [], [], []]])),
        (1, pack([[["q", "graph:n"]], [["other", 0, b""]], [[-1], [], [], []]])),
        (50_001, b""),
    ],
)
def test_a_malformed_graph_is_refused(broker: Broker, count: int, body: bytes) -> None:
    [error] = broker.tell(b"client", Request("a", "", f"nodes:{count}", body))
    assert error.code in {"bad-body", "too-many", "bad-header"}
    assert counts_of(broker) == 0


def counts_of(broker: Broker) -> int:
    return sum(queue["waiting"] for queue in broker.call("queues", client=b"looker"))


def test_a_full_disk_refuses_the_graph(broker: Broker) -> None:
    broker.store._directory._reserve = 1 << 60
    _, message = request(broker, A | B)
    [error] = broker.tell(b"client", message)
    assert error.code == "store-full"


# Slices


def test_a_large_graph_is_cancelled_in_many_commits_and_one_answer(tmp_path: Path) -> None:
    broker = Broker(tmp_path, Limits(graph_slice=3))
    ids = submit(broker, A | Group((B,) * 6) | C)
    assert broker.call("cancel_graph", id=ids[3], reason="enough")["count"] == 8
    assert states(broker, ids) == "c" * 8
    assert counts(broker) == (0, 0, 0, 0)
    broker.close()


def test_what_one_end_causes_is_done_tick_by_tick(tmp_path: Path) -> None:
    """Other jobs are served in between, and it continues after a restart in the middle."""
    broker = Broker(tmp_path, Limits(graph_slice=3))
    ids = submit(broker, A | Group((B,) * 9))
    broker.worker(b"w", "s", window=1)
    [chunk] = broker.dispatched
    outcome = encode_outcomes([row(0, int(OutcomeKind.FAILED))])
    broker.put(b"w", Reply("r", outcome, chunk.id, chunk.headers))
    broker.core.decide(broker.clock.now())
    entries, settle = broker.core.take_batch()
    broker.store.submit(entries)
    [write_results] = broker.store.finished()
    settle(write_results)
    assert broker.core.has_writes
    broker.crash()
    assert broker.core.has_writes
    broker.tick()
    assert not broker.core.has_writes
    assert states(broker, ids) == "f" + "c" * 9
    broker.close()
