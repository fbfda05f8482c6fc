"""A client that the loop of a gateway drives, and others use at the same time."""

from __future__ import annotations

import threading
import time

import pytest
from zmq.backend import zmq_poll

from eventmq.gateway import InProcessClient
from tests.contrib.gateways.raw_dealer import DEADLINE


def serve(client, until):
    """Run the loop of a gateway that has nothing but this client."""
    while not until():
        items, wait = client.poll_items(0.0)
        ready = zmq_poll(list(items), int(1000 * min(wait, 0.01)))  # it may wait for ever
        client.step(ready, {source for source, _ in ready}, 0.0)


@pytest.fixture
def client(farm):
    """A client that drives, in a thread of its own."""
    client, done = InProcessClient(farm.app), threading.Event()

    def main():
        serve(client, done.is_set)
        client.close()

    thread = threading.Thread(target=main)
    thread.start()
    yield client
    done.set()
    thread.join(DEADLINE)


def test_others_use_the_client_that_it_drives(farm, client):
    """Their requests wait in its inbox; no other thread reads its sockets."""
    jobs = [farm.app.send_raw("nobody", [b"x"]) for _ in range(20)]
    assert {"queued"} == {job.state for job in jobs}


def test_it_takes_over_what_is_open_and_leaves_it_to_others(farm):
    """The background thread, which drives while a job is waited for, gives way."""
    client, ended = InProcessClient(farm.app), threading.Event()
    farm.app.follow_raw("nobody", [b"x"], job_id="open", on_end=lambda *_: ended.set())
    until = time.monotonic() + DEADLINE
    while not client.poll_items(0.0)[0]:
        assert time.monotonic() < until
    client.close()
    assert "queued" == farm.app.job("open").state
    assert farm.app.job("open").cancel()
    assert ended.wait(DEADLINE)


def test_it_waits_while_another_thread_drives(farm):
    """A caller that waits for its receipt drives until it has it; then the client does."""
    loop = farm.app.components.client.runner.loop()
    accepted, release = threading.Event(), threading.Event()

    def drive():
        assert loop.attach()
        accepted.set()
        release.wait(DEADLINE)
        loop.detach()

    thread = threading.Thread(target=drive)
    thread.start()
    assert accepted.wait(DEADLINE)
    client = InProcessClient(farm.app)
    assert not client.poll_items(0.0)[0]
    release.set()
    thread.join(DEADLINE)
    assert client.poll_items(0.0)[0]
    client.close()


def test_a_client_that_was_closed_harms_no_gateway(farm):
    client = InProcessClient(farm.app)
    assert client.poll_items(0.0)[0]
    thread = threading.Thread(target=farm.app.close)
    thread.start()
    while client.poll_items(0.0)[0]:
        client.step((), frozenset(), 0.0)
    thread.join(DEADLINE)
    assert client.step((), frozenset(), 0.0)
    client.close()
