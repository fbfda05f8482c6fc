"""The rows about observability: CPU for counting jobs, scrapes, health checks, traces and pages.

This module is also the app of the workers of `tracing`, and a broker that times its job counters.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.system import ROOT, children, running
from eventmq import EventMQ
from eventmq.broker.core import BrokerCore
from eventmq.cli import main
from eventmq.engine.listings import Reader
from eventmq.store.metrics import JobMetrics

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
    from typing import Any

    from opentelemetry.sdk.trace import ReadableSpan

    from benchmarks.figures import Figures
    from benchmarks.system import System
    from eventmq.events import Block

__all__ = ["GOALS", "ROWS"]

_BULK, _SINGLES, _SCRAPES, _CHECKS = 100_000, 2000, 200, 10

#: Jobs that have ended before `dashboard` or `top` is measured, and seconds of each of its views.
_ENDED, _VIEWED = 100_000, 10.0

#: Jobs of each drain of `viewed`, and number of drains.
_DRAINED, _DRAINS = 150_000, 6

#: Environment variables: path of the file with the times of the broker; mode of tracing.
_FILE, _MODE = "BENCH_COUNTING", "BENCH_TRACING"

#: Mode -> options of the plugin, None without it. In ``otlp`` spans are encoded as well.
_MODES: dict[str, Any] = {"off": None, "on": {}, "no_wait": {"wait_spans": False}, "otlp": {}}

#: Jobs that `tracing` sends at a time, and number of rounds of each mode.
_BLOCK, _BLOCKS = 500, 8


def _cpu(*pids: int) -> float:
    """Return CPU seconds of processes to the nanosecond, where ``/proc`` has hundredths."""
    return sum(time.clock_gettime(~pid << 3 | 2) for pid in pids)  # CPUCLOCK_SCHED of Linux


def _family(pid: int) -> list[int]:
    """Return a process and its descendants: a fork server starts the children."""
    return [pid, *(each for child in children(pid) for each in _family(child))]


@contextmanager
def _timed() -> Iterator[tuple[System, dict[str, float]]]:
    """Yield a system whose broker times itself, and a dictionary that has the times afterwards."""
    times: dict[str, float] = {}
    with running() as system:
        system.stop()
        os.environ[_FILE], system.program = str(system.folder / "times"), "benchmarks.overhead"
        system.start_broker()
        yield system, times
        system.stop()
        times |= json.loads(Path(os.environ.pop(_FILE)).read_text())


def metrics(figures: Figures) -> None:
    """CPU of the broker for counting jobs, compared with that of a job; per scrape and check."""
    with _timed() as (system, counted):
        assert system.broker is not None
        pid, app = system.broker.pid, EventMQ("bench", broker=system.address)
        nothing = app.task(name="benchmarks.bench_app.nothing")(lambda: None)
        spent = [_cpu(pid)]
        nothing.map([()] * _BULK)
        system.start_worker(2)
        _drained(app)
        spent.append(_cpu(pid))
        for _ in range(_SINGLES):
            nothing.delay().get(timeout=10)
        spent.append(_cpu(pid))
        for _ in range(_SCRAPES):
            app.ask("metrics")
        spent.append(_cpu(pid))
        check = [sys.executable, "-m", "eventmq", "status", "--check", "--broker", system.address]
        for _ in range(_CHECKS):
            subprocess.run(check, cwd=ROOT, check=True)
        spent.append(_cpu(pid))
        app.close()
    bulk, single, scrape, health = (b - a for a, b in pairwise(spent))
    for name, jobs, cpu in (("bulk", _BULK, bulk), ("single", _SINGLES, single)):
        figures.add(**{
            f"{name}_us": cpu / jobs * 1e6, f"{name}_counting_us": counted[name] / jobs * 1e6,
            f"{name}_percent": counted[name] / cpu * 100,
        })  # fmt: skip
    figures.add(scrape_us=scrape / _SCRAPES * 1e6, check_us=health / _CHECKS * 1e6)


def top(figures: Figures) -> None:
    """CPU of the broker for an open ``eventmq top``, by view, in percent of a core.

    What the broker takes without the page is subtracted. 100,000 jobs have ended, and 1,000 wait.
    """
    from eventmq_contrib.top.page import Broker, Top
    from eventmq_contrib.top.views import VIEWS

    async def views() -> None:
        alone = await _used(pid)
        figures.add(alone_percent=alone)
        async with Top([Broker("bench", app)]).run_test(size=(80, 24)) as pilot:
            for number, view in enumerate(VIEWS, 1):
                await pilot.press(str(number))
                name = view.name.replace(" ", "_")
                figures.add(**{f"{name}_percent": await _used(pid) - alone})

    with _looked_at() as (pid, app):
        asyncio.run(views())


def dashboard(figures: Figures) -> None:
    """CPU of the broker for an open dashboard, in percent of a core, and milliseconds of pages.

    Ten browsers follow the overview; then one loads pages. What the broker takes without them is
    subtracted. 100,000 jobs have ended, and 1,000 wait.
    """
    from starlette.testclient import TestClient

    from eventmq_contrib.dashboard import User, application

    async def views() -> None:
        alone = await _used(pid)
        async with _browsers(page):
            figures.add(live_percent=await _used(pid) - alone)

    with _looked_at() as (pid, app):
        page = application(app, user=lambda _: User("bench"))
        asyncio.run(views())
        client = TestClient(page, "http://127.0.0.1")
        for path in ("", "jobs", "jobs?task=rare", "failed"):
            begin = time.perf_counter()
            client.get(f"/b/broker/{path}")
            name = path.replace("?task=", "_") or "overview"
            figures.add(**{f"{name}_ms": (time.perf_counter() - begin) * 1000})
        page.close()


@contextmanager
def _looked_at() -> Iterator[tuple[int, EventMQ]]:
    """Yield the process id of a broker with jobs of every kind, and a client of it."""
    with running(workers=2) as system:
        assert system.broker is not None
        with EventMQ("bench", broker=system.address) as app:
            nothing = app.task(name="benchmarks.bench_app.nothing")(lambda: None)
            nothing.map([()] * _ENDED)
            _drained(app)
            nothing.options(countdown=3600).map([()] * 1000)
            time.sleep(1.0)  # the last commits
            yield system.broker.pid, app


def _drained(app: EventMQ) -> None:
    """Wait until no job waits or runs."""
    while any(row["waiting"] + row["running"] for row in app.ask("queues")):
        time.sleep(0.05)


async def _used(pid: int) -> float:
    """Return the CPU of a process in the next seconds, in percent of a core."""
    begin = _cpu(pid), time.monotonic()
    await asyncio.sleep(_VIEWED)
    return (_cpu(pid) - begin[0]) / (time.monotonic() - begin[1]) * 100


def viewed(figures: Figures) -> None:
    """CPU of a broker at work for ten browsers and an open ``eventmq top``, in percent of its CPU.

    It is that of handling their calls, whatever its jobs take: the difference of runs with and
    without them is below their noise. Two workers drain a queue of 150,000 jobs, again and again.
    """
    from eventmq_contrib.dashboard import User, application
    from eventmq_contrib.top.page import Broker, Top

    with _timed() as (system, times):
        assert system.broker is not None
        app = EventMQ("bench", broker=system.address)
        nothing = app.task(name="benchmarks.bench_app.nothing")(lambda: None)
        page = application(app, user=lambda _: User("bench"))
        system.start_worker(2)

        def drain() -> float:
            app.ask("pause", {"queue": "default"})
            jobs = nothing.map([()] * _DRAINED)
            begin = time.monotonic()
            app.ask("resume", {"queue": "default"})
            jobs[-1].get(timeout=120)  # one more call, where waiting for all of them is many
            return _DRAINED / (time.monotonic() - begin)

        async def drains() -> float:
            top = Top([Broker("bench", app)])
            async with _browsers(page), top.run_test(size=(80, 24)):
                return statistics.median([await asyncio.to_thread(drain) for _ in range(_DRAINS)])

        per_second = asyncio.run(drains())
        page.close()
        app.close()
    figures.add(
        percent=times["calls"] / times["cpu"] * 100,
        jobs_per_second=per_second,
        calls=times["number"],
        call_us=times["calls"] / times["number"] * 1e6,
    )


@asynccontextmanager
async def _browsers(page: Any) -> AsyncIterator[None]:
    """Let ten browsers follow the live figures of a dashboard meanwhile."""

    async def browser() -> None:
        async for _ in page.streams.events():
            if done.is_set():
                return

    done = asyncio.Event()
    following = [asyncio.create_task(browser()) for _ in range(10)]
    yield
    done.set()
    await asyncio.gather(*following)


def _time_broker() -> None:
    """Time `JobMetrics.count` and calls, whose costs are below the noise of runs.

    A listing is read in another thread, whose CPU counts for its call. The times are written at the
    end.
    """
    clock = time.thread_time
    spent = {"bulk": 0.0, "single": 0.0, "calls": 0.0, "number": 0.0}
    count, receive, read = JobMetrics.count, BrokerCore.receive, Reader.answer

    def timed(self: JobMetrics, blocks: Iterable[Block]) -> None:
        some = list(blocks)
        name = "single" if sum(len(block.ids) for block in some) < 3 else "bulk"  # of a commit
        begin = clock()
        count(self, some)
        end = clock()
        spent[name] += end - begin - (clock() - end)

    def received(self: BrokerCore, name: bytes, frames: Any, now: float) -> None:
        begin = clock()
        receive(self, name, frames, now)
        if any(bytes(frame) == b"CALL" for frame in frames[:5]):
            spent["calls"] += clock() - begin
            spent["number"] += 1

    def answered(self: Reader, query: Any) -> Any:
        begin = clock()
        answer = read(self, query)
        spent["calls"] += clock() - begin
        return answer

    def write() -> None:
        Path(os.environ[_FILE]).write_text(json.dumps(spent | {"cpu": time.process_time()}))

    JobMetrics.count = timed  # type: ignore[method-assign]
    BrokerCore.receive = received  # type: ignore[method-assign]
    Reader.answer = answered  # type: ignore[method-assign]
    atexit.register(write)


def tracing(figures: Figures) -> None:
    """CPU per job in client and worker: no traces, traces, without waits, encoded for OTLP.

    The modes take turns. ``costs`` is the difference of each mode to the first. In ``idle`` each
    job is sent after the receipt of the last one, so that caches are cold; otherwise all are sent
    at once.
    """
    flush, spent = _provide(), {mode: [0.0, 0.0, 0.0] for mode in _MODES}
    with running() as system:
        system.app, workers = "benchmarks.overhead:app", {}
        for mode in _MODES:
            os.environ[_MODE] = mode
            workers[mode] = system.start_worker(1, "--queues", mode).pid
        apps = {mode: _make_app(mode, system.address) for mode in _MODES}
        for turn in range(_BLOCKS + 1):  # the first is to warm up
            for mode, app in apps.items():
                os.environ[_MODE] = mode
                used = [time.process_time(), _cpu(*_family(workers[mode]))]
                app.wait(asyncio.run(_send(app.tasks["nothing"])), timeout=60)
                flush()
                time.sleep(0.5)  # the worker sends its spans every 0.2 s
                used += [time.process_time(), _cpu(*_family(workers[mode]))]
                for _ in range(_BLOCK):
                    app.tasks["nothing"].delay()
                flush()
                idle = time.process_time() - used[2]
                for index, cost in enumerate((used[2] - used[0], used[3] - used[1], idle)):
                    spent[mode][index] += cost * bool(turn)
                time.sleep(0.5)
        for app in apps.values():
            app.close()
    us = {mode: [each / _BLOCK / _BLOCKS * 1e6 for each in spent[mode]] for mode in _MODES}
    for mode, (client, worked, idle) in us.items():
        figures.add(**{f"{mode}_client_us": client, f"{mode}_worker_us": worked})
        if mode != "off":
            costs = client + worked - sum(us["off"][:2])
            figures.add(**{f"{mode}_costs_us": costs, f"{mode}_idle_us": idle - us["off"][2]})
    figures.add(sdk_us=_two_spans(flush))


def _two_spans(flush: Callable[[], bool]) -> float:
    """Return the CPU of the SDK alone for a job: two spans without attributes, and their headers.

    No tracing of a job in two processes costs less.
    """
    from opentelemetry import propagate, trace

    tracer, jobs = trace.get_tracer("bench"), _BLOCK * _BLOCKS
    begin = time.process_time()
    for _ in range(jobs):
        headers: dict[str, str] = {}
        sent = tracer.start_span("send", kind=trace.SpanKind.PRODUCER)
        propagate.inject(headers, trace.set_span_in_context(sent))
        sent.end()
        context = propagate.extract(headers)
        tracer.start_span("process", context=context, kind=trace.SpanKind.CONSUMER).end()
    flush()
    return (time.process_time() - begin) / jobs * 1e6


async def _send(task: Any) -> Sequence[Any]:
    return await asyncio.gather(*(task.adelay() for _ in range(_BLOCK)))


def _make_app(mode: str, broker: str | None = None) -> EventMQ:
    options = {"opentelemetry": _MODES[mode] or {}}
    names = ["log-context"] if _MODES[mode] is None else ["log-context", "opentelemetry"]
    made = EventMQ(
        "bench", broker=broker, middleware=names, default_queue=mode, plugin_options=options
    )
    made.task(name="nothing")(lambda: None)
    return made


@cache
def _provide() -> Callable[[], bool]:
    """Set up the SDK with its batch processor and an exporter that drops spans; return a flush."""
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    class Exporter(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            if os.environ[_MODE] == "otlp":
                encode_spans(spans).SerializeToString()
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Exporter(), schedule_delay_millis=200))
    trace.set_tracer_provider(provider)
    return provider.force_flush


if __name__ != "__main__" and os.environ.get(_MODE, "off") != "off":  # in a worker
    _provide()
app = _make_app(os.environ.get(_MODE, "off"))

#: Name -> function that runs the row once.
ROWS: dict[str, Callable[[Figures], None]] = {
    "dashboard": dashboard,
    "metrics": metrics,
    "top": top,
    "tracing": tracing,
    "viewed": viewed,
}

#: Name -> figure -> its goal.
GOALS: dict[str, dict[str, str]] = {
    "dashboard": {"live_percent": "< 2", "jobs_ms": "< 200"},
    "metrics": {"bulk_percent": "< 1", "single_percent": "< 1"},
    "top": {
        "overview_percent": "< 2",
        "jobs_percent": "< 2",
        "failed_jobs_percent": "< 2",
    },
    "tracing": {"on_costs_us": "< 40"},
    "viewed": {"percent": "< 2"},
}

if __name__ == "__main__":
    if sys.argv[1:2] == ["broker"]:
        _time_broker()
    main()
