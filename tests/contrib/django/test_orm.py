"""Connections of workers to the databases of the project."""

from __future__ import annotations

import json

import psycopg
import pytest

from tests.contrib.django.conftest import ended, running_worker, until


@pytest.fixture
def sessions(postgresql):
    """Returns rows about the sessions of a worker, as the server has them."""
    import os

    with psycopg.connect(os.environ["PROJECT_POSTGRESQL"], autocommit=True) as connection:

        def sessions(name="worker"):
            query = "SELECT pid, state FROM pg_stat_activity WHERE application_name = %s"
            return dict(connection.execute(query, [name]).fetchall())

        sessions.execute = connection.execute
        yield sessions


def test_a_connection_is_closed_after_its_job(tasks, worker, sessions, postgresql):
    result = ended(tasks.process_and_connection.enqueue(postgresql))
    _, session, _ = result.return_value
    until(lambda: session not in sessions(), "the end of the session")


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_persistent_connection_is_used_again_and_replaced_when_it_is_broken(
    tasks, project, sessions, postgresql, pool
):
    """The age and the health of a connection are those of its settings, as for requests."""
    options = json.dumps({"CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": True})
    task = tasks.process_and_connection.using(queue_name="spare")

    def session():
        return ended(task.enqueue(postgresql)).return_value[1]

    with running_worker(
        project, "-c", "1", "-Q", "spare", "--pool", pool, name=pool, PROJECT_DATABASE=options
    ):
        first, second = session(), session()
        assert first == second
        assert "idle" == sessions(pool)[first]
        sessions.execute("SELECT pg_terminate_backend(%s)", [first])
        until(lambda: first not in sessions(pool), "the end of the session")
        assert session() != first


def test_a_transaction_that_a_task_left_open_is_rolled_back(tasks, project):
    from django.db import connections

    from tests.contrib.django.project.shop.models import Order

    with running_worker(project, "-c", "1", "-Q", "spare", name="leaving") as process:
        for alias in connections:
            for name in ("leave_open", "leave_manual"):
                left = getattr(tasks, name).using(queue_name="spare").enqueue(alias)
                assert "SUCCESSFUL" == ended(left).status
                saved = tasks.save.using(queue_name="spare").enqueue("after", alias=alias)
                key = ended(saved).return_value
                assert "after" == Order.objects.using(alias).get(pk=key).name
                assert not Order.objects.using(alias).filter(name__startswith="left").exists()
        log = process.stop()
    assert len([*connections]) == log.count("open; it is rolled back")


def test_children_share_no_connection_that_the_project_opened_while_it_was_loaded(
    tasks, project, sessions, postgresql
):
    options = json.dumps({"CONN_MAX_AGE": None})
    task = tasks.process_and_connection.using(queue_name="spare")
    with running_worker(
        project, "-c", "2", "-Q", "spare", name="eager",
        PROJECT_EAGER=postgresql, PROJECT_DATABASE=options,
    ):  # fmt: skip
        assert {} == sessions("eager")
        results = [ended(each) for each in [task.enqueue(postgresql, 2) for _ in range(8)]]
        used = {(process, session) for process, session, _ in (r.return_value for r in results)}
        assert 2 == len(used) == len({session for _, session in used})
        assert {session for _, session in used} == set(sessions("eager"))


def test_children_drop_the_pools_that_their_parent_has_opened(project, monkeypatch):
    """Django keeps them by their aliases in the class, with connections that two would use."""
    from django.db import connections

    from eventmq_contrib.django import worker

    before, pools = connections["default"], {"default": object()}
    inherited = dict(pools)
    monkeypatch.setattr(type(before), "_connection_pools", pools, raising=False)
    worker._forget_connections()
    assert {} == pools
    assert inherited in worker._inherited  # closing it would end the connections of the parent
    assert connections["default"] is not before


def test_a_coroutine_has_a_connection_of_its_own_that_ends_with_it(
    tasks, project, sessions, postgresql
):
    options = json.dumps({"CONN_MAX_AGE": None})
    task = tasks.abackend.using(queue_name="spare")
    with running_worker(
        project, "-c", "4", "-Q", "spare", "--pool", "asyncio", name="loop",
        PROJECT_DATABASE=options,
    ):  # fmt: skip
        results = [ended(each) for each in [task.enqueue(postgresql) for _ in range(4)]]
        used = [result.return_value for result in results]
        assert [each[0] for each in used] == [each[1] for each in used]
        assert 4 == len({each[0] for each in used})
        until(lambda: not sessions("loop"), "the end of the sessions")
