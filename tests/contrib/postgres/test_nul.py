"""PostgreSQL stores no NUL in text, so the broker refuses a request with one, and goes on."""

from __future__ import annotations

import psycopg
import pytest

from eventmq.errors import ProtocolError
from tests.support.system import DEADLINE, System, until

pytestmark = pytest.mark.timeout(120)

NUL = "a\0b"


def start(system, url):
    settings = '[queue_limits]\nslow = {rate_limit = "1000/m", max_concurrency = 2}\n'
    (system.folder / "eventmq.toml").write_text(settings)
    data = str(system.folder / "data")
    _, line = system.start(
        "broker", "--store", url, "--bind", "tcp://127.0.0.1:0", "--data-dir", data
    )
    system.address = next(w for w in line.split() if "tcp://" in w).partition("=")[2]
    system.worker("-Q", "default,slow")


@pytest.fixture
def system(tmp_path, database_url):
    system = System(tmp_path)
    try:
        start(system, database_url)
        yield system
    finally:
        system.stop()


def test_a_nul_in_any_text_is_refused_and_the_broker_goes_on(system):
    """Arguments may have one, as they are stored as bytes."""
    app = system.app(submit_timeout=10.0)
    refused = [
        lambda: app.send(NUL, (1,)),
        lambda: app.send("survivor.work", (1,), queue=NUL),
        lambda: app.send("survivor.work", (1,), unique=NUL),
        lambda: app.send("survivor.work", (1,), job_id=NUL),
        lambda: app.send("survivor.work", (1,), headers={"x": NUL}),
        lambda: app.ask("info", {"id": NUL}),
    ]
    for ask in refused:
        with pytest.raises(ProtocolError, match="NUL"):
            ask()
    assert app.send("survivor.work", (NUL,)).get(DEADLINE) == NUL
    assert system.processes[0].poll() is None


def test_limits_of_a_queue_are_stored(system, database_url):
    """The name of their row must have no NUL either."""
    app = system.app(submit_timeout=10.0)
    assert app.send("survivor.work", (1,), queue="slow").get(DEADLINE) == 1
    with psycopg.connect(database_url, autocommit=True) as connection:
        query = "SELECT key FROM eventmq.limiters"
        until(lambda: connection.execute(query).fetchall() == [("slow",)], "limits are kept")
    assert app.send("survivor.work", (2,), queue="slow").get(DEADLINE) == 2
