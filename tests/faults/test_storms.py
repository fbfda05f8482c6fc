"""Small storms over brokers on PostgreSQL; `benchmarks.faults` has large ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.faults.storms import (
    CLOCKS,
    FAULTS,
    REPLICAS,
    Storms,
    check_history,
    make_clock,
    make_server,
)
from tests.support.postgres import Home, Server, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    home = Home()
    yield home
    home.close()


def _make(home: Home) -> Server:
    try:
        return make_server(home)
    except Unavailable as error:
        pytest.skip(str(error))


def test_a_storm_loses_nothing_and_runs_nothing_twice(tmp_path: Path, home: Home) -> None:
    """Every fault once. The audit finds no problem, and then finds a write of another session."""
    with Storms(tmp_path, _make(home)) as storms:
        for fault in FAULTS:
            storms.inject(fault)
        outcome = storms.finish()
        assert (outcome.lost, outcome.wrong) == ([], [])
        assert outcome.claims > 6
        assert outcome.commits > 100
        with psycopg.connect(storms.url) as other:
            other.execute("UPDATE eventmq.queues SET waiting = 0")
        assert len(storms.finish().wrong) == 1


def test_clocks_that_jump_lose_nothing_and_start_nothing_early(tmp_path: Path, home: Home) -> None:
    """Those of owner, standby and server, by minutes to days; each broker is on its own machine."""
    server = _make(home)
    try:
        clock = make_clock(server)
    except Unavailable as error:
        pytest.skip(str(error))
    with Storms(tmp_path, server, clock=clock) as storms:
        for fault in (*CLOCKS, "kill_owner", "stop_after_commit", *CLOCKS, "kill_server"):
            storms.inject(fault)
        outcome = storms.finish()
    assert (outcome.lost, outcome.wrong) == ([], [])
    assert outcome.claims > 4
    assert sum(len(client.not_before) for client in storms.clients) > 10


def test_receipts_of_replicated_brokers_survive_a_failover(tmp_path: Path, home: Home) -> None:
    """Whatever befell brokers, replica and server before."""
    server = _make(home)
    replica = server.replica(f"replica{server.port}", synchronous=True)
    name = server.new_database()
    url = f"postgresql://eventmq@127.0.0.1:{server.port},127.0.0.1:{replica.port}/{name}"
    with Storms(tmp_path, server, url=url, audited=False, durability="replicated") as storms:
        for fault in (*REPLICAS, "kill_owner", "end_session_in_commit", "kill_server"):
            storms.inject(fault)
        storms.fail_over(replica)
        outcome = storms.finish()
    assert outcome.jobs > len(storms.exposed) > 100
    assert (outcome.lost, outcome.wrong) == ([], [])


def test_two_releases_run_side_by_side(tmp_path: Path, home: Home) -> None:
    """The tables are expanded and contracted under load, and each release takes the other over."""
    with Storms(tmp_path, _make(home)) as storms:
        assert storms.run("store", "init").returncode == 0
        storms.inject("end_session")  # the earlier release continues with more columns
        storms.later.add(next(address for address in storms.brokers if address != storms.owner()))
        storms.inject("kill_standby")
        owners = []
        for fault in ("kill_owner", "end_owner", "stop_owner", "kill_owner"):
            owners.append(storms.owner() in storms.later)
            storms.inject(fault)
            refused = storms.run("store", "contract")
            assert refused.returncode == 1
            assert "brokers of version 1 use the store" in refused.stderr
        assert owners == [False, True, False, True]
        storms.later |= set(storms.brokers)
        storms.inject("kill_owner")
        assert storms.run("store", "contract").returncode == 0
        standby = storms.run("broker", "--bind", "tcp://127.0.0.1:0", later=False)
        assert standby.returncode == 1
        assert "start the later EventMQ" in " ".join(standby.stderr.split())
        storms.inject("kill_owner")
        outcome = storms.finish()
    assert (outcome.lost, outcome.wrong) == ([], [])
    assert outcome.claims > 6


@pytest.mark.parametrize("synchronous", [True, False], ids=["synchronous", "asynchronous"])
def test_a_database_fails_over_to_a_replica(tmp_path: Path, home: Home, synchronous: bool) -> None:
    """To a synchronous one nothing is lost; else receipts may be that the replica did not have."""
    server = _make(home)
    replica = server.replica(f"replica{server.port}", synchronous=synchronous)
    name = server.new_database()
    url = f"postgresql://eventmq@127.0.0.1:{server.port},127.0.0.1:{replica.port}/{name}"
    with Storms(tmp_path, server, url=url, audited=False, workers=1) as storms:
        storms.fail_over(replica, behind=not synchronous)
        outcome = storms.finish()
    assert outcome.jobs > len(storms.exposed) > 100
    assert set(outcome.lost) <= storms.exposed
    if synchronous:
        assert (outcome.lost, outcome.wrong) == ([], [])


def test_who_may_commit_and_when() -> None:
    """A transaction of an earlier claim after a later one is found, and so is an epoch again."""
    one, two = ["claim 1 10/1.5"], ["claim 2 20/1.5"]
    by_one, by_two, given_up = ["write 10/1.5"], ["write 20/1.5", "write 20/1.5"], ["claim 1 "]
    assert check_history([one, by_one, by_one, two, by_two]) == (5, 2, [])
    assert check_history([one, by_one, ["write 10/1.5", *given_up], two, by_two]) == (5, 2, [])
    for wrong in (
        [one, two, by_one],
        [one, by_two, two],
        [by_one],
        [one, given_up, by_one],
        [one, ["claim 1 20/1.5"]],
        [two, one],
        [one, [*by_one, *by_two]],
    ):
        assert len(check_history(wrong)[2]) == 1, wrong
