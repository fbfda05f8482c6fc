"""A lost connection: the probe for its peer, and the time at which the grace ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eventmq.broker.limits import Limits
from eventmq.wire.commands import Heartbeat, Inform, Ready, Request
from tests.support.broker_harness import Broker, chunks

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Limits of a broker that wakes up by itself only every half minute.
SLOW = Limits(heartbeat_interval=60.0, lease_interval=60.0, heartbeat_timeout=180.0)

#: The usual limits.
USUAL = Limits()

SETTLE, APART = 0.02, 0.1

#: A job for a worker without FEATURES.
PLAIN = b'["run", {"callable": "f", "path": "m", "args": [], "kwargs": {}}]'


def at(time: float) -> object:
    """Return a value that equals a Unix time, to the microsecond."""
    return pytest.approx(time, rel=0.0, abs=1e-6)


@pytest.fixture(params=[SLOW, USUAL], ids=["slow", "usual"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    broker = Broker(None, request.param)
    broker.tick()
    yield broker
    broker.close()


def after(broker: Broker, seconds: float) -> None:
    """Let time pass without waking the broker, then run a tick."""
    broker.clock.time += seconds
    broker.tick()


def lose(broker: Broker, identity: bytes) -> None:
    """Report a lost connection without its peer, as a monitor does."""
    broker.unreachable.add(identity)
    broker.core.heartbeats.connection_lost()
    broker.tick()


def beats(broker: Broker, identity: bytes) -> int:
    """Return the number of HEARTBEATs that were sent to a peer since the last call."""
    return sum(isinstance(message, Heartbeat) for message in broker.took(identity))


def test_the_jobs_of_a_killed_worker_start_elsewhere_when_its_grace_ends(broker: Broker) -> None:
    """The broker wakes up at these two times, and not before them."""
    broker.worker(b"w1", "one")
    job_id, _ = broker.submit()
    broker.worker(b"w2", "two")
    lose(broker, b"w1")
    tick_at = broker.core.next_tick(broker.clock.now())
    assert tick_at == at(broker.clock.now() + SETTLE)
    after(broker, SETTLE)
    assert broker.core.state.sessions["one"].peer is None
    grace = broker.core.state.limits.grace
    end = broker.clock.now() + grace
    assert broker.core.sessions.next_grace_end == at(end)
    after(broker, grace - 0.01)
    assert not chunks(broker.took(b"w2"))
    assert broker.core.next_tick(broker.clock.now()) == at(end)
    after(broker, 0.01)
    [(_, index)] = chunks(broker.took(b"w2"))
    assert [entry.id for entry in index.entries] == [job_id]
    assert broker.core.sessions.next_grace_end is None


def test_only_workers_of_ours_that_have_jobs_are_looked_at(broker: Broker) -> None:
    """All other peers are missed by their silence, as usual."""
    broker.worker(b"busy", "one")
    broker.submit()
    broker.worker(b"idle", "two", window=0)
    broker.tell(b"plain", Inform(broker.new_id(), "", "worker"))
    broker.tell(b"plain", Ready(broker.new_id()))
    broker.tell(b"client", Request(broker.new_id(), "default", "guarantee", PLAIN))
    assert [len(s.leases) for s in broker.core.state.sessions.values()] == [1, 0, 1]
    everyone = (b"busy", b"idle", b"plain", b"client")
    after(broker, 0.3)
    for identity in everyone:
        broker.took(identity)
    lose(broker, b"stranger")
    after(broker, SETTLE)
    assert [beats(broker, identity) for identity in everyone] == [1, 0, 0, 0]


def test_a_flood_of_lost_connections_is_one_look_in_a_tenth_of_a_second() -> None:
    broker = Broker(None, SLOW)
    broker.worker(b"w", "one")
    broker.submit()
    broker.took(b"w")
    begin, looks = broker.clock.now(), []
    for _ in range(100):
        lose(broker, b"stranger")
        after(broker, 0.01)
        looks += [round(broker.clock.now() - begin, 2)] * beats(broker, b"w")
    assert looks == [round(SETTLE + APART * n, 2) for n in range(10)]
    broker.close()


def test_a_connection_that_is_lost_right_before_a_look_is_looked_for_again(
    broker: Broker,
) -> None:
    """The ROUTER may not have noticed the loss yet."""
    broker.worker(b"w1", "one")
    broker.submit()
    lose(broker, b"stranger")
    after(broker, SETTLE - 0.001)
    broker.core.heartbeats.connection_lost()
    after(broker, 0.001)
    assert broker.core.state.sessions["one"].peer is not None
    assert broker.core.next_tick(broker.clock.now()) == at(broker.clock.now() + APART)
    broker.unreachable.add(b"w1")
    after(broker, APART)
    assert broker.core.state.sessions["one"].peer is None
    assert broker.core.heartbeats.probe_at is None


def test_a_loss_that_is_heard_at_the_end_of_a_turn_wakes_the_next_one(broker: Broker) -> None:
    """With keys the monitors are read again before messages are sent."""
    broker.core.heartbeats.connection_lost()
    now = broker.clock.now()
    assert broker.core.next_tick(now) <= now
    broker.tick()
    assert broker.core.next_tick(now) == at(now + SETTLE)
    after(broker, SETTLE)
    assert broker.core.heartbeats.probe_at is None


def test_no_peer_is_given_up_while_something_waits_to_be_read(broker: Broker) -> None:
    """An unread message may be the INFORM of the peer whose grace has ended."""
    broker.worker(b"w1", "one")
    broker.submit()
    lose(broker, b"w1")
    after(broker, SETTLE)
    broker.clock.time += 0.6
    broker.core.decide(broker.clock.now(), caught_up=False)
    assert "one" in broker.core.state.sessions
    broker.worker(b"again", "one", received=1, held=(1,))
    assert broker.core.state.sessions["one"].leases
    assert broker.core.state.counters["lease_lost"] == 0


def test_a_worker_that_is_back_in_time_keeps_its_jobs(broker: Broker) -> None:
    """The end of its grace has no effect then."""
    broker.worker(b"w1", "one")
    broker.submit()
    lose(broker, b"w1")
    after(broker, SETTLE)
    after(broker, 0.4)
    broker.worker(b"again", "one", received=1, held=(1,))
    after(broker, 0.1)
    assert broker.core.sessions.next_grace_end is None
    assert broker.core.state.sessions["one"].leases


def test_a_stop_of_the_broker_moves_the_look_and_the_end_of_the_grace(broker: Broker) -> None:
    broker.worker(b"w1", "one")
    broker.submit()
    broker.worker(b"w2", "two")
    lose(broker, b"w1")

    def leap() -> None:
        broker.clock.time += 3600.0
        broker.core.shift(broker.now(), 3600.0)
        broker.tick()

    leap()
    assert broker.core.heartbeats.probe_at == at(broker.clock.now() + SETTLE)
    after(broker, SETTLE)
    leap()
    assert broker.core.sessions.next_grace_end == at(broker.clock.now() + 0.5)
    assert not chunks(broker.took(b"w2"))
    after(broker, 0.5)
    assert len(chunks(broker.took(b"w2"))) == 1
