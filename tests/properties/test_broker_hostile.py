"""Whatever peers send, the broker's core raises nothing and keeps a neighbour's job."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgpack
from hypothesis import given, settings
from hypothesis import strategies as st

from eventmq.broker.limits import Limits
from eventmq.wire import calls
from eventmq.wire.batches import encode_batch
from eventmq.wire.commands import (
    ADMIN_COMMANDS,
    Ack,
    Admin,
    Call,
    Cancel,
    Disconnect,
    Error,
    Heartbeat,
    Hello,
    Inform,
    Kbai,
    Publish,
    Ready,
    Reply,
    Request,
    Schedule,
)
from tests.support.broker_harness import SWIFT, Broker
from tests.support.examples import examples

CALLS = (*calls.CALLS, "dance")

#: Texts that have a meaning somewhere, and some that nearly have.
WORDS = st.sampled_from([
    "", "1", "w", "default", "worker", "0", "-1", "1e999", "\N{SUPERSCRIPT TWO}", "%FF", "\0",
    "jobs:5", "jobs:", "failed:" + "9" * 40, "outcomes_1:x", "jobs:\N{SUPERSCRIPT TWO}", "x" * 300,
])  # fmt: skip
JOBS = st.sampled_from(["j1", "j2", "j3", "mine"])
QUEUES = st.sampled_from([
    '[[10, "default"]]', '[[1, "q"], [2, "default"]]', "[10, 'q']", "", '[[10, "\\ud800"]]',
    '[[true, "q"]]', "[" * 3000, "[[1e9, 2]]", "[[1]]", '[[1, ""]]', "7", '"', "[[10,",
    "[" + ",".join(f'[1,"q{i}"]' for i in range(30)) + "]",
])  # fmt: skip
FEATURES = st.sampled_from([
    None, None, "session:s,chunk,outcome,error", "session:s,received:1,held:1+2", "error",
    "session:t,chunk,callables:*", "session:t,tasks:t+u", "session:plain.1", "session:s,held:x",
    "session:s,received:9999999999", "name:%FF,session:%00", "received:" + "9" * 15,
])  # fmt: skip
STATUSES = st.sampled_from([
    None, None, "received:0,window:3,held:", "received:1,window:1,held:1", "received:9,window:9",
    "window:999999999999999", "received:x", "received:0,window:2,held:1+\N{SUPERSCRIPT TWO}", "a",
    "received:9,window:9,held:" + "+".join(map(str, range(99))),
])  # fmt: skip
HEADERS = st.lists(
    st.sampled_from([
        "reply-requested", "ack-requested", "guarantee", "timeout:1e11", "timeout:nan", "task:t",
        "countdown:9e11", "countdown:0.2", "eta:9e11", "priority:255", "priority:256", "expires:1",
        "content-type:json", "content-type:json", "run_count:5", "interval:3", "cron:* * * * *",
        "batch:2", "batch:2", "batch:99999999", "%", "%FF:%FF", ":", "x" * 70_000,
    ]),
    max_size=4,
).map(",".join)  # fmt: skip
OUTCOME_WORDS = st.sampled_from([
    "chunk:1", "chunk:1", "chunk:2", "chunk:3", "chunk:\N{SUPERSCRIPT TWO}", "chunk:" + "9" * 30,
    "chunk", "succeeded", None,
])  # fmt: skip

PLAIN = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(),
        st.text(max_size=8), st.binary(max_size=8),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=7),
        st.dictionaries(st.one_of(st.text(max_size=5), st.integers(0, 9)), inner, max_size=4),
    ),
    max_leaves=8,
)  # fmt: skip
TIMES = st.sampled_from([0.0, 0.0, 1.0, 1e11, 1e13, -1.0, float("nan"), float("inf")])
OUTCOMES = st.lists(
    st.tuples(
        st.integers(-1, 2), st.integers(-1, 9), TIMES, TIMES,
        st.sampled_from(["json", "error", "plain", ""]), st.binary(max_size=4), TIMES,
    ),
    max_size=2,
)  # fmt: skip
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "ids": st.one_of(st.lists(JOBS, max_size=4), PLAIN),
        "id": st.one_of(JOBS, PLAIN),
        "call": st.one_of(st.just("m"), PLAIN),
        "queue": WORDS,
        "state": st.one_of(st.sampled_from(["queued", "failed", "running", "gone"]), PLAIN),
        "cursor": st.one_of(WORDS, PLAIN),
        "limit": st.one_of(st.integers(-1, 9), PLAIN),
        "topics": st.one_of(st.lists(WORDS, max_size=4), PLAIN),
    },
)
BATCHES = st.builds(
    encode_batch,
    st.lists(st.tuples(WORDS, HEADERS), max_size=2),
    st.lists(st.tuples(JOBS, st.integers(-1, 1), st.binary(max_size=3)), min_size=2, max_size=2),
)
BODIES = st.one_of(
    st.just(b'["run", {}]'), BATCHES, st.binary(max_size=20), st.builds(msgpack.packb, PLAIN)
)
REPLIES = st.one_of(
    st.builds(msgpack.packb, OUTCOMES), st.builds(msgpack.packb, OUTCOMES), st.binary(max_size=9)
)


def _frames(message: Any) -> list[bytes]:
    return message.frames()


#: Messages whose shape is right and whose values may be anything.
SHAPED = st.one_of(
    st.builds(
        Inform, st.just("m"), QUEUES, st.sampled_from(["worker"] * 4 + ["client", "scheduler", ""]),
        FEATURES,
    ),
    st.builds(Ready, st.just("m"), STATUSES),
    st.builds(Heartbeat, st.just("m"), WORDS, STATUSES),
    st.builds(Request, JOBS, st.sampled_from(["default", "q", "", "x" * 300]), HEADERS, BODIES),
    st.builds(Reply, st.one_of(JOBS, st.just("m")), REPLIES, JOBS, OUTCOME_WORDS),
    st.builds(Reply, JOBS, st.sampled_from([b'{"value": 1}', b"\xff"])),
    st.builds(
        Schedule, st.just("m"), WORDS, HEADERS, BODIES, st.none() | WORDS, WORDS,
        remove=st.booleans(),
    ),
    st.builds(Publish, st.just("m"), WORDS, st.none() | HEADERS, BODIES),
    st.builds(Call, st.just("m"), st.sampled_from(CALLS), st.builds(msgpack.packb, ARGUMENTS)),
    st.builds(Kbai, st.just("m"), st.sampled_from(["KBAI", "KBYE"])),
    st.builds(Hello, st.just("m")),
    st.builds(Admin, st.just("m"), st.sampled_from(ADMIN_COMMANDS)),
    st.builds(Disconnect, st.just("m")),
    st.builds(Cancel, st.just("m"), JOBS, WORDS, WORDS),
    st.builds(Error, st.just("m"), WORDS, WORDS, WORDS),
    st.builds(Ack, st.just("m"), WORDS, st.none() | st.binary(max_size=4)),
).map(_frames)  # fmt: skip

#: Messages whose shape is wrong, or which are none.
SHAPELESS = st.one_of(
    st.lists(st.binary(max_size=9), max_size=20),
    st.builds(
        lambda frames, index, junk: [*frames[:index], junk, *frames[index + 1 :]],
        SHAPED, st.integers(0, 7), st.binary(max_size=4),
    ),
    st.builds(lambda frames, n: frames[:n], SHAPED, st.integers(0, 7)),
    st.builds(lambda frames, n: frames + [b""] * n, SHAPED, st.integers(1, 20)),
)  # fmt: skip
STEPS = st.lists(
    st.tuples(
        st.sampled_from([b"p1", b"p2", b"p3"]),
        st.sampled_from(["main"] * 9 + ["worker", "admin", "publish"]),
        st.one_of(SHAPED, SHAPED, SHAPELESS),
        st.sampled_from([0.0] * 6 + [0.3, 4.0]),
    ),
    max_size=40,
)


ASKED = ("queues", "workers", "status", "ping", "jobs")
STATES = {"queued", "running", "succeeded", "failed", "delayed", "cancelled", "expired"}


@settings(max_examples=examples(250))
@given(registered=st.booleans(), steps=STEPS)
def test_no_message_harms_the_broker_or_a_neighbour(
    registered: bool, steps: list[tuple[bytes, str, list[bytes], float]]
) -> None:
    """Never a crash, never a lost job of anyone else."""
    with tempfile.TemporaryDirectory(dir=SWIFT) as folder:
        broker = Broker(Path(folder), Limits(queue_window=3, max_queues=20, max_peers=20))
        try:
            broker.tell(b"good", Request("mine", "default", "task:t,content-type:json", b"x"))
            if registered:
                broker.worker(b"p1", "s", window=3)
                broker.tell(b"p2", Inform("1", "", "worker"))
                broker.tell(b"p2", Ready("2"))
                for job_id in ("j1", "j2"):
                    broker.tell(b"p3", Request(job_id, "default", "reply-requested", b"x"))
            for identity, port, frames, seconds in steps:
                broker.core.receive(port, [identity, *frames], broker.clock.now())
                broker.tick()
                broker.wait(seconds)
                if broker.core.done:
                    broker.crash()
            for name in ASKED:
                assert not isinstance(broker.call(name, client=b"good"), Error)
            broker.crash()
            [(job_id, state)] = broker.call("state", client=b"good", ids=["mine"])
            assert job_id == "mine"
            assert state in STATES
        finally:
            broker.close()
