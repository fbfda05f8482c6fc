"""Jobs whose process or worker dies without a proof of the cause: what counts, and isolation."""

from __future__ import annotations

from random import Random

import pytest

from eventmq.broker.suspects import (
    ISOLATION_TIMEOUT,
    MAX_SUSPECTS,
    MAX_UNPROVEN,
    MAX_UNREACHED,
    Death,
    Suspects,
)
from eventmq.errors import QueueFull
from eventmq.job import JobRecord, OutcomeKind
from eventmq.wire.batches import encode_outcomes, pack
from eventmq.wire.commands import Call, Cancel, Inform, Kbai, Ready, Reply, Request
from tests.support.broker_harness import Broker, chunks, row
from tests.support.broker_workers import number

LOST, DIED, BACK = OutcomeKind.LOST, OutcomeKind.DIED, OutcomeKind.HANDED_BACK
UNANSWERED = OutcomeKind.UNANSWERED


def ids(messages):
    """Return the ids of the jobs of each chunk."""
    return [[entry.id for entry in index.entries] for _, index in chunks(messages)]


def submit(broker: Broker, count: int) -> list[str]:
    broker.core.state.run_times["shop.add"] = 1e-6  # so that many are in one chunk
    jobs = [broker.new_id() for _ in range(count)]
    broker.submit_batch(jobs)
    return jobs


def begin(broker: Broker, identity: bytes) -> None:
    """Let a worker announce that it is about to start its job."""
    sessions = [s for s in broker.core.state.sessions.values() if s.peer is not None]
    [session] = [s for s in sessions if s.peer.key.identity == identity]
    for lease in list(session.leases.values()):
        if lease.asks:
            job, delivery = lease.jobs[0], lease.deliveries[0]
            arguments = {"id": job.id, "delivery": delivery}
            broker.tell(identity, Call(broker.new_id(), "begin", pack(arguments)))
    held = tuple(session.leases)
    broker.ready(identity, 0, max(held, default=0), held)


def lose(broker: Broker, identity: bytes, *, started: bool = True) -> None:
    """Break the connection of a worker, as when its process has died."""
    if started:
        begin(broker, identity)
    broker.unreachable.add(identity)
    broker.core.heartbeats.connection_lost()
    broker.wait(1.0)


def state_of(broker: Broker, job_id: str) -> str:
    return broker.call("info", id=job_id)["state"]


def deaths(broker: Broker, job_id: str) -> int:
    return broker.core.state.jobs[job_id].deaths


# Processes


def test_what_had_begun_beside_a_killer_travels_alone_and_is_not_counted(broker: Broker) -> None:
    jobs = submit(broker, 5)
    [(chunk, _)] = chunks(broker.worker())
    rows = [row(0, LOST), row(1, LOST), row(2, LOST), row(3, BACK), row(4, BACK)]
    broker.answer(b"worker", chunk, rows)
    assert [deaths(broker, job) for job in jobs] == [0] * 5
    for _ in range(3):
        broker.answer(b"worker", broker.dispatched[-1], [row()])
    assert [ids([chunk])[0] for chunk in broker.dispatched[1:]] == [
        jobs[:1], jobs[1:2], jobs[2:3], jobs[3:]
    ]  # fmt: skip


def test_a_loss_and_two_proven_deaths_fail_a_job(broker: Broker) -> None:
    good, bad = submit(broker, 2)
    [(chunk, _)] = chunks(broker.worker())
    broker.answer(b"worker", chunk, [row(0, LOST), row(1, LOST)])
    broker.answer(b"worker", broker.dispatched[-1], [row()])
    assert state_of(broker, good) == "succeeded"
    broker.answer(b"worker", broker.dispatched[-1], [row(0, DIED)])
    assert state_of(broker, bad) == "running"
    broker.answer(b"worker", broker.dispatched[-1], [row(0, DIED)])
    assert state_of(broker, bad) == "failed"
    assert "suspected killer: 3 processes" in str(broker.call("failed"))


def test_what_had_ended_beside_a_known_killer_travels_alone_and_has_no_loss(
    broker: Broker,
) -> None:
    """It may have left the cause behind; nothing else counts against it."""
    one, two, bad, rest = submit(broker, 4)
    [(chunk, _)] = chunks(broker.worker())
    rows = [row(0, UNANSWERED), row(1, UNANSWERED), row(2, DIED), row(3, BACK)]
    broker.answer(b"worker", chunk, rows)
    state = broker.core.state
    counts = [(deaths(broker, job), state.suspects.losses(state.jobs[job])) for job in (one, two)]
    assert (counts, deaths(broker, bad)) == ([(0, 0), (0, 0)], 1)
    for _ in range(2):
        broker.answer(b"worker", broker.dispatched[-1], [row()])
    assert ids(broker.dispatched[1:]) == [[one], [two], [bad]]
    broker.answer(b"worker", broker.dispatched[-1], [row()])
    assert ids(broker.dispatched[-1:]) == [[rest]]


def test_a_job_whose_answer_never_comes_while_others_die_comes_to_an_end(broker: Broker) -> None:
    [job] = submit(broker, 1)
    broker.worker()
    for _ in range(MAX_UNPROVEN):
        broker.answer(b"worker", broker.dispatched[-1], [row(0, UNANSWERED)])
    assert state_of(broker, job) == "running"
    for _ in range(3):
        broker.answer(b"worker", broker.dispatched[-1], [row(0, UNANSWERED)])
    assert state_of(broker, job) == "failed"


def test_a_retry_of_a_suspect_clears_it_of_its_losses(broker: Broker) -> None:
    """It ran to its end, so it was not the cause."""
    submit(broker, 2)
    [(chunk, _)] = chunks(broker.worker())
    broker.answer(b"worker", chunk, [row(0, LOST), row(1, LOST)])
    assert len(broker.core.state.suspects) == 2
    broker.answer(b"worker", broker.dispatched[-1], [row(0, OutcomeKind.RETRY, countdown=5.0)])
    assert len(broker.core.state.suspects) == 1
    broker.answer(b"worker", broker.dispatched[-1], [row()])
    assert len(broker.core.state.suspects) == 0


def test_so_many_losses_without_a_proof_count_as_one(broker: Broker) -> None:
    """A job whose guilt cannot be proven ends as well."""
    [job] = submit(broker, 1)
    broker.worker()
    for _ in range(MAX_UNPROVEN):
        assert state_of(broker, job) == "running"
        broker.answer(b"worker", broker.dispatched[-1], [row(0, LOST)])
    broker.answer(b"worker", broker.dispatched[-1], [row(0, LOST)])
    assert state_of(broker, job) == "failed"


def test_proven_deaths_make_a_job_travel_alone_after_a_restart(broker: Broker) -> None:
    bad, other = submit(broker, 2)
    [(chunk, _)] = chunks(broker.worker())
    broker.answer(b"worker", chunk, [row(0, DIED), row(1, BACK)])
    broker.crash()
    broker.wait(20.0)
    submit(broker, 1)
    [(chunk, index)] = chunks(broker.worker(b"other", "other"))
    assert [entry.id for entry in index.entries] == [bad]
    got = broker.answer(b"other", chunk, [row()])
    assert other in ids(got)[0]


# Workers


def test_the_only_job_of_a_dead_worker_is_charged_and_fails_the_third_time(broker: Broker) -> None:
    [job] = submit(broker, 1)
    for n in range(3):
        name = f"w{n}".encode()
        assert ids(broker.worker(name, name.decode())) == [[job]]
        lose(broker, name)
    assert state_of(broker, job) == "failed"


def test_what_no_worker_has_begun_is_charged_with_nothing(broker: Broker) -> None:
    """A job that was in transit at each network failure has killed no worker."""
    [job] = submit(broker, 1)
    for n in range(2 * MAX_UNPROVEN):
        name = f"w{n}".encode()
        assert ids(broker.worker(name, name.decode())) == [[job]]
        lose(broker, name, started=False)
    assert (state_of(broker, job), deaths(broker, job)) == ("queued", 0)
    assert broker.core.state.suspects.losses(broker.core.state.jobs[job]) == 1
    broker.worker(b"last", "last")
    broker.answer(b"last", broker.dispatched[-1], [row()])
    assert state_of(broker, job) == "succeeded"


def test_a_job_that_kills_its_worker_at_once_fails_the_third_time(broker: Broker) -> None:
    """The first worker could not announce it; the later ones do so before they start it."""
    [job] = submit(broker, 1)
    for n in range(3):
        name = f"w{n}".encode()
        assert ids(broker.worker(name, name.decode())) == [[job]]
        lose(broker, name, started=n > 0)
    assert state_of(broker, job) == "failed"


def test_only_who_has_a_suspect_may_begin_it(broker: Broker) -> None:
    [job] = submit(broker, 1)
    broker.worker(b"w1", "one")
    lose(broker, b"w1")
    broker.worker(b"w2", "two")
    broker.worker(b"w3", "three")
    arguments = {"id": job, "delivery": 2}
    [answer] = broker.tell(b"w3", Call(broker.new_id(), "begin", pack(arguments)))
    assert answer.code == "not-held"
    [answer] = broker.tell(b"w2", Call(broker.new_id(), "begin", pack(arguments)))
    assert isinstance(answer, Reply)


def test_of_many_jobs_of_a_dead_worker_none_is_charged(broker: Broker) -> None:
    jobs = submit(broker, 3)
    broker.worker(b"w1", "one")
    lose(broker, b"w1")
    assert [deaths(broker, job) for job in jobs] == [0, 0, 0]
    broker.worker(b"w2", "two")
    for _ in jobs:
        broker.answer(b"w2", broker.dispatched[-1], [row()])
    assert ids(broker.dispatched[1:]) == [[job] for job in jobs], "each alone"


@pytest.mark.parametrize("leaves", [True, False])
def test_a_worker_that_says_goodbye_or_is_silent_charges_nothing(
    broker: Broker,
    leaves: bool,
) -> None:
    """The first was not killed; the second may be alive behind a cut network."""
    [job] = submit(broker, 1)
    broker.worker(b"w1", "one")
    if leaves:
        broker.tell(b"w1", Kbai("bye"))
    else:
        broker.wait(20.0)
    assert state_of(broker, job) == "queued"
    assert deaths(broker, job) == 0
    assert broker.core.state.suspects.losses(broker.core.state.jobs[job]) == 0


def test_a_worker_that_comes_back_had_not_died(broker: Broker) -> None:
    """The deaths and losses that were counted for its loss are taken back."""
    [job] = submit(broker, 1)
    broker.worker(b"w1", "one")
    lose(broker, b"w1")
    assert deaths(broker, job) == 1
    broker.unreachable.clear()
    got = broker.worker(b"w1b", "one", received=1, held=(1,), window=0)
    assert [m.job for m in got if isinstance(m, Cancel)] == [job]
    assert deaths(broker, job) == 0


def test_a_worker_whose_connection_breaks_again_and_again_had_not_died(broker: Broker) -> None:
    """Each time it comes back with the job, its death is taken back."""
    jobs = submit(broker, 2)
    broker.worker(b"w0", "one", window=9)
    for n in range(1, 4):
        lose(broker, f"w{n - 1}".encode())
        suspects = broker.core.state.suspects
        assert len(suspects) == 2
        broker.unreachable.clear()
        numbers = tuple(number(chunk) for chunk in broker.dispatched)
        broker.worker(f"w{n}".encode(), "one", received=max(numbers), held=numbers, window=9)
        assert [suspects.losses(broker.core.state.jobs[job]) for job in jobs] == [0, 0]
    assert {state_of(broker, job) for job in jobs} == {"running"}


def test_chunks_that_never_reach_a_worker_come_to_an_end(broker: Broker) -> None:
    """For example because the arrival of the job kills every worker."""
    [job] = submit(broker, 1)
    for n in range(MAX_UNREACHED + 3):
        name = f"w{n}".encode()
        broker.worker(name, name.decode())
        assert state_of(broker, job) == "running"
        lose(broker, name, started=False)
    assert state_of(broker, job) == "failed"


def test_a_job_that_kills_the_children_of_a_legacy_worker_comes_to_an_end(broker: Broker) -> None:
    """Its READYs show that all slots are free, and the job is unanswered."""
    job = broker.new_id()
    broker.tell(b"client", Request(job, "default", "guarantee:True", b"[]"))
    broker.tell(b"old", Inform("i", "", "worker"))
    for n in range(2 * MAX_UNPROVEN):
        broker.tell(b"old", Ready(f"r{n}"))
        if state_of(broker, job) == "failed":
            break
        broker.wait(2.0)
    assert state_of(broker, job) == "failed"


def test_a_worker_that_a_restarted_broker_never_saw_charges_nothing(broker: Broker) -> None:
    [job] = submit(broker, 1)
    broker.worker()
    broker.crash()
    broker.wait(20.0)
    assert state_of(broker, job) == "queued"
    assert deaths(broker, job) == 0


# Isolation


def twice_lost(broker: Broker, beside: int = 1) -> list[str]:
    """Return jobs that were lost together with two workers."""
    jobs = submit(broker, 1 + beside)
    broker.worker(b"w1", "one", window=9)
    lose(broker, b"w1")
    broker.worker(b"w2", "two", window=9)
    lose(broker, b"w2")
    state = broker.core.state
    assert [state.suspects.losses(state.jobs[job]) for job in jobs] == [2] * len(jobs)
    broker.dispatched.clear()
    return jobs


def test_after_two_losses_a_job_gets_a_worker_that_has_nothing_else(broker: Broker) -> None:
    """That worker gets no other job until this one has ended."""
    bad, good = twice_lost(broker)
    fresh = submit(broker, 3)
    assert ids(broker.worker(b"w3", "three", window=9)) == [[bad]]
    broker.wait(ISOLATION_TIMEOUT / 2)
    assert len(broker.dispatched) == 1
    got = broker.answer(b"w3", broker.dispatched[0], [row()])
    assert ids(got) == [[good]]
    got = broker.answer(b"w3", broker.dispatched[1], [row()])
    assert [job for chunk in ids(got) for job in chunk] == fresh


def test_the_death_of_such_a_worker_is_the_proof(broker: Broker) -> None:
    bad, good = twice_lost(broker)
    broker.worker(b"w3", "three", window=9)
    lose(broker, b"w3")
    assert state_of(broker, bad) == "failed"
    broker.worker(b"w4", "four", window=9)
    broker.answer(b"w4", broker.dispatched[-1], [row()])
    assert state_of(broker, good) == "succeeded"


def test_a_long_job_does_not_keep_its_worker_for_ever(broker: Broker) -> None:
    bad, good = twice_lost(broker)
    broker.worker(b"w3", "three", window=9)
    for _ in range(2 * int(ISOLATION_TIMEOUT) + 2):
        broker.wait(1.0)
        broker.ready(b"w3", 9, received=1, held=(1,))
    assert ids(broker.dispatched)[:2] == [[bad], [good]], "the other has waited for its own too"


def test_a_busy_worker_is_kept_free_for_it_and_others_serve_on(broker: Broker) -> None:
    busy = submit(broker, 1)
    broker.worker(b"w3", "three", window=0)
    broker.worker(b"w4", "four", window=0)
    broker.ready(b"w3", 1)
    suspects = broker.core.state.suspects
    bad = twice_lost_beside(broker)
    broker.ready(b"w3", 9, 1, (1,))
    assert broker.dispatched[-1].id.startswith("three"), "only what it had"
    assert [s.dedicated_to for s in broker.core.state.sessions.values()] == [bad, ""]
    got = broker.answer(b"w3", broker.dispatched[0], [row()])
    assert ids(got) == [[bad]]
    assert state_of(broker, busy[0]) == "succeeded"
    assert len(suspects) == 1


def twice_lost_beside(broker: Broker) -> str:
    """Return a job with two losses while all other workers have jobs."""
    [bad] = submit(broker, 1)
    state = broker.core.state
    for _ in range(2):
        state.suspects.lost(state.jobs[bad], Death.SHARED)
    return bad


def test_where_no_worker_is_ever_idle_it_goes_beside_others_in_the_end(broker: Broker) -> None:
    submit(broker, 1)
    broker.worker(b"w3", "three", window=1)
    bad = twice_lost_beside(broker)
    broker.ready(b"w3", 2, 1, (1,))
    assert len(broker.dispatched) == 1
    for _ in range(int(ISOLATION_TIMEOUT) + 2):
        broker.wait(1.0)
        broker.ready(b"w3", 2, 1, (1,))
    assert ids(broker.dispatched)[-1] == [bad]


# Restarts of the broker


def judged(broker: Broker, job_id: str) -> tuple[int, int, int, int, int]:
    """Return the deaths of a job in the store, and the counts of its suspect."""
    known = broker.core.state.suspects.get(JobRecord(job_id, "default", "", b""))
    stored = broker.store._db.execute("SELECT deaths FROM jobs WHERE id = ?", (job_id,)).fetchall()
    [(counted,)] = stored
    if known is None:
        return counted, 0, 0, 0, 0
    return counted, known.losses, known.unproven, known.unreached, known.owed


def rows(broker: Broker) -> int:
    return broker.store._db.execute("SELECT count(*) FROM suspects").fetchone()[0]


def restart(broker: Broker) -> None:
    """Kill the broker, and start another one on the store."""
    broker.crash()
    broker.unreachable.clear()


def test_what_was_counted_stands_after_a_restart(broker: Broker) -> None:
    good, bad = submit(broker, 2)
    for name in ("one", "two"):
        broker.worker(name.encode(), name, window=9)
        lose(broker, name.encode())
    states = {job: judged(broker, job) for job in (good, bad)}
    assert states == {good: (0, 2, 2, 0, 0), bad: (0, 2, 2, 0, 0)}
    restart(broker)
    assert {job: judged(broker, job) for job in (good, bad)} == states
    broker.dispatched.clear()
    assert ids(broker.worker(b"w3", "three", window=9)) == [[good]], "alone, and nothing else"
    broker.answer(b"w3", broker.dispatched[-1], [row()])
    assert ids(broker.dispatched[-1:]) == [[bad]]
    lose(broker, b"w3")
    assert state_of(broker, bad) == "failed"
    assert "suspected killer: 3 processes" in str(broker.call("failed"))
    assert (rows(broker), len(broker.core.state.suspects)) == (0, 0)


@pytest.mark.parametrize("again", [False, True])
def test_a_death_that_was_taken_back_is_not_counted_after_a_restart(
    broker: Broker, again: bool
) -> None:
    """It was counted and taken back before the restart: two more deaths do not fail the job."""
    [job] = submit(broker, 1)
    broker.worker(b"w1", "one")
    lose(broker, b"w1")
    assert judged(broker, job)[0] == 1
    if again:
        restart(broker)
    broker.unreachable.clear()
    got = broker.worker(b"w1b", "one", received=1, held=(1,), window=0)
    assert [(m.job, m.delivery) for m in got if isinstance(m, Cancel)] == [(job, "1")]
    restart(broker)
    broker.wait(20.0)
    for n in range(2):
        name = f"x{n}".encode()
        assert ids(broker.worker(name, name.decode())) == [[job]]
        assert judged(broker, job)[0] == n, "in the row"
        lose(broker, name)
        assert (state_of(broker, job), judged(broker, job)[0]) == ("queued", n + 1)
    broker.worker(b"x2", "x2")
    lose(broker, b"x2")
    assert state_of(broker, job) == "failed"


def test_a_worker_that_comes_back_to_the_next_broker_takes_its_losses_back(broker: Broker) -> None:
    jobs = submit(broker, 2)
    broker.worker(b"w1", "one")
    lose(broker, b"w1")
    assert {judged(broker, job) for job in jobs} == {(0, 1, 1, 0, 0)}
    restart(broker)
    got = broker.worker(b"w1b", "one", received=1, held=(1,), window=0)
    assert [m.job for m in got if isinstance(m, Cancel)] == jobs
    assert {judged(broker, job) for job in jobs} == {(0, 0, 0, 0, 0)}
    assert rows(broker) == 0
    restart(broker)
    assert {judged(broker, job) for job in jobs} == {(0, 0, 0, 0, 0)}


def test_what_a_worker_said_itself_is_not_taken_back_when_it_comes_to_the_next_broker(
    broker: Broker,
) -> None:
    """It lost two of three jobs of a chunk with a process, and still has the third."""
    jobs = submit(broker, 3)
    [(chunk, _)] = chunks(broker.worker())
    broker.answer(b"worker", chunk, [row(0, LOST), row(1, LOST)])
    states = [judged(broker, job) for job in jobs[:2]]
    restart(broker)
    broker.worker(b"w1b", "w", received=1, held=(1,), window=0)
    assert [judged(broker, job) for job in jobs[:2]] == states == [(0, 1, 1, 0, 0)] * 2


def test_a_death_of_a_job_that_is_not_in_memory_is_taken_back_when_it_comes(
    broker: Broker,
) -> None:
    [job] = submit(broker, 1)
    broker.worker(b"w1", "one")
    lose(broker, b"w1")
    restart(broker)
    assert job not in broker.core.state.jobs
    assert broker.core.state.suspects.absolve(job, 1, None)
    broker.core.state.write(*broker.core.state.suspects.take_changes()[:1], lambda _: None)
    entries, settle = broker.core.take_batch()
    broker.store.submit(entries)
    [write_results] = broker.store.finished()
    settle(write_results)
    restart(broker)
    assert judged(broker, job) == (1, 0, 0, 0, 1), "it was not read into memory"
    broker.wait(1.0)
    assert judged(broker, job) == (0, 0, 0, 0, 0)
    broker.worker(b"w2", "two")
    assert deaths(broker, job) == 0
    restart(broker)
    broker.wait(20.0)
    assert judged(broker, job)[0] == 0


def test_a_commit_that_fails_changes_nothing_that_is_known(broker: Broker) -> None:
    jobs = submit(broker, 2)
    [(chunk, _)] = chunks(broker.worker())
    suspects = broker.core.state.suspects
    body = encode_outcomes([row(0, LOST), row(1, LOST)])
    broker.put(b"worker", Reply("r", body, chunk.id, f"chunk:{number(chunk)}"))
    broker.core.decide(broker.now())
    _, settle = broker.core.take_batch()
    settle(QueueFull("the disk is full"))
    assert len(suspects) == 0
    broker.tick()
    assert rows(broker) == 0
    broker.answer(b"worker", chunk, [row(0, LOST), row(1, LOST)])
    assert [judged(broker, job) for job in jobs] == [(0, 1, 1, 0, 0)] * 2
    assert rows(broker) == 2


def test_a_retry_clears_a_job_of_its_losses_in_the_store_too(broker: Broker) -> None:
    submit(broker, 2)
    [(chunk, _)] = chunks(broker.worker())
    broker.answer(b"worker", chunk, [row(0, LOST), row(1, LOST)])
    broker.answer(b"worker", broker.dispatched[-1], [row(0, OutcomeKind.RETRY, countdown=5.0)])
    assert rows(broker) == 1
    restart(broker)
    assert len(broker.core.state.suspects) == 1


def known(broker: Broker, jobs: list[str]) -> list[object]:
    """Return deaths in the store and in memory, and the stored rows of jobs."""
    state, suspects = broker.core.state, broker.core.state.suspects
    counts: list[object] = []
    for job_id in jobs:
        [stored] = broker.store._db.execute(
            "SELECT count(*), max(deaths) FROM jobs WHERE id = ?", (job_id,)
        ).fetchall()
        suspect = suspects.get(JobRecord(job_id, "default", "", b""))
        counts.append((stored, suspect and suspect.row))
        if job_id in state.jobs and not (suspect and suspect.owed):
            assert state.jobs[job_id].deaths == stored[1]
    return counts


@pytest.mark.parametrize("seed", range(12))
def test_all_that_is_known_is_the_same_before_and_after_each_restart(
    broker: Broker, seed: int
) -> None:
    """Workers connect, are lost, come back with their jobs, and answer, in any order."""
    chance = Random(seed)
    jobs = submit(broker, 1 + seed % 4)
    here: dict[str, bytes] = {}
    restarts = 0
    for step in range(40):
        what = chance.choice(("come", "lose", "lose", "return", "answer", "restart"))
        name, identity = f"s{chance.randrange(4)}", b"i%d" % step
        had = [chunk for chunk in broker.dispatched if chunk.id.startswith(f"{name}.")]
        numbers = tuple(map(number, had))
        if what == "come" and name not in here and not had:
            broker.worker(identity, name, window=2)
            here[name] = identity
        elif what == "return" and name not in here and had:
            broker.worker(identity, name, received=max(numbers), held=numbers, window=2)
            here[name] = identity
        elif what == "lose" and name in here:
            lose(broker, here.pop(name), started=chance.random() < 0.7)
        elif what == "answer" and name in here and had:
            kind = chance.choice((LOST, DIED, BACK, UNANSWERED, OutcomeKind.SUCCEEDED))
            broker.answer(here[name], had[-1], [row(0, kind)])
        elif what == "restart":
            before = known(broker, jobs)
            restart(broker)
            assert known(broker, jobs) == before
            here.clear()
            restarts += 1
        known(broker, jobs)
    assert restarts > 0
    assert rows(broker) == sum(entry[1] is not None for entry in known(broker, jobs))


def test_a_row_of_a_suspect_that_is_damaged_is_forgotten(broker: Broker, caplog) -> None:
    jobs = submit(broker, 2)
    [(chunk, _)] = chunks(broker.worker())
    broker.answer(b"worker", chunk, [row(0, LOST), row(1, LOST)])
    broker.store._db.execute(
        "UPDATE suspects SET record = x'93' WHERE seq = (SELECT min(seq) FROM jobs)"
    )
    restart(broker)
    assert [judged(broker, job)[1] for job in jobs] == [0, 1]
    assert f"the record of the deaths of job {jobs[0]} is damaged" in caplog.text


# Limits


def test_the_number_of_suspects_is_bounded() -> None:
    suspects = Suspects()
    for n in range(MAX_SUSPECTS + 10):
        suspects.lost(JobRecord(str(n), f"q{n % 3}", "", b""), Death.SHARED)
    assert len(suspects) == MAX_SUSPECTS


@pytest.mark.parametrize("kind", [LOST, DIED])
def test_what_is_cancelled_meanwhile_delays_no_other_job(broker: Broker, kind: int) -> None:
    one, two = submit(broker, 2)
    [(chunk, _)] = chunks(broker.worker(window=1))
    broker.ready(b"worker", 0, number(chunk), (number(chunk),))
    broker.answer(b"worker", chunk, [row(0, kind), row(1, kind)])
    broker.call("cancel", ids=[one, two])
    assert [state_of(broker, job) for job in (one, two)] == ["cancelled"] * 2
    fresh = submit(broker, 2)
    assert ids(broker.ready(b"worker", 1, number(chunk))) == [fresh]
