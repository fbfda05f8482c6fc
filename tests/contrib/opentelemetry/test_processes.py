"""Spans of real processes, sent by the SDK's own exporter to a collector on loopback."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from eventmq_contrib.opentelemetry.repeats import limit_repeats
from tests.contrib.opentelemetry.receiver import receiving
from tests.support.page_files import write_files
from tests.support.system import DEADLINE, System, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: What an app has below the lines of the page, which set the SDK up.
TASKS = """

@app.task
def add(a, b):
    return a + b


@app.task
async def wait(number):
    return number
"""

CLIENT = """
import survivor
jobs = [survivor.add.delay(n, 1) for n in range(20)]
jobs += [survivor.wait.delay(n) for n in range(20)]
assert survivor.app.wait(jobs, timeout=50)
survivor.app.close()
"""


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[System]:
    """Batches wait for a minute: what arrives was sent by its number, or as a process ended."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    system = System(tmp_path)
    write_files("howto/operate/metrics.rst", tmp_path)
    (tmp_path / "survivor.py").write_text((tmp_path / "traced.py").read_text() + TASKS)
    (tmp_path / "client.py").write_text(CLIENT)
    system.broker()
    yield system
    system.stop()


def run_client(system: System) -> None:
    environment = {**os.environ, "EVENTMQ_BROKER": system.address}
    subprocess.run(
        [sys.executable, "client.py"], cwd=system.folder, env=environment, check=True, timeout=90
    )


@pytest.mark.parametrize("pool", ["prefork", "threads", "asyncio"])
def test_a_collector_gets_the_spans_of_clients_and_workers(
    system: System, pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them: the last ones when the processes end, and from children that were forked."""
    with receiving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        worker = system.worker("--pool", pool)
        run_client(system)
        assert len(receiver.spans("send default")) == 40
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(DEADLINE) == 0
        until(lambda: len(receiver.spans("process default")) == 40, "all spans arrive")
        sent = {(span.trace_id, span.span_id) for span in receiver.spans("send default")}
        for name in ("wait default", "process default"):
            spans = receiver.spans(name)
            assert {(span.trace_id, span.parent_span_id) for span in spans} == sent


def test_jobs_go_on_without_a_collector(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    """The port is closed. The process logs each line about it once, and ends without waiting."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", closed_port())
    worker = system.worker("--pool", "threads")
    app = system.app()
    jobs = [app.send("survivor.add", (n, 1)) for n in range(2000)]
    assert [job.get(timeout=DEADLINE) for job in jobs] == [n + 1 for n in range(2000)]
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(DEADLINE) == 0
    log = (system.folder / "worker.log").read_text()
    assert log.count("Traceback") == 0
    lines = [line for line in log.splitlines() if "export" in line and "batch" in line]
    formats = ("Transient error", "Failed to export")
    counts = [sum(text in line for line in lines) for text in formats]
    assert all(count <= 1 for count in counts), log
    assert sum(counts) == len(lines) > 0, log


def test_an_exporter_logs_once_that_its_collector_is_unavailable(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The SDK's own exporter, with a closed port, which fails at each of ten batches."""
    limit_repeats(600.0)
    exporter = OTLPSpanExporter(endpoint=f"{closed_port()}/v1/traces", timeout=0.01)
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    try:
        for _ in range(10):
            provider.get_tracer("test").start_span("work").end()
    finally:
        provider.shutdown()
    (line,) = (record.message for record in caplog.records if "export" in record.message)
    assert line.startswith("Failed to export")
    assert line.endswith("(logged once per 600 s)")


def closed_port() -> str:
    """Return the address of a port of loopback where nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"
