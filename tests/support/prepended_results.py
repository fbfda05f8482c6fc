"""Jobs with results of other jobs as input: their bodies and outcome rows."""

from __future__ import annotations

import msgpack

from eventmq.job import OutcomeKind
from eventmq.wire.batches import ChunkEntry, pack
from eventmq.wire.results import decode_error
from tests.support.worker_harness import make_executor

TAKES = "task:collect,content-type:msgpack,graph:in"


def collect(*args, **kwargs):
    return [list(args), kwargs]


def body(value, *args, **kwargs):
    """Return the body of a job with an input."""
    return pack([msgpack.packb([args, kwargs]), pack(value)])


def row(payload, headers=TAKES, executor=None, function=collect):
    executor = executor or make_executor(function)
    route = executor.routes("q", [headers])[0]
    return executor.run(route, 0, ChunkEntry("j", 1, 1, 0, 0.0, 0.0, 0, len(payload)), payload)


def error(payload, **more):
    outcome = row(payload, **more)
    assert outcome.kind == OutcomeKind.FAILED
    return decode_error(outcome.result)
