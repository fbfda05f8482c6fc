"""The ordinary SDK of Sentry reports failed jobs as documented; Sentry is a server on loopback."""

from __future__ import annotations

import gzip
import signal
import threading
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from sentry_sdk.envelope import Envelope

from eventmq.errors import JobFailed
from tests.support.page_files import write_files
from tests.support.system import DEADLINE, System

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: In addition to the code of the page.
MORE = """
import logging
import time

import sentry_sdk
from eventmq import Retry, current_job
from shop import app


@app.task(retries=1)
def ask_again():
    if current_job().attempt == 1:
        raise Retry(countdown=0.0)
    return "done"


@app.task
async def divide(by):
    return 1 / by


@app.task
def tell(text):
    logging.getLogger("more").warning("breadcrumb %s", text)
    sentry_sdk.capture_message(text)


@app.task
def log_and_fail():
    try:
        raise ValueError("once")
    except ValueError:
        logging.getLogger("more").exception("three")
        raise


@app.task(timeout=0.5)
def hang():
    time.sleep(60)
"""

#: The first lines of the page, without a middleware.
PLAIN = """
import sentry_sdk
from eventmq import EventMQ

sentry_sdk.init()
app = EventMQ("shop")


@app.task
def share(total, people):
    return total / people
"""


class Sentry:
    """Keeps the events that it got."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: list[dict[str, Any]] = []
        self.dsn = ""

    def add(self, body: bytes) -> None:
        events = [item.get_event() for item in Envelope.deserialize(body).items]
        with self._lock:
            self._events += [event for event in events if event]

    def events(self) -> list[dict[str, Any]]:
        with self._lock:
            return list(self._events)


@contextmanager
def receiving() -> Iterator[Sentry]:
    sentry = Sentry()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            sentry.add(body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        sentry.dsn = f"http://key@127.0.0.1:{server.server_port}/1"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield sentry
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def sentry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sentry]:
    with receiving() as sentry:
        monkeypatch.setenv("SENTRY_DSN", sentry.dsn)
        yield sentry


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    system = System(tmp_path)
    system.broker()
    yield system
    system.stop()


def start(system: System, *arguments: str) -> Any:
    line = ("worker", "-A", "shop", "--broker", system.address, "-c", "1", *arguments)
    return system.start(*line)[0]


def end(worker: Any) -> None:
    """End a worker, which then sends its events."""
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(DEADLINE) == 0


def fail(system: System, task: str, *args: object, **options: Any) -> str:
    job = system.app().send(task, args, **options)
    with pytest.raises(JobFailed):
        job.get(timeout=DEADLINE)
    return job.id


def tags_of(job_id: str, task: str, attempt: int) -> dict[str, str]:
    return {"job": job_id, "task": task, "attempt": str(attempt)}


@pytest.mark.parametrize("pool", ["prefork", "threads", "asyncio"])
def test_a_failed_job_is_reported_once_with_task_id_and_attempt(
    system: System, sentry: Sentry, pool: str
) -> None:
    """Of two attempts the last; a Retry and a success are no failures."""
    names = write_files("howto/operate/metrics.rst", system.folder)
    assert names == ["traced.py", "reporting.py", "shop.py"]
    (system.folder / "more.py").write_text(MORE)
    worker = start(system, "-I", "more", "--pool", pool)
    app = system.app()
    assert app.send("more.divide", (2,)).get(timeout=DEADLINE) == 0.5
    if pool == "asyncio":  # it runs coroutines only
        task, attempt = "more.divide", 1
        failed = fail(system, task, 0)
    else:
        task, attempt = "shop.share", 2
        failed = fail(system, task, 9.0, 0, retries=1)
        assert app.send("shop.share", (9.0, 2)).get(timeout=DEADLINE) == 4.5
        assert app.send("more.ask_again", retries=1).get(timeout=DEADLINE) == "done"
    end(worker)
    [event] = sentry.events()
    assert event["tags"] == tags_of(failed, task, attempt)
    assert (event["level"], event["transaction"]) == ("error", task)
    assert event["extra"]["eventmq_queue"] == "default"
    [shown] = event["exception"]["values"]
    assert shown["type"] == "ZeroDivisionError"
    assert shown["stacktrace"]["frames"][-1]["filename"] == f"{task.split('.')[0]}.py"


def test_without_the_middleware_task_id_and_attempt_are_additional_data(
    system: System, sentry: Sentry
) -> None:
    (system.folder / "shop.py").write_text(PLAIN)
    worker = start(system, "--pool", "threads")
    failed = fail(system, "shop.share", 9.0, 0)
    end(worker)
    [event] = sentry.events()
    fields = {"job": failed, "task": "shop.share", "queue": "default", "attempt": 1}
    assert fields == {name: event["extra"][f"eventmq_{name}"] for name in fields}
    assert event["exception"]["values"][0]["type"] == "ZeroDivisionError"


def test_events_and_breadcrumbs_of_a_task_are_those_of_its_job(
    system: System, sentry: Sentry
) -> None:
    write_files("howto/operate/metrics.rst", system.folder)
    (system.folder / "more.py").write_text(MORE)
    worker = start(system, "-I", "more", "--pool", "threads")
    jobs = [system.app().send("more.tell", (text,)) for text in ("one", "two")]
    for job in jobs:
        job.get(timeout=DEADLINE)
    fail(system, "more.log_and_fail")
    end(worker)
    *reported, logged = sentry.events()
    assert logged["logentry"]["message"] == "three", "and no second event of the exception"
    assert logged["tags"]["task"] == "more.log_and_fail"
    events = {event["message"]: event for event in reported}
    assert set(events) == {"one", "two"}
    for job, text in zip(jobs, ("one", "two"), strict=True):
        assert events[text]["tags"] == tags_of(job.id, "more.tell", 1)
        crumbs = [crumb["message"] for crumb in events[text]["breadcrumbs"]["values"]]
        assert Counter(crumbs)[f"breadcrumb {text}"] == 1
        assert sum(crumb.startswith("breadcrumb") for crumb in crumbs) == 1


def test_a_job_that_is_killed_is_reported_by_the_worker(system: System, sentry: Sentry) -> None:
    """Its process sends nothing any more."""
    write_files("howto/operate/metrics.rst", system.folder)
    (system.folder / "more.py").write_text(MORE)
    worker = start(system, "-I", "more", "--pool", "prefork")
    failed = fail(system, "more.hang", timeout=0.5)
    end(worker)
    [event] = sentry.events()
    assert event["extra"]["eventmq_job"] == failed
    assert event["extra"]["eventmq_task"] == "more.hang"
    assert event["extra"]["eventmq_attempt"] == 1
    assert event["exception"]["values"][0]["type"] == "TimeLimitExceeded"
