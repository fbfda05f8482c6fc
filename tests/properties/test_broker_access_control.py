"""Whatever peers with keys send, none gets what its key does not allow, and nothing breaks."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from eventmq.broker.authenticator import AccessControl
from eventmq.broker.grants import Grant
from eventmq.broker.limits import Limits
from eventmq.headers import parse_headers
from eventmq.job import OutcomeKind
from eventmq.wire.batches import OutcomeRow, decode_chunk
from eventmq.wire.commands import Call, Error, Inform, Kbai, Ready, Reply, Request
from tests.properties.test_broker_hostile import STEPS
from tests.support.broker_harness import Broker, chunks
from tests.support.examples import examples

NONE: frozenset[str] = frozenset()
OWNER = Grant("A", "owner", frozenset({"client"}), "house")
SERVED = frozenset({"default"})
GRANTS = {
    grant.key: grant
    for grant in (
        OWNER,
        Grant("B", "client", frozenset({"client"}), "street"),
        Grant("G", "gateway", frozenset({"gateway"}), "", SERVED, SERVED),
        Grant("S", "scheduler", frozenset({"scheduler"})),
        Grant("C", "another client", frozenset({"client"})),
    )
}

#: What only the owner and the worker that did the job may see.
SECRET = b"the secret result"

USERS = st.fixed_dictionaries(
    {peer: st.sampled_from([*"BGSC", "unknown"]) for peer in (b"p1", b"p2", b"p3")}
)


def _finish_a_job(broker: Broker, access: AccessControl) -> None:
    """Let the owner submit the job ``mine``, and a worker without a group run it."""
    request = Request("mine", "default", "task:t,content-type:json,guarantee", b"x")
    access.receive("main", [b"good", *request.frames()], "A", broker.clock.now())
    [(request, _)] = chunks(broker.worker(b"worker", "own"))
    row = OutcomeRow(0, OutcomeKind.SUCCEEDED, 0.0, 0.0, "json", SECRET)
    broker.answer(b"worker", request, [row])
    broker.tell(b"worker", Kbai("bye"))
    broker.sent.clear()


def _let_gateways_work(broker: Broker, access: AccessControl, users: dict[bytes, str]) -> None:
    """Let each gateway serve its queue, in which there are jobs."""
    now = broker.clock.now()
    for identity, user in users.items():
        if user == "G":
            features = f"session:{identity.decode()},chunk,outcome,error"
            inform = Inform("i", '[[1, "default"]]', "worker", features)
            access.receive("main", [identity, *inform.frames()], user, now)
            ready = Ready("r", "received:0,window:3,held:")
            access.receive("main", [identity, *ready.frames()], user, now)
    for i in range(4):
        request = Request(f"w{i}", "default", "task:t,content-type:json,guarantee", b"x")
        access.receive("main", [b"good", *request.frames()], "A", now)
    broker.tick()


@settings(max_examples=examples(250))
@given(users=USERS, steps=STEPS)
def test_no_key_gets_more_than_it_may(
    users: dict[bytes, str], steps: list[tuple[bytes, str, list[bytes], float]]
) -> None:
    """Neither another's result nor a job of a queue that it does not serve; and no crash."""
    broker = Broker(None, Limits(queue_window=3, max_queues=20, max_peers=20))
    try:
        access = AccessControl(broker.core, GRANTS, rate=1000.0)
        _finish_a_job(broker, access)
        _let_gateways_work(broker, access, users)
        _check(broker, users)
        for identity, port, frames, seconds in steps:
            message = [identity, *frames]
            access.receive(port, message, users[identity], broker.clock.now())
            broker.tick()
            broker.wait(seconds)
            _check(broker, users)
        assert not broker.core.state.closing
        call = Call("last", "get", b"\x81\xa3ids\x91\xa4mine")
        access.receive("main", [b"good", *call.frames()], "A", broker.clock.now())
        broker.tick()
        [*_, answer] = [m for m in broker.took(b"good") if isinstance(m, Reply)]
        assert SECRET in answer.result
    finally:
        broker.close()


def _check(broker: Broker, users: dict[bytes, str]) -> None:
    for identity, user in users.items():
        for message in broker.took(identity):
            assert SECRET not in b"".join(message.frames())
            if isinstance(message, Request):
                _check_job(message, user)
            elif user == "unknown":
                assert isinstance(message, Error)
    for peer in broker.core.state.peers.values():
        if peer.session is not None and peer.grant is not None:
            assert {name for _, name in peer.session.queues} <= (peer.grant.serves or NONE)


def _check_job(message: Request, user: str) -> None:
    """See that a job goes to a gateway of its queue, with the key that submitted it."""
    assert user == "G"
    assert message.queue == "default"
    if parse_headers(message.headers).chunk:
        owners = [parse_headers(text).owner for text in decode_chunk(message.body).templates]
        assert all(owner.partition("/")[0] in GRANTS for owner in owners)
