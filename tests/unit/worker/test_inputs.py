"""Inputs too large for a REQUEST: the worker fetches them page by page before the job starts."""

from __future__ import annotations

import os

import msgpack
import pytest

from eventmq.errors import ResultUnavailable
from eventmq.interfaces import JobsEnded
from eventmq.job import OutcomeKind
from eventmq.wire import commands
from eventmq.wire.batches import (
    OutcomeRow,
    decode_outcomes,
    encode_chunk,
    encode_outcomes,
    pack,
    unpack,
)
from eventmq.wire.features import Features
from eventmq.wire.results import decode_error
from eventmq.worker import inputs
from eventmq.worker.inputs import SpoolDirectory, new_spool, read_spool
from eventmq.worker.manager import JobManager
from eventmq.worker.session import RESEND_AFTER
from tests.support.manager_harness import World, kinds, replies, rows_of
from tests.support.prepended_results import body, error, row
from tests.support.worker_harness import make_executor

HEADERS = "task:t,content-type:msgpack,graph:inp"


class MemorySpool:
    """A spool in memory, which tests can read and break."""

    def __init__(self):
        self.files = {}
        self.full = False
        self._job, self._pages = "", []

    def begin(self, job_id):
        self._job, self._pages = job_id, []

    def add(self, page):
        if self.full:
            raise OSError("no space left on device")
        self._pages.append(page)

    def end(self):
        self.files[self._job] = [row for page in self._pages for row in unpack(page, "a page")]

    def drop(self, job_id):
        self.files.pop(job_id, None)


class PagingWorld(World):
    """A manager with a spool."""

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.spool = MemorySpool()
        self.manager = JobManager(
            self.manager._info, pool=self.pool, clock=self.manager._session._clock, spool=self.spool
        )

    def paged(self, number, count=1, headers=HEADERS):
        """Let a chunk arrive whose first job needs inputs."""
        texts = [headers] + ["task:t"] * (count - 1)
        rows = [(f"j{number}.{n}", 1, 1, text, 0.0, 0.0, b"x") for n, text in enumerate(texts)]
        chunk = encode_chunk("default", rows)
        return self.receive(commands.Request(f"m{number}", "default", f"chunk:{number}", chunk))

    def page(self, call, rows, following=0):
        """Answer a call with a page."""
        result = pack({"rows": rows, "next": following})
        return self.receive(commands.Reply("r", result, call.id))

    def refuse(self, call, code):
        return self.receive(commands.Error("e", call.id, code, "because"))


def calls(messages):
    return [message for message in messages if isinstance(message, commands.Call)]


def arguments_of(call):
    return unpack(call.arguments, "arguments")


@pytest.fixture
def world():
    world = PagingWorld()
    world.connect()
    return world


def test_a_job_starts_when_all_pages_are_there(world):
    [first] = calls(world.paged(1))
    arguments = {"id": "j1.0", "delivery": 1, "cursor": 0}
    assert (first.name, arguments_of(first)) == ("inputs", arguments)
    assert world.pool.assigned == []
    [second] = calls(world.page(first, [["a", "x", b"1"], ["b", "x", b"2"]], 17))
    assert arguments_of(second)["cursor"] == 17
    assert world.page(second, [["c", "x", b"3"]]) == []
    assert world.spool.files == {"j1.0": [["a", "x", b"1"], ["b", "x", b"2"], ["c", "x", b"3"]]}
    assert [chunk for _, chunk, *_ in world.pool.assigned] == [1]


def test_what_was_fetched_goes_when_the_broker_knows_the_end(world):
    [call] = calls(world.paged(1))
    world.page(call, [["a", "x", b"1"]])
    world.start(0)
    outcome = encode_outcomes([OutcomeRow(0, 0, 1.0, 0.1, "x", b"")])
    world.manager.pool_events([JobsEnded(0, 1, 1, 0.1, outcome)], world.now)
    world.tick()
    assert list(world.spool.files) == ["j1.0"]
    world.ack_all()
    world.tick()
    assert world.spool.files == {}


def test_the_chunk_is_held_meanwhile_and_others_are_served(world):
    world.paged(1)
    world.chunk(2, 3)
    world.tick(3.1)
    assert world.status().held == (1, 2)
    assert [chunk for _, chunk, *_ in world.pool.assigned] == [2]


def test_one_job_is_fetched_for_at_a_time(world):
    [first] = calls(world.paged(1))
    assert calls(world.paged(2)) == []
    [second] = calls(world.page(first, [["a", "x", b"1"]]))
    assert arguments_of(second)["id"] == "j2.0"


def test_a_full_spool_waits_until_a_job_has_ended(world, monkeypatch):
    monkeypatch.setattr(inputs, "MAX_SPOOL_BYTES", 1)
    [first] = calls(world.paged(1))
    world.paged(2)
    assert calls(world.page(first, [["a", "x", b"1"]])) == []
    world.start(0)
    outcome = encode_outcomes([OutcomeRow(0, 0, 1.0, 0.1, "x", b"")])
    world.manager.pool_events([JobsEnded(0, 1, 1, 0.1, outcome)], world.now)
    world.out()
    world.ack_all()
    [second] = calls(world.tick())
    assert arguments_of(second)["id"] == "j2.0"


def test_a_page_that_does_not_come_is_asked_for_again(world):
    [first] = calls(world.paged(1))
    assert calls(world.tick(4.9)) == []
    [again] = calls(world.tick(0.2))
    assert arguments_of(again) == arguments_of(first)
    assert calls(world.page(first, [["late", "x", b"1"]])) == []
    world.page(again, [["a", "x", b"1"]])
    assert world.spool.files == {"j1.0": [["a", "x", b"1"]]}


def test_a_broker_that_is_back_is_asked_at_once_for_the_same_page(world):
    [first] = calls(world.paged(1))
    world.page(first, [["a", "x", b"1"]], 17)
    assert calls(world.connect(epoch=2)) == []
    [again] = calls(world.tick())
    assert arguments_of(again)["cursor"] == 17


@pytest.mark.parametrize("code", ["rate-limited", "store-full"])
def test_a_broker_that_cannot_now_is_asked_later(world, code):
    [first] = calls(world.paged(1))
    assert world.refuse(first, code) == []
    assert len(calls(world.tick(5.1))) == 1


def test_a_delivery_that_is_not_held_any_more_goes_back(world):
    [call] = calls(world.paged(1, count=2))
    [reply] = replies(world.refuse(call, "not-held"))
    assert kinds(reply) == [(0, OutcomeKind.HANDED_BACK), (1, OutcomeKind.HANDED_BACK)]
    world.ack_all()
    world.tick(3.1)
    assert world.status().held == ()


@pytest.mark.parametrize("how", ["inputs-gone", "full disk", "nonsense"])
def test_what_cannot_be_had_fails_the_job(world, how):
    """It can be retried, since its inputs are kept. The other jobs of its chunk are handed back."""
    [call] = calls(world.paged(1, count=2))
    if how == "inputs-gone":
        messages = world.refuse(call, how)
    elif how == "full disk":
        world.spool.full = True
        messages = world.page(call, [["a", "x", b"1"]])
    else:
        messages = world.receive(commands.Reply("r", pack([1, 2]), call.id))
    [reply] = replies(messages)
    assert kinds(reply) == [(0, OutcomeKind.FAILED), (1, OutcomeKind.HANDED_BACK)]
    failure = decode_error(rows_of(reply)[0].result)
    assert failure.type == "eventmq.errors.ResultUnavailable"
    assert world.pool.assigned == []


def test_a_job_that_is_cancelled_meanwhile_never_starts(world):
    [call] = calls(world.paged(1, count=2))
    [reply] = replies(world.receive(commands.Cancel("c", "j1.0", "1", "enough")))
    assert kinds(reply) == [(0, OutcomeKind.CANCELLED), (1, OutcomeKind.HANDED_BACK)]
    assert world.page(call, [["a", "x", b"1"]]) == []
    assert world.pool.assigned == []


def test_a_worker_that_ends_hands_back_what_it_fetches_for(world):
    world.paged(1)
    world.manager.terminate(world.now)
    [reply] = replies(world.out())
    assert kinds(reply) == [(0, OutcomeKind.HANDED_BACK)]
    world.ack_all()
    world.tick()
    assert world.manager.done


def test_without_a_spool_such_a_job_fails():
    world = World()
    world.connect()
    [reply] = replies(PagingWorld.paged(world, 1))
    assert kinds(reply) == [(0, OutcomeKind.FAILED)]


def test_unreadable_headers_are_left_to_who_runs_the_job(world):
    world.paged(1, headers="graph:p,timeout:nan%%")
    assert [chunk for _, chunk, *_ in world.pool.assigned] == [1]


# In the job's process


def executor_with(rows):
    def collect(*args):
        return list(args)

    return make_executor(collect, fetched=lambda job_id: rows)


COLLECT = "task:collect,content-type:msgpack,graph:inp"


def test_values_stand_where_the_ids_were():
    rows = [["b", "msgpack", msgpack.packb(2)], ["a", "msgpack", msgpack.packb([1])]]
    outcome = row(body(["a", ["b", []]], 7), COLLECT, executor_with(rows))
    assert msgpack.unpackb(outcome.result) == [[[1], [2, []]], 7]


def test_a_single_result_is_not_a_list():
    outcome = row(body("a"), COLLECT, executor_with([["a", "msgpack", msgpack.packb(5)]]))
    assert msgpack.unpackb(outcome.result) == [5]


@pytest.mark.parametrize("rows", [[], [["a", "msgpack"]], [5], [["a", "msgpack", b"\xc1"]]])
def test_what_is_missing_or_malformed_fails_the_job(rows):
    failure = error(body(["a"]), headers=COLLECT, executor=executor_with(rows))
    assert failure.type.startswith("eventmq.errors.")


def test_a_worker_that_fetches_nothing_says_so():
    failure = error(body(["a"]), headers=COLLECT)
    assert (failure.type, failure.message) == (
        "eventmq.errors.ResultUnavailable",
        "this worker has fetched no inputs of job j",
    )


# The directory


@pytest.fixture
def spool(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    spool = SpoolDirectory(new_spool())
    yield spool
    spool.close()


def write(spool, job="j/../1", rows=((("a", "x", b"1"),), (("b", "x", b"2" * 9),))):
    spool.begin(job)
    for page in rows:
        spool.add(pack(page))
    spool.end()


def test_a_spool_is_read_page_by_page_and_for_its_owner_only(spool):
    write(spool)
    assert list(read_spool(str(spool.path), "j/../1")) == [["a", "x", b"1"], ["b", "x", b"2" * 9]]
    assert spool.path.stat().st_mode & 0o777 == 0o700
    spool.drop("j/../1")
    spool.drop("j/../1")
    assert [path.name for path in spool.path.iterdir()] == ["lock"]


def test_what_was_not_ended_is_not_found(spool):
    spool.begin("j")
    spool.add(pack([]))
    with pytest.raises(ResultUnavailable, match="the inputs of job j could not be read"):
        list(read_spool(str(spool.path), "j"))


def test_a_spool_is_there_from_first_use_to_the_end(spool, tmp_path):
    assert list(tmp_path.iterdir()) == []
    write(spool)
    assert list(tmp_path.iterdir()) == [spool.path]
    spool.close()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_worker_has_left_is_removed_by_the_next(spool, tmp_path):
    """A spool in use is not removed."""
    dead, alive = SpoolDirectory(new_spool()), SpoolDirectory(new_spool())
    write(dead)
    write(alive)
    os.close(dead._lock)
    write(spool)
    assert sorted(tmp_path.iterdir()) == sorted([spool.path, alive.path])
    alive.close()


# Announcement


@pytest.mark.parametrize("world", [World, PagingWorld])
def test_only_a_worker_with_a_spool_names_the_extension(world):
    made = world()
    made.manager.connected(made.now)
    (inform,) = made.out()
    messages = Features.parse(inform.features).extensions
    assert ("inputs" in messages) == (world is PagingWorld)


# Suspects


def suspect(world, number=1, headers="task:t"):
    """Let a chunk arrive whose job may have killed a worker."""
    chunk = encode_chunk("default", [(f"j{number}", 2, 1, headers, 0.0, 0.0, b"x")])
    request = commands.Request(f"m{number}", "default", f"chunk:{number},ask:1", chunk)
    return world.receive(request)


def test_a_suspect_starts_once_the_broker_knows_that_it_is_here(world):
    """If the worker then dies, the broker knows that the job had reached it."""
    [call] = calls(suspect(world))
    assert (call.name, arguments_of(call)) == ("begin", {"id": "j1", "delivery": 2})
    assert world.pool.assigned == []
    call = [call, *calls(world.tick(3.1))][-1]  # the CALL may have been repeated
    assert call.name == "begin"
    assert world.status().held == (1,)
    world.receive(commands.Reply("r", pack(None), call.id))
    assert [chunk for _, chunk, *_ in world.pool.assigned] == [1]


def test_many_suspects_wait_for_no_answer_about_another(world):
    """With a slow broker they all start one round trip after their arrival."""
    asking = [calls(suspect(world, number)) for number in range(1, 9)]
    assert [arguments_of(call)["id"] for [call] in asking] == [f"j{n}" for n in range(1, 9)]
    for [call] in reversed(asking):
        world.receive(commands.Reply("r", pack(None), call.id))
    assert [chunk for _, chunk, *_ in world.pool.assigned] == [8, 7, 6, 5, 4, 3, 2, 1]


def test_a_suspect_does_not_wait_for_the_pages_of_another_job(world):
    world.paged(1)
    [call] = calls(suspect(world, 2))
    world.receive(commands.Reply("r", pack(None), call.id))
    assert [chunk for _, chunk, *_ in world.pool.assigned] == [2]


def test_suspects_are_asked_for_again_on_a_new_connection_and_handed_back_at_the_end(world):
    [first] = calls(suspect(world, 1))
    [second] = calls(suspect(world, 2))
    world.manager.connected(world.now)
    assert calls(world.tick(RESEND_AFTER + 1.0)) == [], "there is nobody to ask"
    assert world.manager.seconds_to_tick(world.now) > 0.0, "and nothing to do"
    again = calls(world.welcome())
    again += calls(world.tick())
    assert [arguments_of(call)["id"] for call in again] == ["j1", "j2"]
    assert {call.id for call in again}.isdisjoint({first.id, second.id})
    world.manager.terminate(world.now)
    back = [kinds(reply) for reply in replies(world.out())]
    assert back == [[(0, OutcomeKind.HANDED_BACK)]] * 2


def test_a_suspect_that_waits_for_the_broker_is_cancelled(world):
    suspect(world)
    got = world.receive(commands.Cancel("c", "j1", "2", "user"))
    assert [kinds(reply) for reply in replies(got)] == [[(0, OutcomeKind.CANCELLED)]]


@pytest.mark.parametrize("code", ["rate-limited", "store-full", "inform-again"])
def test_a_suspect_asks_later_where_the_broker_cannot_answer_now(world, code):
    [first] = calls(suspect(world))
    assert replies(world.refuse(first, code)) == []
    [again] = [c for c in calls(world.tick(RESEND_AFTER + 0.1)) if c.name == "begin"]
    assert arguments_of(again) == arguments_of(first)


def test_pages_are_not_waited_for_in_a_loop_while_there_is_no_broker(world):
    world.paged(1)
    world.manager.connected(world.now)
    world.tick(RESEND_AFTER + 1.0)
    assert world.manager.seconds_to_tick(world.now) > 0.0


def test_a_suspect_that_takes_pages_asks_first(world):
    [begin] = calls(suspect(world, headers=HEADERS))
    [page] = calls(world.receive(commands.Reply("r", pack(None), begin.id)))
    assert (begin.name, page.name) == ("begin", "inputs")
    world.page(page, [["a", "x", b"1"]])
    assert [chunk for _, chunk, *_ in world.pool.assigned] == [1]


@pytest.mark.parametrize("code", ["not-held", "not-allowed"])
def test_a_suspect_that_may_not_begin_goes_back(world, code):
    [call] = calls(suspect(world))
    [reply] = [m for m in world.refuse(call, code) if isinstance(m, commands.Reply)]
    assert [row[1] for row in decode_outcomes(reply.result)] == [OutcomeKind.HANDED_BACK]
    assert world.pool.assigned == []


def test_a_suspect_asks_again_where_its_question_was_lost(world):
    [first] = calls(suspect(world))
    [again] = calls(world.tick(RESEND_AFTER + 0.1))
    assert (again.name, arguments_of(again)) == (first.name, arguments_of(first))
    world.receive(commands.Reply("r", pack(None), again.id))
    assert [chunk for _, chunk, *_ in world.pool.assigned] == [1]
