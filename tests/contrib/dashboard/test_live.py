"""Live figures: what is polled and when, streams and their bounds, cells, and shapes."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from eventmq.errors import BrokerUnavailable, EventMQError, ProtocolError
from eventmq_contrib.dashboard import data, live
from eventmq_contrib.dashboard.data import Brokers, Busy, Snapshot
from eventmq_contrib.dashboard.pages import read_time
from eventmq_contrib.dashboard.shapes import draw, sparkline, waterfall
from eventmq_contrib.figures import GAP, History, clock, sample_of
from tests.contrib.dashboard.conftest import TIMEOUT
from tests.support.system import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.testclient import TestClient

    from eventmq import EventMQ
    from eventmq_contrib.dashboard.web import Dashboard


class Asked:
    """Counts the calls of an app, and fails them while it is told to."""

    def __init__(self, app: EventMQ) -> None:
        self.app, self.calls, self.fails = app, list[str](), False
        self.schedules = app.schedules

    def ask(self, name: str, arguments: Any = None) -> Any:
        self.calls.append(name)
        if self.fails:
            raise BrokerUnavailable("away")
        return self.app.ask(name, arguments)


@pytest.fixture
def asked(app: EventMQ) -> Asked:
    return Asked(app)


@pytest.fixture
def brokers(asked: Asked) -> Iterator[Brokers]:
    brokers = Brokers({"one": asked})  # type: ignore[dict-item]
    yield brokers
    brokers.close()


def events_of(chunks: list[bytes]) -> list[tuple[str, dict[str, str]]]:
    events = []
    for chunk in chunks:
        name, _, rest = chunk.decode().removeprefix("event: ").partition("\n")
        events.append((name, json.loads(rest.removeprefix("data: "))))
    return events


# Polling


def test_a_broker_is_polled_while_somebody_looks_and_no_longer(
    brokers: Brokers, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "IDLE", 0.3)
    monkeypatch.setattr(data, "EVERY", 0.05)
    until(lambda: brokers.look() or asked.calls.count("metrics") >= 3, "it is polled")
    ended = time.monotonic() + 0.3
    until(lambda: time.monotonic() - brokers._looked_at > 0.4, "nobody looks")
    calls = len(asked.calls)
    until(lambda: time.monotonic() > ended + 0.6, "some polls could have been")
    assert calls == len(asked.calls)
    brokers.look()
    until(lambda: len(asked.calls) > calls, "it begins again")


def test_many_viewers_cost_one_poll(brokers: Brokers, asked: Asked) -> None:
    broker = brokers.brokers["one"]
    threads = [threading.Thread(target=broker.refresh) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ["metrics", "queues", "status"] == asked.calls


def test_a_broker_that_is_away_is_not_asked_by_each_page(brokers: Brokers, asked: Asked) -> None:
    broker = brokers.brokers["one"]
    asked.fails = True
    for _ in range(5):
        assert "away" == broker.refresh().missing
        with pytest.raises(BrokerUnavailable, match="away"):
            broker.ask("jobs")
    assert ["metrics"] == asked.calls


def test_pages_that_wait_are_bounded(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "MAX_WAITING", 3)
    held = threading.Event()

    async def look() -> list[object]:
        waiting = [asyncio.ensure_future(brokers.run(held.wait, TIMEOUT)) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Busy, match="3 pages wait"):
            await brokers.run(lambda: None)
        held.set()
        return await asyncio.gather(*waiting)

    assert [True] * 3 == asyncio.run(look())


def test_a_broker_that_does_not_answer_ends_the_wait_of_a_page(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "TIMEOUT", 0.05)
    held = threading.Event()
    with pytest.raises(BrokerUnavailable, match="no answer within"):
        asyncio.run(brokers.run(held.wait, TIMEOUT))
    held.set()


# Figures


def test_samples_begin_anew_after_a_pause(brokers: Brokers, app: EventMQ) -> None:
    """No page was open meanwhile, so the broker was not asked."""
    broker = brokers.brokers["one"]
    app.wait([app.send("shop.good")], timeout=TIMEOUT)
    until(lambda: broker.refresh(0.0).history.values("ended")[-1] == 1.0, "it is counted")
    history = broker.refresh(0.0).history
    assert len(history.samples) >= 2
    earlier = tuple(each._replace(at=each.at - GAP) for each in history.samples)
    broker.snapshot = replace(broker.snapshot, history=replace(history, samples=earlier))
    assert 1 == len(broker.refresh(0.0).history.samples)


def test_cells_show_what_is_there(app: EventMQ, brokers: Brokers) -> None:
    app.send("shop.good", queue="late", countdown=3600)
    cells = live.cells_of(brokers.brokers["one"].refresh(0.0))
    assert ("1", "1", "0") == (cells["delayed"], cells["queue/late/delayed"], cells["waiting"])
    shape = cells["shape"]
    app.ask("pause", {"queue": "late"})
    assert shape != live.cells_of(brokers.brokers["one"].refresh(0.0))["shape"]
    assert {"missing", "shape", "state"} == {*live.cells_of(Snapshot())}


def test_live_cells_are_bounded() -> None:
    """However many queues there are; the busiest have sparklines."""
    base = {
        "running": 0, "delayed": 0, "blocked": 0, "failed": 0, "workers": 0, "paused": False,
        "waited": 0.0, "oldest": 0.0,
    }  # fmt: skip
    queues = [{"name": f"q{n:04}", "waiting": n, **base} for n in range(1000)]
    waiting = {row["name"]: row["waiting"] for row in queues}
    history = History()
    for at in (0.0, 1.0):
        history = history.added(sample_of({"epoch": 1, "jobs": []}, at, waiting))
    snapshot = Snapshot(1.0, {"workers": [], "queues": queues}, queues, {}, history, "")
    cells = live.cells_of(snapshot)
    assert live.MAX_QUEUES == sum(key.endswith("/waiting") for key in cells if key[0] == "q")
    drawn = [key for key in cells if key.startswith("spark/queue/") and key.endswith("/rate")]
    assert live.MAX_SPARKLINES == len(drawn)
    assert "spark/queue/q0199/rate" in drawn
    assert f"{sum(range(1000)):,}" == cells["waiting"]


# Streams


def test_a_stream_begins_with_all_cells_and_has_what_changes(
    app: EventMQ, brokers: Brokers
) -> None:
    """At most a second behind."""
    app.wait([app.send("shop.good")], timeout=TIMEOUT)
    streams = live.Streams(brokers)
    brokers.brokers["one"].refresh()

    async def follow() -> list[bytes]:
        events = streams.events()
        chunks = [await anext(events)]
        assert 1 == streams.open
        app.send("shop.good", queue="late", countdown=3600)
        sent = time.monotonic()
        while b"queue/late/delayed" not in chunks[-1]:
            chunks.append(await asyncio.wait_for(anext(events), TIMEOUT))
        assert time.monotonic() - sent < 5 * data.EVERY
        await events.aclose()
        return chunks

    chunks = asyncio.run(follow())
    (first, whole), *_, (last, changed) = events_of(chunks)
    assert ("snapshot", "change") == (first, last)
    assert "0" == whole["one:waiting"]
    assert "1" == changed["one:queue/late/delayed"]
    assert "one:failed" not in changed, "only what has changed"
    assert 0 == streams.open


def test_a_silent_stream_has_comments(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 15.0 == live.COMMENT
    monkeypatch.setattr(live, "COMMENT", 0.01)
    monkeypatch.setattr(brokers, "look", lambda: None)
    streams = live.Streams(brokers)

    async def follow() -> list[bytes]:
        events = streams.events()
        chunks = [await anext(events) for _ in range(3)]
        await events.aclose()
        return chunks

    assert [b": still here\n\n"] * 2 == asyncio.run(follow())[1:]


def test_a_stream_ends_with_the_dashboard(brokers: Brokers) -> None:
    streams = live.Streams(brokers)

    async def follow() -> list[bytes]:
        events = streams.events()
        await anext(events)
        streams.close()
        return [chunk async for chunk in events]

    assert len(asyncio.run(follow())) <= 1


def test_streams_are_bounded_and_then_there_is_polling(
    dashboard: Dashboard, client: TestClient
) -> None:
    """A hundred browsers: those without a stream ask for the same cells."""
    dashboard.streams.open = live.MAX_STREAMS
    answer = client.get("/live")
    assert 503 == answer.status_code
    assert "30" == answer.headers["retry-after"]
    client.get("/b/broker/")
    cells = client.get("/live.json").json()
    assert "0" == cells["broker:waiting"]
    dashboard.streams.open = 0


def test_a_stream_is_neither_cached_nor_held_back(client: TestClient, dashboard: Dashboard) -> None:
    dashboard.streams.close()  # else it has no end, and this client waits for that
    answer = client.get("/live")
    assert "no-cache" == answer.headers["cache-control"]
    assert "no" == answer.headers["x-accel-buffering"]
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.text.startswith("event: snapshot\ndata: {")


def test_live_figures_are_for_users_only(client: TestClient) -> None:
    for path in ("/live", "/live.json"):
        assert 401 == client.get(path, headers={"X-Test-User": "nobody"}).status_code


# Shapes and words


def test_a_sparkline_goes_from_zero_to_the_largest() -> None:
    assert "" == sparkline([1.0])
    assert "M0.0 23L50.0 12L100.0 1" == sparkline([0.0, 1.0, 2.0])
    assert "M0.0 23L100.0 23" == sparkline([0.0, 0.0])


def test_a_sparkline_of_many_values_shows_their_peaks() -> None:
    path = sparkline([0.0] * 40 + [9.0] + [0.0] * 49)
    assert 45 == path.count("L") + 1
    assert 1 == path.count(" 1L")


def row(place: int, state: str = "succeeded", **more: Any) -> dict[str, Any]:
    base = {"input": 0, "output": 0, "created": 100.0, "started": 0.0, "leased": 0.0}
    return {"id": f"j{place}", "place": place, "state": state, **base, **more}


def test_a_graph_is_drawn_from_left_to_right() -> None:
    rows = [row(0, output=1), row(1, output=1), row(2, input=1, output=2), row(3, input=2)]
    drawing = draw(rows, 1000)
    assert [1, 1, 209, 417] == [node.x for node in drawing.nodes]
    assert [1, 53, 1, 1] == [node.y for node in drawing.nodes]
    assert 3 == len(drawing.edges)
    assert 996 == drawing.hidden
    assert [("succeeded", 4)] == drawing.states


def test_a_graph_that_is_a_circle_ends() -> None:
    drawing = draw([row(0, input=1, output=2), row(1, input=2, output=1)], 2)
    assert 2 == len(drawing.nodes)


def test_a_waterfall_shows_waiting_and_running() -> None:
    rows = [
        row(0, started=110.0, ran=30.0, finished=140.0),
        row(1, "running", leased=150.0),
        row(2, "queued"),
    ]
    bars, whole = waterfall(rows, 200.0)
    assert 100.0 == whole
    shown = {bar.row["id"]: (bar.waits, bar.runs) for bar in bars}
    assert ((0.0, 10.0), (10.0, 30.0)) == shown["j0"]
    assert ((0.0, 50.0), (50.0, 50.0)) == shown["j1"]
    assert ((0.0, 100.0), (0.0, 0.0)) == shown["j2"]
    assert ([], 0.0) == waterfall([], 200.0)


def test_times_of_people() -> None:
    assert abs(read_time("2h ago") - time.time() + 7200) < 60
    assert 1_769_860_800.0 == read_time("2026-01-31 12:00")
    assert 1_769_860_800.0 == read_time("2026-01-31T13:00+01:00")
    for wrong in ("yesterday", "2026-13-01", "", "-1", "9" * 30 + "w2"):
        with pytest.raises(ProtocolError, match="write 2h"):
            read_time(wrong)
    assert "" == clock(1e300)
    assert issubclass(Busy, EventMQError)
