"""PARTIALs of foreign workers as parts of ``job.stream()``, with real brokers and sockets."""

from __future__ import annotations

import pytest

from eventmq.errors import ResultUnavailable, StreamRestarted
from eventmq.gateway import worker as pool
from eventmq.wire.streams import WINDOW
from tests.contrib.gateways.majordomo_peers import NAME, answer, ask, final, next_request, register
from tests.contrib.gateways.raw_dealer import DEADLINE


@pytest.fixture
def worker(farm, dealer):
    """A foreign worker for the service echo."""
    _, (farm.front, farm.back) = farm.gateway()
    return register(dealer, farm.back, "echo")


def say_parts(worker, client, id, count):
    for number in range(count):
        answer(worker, b"\x03", client, id, [b"%d" % number])


def test_partials_are_the_parts_of_the_job(farm, worker):
    """Each keeps its frames apart; the FINAL is the result."""
    job = farm.app.send_raw("echo", [b"x"])
    client, id, _ = next_request(worker)
    parts = [[b"a"], [b""], [b"c", b"", b"\xff"]]
    for part in parts:
        answer(worker, b"\x03", client, id, part)
    answer(worker, b"\x04", client, id, [b"end"])
    assert parts == list(job.stream(timeout=DEADLINE))
    assert [b"end"] == job.get(timeout=DEADLINE)


def test_a_part_is_there_before_the_end(farm, worker):
    job = farm.app.send_raw("echo", [b"x"])
    client, id, _ = next_request(worker)
    answer(worker, b"\x03", client, id, [b"first"])
    parts = job.stream(timeout=DEADLINE)
    assert [b"first"] == next(parts)
    answer(worker, b"\x03", client, id, [b"second"])
    assert [b"second"] == next(parts)
    answer(worker, b"\x04", client, id, [b"end"])
    assert [] == list(parts)


def test_partials_wait_for_a_slow_reader_and_the_final_behind_them(farm, worker):
    """Credit is that of any worker: parts that exceed the window wait in the gateway."""
    count = 2 * WINDOW + 100
    job = farm.app.send_raw("echo", [b"x"])
    client, id, _ = next_request(worker)
    say_parts(worker, client, id, count)
    answer(worker, b"\x04", client, id, [b"end"])
    worker.send(NAME, b"PING")
    assert [NAME, b"PONG"] == worker.next()  # so all of it was read
    assert "running" == job.state
    expected = [[b"%d" % number] for number in range(count)]
    assert expected == list(job.stream(timeout=DEADLINE))
    assert [b"end"] == job.get(timeout=DEADLINE)


def test_readers_are_informed_where_too_many_partials_wait(farm, worker, monkeypatch):
    """At the bound the parts are discarded as a whole; the job continues, with its result."""
    monkeypatch.setattr(pool, "MAX_PARTS", 100)
    job = farm.app.send_raw("echo", [b"x"])
    client, id, _ = next_request(worker)
    say_parts(worker, client, id, 2 * WINDOW + 500)
    answer(worker, b"\x04", client, id, [b"end"])
    assert [b"end"] == job.get(timeout=DEADLINE)
    with pytest.raises(ResultUnavailable, match="its worker has sent more than the window"):
        next(job.stream(timeout=DEADLINE))


def test_another_worker_restarts_the_parts_and_the_reader_is_informed(farm, worker, dealer):
    job = farm.app.send_raw("echo", [b"x"])
    client, id, _ = next_request(worker)
    answer(worker, b"\x03", client, id, [b"a"])
    parts = job.stream(timeout=DEADLINE)
    assert [b"a"] == next(parts)
    worker.send(NAME, b"\x06")
    other = register(dealer, farm.back, "echo")
    client, id, _ = next_request(other)
    answer(other, b"\x03", client, id, [b"b"])
    answer(other, b"\x04", client, id, [b"end"])
    with pytest.raises(StreamRestarted):
        next(parts)
    assert [[b"b"]] == list(parts)


def test_partials_for_a_majordomo_client_need_no_reader_of_the_stream(farm, worker, dealer):
    """They go to the client at once, however many they are."""
    client = dealer(farm.front, b"me")
    ask(client, "echo", b"1", b"x")
    address, id, _ = next_request(worker)
    say_parts(worker, address, id, WINDOW + 10)
    answer(worker, b"\x04", address, id, [b"end"])
    parts = [client.next()[4] for _ in range(WINDOW + 10)]
    assert [b"%d" % number for number in range(WINDOW + 10)] == parts
    assert final("echo", b"1", b"end") == client.next()
