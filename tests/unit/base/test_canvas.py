"""Chains, groups and chords as users write them, run inline."""

from __future__ import annotations

import asyncio

import pytest

import eventmq
from eventmq import (
    EventMQ,
    JobCancelled,
    JobFailed,
    JobGroup,
    NotAllowed,
    SerializationError,
    SettingsError,
    Signature,
    chain,
    chord,
    group,
)
from eventmq.graph import Chain, Chord, Group
from eventmq.testing import use_app


class Tasks:
    """An app with some tasks."""

    def __init__(self, **settings):
        self.app = EventMQ("canvas", **settings)
        self.failures = []
        self.add = self.app.task(self._add)
        self.total = self.app.task(name="total")(sum)
        self.fail = self.app.task(name="fail")(self._fail)
        self.tell = self.app.task(name="tell")(self.failures.append)

    @staticmethod
    def _add(a, b=0):
        return a + b

    @staticmethod
    def _object():
        return object()

    @staticmethod
    def _fail(*args):
        raise ValueError("none left")


@pytest.fixture
def tasks():
    tasks = Tasks()
    with use_app(tasks.app) as tasks.inline:
        yield tasks


# Expressions


def test_expressions_are_values(tasks):
    add = tasks.add
    assert chain(add.s(1), add.s(2)) == add.s(1) | add.s(2) == Chain((add.s(1), add.s(2)))
    assert group(add.s(i) for i in range(2)) == group([add.s(0), add.s(1)])
    assert group(add.s(0), add.s(1)) == Group((add.s(0), add.s(1)))
    assert chord([add.s(1)], tasks.total.s()) == Chord(group(add.s(1)), tasks.total.s())
    assert chord(group(add.s(1), deadline=5), add.s()).header.deadline == 5


@pytest.mark.parametrize("make", [chain, group, lambda one: chord([one], Signature("t"))])
@pytest.mark.parametrize("wrong", [1, "abc", None, print])
def test_what_is_no_signature_is_refused(make, wrong):
    with pytest.raises(SettingsError, match=r"use task.s\(...\)"):
        make(wrong)


def test_a_task_without_its_arguments_is_no_link(tasks):
    with pytest.raises(SettingsError, match=r"use task.s\(...\)"):
        chain(tasks.add.s(1), tasks.add)
    with pytest.raises(SettingsError, match="at least one link"):
        chain()
    with pytest.raises(SettingsError, match="give on_failure and deadline to that"):
        chord(group(), tasks.total.s(), deadline=1)


# Results


def test_the_handle_of_a_chain_is_that_of_its_last_link(tasks):
    job = chain(tasks.add.s(1, 2), tasks.add.s(3), tasks.add.si(10, 1)).delay()
    assert job.get() == 11
    assert isinstance(job, eventmq.Job)


def test_the_handle_of_a_group_is_a_list_of_jobs(tasks):
    handle = group(tasks.add.s(i, i) for i in range(3)).delay()
    assert isinstance(handle, JobGroup)
    assert handle.get() == [0, 2, 4]
    assert [job.get() for job in handle] == [0, 2, 4]
    assert (len(handle), handle[1].get()) == (3, 2)
    assert handle.ready()
    assert handle.successful()
    assert handle.id in repr(handle)


def test_results_of_groups_in_groups_are_nested(tasks):
    add = tasks.add
    whole = add.s(1, 1) | group(add.s(1), group(add.s(2), add.s(3) | add.s(4)))
    assert whole.delay().get() == [3, [4, 9]]
    assert len(list(whole.delay())) == 3


def test_the_callback_gets_the_list_in_order(tasks):
    assert chord([tasks.add.s(i, i) for i in range(5)], tasks.total.s()).delay().get() == 20


def test_the_empty_group_is_the_empty_list(tasks):
    assert chord([], tasks.total.s()).delay().get() == 0
    handle = group([]).delay()
    assert (handle.get(), list(handle), handle.id, handle.cancel(), handle.graph()) == (
        [], [], "", False, [],
    )  # fmt: skip
    assert group(group(), group()).delay().get() == [[], []]


def test_a_result_that_is_ignored_is_handed_on_all_the_same(tasks):
    quiet = tasks.app.task(name="quiet", ignore_result=True)(lambda: 5)
    assert chain(quiet.s(), tasks.add.s(1)).delay().get() == 6


def test_a_signature_can_be_submitted_by_itself(tasks):
    job = tasks.add.s(1, 2).delay()
    assert job.get() == 3
    job = tasks.add.options(job_id="mine").s(1, 2).delay()
    assert (job.id, job.get()) == ("mine", 3)


def test_options_of_a_call_are_those_of_its_job(tasks):
    handle = group(tasks.add.options(queue="fast", priority=9).s(1), tasks.add.s(2)).delay()
    first, second = tasks.inline.enqueued()
    assert (first.queue, first.priority, second.queue) == ("fast", 9, "default")
    assert handle.get() == [1, 2]


def test_a_countdown_counts_from_the_turn_of_the_link(tasks):
    job = chain(tasks.add.s(1), tasks.add.options(countdown=60).s(1)).delay()
    tasks.inline.drain()
    assert job.state == "delayed"
    tasks.inline.travel(61)
    assert job.get() == 2


def test_what_waits_can_be_looked_at(tasks):
    chain(tasks.add.s(1, 1), tasks.add.s(2)).delay()
    states = [(job.args, job.state) for job in tasks.inline.enqueued()]
    assert states == [((1, 1), "queued"), ((2,), "blocked")]


def test_coroutines_do_the_same(tasks):
    async def main():
        job = await chain(tasks.add.s(1, 2), tasks.add.s(3)).adelay()
        handle = await group(tasks.add.s(1), tasks.add.s(2)).adelay()
        empty = await group().adelay()
        alone = await tasks.add.s(4).adelay()
        results = await job.aget(), await handle.aget(), await empty.aget(), await alone.aget()
        assert [len(await each.agraph()) for each in (job, handle, empty)] == [2, 2, 0]
        assert not await job.acancel()
        assert not await handle.acancel()
        return results

    assert asyncio.run(main()) == (6, [1, 2], [], 4)


def test_signatures_by_name_go_with_those_of_tasks(tasks):
    job = chain(tasks.add.s(1), Signature("total", ([5],), immutable=True)).delay()
    assert job.get() == 5
    assert tasks.app.signature("total", [2, 3]).delay().get() == 5
    assert tasks.app.signature("total", [2, 3]) == Signature("total", ([2, 3],))


# Failures


def test_what_depends_on_a_failure_is_cancelled_and_says_why(tasks):
    job = chain(tasks.fail.s(), tasks.add.s(1)).delay()
    with pytest.raises(JobCancelled, match=r"dependency: job .* failed: ValueError: none left"):
        job.get()


def test_a_graph_says_the_errors_of_its_jobs(tasks):
    """The errors have the form of `Job.info`; a job without an error has None."""
    job = chain(tasks.add.s(1, 1), tasks.fail.s(), tasks.add.s(1)).delay()
    tasks.inline.drain()
    first, second, third = (row["error"] for row in job.graph())
    assert first is None
    assert (second.type, second.message) == ("builtins.ValueError", "none left")
    assert third.message.endswith("ValueError: none left")
    assert asyncio.run(job.agraph()) == job.graph()


def test_a_group_raises_what_failed_or_returns_it(tasks):
    handle = group(tasks.add.s(1), tasks.fail.s()).delay()
    with pytest.raises(JobFailed, match="none left"):
        handle.get()
    one, error = handle.get(return_errors=True)
    assert one == 1
    assert isinstance(error, JobFailed)
    assert handle.ready()
    assert not handle.successful()


def test_a_chord_may_go_on_with_what_there_is(tasks):
    members = [tasks.add.s(1), tasks.fail.s(), tasks.add.s(2)]
    assert chord(members, tasks.total.s(), on_failure="continue").delay().get() == 3
    with pytest.raises(JobCancelled):
        chord(members, tasks.total.s()).delay().get()


def test_an_error_callback_gets_what_failed(tasks):
    job = chain(tasks.add.s(1), tasks.fail.s(), tasks.add.s()).on_error(tasks.tell.s()).delay()
    tasks.inline.drain()
    [failure] = tasks.failures
    assert (failure["state"], failure["type"], failure["message"]) == (
        "failed", "builtins.ValueError", "none left",
    )  # fmt: skip
    assert "in _fail" in failure["traceback"]
    assert failure["id"] == job.graph()[1]["id"]


def test_an_error_callback_is_not_called_without_an_error(tasks):
    tasks.add.s(1).on_error(tasks.tell.s()).delay()
    tasks.inline.drain()
    assert tasks.failures == []
    assert tasks.inline.enqueued() == []


def test_a_result_that_cannot_be_serialised_fails_its_job_and_what_depends_on_it(tasks):
    bad = tasks.app.task(name="bad")(tasks._object)
    handle = group(bad.s(), bad.s() | tasks.add.s()).delay()
    first, second = handle.get(return_errors=True)
    assert "cannot encode" in str(first)
    assert isinstance(second, JobCancelled)


def test_a_member_that_never_ends_is_cancelled_at_the_deadline(tasks):
    late = tasks.add.options(countdown=9999).s(5)
    job = chord([tasks.add.s(1), late], tasks.total.s(), on_failure="continue", deadline=60).delay()
    tasks.inline.drain()
    assert job.state == "blocked"
    tasks.inline.travel(61)
    assert job.get() == 1


# The whole


def test_a_graph_is_cancelled_by_its_handle(tasks):
    job = chain(tasks.add.s(1), tasks.add.s(2)).delay()
    assert job.cancel("enough")
    assert not job.cancel("again")
    with pytest.raises(JobCancelled, match="enough"):
        job.get()
    assert [row["state"] for row in job.graph()] == ["cancelled", "cancelled"]
    handle = group(tasks.add.s(1), tasks.add.s(2)).delay()
    assert handle.cancel()
    assert [job.state for job in handle] == ["cancelled", "cancelled"]
    assert tasks.inline.drain() == 0


def test_a_member_is_cancelled_alone(tasks):
    handle = group(tasks.add.s(1), tasks.add.s(2)).delay()
    assert handle[0].cancel()
    assert [type(value) for value in handle.get(return_errors=True)] == [JobCancelled, int]


def test_jobs_know_their_graph(tasks):
    job = chain(tasks.add.s(1), tasks.add.s(2)).delay()
    info = job.info()
    assert (info["root"], info["parent"]) == (job.root, job.root)
    rows = job.graph()
    assert [row["id"] for row in rows] == [job.root, job.id]
    assert [(row["place"], row["handler"]) for row in rows] == [(0, False), (1, False)]
    assert rows[0]["output"] == rows[1]["input"] > 0


# Refusals


def test_arguments_are_checked_with_what_comes_before_them(tasks):
    with pytest.raises(TypeError, match="_add"):
        chain(tasks.add.s(1), tasks.add.s(1, 2)).delay()
    with pytest.raises(TypeError, match="_add"):
        chain(tasks.add.si(), tasks.add.s(1)).delay()
    assert tasks.inline.enqueued() == []


def test_arguments_that_cannot_be_encoded_send_nothing(tasks):
    with pytest.raises(SerializationError):
        group(tasks.add.s(1), tasks.add.s(object())).delay()
    with pytest.raises(SerializationError, match="Signature"):
        chain(tasks.add.s(tasks.add.s(1))).delay()
    assert tasks.inline.enqueued() == []


def test_what_cannot_be_part_of_a_graph_is_refused(tasks):
    unique = tasks.app.task(name="unique", unique="k")(lambda: 1)
    loose = tasks.app.task(name="loose", guarantee=False)(lambda: 1)
    for signature in (unique.s(), loose.s(), tasks.add.options(job_id="x").s(1)):
        with pytest.raises(NotAllowed):
            group(tasks.add.s(1), signature).delay()
    with pytest.raises(NotAllowed, match=r"outside app.batch"), tasks.app.batch():
        group(tasks.add.s(1), tasks.add.s(2)).delay()


def test_a_graph_is_no_schedule(tasks):
    with pytest.raises(SettingsError, match="cannot have error callbacks"):
        tasks.app.schedule("x", tasks.add.s(1).on_error(tasks.tell.s()), eventmq.every(seconds=5))
    with pytest.raises(SettingsError, match="needs a task or a signature"):
        tasks.app.schedule("x", chain(tasks.add.s(1)), eventmq.every(seconds=5))


def test_arguments_of_two_megabytes_are_taken_and_more_than_the_frame_is_refused(tasks):
    size = tasks.app.task(name="size")(lambda before, data: before + len(data))
    data = b"x" * 2_000_000
    assert chain(tasks.add.s(1), size.s(data), size.s(data)).delay().get() == 4_000_001
    with pytest.raises(eventmq.MessageTooLarge, match="longer than"):
        group(size.s(1, data) for _ in range(10)).delay()


# Middlewares


def test_middlewares_see_each_job():
    seen = []

    class Watch:
        def submit(self, submission, proceed):
            submission.headers["x-mark"] = submission.task
            seen.append(submission.args)
            return proceed(submission)

    class Plugin:
        @eventmq.hookimpl
        def eventmq_middleware(self):
            return {"watch": lambda context: Watch()}

    tasks = Tasks(plugins=[Plugin()], middleware=["watch"])
    with use_app(tasks.app) as inline:
        job = chain(tasks.add.s(1), tasks.add.s(2)).delay()
        assert all("x-mark" in each.headers for each in inline.enqueued())
        assert (seen, job.get()) == ([(1,), (2,)], 3)


# Encoded, to be sent later


def test_an_encoded_job_is_what_delay_would_send_and_is_sent_by_its_message_alone(tasks):
    job, message = tasks.add.options(job_id="mine", priority=3).s(1, b=2).encode()
    assert ("mine", "mine", "default") == (job.id, *message[:2])
    assert "priority:3" in message[2]
    with pytest.raises(eventmq.JobNotFound):
        job.info()
    for _ in range(2):  # the second time the broker has the id already
        assert "mine" == tasks.app.send_encoded(*message).id
    assert 3 == job.get()


def test_an_encoded_graph_is_sent_as_one_message_outside_a_batch(tasks):
    job, message = chord([tasks.add.s(1), tasks.add.s(2)], tasks.total.s()).encode()
    tasks.app.send_encoded(*message)
    assert 3 == job.get()
    with pytest.raises(NotAllowed, match=r"outside app.batch"), tasks.app.batch():
        tasks.app.send_encoded(*message)


def test_encoding_checks_what_delay_checks(tasks):
    with pytest.raises(TypeError, match="b"):
        tasks.add.s(1, 2, 3).encode()
    with pytest.raises(SerializationError):
        tasks.add.s(object()).encode()
    for empty in (group(), group(group())):
        with pytest.raises(NotAllowed, match="no jobs"):
            empty.encode()


def test_a_middleware_acts_on_an_encoded_job():
    class Marker:
        def submit(self, submission, proceed):
            submission.headers["trace"] = submission.task
            return None if submission.args == ("held",) else proceed(submission)

    class Plugin:
        @staticmethod
        @eventmq.hookimpl
        def eventmq_middleware():
            return {"marker": lambda context: Marker()}

    app = EventMQ("marked", plugins=[Plugin()], middleware=["marker"])
    with use_app(app):
        signature = app.signature("a.task", 1)
        assert "trace:a.task" in signature.encode()[1][2]
        assert "trace:a.task" in group(signature, signature).encode()[1][3].decode("latin-1")
        with pytest.raises(NotAllowed, match="middleware kept"):
            app.signature("a.task", "held").encode()
