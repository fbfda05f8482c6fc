"""What a job takes of others comes before its arguments."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import msgpack
import pytest

from eventmq.execution.async_executor import AsyncExecutor
from eventmq.graph import FEEDS
from eventmq.headers import parse_headers
from eventmq.job import OutcomeKind
from eventmq.wire.batches import ChunkEntry, pack
from eventmq.wire.results import ERROR_TYPE, RemoteError, decode_error, encode_error
from tests.support.prepended_results import TAKES, body, collect, error, row
from tests.support.worker_harness import Fixed, make_executor


def leaf(value, content_type="msgpack"):
    return ["id", content_type, msgpack.packb(value)]


def result(payload):
    outcome = row(payload)
    assert outcome.kind == OutcomeKind.SUCCEEDED, decode_error(outcome.result)
    return msgpack.unpackb(outcome.result)


@pytest.mark.parametrize(
    ("value", "first"),
    [
        (leaf(5), 5),
        ([leaf(1), leaf("b")], [1, "b"]),
        ([leaf(1), [leaf(2), []]], [1, [2, []]]),
        ([], []),
        (["id", "", b""], None),
        (["id", "frames", pack([b"a"])], [b"a"]),
    ],
)
def test_results_come_first(value, first):
    assert result(body(value, 7, k=8)) == [[first, 7], {"k": 8}]


def test_an_error_callback_gets_what_is_known_of_the_failure():
    encoded = encode_error(RemoteError("shop.Sold", "none left", "Traceback"))
    failure = {"id": "j7", "state": "failed", "type": "shop.Sold", "message": "none left"}
    value = result(body(["j7", "failed", ERROR_TYPE, encoded]))
    assert value == [[{**failure, "traceback": "Traceback"}], {}]
    expired = {"id": "j7", "state": "expired", "type": "", "message": "", "traceback": ""}
    assert result(body(["j7", "expired", "", b""])) == [[expired], {}]


@pytest.mark.parametrize(
    "payload",
    [
        msgpack.packb([[], {}]), b"", b"x", pack([1]), pack([b"a", b"b", b"c"]), pack([b"", b""]),
        body(5), body({}), body([1]), body(["id"]), body(["id", "msgpack"]),
        body(["id", "msgpack", b"\xc1"]), body(["id", "msgpack;;x", b"\xc0"]),
    ],
)  # fmt: skip
def test_a_malformed_body_fails_the_job(payload):
    assert error(payload).type.startswith("eventmq.errors.")


def test_a_content_type_that_is_not_accepted_is_not_decoded():
    text = error(body(leaf(1, "dill")))
    assert text.type == "eventmq.errors.ContentNotAllowed"
    assert "'dill' is not in accept_content" in text.message


def test_a_result_that_another_backend_keeps_is_not_taken_for_one():
    message = error(body(leaf(1, "reference:shelf;msgpack")))
    assert message.type == "eventmq.errors.ResultUnavailable"


class Shelf:
    """A backend elsewhere."""

    inline = local = False

    def put(self, job_id, data, ttl):
        return b"there"

    def get(self, reference):
        assert reference == b"there"
        return msgpack.packb("kept")


def test_results_that_are_kept_elsewhere_are_fetched():
    executor = make_executor(collect, backend=Shelf(), serializer=serializer)
    outcome = row(body(["id", "reference:elsewhere;msgpack", b"there"]), executor=executor)
    assert outcome.kind == OutcomeKind.SUCCEEDED


def test_coroutines_fetch_them_without_blocking_the_loop():
    async def collect(*args):
        return list(args)

    executor = make_executor(collect, backend=Shelf(), serializer=serializer)
    payload = body(["id", "reference:elsewhere;msgpack", b"there"])

    async def main():
        asynchronous = AsyncExecutor.of(executor, lambda coroutine, name: coroutine)
        route = asynchronous.routes("q", [TAKES])[0]
        assert route.fetches
        entry = ChunkEntry("j", 1, 1, 0, 0.0, 0.0, 0, len(payload))
        return await asynchronous.arun(route, 0, entry, payload, asynchronous.new_cancellation())

    assert asyncio.run(main()).kind == OutcomeKind.SUCCEEDED


def serializer(name):
    """Return one that knows no signature."""
    return SimpleNamespace(
        encode=lambda value, envelope: (msgpack.packb(value), ""),
        decode=lambda data, envelope: msgpack.unpackb(data),
    )


def test_a_result_that_others_take_is_sent_although_it_is_ignored():
    headers = "task:collect,content-type:msgpack,ignore-result,graph:" + FEEDS + "n"
    assert row(msgpack.packb([[1], {}]), headers).result == msgpack.packb([[1], {}])


@pytest.mark.parametrize(
    ("declared_ttl", "stored_ttl"),
    [("", 86400.0), (",result-ttl:1", 86400.0), (",result-ttl:100000", 100_000.0)],
)
def test_a_result_that_others_take_is_kept_for_the_default_time_at_least(declared_ttl, stored_ttl):
    """Nobody knows when the last of the graph will have come to its turn."""
    times = []

    class Noting(Shelf):
        def put(self, job_id, data, ttl):
            times.append(ttl)
            return b"there"

    executor = make_executor(collect, backend=Noting(), serializer=serializer)
    headers = "task:collect,content-type:msgpack,graph:" + FEEDS + "n" + declared_ttl
    row(msgpack.packb([[1], {}]), headers, executor=executor)
    assert times == [stored_ttl]


class Full(Shelf):
    """A backend that cannot keep anything."""

    def put(self, job_id, data, ttl):
        raise OSError("no space left on device")


def test_a_result_that_others_take_goes_through_the_broker_if_the_backend_fails():
    """They would take None for it."""
    executor = make_executor(collect, backend=Full(), serializer=serializer)
    headers = "task:collect,content-type:msgpack,graph:" + FEEDS + "n"
    outcome = row(msgpack.packb([[1], {}]), headers, executor=executor)
    assert msgpack.unpackb(outcome.result) == [[1], {}]
    assert outcome.content_type.startswith("msgpack")


def test_a_result_that_neither_backend_nor_broker_take_fails_the_job():
    executor = make_executor(collect, backend=Full(), serializer=serializer, max_result=2)
    headers = "task:collect,content-type:msgpack,graph:" + FEEDS + "n"
    outcome = row(msgpack.packb([[1], {}]), headers, executor=executor)
    assert decode_error(outcome.result).type == "eventmq.errors.ResultTooLarge"


def test_jobs_that_differ_in_headers_of_a_middleware_share_a_retry_policy_and_see_their_own():
    """One that traces has another text for each job; what EventMQ knows is looked up once."""
    requested = []

    def add():
        """Do nothing."""

    def policy(name, options):
        requested.append(name)
        return Fixed(7.0)

    table = make_executor(add, retry_policy=policy)._routes
    texts = [f"task:add,content-type:msgpack,{n}" for n in ("a:1,b:2", "a:2", "a:3")]
    routes = [table.route("q", text) for text in texts]
    assert [route.text for route in routes] == texts
    assert {(route.task, route.queue, route.policy) for route in routes} == {
        ("add", "q", routes[0].policy)
    }
    assert len(requested) == 1


@pytest.mark.parametrize(
    "text", ["a:1,task:add,content-type:msgpack", "a:1", "task:add,a:1,retry-count:2"]
)
def test_headers_in_another_order_are_read_all_the_same(text):
    def add():
        """Do nothing."""

    route = make_executor(add)._routes.route("q", text)
    headers = parse_headers(text)
    assert (route.text, route.task, route.retries) == (text, headers.task, headers.retry_count)
