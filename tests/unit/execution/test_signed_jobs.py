"""Altered and replayed signed jobs: a worker refuses each before anything is unpickled."""

from __future__ import annotations

import os
import random
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import dill
import pytest

from eventmq.clock import SystemClock
from eventmq.errors import SignatureError
from eventmq.headers import Headers, format_headers
from eventmq.interfaces import Envelope, PluginContext
from eventmq.job import OutcomeKind
from eventmq.plugins.serializers.dill_ import Dill
from eventmq.plugins.serializers.json_ import make_serializer as make_json
from eventmq.plugins.serializers.msgpack_ import make_serializer as make_msgpack
from eventmq.wire.batches import ChunkEntry
from eventmq.wire.results import decode_error
from tests.support.worker_harness import make_executor

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventmq.wire.batches import OutcomeRow

#: Altered jobs that are tried.
MUTATIONS = 2000

#: Signatures that are tried: 100,000 unless EVENTMQ_TEST_SIGNATURES says another number.
SIGNATURES = int(os.environ.get("EVENTMQ_TEST_SIGNATURES", "100000"))

KEY, OLD_KEY, OTHER_KEY = "k" * 40, "o" * 40, "x" * 40

#: What ran, or was unpickled.
touched: list[str] = []


def touch(what: str) -> None:
    touched.append(what)


class Canary:
    """Touches the list when it is unpickled, as a gadget would run a command."""

    def __reduce__(self) -> tuple[Any, ...]:
        return touch, ("unpickled",)


def victim(_: object) -> None:
    touch("victim")


def other(_: object) -> None:
    touch("other")


class Signed(NamedTuple):
    """A job as it travels."""

    id: str
    queue: str
    headers: Headers
    body: bytes


def signer(*keys: str) -> Dill:
    return Dill(dill, SystemClock(), keys or (KEY,), 3600.0)


def make(
    id: str = "j1", *, task: str = "victim", by: Dill | None = None, age: float = 0.0
) -> Signed:
    created, expires = round(time.time() - age, 3), round(time.time() + 600.0, 3)
    envelope = Envelope(id, "dill", task, "mail", created, expires)
    body, signature = (by or signer()).encode([[Canary()], {}], envelope)
    headers = Headers(
        task=task, content_type="dill", created=created, expires=expires, signature=signature
    )
    return Signed(id, "mail", headers, body)


@pytest.fixture
def run() -> Callable[[Signed], OutcomeRow]:
    """Run a job in a worker that takes dill, MessagePack and JSON."""
    touched.clear()
    clock = SystemClock()
    serializers = {
        "dill": signer(KEY, OLD_KEY),
        "json": make_json(PluginContext("json", {}, clock)),
        "msgpack": make_msgpack(PluginContext("msgpack", {}, clock)),
    }
    executor = make_executor(
        victim, other, serializer=serializers.__getitem__, accept_content=tuple(serializers)
    )

    def run(job: Signed) -> OutcomeRow:
        [route] = executor.routes(job.queue, [format_headers(job.headers)])
        entry = ChunkEntry(job.id, 1, 1, 0, 0.0, 0.0, 0, len(job.body))
        return executor.run(route, 0, entry, job.body)

    return run


def flipped(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def altered_body(job: Signed, rng: random.Random) -> Signed:
    at = rng.randrange(len(job.body))
    return job._replace(
        body=rng.choice(
            [
                flipped(job.body, rng),
                job.body[:at],
                job.body[:at] + rng.randbytes(rng.randrange(1, 9)) + job.body[at:],
                dill.dumps([[Canary(), rng.random()], {}]),
            ]
        )
    )


def altered_signature(job: Signed, rng: random.Random) -> Signed:
    text = job.headers.signature
    at = rng.randrange(len(text))
    digit = rng.choice([d for d in "0123456789abcdef" if d != text[at]])
    signature = rng.choice(
        [
            "",
            text[:at] + digit + text[at + 1 :],
            text[:at],
            text + digit,
            text.upper() if text.upper() != text else "",
            make(by=signer(OTHER_KEY)).headers.signature,
            rng.randbytes(32).hex(),
            "\N{SNOWMAN}" * 64,
        ]
    )
    return _with(job, signature=signature)


def altered_envelope(job: Signed, rng: random.Random) -> Signed:
    seconds = rng.choice([-1, 1]) * rng.uniform(0.001, 10_000)
    return rng.choice(
        [
            job._replace(id=job.id + rng.choice("abc")),
            job._replace(queue=rng.choice(["default", "mai", "mail2", ""])),
            _with(job, task="other"),
            _with(job, created=job.headers.created + seconds),
            _with(job, created=0.0),
            _with(job, expires=abs(job.headers.expires + seconds)),
            _with(job, expires=0.0),
            _with(job, content_type=rng.choice(["msgpack", "json", "Dill", "pickle"])),
        ]
    )


def spliced(job: Signed, rng: random.Random) -> Signed:
    """Parts of two jobs that are both rightly signed."""
    second = make("j2", task=rng.choice(["victim", "other"]))
    return rng.choice(
        [
            job._replace(body=second.body, id=second.id),
            job._replace(headers=second.headers),
            second._replace(headers=job.headers),
            job._replace(id=second.id),
        ]
    )


def _with(job: Signed, **changes: Any) -> Signed:
    values = {name: getattr(job.headers, name) for name in Headers.__slots__}
    return job._replace(headers=Headers(**{**values, **changes}))


KINDS = (altered_body, altered_signature, altered_envelope, spliced)


def test_a_job_that_nobody_altered_runs(run: Callable[[Signed], OutcomeRow]) -> None:
    """The tests below prove nothing without it."""
    assert OutcomeKind.SUCCEEDED == run(make()).kind
    assert ["unpickled", "victim"] == touched


def test_no_altered_job_is_unpickled_or_run(run: Callable[[Signed], OutcomeRow]) -> None:
    rng = random.Random(20)
    job = make()
    for i in range(MUTATIONS):
        altered = KINDS[i % len(KINDS)](job, rng)
        assert altered != job
        row = run(altered)
        assert OutcomeKind.SUCCEEDED != row.kind, altered
        assert "error" == row.content_type
        assert [] == touched, altered


def test_no_signature_but_the_right_one_is_taken() -> None:
    """Of 100,000 that are altered or belong to another job, time, key or task."""
    rng = random.Random(21)
    verify = signer(KEY, OLD_KEY)._verify
    job, now = make(), round(time.time(), 3)
    digest = bytes.fromhex(job.headers.signature)
    envelope = Envelope(
        "j1",
        "dill",
        "victim",
        "mail",
        job.headers.created,
        job.headers.expires,
        job.headers.signature,
    )
    verify(job.body, envelope)
    replayed = [make(f"j{n}", by=signer(rng.choice([KEY, OTHER_KEY]))) for n in range(2, 50)]
    for n in range(SIGNATURES):
        altered = envelope
        match n % 5:
            case 0:
                signature = flipped(digest, rng).hex()
            case 1:
                signature = rng.choice(replayed).headers.signature
            case 2:
                signature = rng.choice([digest[: rng.randrange(32)], rng.randbytes(32)]).hex()
            case 3:
                signature = envelope.signature
                altered = replace(envelope, created=now - rng.uniform(0.001, 1e9))
            case _:
                signature = envelope.signature
                name = rng.choice(["job_id", "task", "queue", "content_type"])
                altered = replace(envelope, **{name: rng.randbytes(4).hex()})
        with pytest.raises(SignatureError):
            verify(job.body, replace(altered, signature=signature))


def test_a_refused_job_says_which_rule_it_broke(run: Callable[[Signed], OutcomeRow]) -> None:
    """It shows neither the payload nor a key."""
    job = make()
    cases = [
        (_with(job, signature=""), "without a signature"),
        (job._replace(id="j9"), "another key or content"),
        (make(by=signer(OTHER_KEY)), "another key or content"),
        (make(age=3601), "the limit is 3600 s"),
        (make(age=-1000), "ahead of this clock"),
    ]
    for altered, words in cases:
        error = decode_error(run(altered).result)
        assert "eventmq.errors.SignatureError" == error.type
        assert words in error.message
        assert not any(key in error.message for key in (KEY, OLD_KEY, OTHER_KEY))
    assert [] == touched


def test_jobs_of_the_key_before_run_until_it_is_taken_out(
    run: Callable[[Signed], OutcomeRow],
) -> None:
    """Rotation: the new key signs, both verify."""
    assert OutcomeKind.SUCCEEDED == run(make(by=signer(OLD_KEY))).kind
    assert OutcomeKind.SUCCEEDED == run(make(by=signer(KEY, OLD_KEY))).kind
