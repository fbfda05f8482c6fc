"""Workers of a shared store: how they recognise the owner, and whose messages they ignore."""

from __future__ import annotations

import logging

import pytest

from eventmq.wire import commands
from eventmq.wire.batches import encode_chunk
from eventmq.wire.features import Features
from eventmq.wire.owner import ACTIVE, STANDBY, OwnerInfo
from eventmq.worker.session import OwnerListener, SessionInfo, WorkerSession
from tests.support.manager_harness import SUCCEEDED, StillClock, World, kinds, replies

OWNER = OwnerInfo(5, ACTIVE, "tcp://a:1", "", "s1")

WATCHER = OWNER._replace(role=STANDBY)

NEXT = OwnerInfo(6, ACTIVE, "tcp://b:1", "", "s1")


@pytest.fixture
def world():
    """A worker whose broker owns the store in epoch 5."""
    world = World()
    world.connect(epoch=5, owner=OWNER)
    return world


def chunk(world, number, epoch):
    """Let a chunk of one job arrive; return whether the worker accepted it."""
    rows = [(f"j{number}", 1, 1, "task:t", 0.0, 0.0, b"x")]
    headers = f"chunk:{number},epoch:{epoch}"
    world.receive(commands.Request(f"m{number}", "q", headers, encode_chunk("q", rows)))
    return number in [assigned for _, assigned, _ in world.pool.assigned]


def heartbeat(world, report):
    """Let a HEARTBEAT of the broker arrive; return the messages of the worker."""
    return world.receive(commands.Heartbeat("h", "1", f"waiting:0,{report.format()}"))


def names(messages):
    return [type(message).__name__ for message in messages]


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


# The fence


def test_chunks_of_the_owner_are_taken(world):
    assert chunk(world, 1, 5)
    assert chunk(world, 2, 6)  # the report comes with it


def test_a_chunk_of_a_lower_epoch_is_ignored(world, caplog):
    """Its sender was suspended between the commit and this message."""
    world.manager.session.owners.register(NEXT)
    assert not chunk(world, 1, 5)
    assert not chunk(world, 2, 5)
    assert warnings(caplog) == [
        "messages of a broker that does not own the store are ignored; the owner has epoch 6"
    ]
    assert world.manager.session.online  # until its runner knows the address of the owner
    assert world.status().received == 0
    assert chunk(world, 1, 6)  # the same chunk, from the owner that recovered it


def test_the_log_says_it_once_for_each_owner(world, caplog):
    for epoch in (6, 7):
        world.manager.session.owners.register(NEXT._replace(epoch=epoch))
        chunk(world, 1, 5)
        chunk(world, 1, 5)
    assert len(warnings(caplog)) == 2


def test_a_cancel_of_an_old_owner_is_ignored(world):
    chunk(world, 1, 5)
    world.start(0)
    cancel = commands.Cancel("c", "j1", "1", "")
    world.manager.session.owners.register(NEXT)
    world.receive(cancel)
    assert world.pool.interrupted == []
    world.connect(epoch=6, owner=NEXT)
    world.receive(cancel)
    assert world.pool.interrupted == [(0, 1, 0)]


@pytest.mark.parametrize("epoch", ["five", "-1"])
def test_an_epoch_that_is_no_number_is_named(world, caplog, epoch):
    assert not chunk(world, 1, epoch)
    [text] = warnings(caplog)
    assert f"epoch is {epoch!r}; allowed is a whole number from 0" in text


def test_a_store_that_is_not_shared_has_no_fence():
    world = World()
    world.connect()
    world.chunk(1, 1)
    assert world.pool.assigned == [(0, 1, 1)]


# The session


def test_a_standby_is_informed_at_intervals_and_sent_nothing_else():
    world = World()
    assert world.connect(epoch=5, owner=WATCHER) == []
    assert not world.manager.online
    for _ in range(3):
        assert world.tick(2.9) == []
        assert names(world.tick(0.1)) == ["Inform"]
        world.welcome(epoch=5, owner=WATCHER)
    assert not world.manager.lost


def test_a_standby_that_takes_over_is_informed_at_once():
    world = World()
    world.connect(epoch=5, owner=WATCHER)
    assert names(heartbeat(world, NEXT)) == ["Inform"]
    assert names(world.welcome(epoch=6, owner=NEXT)) == ["Ready"]
    assert heartbeat(world, NEXT) == []


def test_answers_wait_for_the_next_owner(world, caplog):
    """The broker of the session gives the store up while jobs run."""
    caplog.set_level(logging.INFO)
    chunk(world, 1, 5)
    assert heartbeat(world, WATCHER) == []
    assert world.answer(0, 1, 0, 1) == []
    assert names(world.tick(3.0)) == ["Inform"]
    sent = world.connect(epoch=6, owner=NEXT)
    inform = Features.parse([m for m in world.sent if isinstance(m, commands.Inform)][-1].features)
    assert (inform.received, inform.held) == (1, (1,))
    assert names(sent) == ["Ready", "Reply"]
    assert kinds(sent[1]) == [(0, SUCCEEDED)]
    assert "the store has another owner; sending 1 replies again" in caplog.text


def test_an_owner_in_a_new_epoch_is_informed_again(world):
    """It lost its database and has claimed the store again."""
    chunk(world, 1, 5)
    [reply] = world.answer(0, 1, 0, 1)
    assert names(heartbeat(world, OWNER._replace(epoch=6))) == ["Inform"]
    sent = world.welcome(epoch=6, owner=OWNER._replace(epoch=6))
    assert [message.id for message in replies(sent)] == [reply.id]


def test_an_answer_that_is_refused_without_an_owner_is_kept(world):
    """Dropping it would lose a result."""
    chunk(world, 1, 5)
    [reply] = world.answer(0, 1, 0, 1)
    assert world.receive(commands.Error("e", reply.id, "no-owner", "no owner is known")) == []
    assert [message.id for message in replies(world.tick(5.0))] == [reply.id]


def test_a_suspect_that_is_refused_without_an_owner_waits(world):
    rows = [("j1", 1, 1, "task:t", 0.0, 0.0, b"x")]
    request = commands.Request("m1", "q", "chunk:1,ask:1,epoch:5", encode_chunk("q", rows))
    [call] = world.receive(request)
    assert world.receive(commands.Error("e", call.id, "no-owner", "no owner is known")) == []
    [again] = [m for m in world.tick(5.0) if isinstance(m, commands.Call)]
    world.receive(commands.Reply("r", b"", again.id))
    assert world.pool.assigned == [(0, 1, 1)]


# Other brokers than that of the session


@pytest.fixture
def listener():
    """A listener, beside a session with the owner of epoch 5."""
    session = WorkerSession(SessionInfo(session="s" * 32, name="w"), None, StillClock())
    session.owner = session.owners.register(OWNER)
    listener = OwnerListener(session)
    listener.connected(100.0)
    return listener


def out(listener, now):
    listener.tick(now)
    outbox, listener.outbox = listener.outbox, []
    return [commands.decode(frames) for frames in outbox]


def test_a_listener_informs_as_a_client_and_asks_again_at_intervals(listener):
    """A client gets no jobs, and has no session."""
    [inform] = out(listener, 100.0)
    assert (inform.role, inform.queues) == ("client", "")
    features = Features.parse(inform.features)
    assert (features.name, features.session, "owner" in features.extensions) == ("w", "", True)
    assert out(listener, 100.5) == []
    assert names(out(listener, 101.0)) == ["Inform"]  # without an ACK
    report = Features(epoch=5, store="s1", owner=WATCHER).format().encode()
    assert listener.receive(commands.Ack("a", inform.id, report).frames(), 101.0)
    assert listener.next_tick() == 104.0
    assert out(listener, 103.9) == []
    assert names(out(listener, 104.0)) == ["Inform"]
    assert not listener.owned


def test_a_listener_hears_of_another_owner(listener):
    session = listener._session
    assert session.owned
    frames = commands.Heartbeat("h", "1", NEXT._replace(role=STANDBY).format()).frames()
    assert listener.receive(frames, 100.0)
    assert not session.owned
    assert not listener.owned
    assert listener.receive(commands.Heartbeat("h", "1", NEXT.format()).frames(), 100.0)
    assert listener.owned


def test_the_owner_of_another_store_is_not_the_owner(listener):
    report = OwnerInfo(9, ACTIVE, "tcp://c:1", "", "s2")
    assert listener.receive(commands.Heartbeat("h", "1", report.format()).frames(), 100.0)
    assert not listener.owned


def test_work_from_a_broker_beside_is_told(listener):
    assert not listener.receive(commands.Request("m", "q", "chunk:1", b"").frames(), 100.0)
    assert not listener.receive(commands.Cancel("c", "j1", "1", "").frames(), 100.0)


def test_a_silent_broker_beside_is_lost(listener):
    out(listener, 115.0)
    assert not listener.lost
    out(listener, 115.1)
    assert listener.lost
    listener.connected(115.1)
    assert not listener.lost
    assert names(out(listener, 115.1)) == ["Inform"]


@pytest.mark.parametrize("status", ["owner:x", "owner:5+king+a++s1"])
def test_a_listener_passes_over_what_it_cannot_read(listener, status, caplog):
    assert listener.receive(commands.Heartbeat("h", "1", status).frames(), 100.0)
    assert listener.receive([b"", b"nonsense"], 100.0)
    assert len(warnings(caplog)) == 2
    assert listener.owner is None
