"""The command ``eventmq metrics`` and what it says."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.request
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry

from eventmq import EventMQ
from eventmq.errors import BindError, BrokerUnavailable, PluginError
from eventmq_contrib.prometheus.collector import BrokerCollector
from eventmq_contrib.prometheus.command import metrics, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT = 30.0


@pytest.fixture
def app() -> Iterator[EventMQ]:
    app = EventMQ("shop", broker="memory://")

    @app.task(name="good")
    def good() -> int:
        return 1

    @app.task(name="bad")
    def bad() -> None:
        raise ValueError

    yield app
    app.close()


def registry_of(app: EventMQ) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(BrokerCollector(app))
    return registry


def test_jobs_are_counted_by_queue_and_by_how_they_ended(app: EventMQ) -> None:
    """Three that succeed, one that fails, one that waits for its time."""
    jobs = [app.send("good") for _ in range(3)]
    failed = app.send("bad")
    app.send("good", countdown=3600)
    app.wait([*jobs, failed], timeout=TIMEOUT)
    registry = registry_of(app)

    def value(metric: str, **labels: str) -> float | None:
        return registry.get_sample_value(metric, labels)

    assert value("eventmq_up") == 1
    assert value("eventmq_jobs_ended_total", state="succeeded") == 3
    assert value("eventmq_jobs_ended_total", state="failed") == 1
    assert value("eventmq_jobs_ended_total", state="expired") == 0
    assert value("eventmq_queue_jobs", queue="default", state="delayed") == 1
    assert value("eventmq_queue_jobs", queue="default", state="failed") == 1
    assert value("eventmq_queue_jobs", queue="default", state="waiting") == 0
    assert value("eventmq_workers") == 1
    assert value("eventmq_queue_paused", queue="default") == 0
    assert value("eventmq_broker_events_total", name="admitted") == 5


def test_a_broker_that_is_away_is_down(monkeypatch: pytest.MonkeyPatch, app: EventMQ) -> None:
    """The scrape itself succeeds, so that the alarm is about the broker."""

    def away(name: str) -> None:
        raise BrokerUnavailable(name)

    monkeypatch.setattr(app, "ask", away)
    registry = registry_of(app)
    assert registry.get_sample_value("eventmq_up") == 0
    assert registry.get_sample_value("eventmq_workers") is None


@pytest.mark.parametrize("bind", ["9472", "host:port", "host:65536", ":9472"])
def test_an_address_that_is_none_is_wrong_usage(bind: str) -> None:
    result = CliRunner().invoke(metrics, ["--bind", bind])
    assert result.exit_code == 2
    assert f"'{bind}' is not HOST:PORT, as in 127.0.0.1:9472" in result.output


def test_a_taken_port_is_named(app: EventMQ) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(BindError, match=f"cannot bind 127.0.0.1:{port}: .* --bind"):
            serve(app, ("127.0.0.1", port))


def test_without_the_library_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, app: EventMQ
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(PluginError, match=r"pip install '\.\[prometheus\]'"):
        serve(app, ("127.0.0.1", 0))


def test_the_command_serves_until_it_is_told_to_end() -> None:
    """It needs no broker to start, and says so where Prometheus asks."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        broker = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "eventmq", "metrics", "--bind", "127.0.0.1:0"]
    with subprocess.Popen(
        [*command, "--broker", broker], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready.startswith("ready bind=http://127.0.0.1:")
        url = ready.split("bind=")[1].strip()
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
            assert "eventmq_up 0.0" in answer.read().decode()
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT) == 0
