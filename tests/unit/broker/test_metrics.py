"""Metrics of a broker: the CALL ``metrics``, and `BrokerRunner.ask`."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from eventmq import EventMQ
from eventmq.broker import metrics
from eventmq.broker.limits import Limits
from eventmq.errors import EventMQError
from eventmq.store.metrics import OTHER, MetricsLimits
from tests.support.broker_harness import Broker, chunks, row

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path, limits=Limits(metrics=MetricsLimits(max_queues=2)))
    yield broker
    broker.close()


def queues(broker: Broker) -> dict[str, dict[str, Any]]:
    return {row.pop("name"): row for row in broker.call("metrics")["queues"]}


def test_a_queue_says_how_long_its_oldest_job_has_waited(broker: Broker) -> None:
    """Counts waiting jobs only, not running or delayed ones."""
    broker.submit()
    broker.submit(headers="countdown:100")
    broker.wait(30.0)
    assert {
        "waiting": 1, "delayed": 1, "blocked": 0, "running": 0, "failed": 0, "workers": 0,
        "paused": 0, "oldest": 30.0,
    } == queues(broker)["default"]  # fmt: skip
    broker.worker()
    assert (1, 0, 1, 0.0) == tuple(
        queues(broker)["default"][key] for key in ("running", "waiting", "workers", "oldest")
    )


def test_queues_over_the_bound_are_one(broker: Broker) -> None:
    """Their jobs are added up; the longest waiting time counts."""
    for name in ("a", "b", "c"):
        broker.submit(queue=name)
    broker.wait(10.0)
    for name in ("d", "e"):
        broker.submit(queue=name)
    for name in ("d", "e"):
        broker.call("pause", queue=name)
    rows = queues(broker)
    assert {"a": 1, "b": 1, OTHER: 3} == {name: each["waiting"] for name, each in rows.items()}
    assert (10.0, 1) == (rows[OTHER]["oldest"], rows[OTHER]["paused"])


def test_the_bound_is_logged_once_with_its_setting(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b", "c", "d"):
        broker.submit(queue=name)
    queues(broker)
    queues(broker)
    [line] = [text for text in caplog.messages if "metrics_max_queues" in text]
    assert "the queue 'c' and later ones have no metrics of their own" in line


def test_a_queue_that_is_forgotten_leaves_its_label_to_another(broker: Broker) -> None:
    """Misspelt names do not keep the labels of later queues for ever."""
    metrics = broker.core.state.metrics
    assert ["a", "b", OTHER] == [metrics.queue_label(name) for name in ("a", "b", "c")]
    metrics.forget_queue("a")
    metrics.forget_queue("never there")
    assert ["c", OTHER] == [metrics.queue_label(name) for name in ("c", "a")]


def test_a_queue_that_the_broker_forgets_has_no_figures(broker: Broker) -> None:
    """It is empty and not served for `empty_queue_ttl`; then another queue gets its label."""
    jobs = [broker.submit(queue=name)[0] for name in ("a", "b", "c")]
    assert {"a", "b", OTHER} == {each["queue"] for each in broker.call("metrics")["jobs"]}
    broker.call("cancel", ids=[jobs[0]])
    for _ in range(140):
        broker.wait(5.0)
    assert "a" not in broker.core.state.queues
    broker.submit(queue="c")
    assert {"b", "c", OTHER} == {each["queue"] for each in broker.call("metrics")["jobs"]}
    assert {"b", "c"} == set(queues(broker))


def test_queues_with_jobs_are_labelled_before_those_without(broker: Broker) -> None:
    for name in ("a", "b"):
        broker.call("cancel", ids=[broker.submit(queue=name)[0]])
    for name in ("c", "d"):
        broker.submit(queue=name)
    metrics = broker.core.state.metrics
    for name in ("a", "b", "c", "d"):
        metrics.forget_queue(name)
    assert {"c", "d", OTHER} == set(queues(broker))


def test_workers_say_how_many_slots_they_have_and_use(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limited number of connected workers has rows of their own."""
    monkeypatch.setattr(metrics, "MAX_WORKERS", 2)
    for name in ("one", "two", "three", "four"):
        broker.worker(name.encode(), name)
        broker.core.state.sessions[name].slots = 2
    broker.submit_batch([broker.new_id() for _ in range(3)])
    rows = {name: (used, total) for name, used, total in broker.call("metrics")["workers"]}
    assert {"one", "two", OTHER} == set(rows)
    assert (2, 2, 4) == tuple(total for _, total in rows.values())
    held = sum(
        lease.remaining for s in broker.core.state.sessions.values() for lease in s.leases.values()
    )
    assert 3 == held
    assert 0 < sum(used for used, _ in rows.values()) <= 3


def test_ends_are_counted_by_queue_and_task(broker: Broker) -> None:
    for _ in range(2):
        broker.submit()
    broker.worker(window=2)
    for chunk, _ in chunks(broker.dispatched):
        broker.answer(b"worker", chunk, [row(started=broker.clock.now(), run_time=0.25)])
    broker.worker(window=3)
    [figures] = broker.call("metrics")["jobs"]
    assert ("default", "shop.add", 2) == (figures["queue"], figures["task"], figures["submitted"])
    assert sum(figures["outcomes"].values()) == sum(figures["run"][1]) > 0
    assert figures["run"][2] == 0.25 * sum(figures["run"][1])


# Beside the broker's thread


def test_another_thread_gets_the_figures(tmp_path: Path) -> None:
    app = EventMQ("shop", data_dir=str(tmp_path), metrics_run_buckets=(("*/x", "1 2"),))
    runner = app.make_broker(binds={"main": "tcp://127.0.0.1:0"})
    runner.bind()
    with pytest.raises(TimeoutError, match=r"the broker has not answered within 0\.01 s"):
        runner.ask(lambda core: core.state.epoch, 0.01)
    thread = threading.Thread(target=runner.run)
    thread.start()
    try:
        assert 1 == runner.ask(lambda core: core.state.epoch, 20.0)
        figures = runner.metrics()
        assert ("active", 1, []) == (figures["role"], figures["epoch"], figures["queues"])
        assert sum(figures["commits"][1]) > 0
        assert {"bytes", "free_bytes", "reserve_bytes"} == set(figures["store"])
        rules = runner.core.state.metrics.limits.run_buckets
        assert (("*/x", (1.0, 2.0)),) == rules
    finally:
        runner.stop()
        thread.join()


def test_a_broker_that_is_stuck_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("eventmq.broker.runner.METRICS_TIMEOUT", 0.01)
    app = EventMQ("shop", data_dir=str(tmp_path))
    runner = app.make_broker(binds={"main": "tcp://127.0.0.1:0"})
    with pytest.raises(EventMQError, match="not answered within"):
        runner.metrics()
