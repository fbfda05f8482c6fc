"""The command ``eventmq metrics``, and the pages of brokers and workers."""

from __future__ import annotations

import errno
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from eventmq import EventMQ
from eventmq.errors import BindError, BrokerUnavailable, NotAllowed, PluginError, SettingsError
from eventmq_contrib.prometheus import server as serving
from eventmq_contrib.prometheus.collector import families
from eventmq_contrib.prometheus.command import metrics, serve, serve_process
from eventmq_contrib.prometheus.server import MetricsServer
from tests.support.system import System, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

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


@pytest.fixture
def start() -> Iterator[Callable[..., MetricsServer]]:
    """Call it with what reads figures: returns a server that has its address."""
    made: list[MetricsServer] = []

    def start(read: Callable[[], Mapping[str, Any]], port: int = 0) -> MetricsServer:
        server = MetricsServer(read, "127.0.0.1", port)
        made.append(server)
        server.start()
        if not port:
            until(lambda: server.url, "the server has an address")
        return server

    yield start
    for server in made:
        server.close()


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
        return answer.read().decode()


class Page:
    """Samples of a page by name and labels."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float | None:
        return self.samples.get((name, frozenset(labels.items())))


class Figures:
    """Makes a collector of figures, as prometheus_client needs one."""

    def __init__(self, figures: Mapping[str, Any] | None) -> None:
        self.figures = figures

    def collect(self) -> Iterator[Any]:
        return families(self.figures)


def value_of(app: EventMQ) -> Callable[..., float | None]:
    registry = CollectorRegistry()
    registry.register(Figures(app.ask("metrics")))  # type: ignore[arg-type]
    return lambda metric, /, **labels: registry.get_sample_value(metric, labels)


# Metrics


def test_jobs_are_counted_by_queue_task_and_outcome(app: EventMQ) -> None:
    """Three that succeed, one that fails, one that waits for its time."""
    jobs = [app.send("good") for _ in range(3)]
    failed = app.send("bad")
    app.send("good", countdown=3600)
    app.wait([*jobs, failed], timeout=TIMEOUT)
    value = value_of(app)
    good, bad = ({"queue": "default", "task": name} for name in ("good", "bad"))
    assert 1 == value("eventmq_up")
    assert 3 == value("eventmq_jobs_total", outcome="succeeded", **good)
    assert 1 == value("eventmq_jobs_total", outcome="failed", **bad)
    assert 0 == value("eventmq_jobs_total", outcome="expired", **bad)
    assert 4 == value("eventmq_jobs_submitted_total", **good)
    assert 0 == value("eventmq_job_retries_total", **bad)
    for name in ("wait", "run"):
        assert 3 == value(f"eventmq_job_{name}_seconds_count", **good)
        assert 3 == value(f"eventmq_job_{name}_seconds_bucket", le="+Inf", **good)
        assert 0 < (value(f"eventmq_job_{name}_seconds_sum", **good) or 0.0) < TIMEOUT
    for state, count in {"waiting": 0, "delayed": 1, "running": 0, "failed": 1}.items():
        assert count == value("eventmq_queue_jobs", queue="default", state=state)
    assert 0 == value("eventmq_queue_demand", queue="default")
    assert 0 == value("eventmq_queue_oldest_waiting_seconds", queue="default")
    assert 0 == value("eventmq_queue_paused", queue="default")
    assert 1 == value("eventmq_queue_workers", queue="default") == value("eventmq_workers")
    assert 5 == value("eventmq_broker_events_total", name="admitted")
    assert 0 == value("eventmq_broker_events_total", name="lease_lost"), "for rates"
    assert 1 == value("eventmq_store_epoch")


def test_buckets_are_cumulative_and_have_the_bounds_of_their_task() -> None:
    """As in Prometheus: each bucket includes the ones before it."""
    app = EventMQ("shop", broker="memory://", metrics_run_buckets="default/slow:0.5 2")
    try:

        @app.task(name="slow")
        def slow() -> None:
            pass

        app.wait([slow.delay() for _ in range(2)], timeout=TIMEOUT)
        registry = CollectorRegistry()
        registry.register(Figures(app.ask("metrics")))  # type: ignore[arg-type]
        [run] = [each for each in registry.collect() if each.name == "eventmq_job_run_seconds"]
        buckets = [(s.labels["le"], s.value) for s in run.samples if s.name.endswith("_bucket")]
        assert [("0.5", 2), ("2.0", 2), ("+Inf", 2)] == buckets
    finally:
        app.close()


def test_a_name_is_a_label_whatever_it_has_in_it(
    start: Callable[..., MetricsServer], app: EventMQ
) -> None:
    """Quotes, line ends and wide characters come back as they were."""
    name = 'a "b"\\c\nd \N{SNOWMAN}'
    app.send(name, queue=name)
    page = Page(fetch(start(lambda: app.ask("metrics")).url))
    assert 1 == page.value("eventmq_jobs_submitted_total", queue=name, task=name)


# Bad input


def test_a_scrape_every_10_ms_asks_the_broker_once_a_second(
    start: Callable[..., MetricsServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In between the cached page is served: a flood costs the broker nothing."""
    monkeypatch.setattr(serving, "FRESH", 3600.0)
    requests: list[int] = []

    def read() -> Mapping[str, Any]:
        requests.append(1)
        return {"worker": {"name": "w", "online": True, "used": 1, "slots": len(requests)}}

    url = start(read).url
    pages = {fetch(url) for _ in range(200)}
    assert (1, 1) == (len(pages), len(requests))


def test_what_a_client_accepts_makes_no_more_pages(
    start: Callable[..., MetricsServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for each of two forms, whatever versions of them a client makes up."""
    monkeypatch.setattr(serving, "FRESH", 3600.0)
    requests: list[int] = []

    def read() -> Mapping[str, Any]:
        requests.append(1)
        return {"worker": {"name": "w", "online": True, "used": 1, "slots": len(requests)}}

    url = start(read).url
    forms = ("application/openmetrics-text", "text/plain")
    rest = ("", ";version=x.y", ";version=1.0.0;escaping=dots;q=0.5", ";version=9")
    types = set()
    for accept in (form + more for more in rest for form in forms):
        request = urllib.request.Request(url, headers={"Accept": accept})
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            types.add(answer.headers["Content-Type"].partition(";")[0])
    assert (set(forms), 2) == (types, len(requests))


def test_an_error_in_making_the_page_is_in_the_log(
    start: Callable[..., MetricsServer], caplog: pytest.LogCaptureFixture
) -> None:
    """Such as an unexpected answer of a broker of another release; disconnects are not."""

    def read() -> Mapping[str, Any]:
        return {"version": "9"}

    url = start(read).url
    with pytest.raises(OSError, match="closed"):
        fetch(url)
    [record] = [each for each in caplog.records if each.name == "eventmq.metrics"]
    assert "the metrics page could not be made" in record.getMessage()
    assert "KeyError" in caplog.text


def test_nothing_is_kept_for_a_collector_that_is_away(start: Callable[..., MetricsServer]) -> None:
    """Figures are read on request, and only then."""
    requests: list[int] = []

    def read() -> Mapping[str, Any]:
        requests.append(1)
        return {"worker": {"name": "w", "online": True, "used": 1, "slots": 1}}

    url = start(read).url
    assert [] == requests
    fetch(url)
    assert [1] == requests


def test_a_page_that_is_long_to_make_is_made_rarely(
    start: Callable[..., MetricsServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes a twentieth of a processor at most."""
    monkeypatch.setattr(serving, "FRESH", 0.0)
    monkeypatch.setattr(serving, "SHARE", 1e9)
    requests: list[int] = []

    def read() -> Mapping[str, Any]:
        requests.append(1)
        return {"worker": {"name": "w", "online": True, "used": 1, "slots": len(requests)}}

    url = start(read).url
    assert fetch(url) == fetch(url)
    assert [1] == requests


def test_a_million_names_make_no_page_of_a_million_lines() -> None:
    """Names over the bounds are counted under other, in the broker already."""
    app = EventMQ("shop", broker="memory://", metrics_max_queues=3, metrics_max_tasks=5)
    try:
        app.wait([], timeout=1)
        with app.batch():
            for number in range(2000):
                app.send(f"t{number}", queue=f"q{number % 50}")
        figures = app.ask("metrics")
        names = {(row["queue"], row["task"]) for row in figures["jobs"]}
        assert 5 + 4 >= len(names)
        assert 2000 == sum(row["submitted"] for row in figures["jobs"])
        assert {"q0", "q1", "q2", "other"} == {row["name"] for row in figures["queues"]}
        states = ("waiting", "running")
        assert 2000 == sum(row[state] for row in figures["queues"] for state in states)
    finally:
        app.close()


def test_an_unavailable_broker_is_down_and_logged_once(
    start: Callable[..., MetricsServer],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The scrape itself succeeds, so that the alarm is about the broker."""
    monkeypatch.setattr(serving, "FRESH", 0.0)
    monkeypatch.setattr(serving, "SHARE", 0)
    caplog.set_level(logging.INFO, "eventmq.metrics")
    away = True

    def read() -> Mapping[str, Any]:
        if away:
            raise BrokerUnavailable("nobody there")
        return {"worker": {"name": "w", "online": True, "used": 0, "slots": 1}}

    url = start(read).url
    for _ in range(3):
        page = Page(fetch(url))
        assert (0, 1) == (page.value("eventmq_up"), len(page.samples))
    away = False
    assert 1 == Page(fetch(url)).value("eventmq_worker_online", worker="w")
    messages = [each.message for each in caplog.records if "figures" in each.message]
    assert [
        "no figures for metrics, eventmq_up is 0: nobody there",
        "figures for metrics are available again",
    ] == messages


def test_two_exporters_on_one_port(
    start: Callable[..., MetricsServer],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The second logs it once, and serves when the first has ended."""
    monkeypatch.setattr(serving, "BIND_EVERY", 0.02)
    caplog.set_level(logging.INFO, "eventmq.metrics")

    def named(name: str) -> Callable[[], Mapping[str, Any]]:
        return lambda: {"worker": {"name": name, "online": True, "used": 0, "slots": 1}}

    first = start(named("first"))
    port = int(first.url.split(":")[2].partition("/")[0])
    second = start(named("second"), port)
    until(lambda: "not served" in caplog.text, "the log line about the address")
    assert 'worker="first"' in fetch(first.url)
    first.close()
    until(lambda: second.url, "the second has the address")
    assert 'worker="second"' in fetch(second.url)
    messages = [each.message for each in caplog.records if "not served" in each.message]
    assert 1 == len(messages)
    assert re.fullmatch(
        rf"metrics are not served: cannot bind 127.0.0.1:{port}: .*again", messages[0]
    )


def test_a_server_that_never_got_its_address_ends_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        server = MetricsServer(dict, "127.0.0.1", other.getsockname()[1])
        server.start()
        server.close()
        assert "" == server.url


def test_a_silent_client_does_not_block_others(
    start: Callable[..., MetricsServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor a client that sends slowly or too much, or disconnects."""
    monkeypatch.setattr(serving, "CLIENT_TIMEOUT", 0.05)
    url = start(lambda: {"worker": {"name": "w", "online": True, "used": 0, "slots": 1}}).url
    address = ("127.0.0.1", int(url.split(":")[2].partition("/")[0]))
    with socket.create_connection(address), socket.create_connection(address) as slow:
        slow.sendall(b"GET /metrics HT")
        with socket.create_connection(address) as loud:
            loud.sendall(b"x" * 20_000)
        assert "eventmq_worker_online" in fetch(url)


def test_without_a_descriptor_for_a_scrape_it_is_tried_now_and_then(
    start: Callable[..., MetricsServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection waits, of which each poll tells at once: that must not take a processor."""
    tries: list[float] = []
    accept = serving.HTTPServer.get_request

    def no_descriptor(server: Any) -> Any:
        tries.append(time.monotonic())
        if len(tries) < 3:
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(server)

    monkeypatch.setattr(serving.HTTPServer, "get_request", no_descriptor)
    read = start(lambda: {"worker": {"name": "w", "online": True, "used": 0, "slots": 1}})
    assert "eventmq_worker_online" in fetch(read.url)
    assert tries[2] - tries[0] >= 2 * serving.POLL


def test_another_path_is_not_found(start: Callable[..., MetricsServer]) -> None:
    url = start(dict).url.replace("/metrics", "/other")
    with pytest.raises(urllib.error.HTTPError) as caught:
        fetch(url)
    assert 404 == caught.value.code
    caught.value.close()


# Addresses


@pytest.mark.parametrize("bind", ["9472", "host:port", "host:65536", ":9472"])
def test_an_address_that_is_none_is_wrong_usage(bind: str) -> None:
    result = CliRunner().invoke(metrics, ["--bind", bind])
    assert result.exit_code == 2
    assert f"'{bind}' is not HOST:PORT, as in 127.0.0.1:9472" in result.output
    with pytest.raises(SettingsError, match="is not HOST:PORT"):
        serve_process(dict, bind)


def test_the_command_takes_the_form_of_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    forms: list[str] = []
    monkeypatch.setattr(
        "eventmq_contrib.prometheus.command.serve",
        lambda app, *_, **__: forms.append(app.settings.log_format),
    )
    monkeypatch.setattr(
        "eventmq.cli.target.start_logging", lambda *_, form, **__: forms.append(form)
    )
    arguments = ["--log-format", "json", "--broker", "tcp://127.0.0.1:1"]
    assert CliRunner().invoke(metrics, arguments, standalone_mode=False).exception is None
    assert ["json", "json"] == forms


def test_a_taken_port_is_named(app: EventMQ) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(BindError, match=rf"cannot bind 127\.0\.0\.1:{port}: .* --bind"):
            serve(app, ("127.0.0.1", port))


@pytest.mark.parametrize("user", ["eventmq metrics", "metrics_bind"])
def test_without_the_library_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, app: EventMQ, user: str
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    calls: dict[str, Callable[[], object]] = {
        "metrics_bind": lambda: app.serve_metrics(dict, "127.0.0.1:0"),
        "eventmq metrics": lambda: serve(app, ("127.0.0.1", 0)),
    }
    with pytest.raises(PluginError, match=rf"{user} needs .* pip install '\.\[prometheus\]'"):
        calls[user]()


@pytest.mark.parametrize(("host", "shown"), [("0.0.0.0", r"0\.0\.0\.0"), ("::", r"\[::\]")])
def test_an_address_for_other_machines_needs_insecure(app: EventMQ, host: str, shown: str) -> None:
    """As for a broker: serving a network without encryption needs an explicit setting."""
    with pytest.raises(NotAllowed, match=f"{shown}:0 can be reached .* say --insecure"):
        serve(app, (host, 0))
    address = f"[{host}]:0" if ":" in host else f"{host}:0"
    with pytest.raises(NotAllowed, match=f"metrics_bind = {shown}:0 .* say --insecure"):
        app.serve_metrics(dict, address)


def test_a_broker_that_may_not_serve_them_makes_no_store(tmp_path: Path) -> None:
    app = EventMQ("shop", data_dir=str(tmp_path / "d"), metrics_bind="0.0.0.0:0")
    with pytest.raises(NotAllowed, match="say --insecure"):
        app.make_broker()
    assert not (tmp_path / "d").exists()


def test_nothing_is_served_unless_it_is_set(app: EventMQ) -> None:
    app.serve_metrics(dict, app.settings.metrics_bind)()
    assert not [t for t in threading.enumerate() if t.name == "eventmq-metrics"]


# Processes


@pytest.mark.parametrize("options", [["--insecure"], []], ids=["option", "setting"])
def test_the_command_serves_other_machines_where_that_is_wanted(options: list[str]) -> None:
    env = {**os.environ, **({} if options else {"EVENTMQ_INSECURE": "true"})}
    command = [sys.executable, "-m", "eventmq", "metrics", "--bind", "0.0.0.0:0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready bind=http://0.0.0.0:")
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT) == 0


def test_the_command_serves_until_a_signal_ends_it() -> None:
    """It needs no broker to start, and reports its state to Prometheus; SIGHUP does not end it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        broker = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "eventmq", "metrics", "--bind", "127.0.0.1:0"]
    with subprocess.Popen(
        [*command, "--broker", broker], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        ready = process.stdout.readline()
        assert ready.startswith("ready bind=http://127.0.0.1:")
        url = ready.split("bind=")[1].strip()
        assert "eventmq_up 0.0" in fetch(url)
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT) == 0
        assert "eventmq_up is 0" in process.stderr.read()


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    system = System(tmp_path)
    yield system
    system.stop()


def url_of(system: System, command: str) -> str:
    """Return the address in the log at which a process serves its metrics."""
    log = system.folder / f"{command}.log"
    names: list[str] = []

    def served() -> bool:
        names[:] = re.findall(r"metrics are served at (\S+)", log.read_text())
        return bool(names)

    until(served, f"the {command} says where its metrics are")
    return names[-1]


def test_a_broker_and_a_worker_serve_their_own_page(system: System) -> None:
    """Beside their jobs; if the port is in use they log that once and jobs continue."""
    _, line = system.start(
        "broker", "--bind", "tcp://127.0.0.1:0", "--data-dir", str(system.folder / "data"),
        "--metrics-bind", "127.0.0.1:0",
    )  # fmt: skip
    system.address = line.split("main=")[1].split()[0]
    of_broker = url_of(system, "broker")
    address = of_broker.split("//")[1].partition("/")[0]
    system.worker("--metrics-bind", address)
    app = system.app()
    assert 7 == app.send("survivor.work", (7,)).get(timeout=TIMEOUT)
    page = Page(fetch(of_broker))
    assert 1 == page.value(
        "eventmq_jobs_total", queue="default", task="survivor.work", outcome="succeeded"
    )
    assert page.value("process_resident_memory_bytes")
    log = (system.folder / "worker.log").read_text()
    assert 1 == log.count(f"metrics are not served: cannot bind {address}")
    system.worker("--metrics-bind", "127.0.0.1:0")
    page = Page(fetch(url_of(system, "worker")))
    [name] = [dict(labels)["worker"] for name, labels in page.samples if name.endswith("online")]
    assert 1 == page.value("eventmq_worker_online", worker=name)
    assert 2 == page.value("eventmq_worker_slots", worker=name, state="total")
    assert None is page.value("eventmq_up")


def test_a_broker_that_is_scraped_every_10_ms_goes_on(system: System) -> None:
    """Two do so, one of them keeps its connection open and reads nothing; its jobs end."""
    _, line = system.start(
        "broker", "--bind", "tcp://127.0.0.1:0", "--data-dir", str(system.folder / "data"),
        "--metrics-bind", "127.0.0.1:0",
    )  # fmt: skip
    system.address = line.split("main=")[1].split()[0]
    url = url_of(system, "broker")
    system.worker()
    ended, pages, seconds = threading.Event(), set[str](), []

    def scrape() -> None:
        began = time.monotonic()
        while not ended.wait(0.01):
            pages.add(fetch(url))
        seconds.append(time.monotonic() - began)

    address = url.split("//")[1].partition("/")[0].split(":")
    thread = threading.Thread(target=scrape)
    with socket.create_connection((address[0], int(address[1]))) as deaf:
        deaf.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        thread.start()
        try:
            app = system.app()
            jobs = [app.send("survivor.work", (number,)) for number in range(300)]
            app.wait(jobs, timeout=TIMEOUT)
            until(lambda: len(pages) > 1, "another page is made")
        finally:
            ended.set()
            thread.join(TIMEOUT)
    [duration] = seconds
    assert 1 < len(pages) <= duration / serving.FRESH + 1, "one page a second at most"
