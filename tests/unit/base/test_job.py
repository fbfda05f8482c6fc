"""Jobs: states and their table, ids."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass

import pytest

from eventmq.errors import IllegalTransition
from eventmq.job import (
    STATE_CODES,
    TERMINAL,
    TRANSITIONS,
    IdFactory,
    JobRecord,
    JobState,
    OutcomeKind,
    id_time,
    transition,
)


@dataclass
class StoppedClock:
    time: float = 1_800_000_000.25

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    def boottime(self) -> float:
        return self.time

    def boot_id(self) -> str:
        return "boot"


# States


def test_every_state_is_in_the_table() -> None:
    assert set(TRANSITIONS) == set(JobState)
    assert set().union(*TRANSITIONS.values()) <= set(JobState)


@pytest.mark.parametrize("state", list(JobState))
@pytest.mark.parametrize("to", list(JobState))
def test_one_function_takes_the_steps_of_the_table_and_no_other(
    state: JobState, to: JobState
) -> None:
    if to in TRANSITIONS[state]:
        assert transition(state, to) is to
    else:
        with pytest.raises(IllegalTransition, match=f"from {state} to {to}; from {state} may"):
            transition(state, to)


def test_an_end_is_final_but_a_failed_job_can_be_queued_again() -> None:
    """The failed jobs are the dead letters."""
    after = {state: TRANSITIONS[state] for state in TERMINAL}
    assert after.pop(JobState.FAILED) == {JobState.QUEUED}
    assert set().union(*after.values()) == set()
    assert JobState.RUNNING not in TERMINAL


def test_every_unfinished_state_can_be_cancelled_expire_and_fail() -> None:
    for state in set(JobState) - TERMINAL:
        assert {JobState.CANCELLED, JobState.EXPIRED, JobState.FAILED} <= TRANSITIONS[state]


def test_the_message_of_an_impossible_step_says_what_is_possible() -> None:
    with pytest.raises(IllegalTransition) as caught:
        transition(JobState.DELAYED, JobState.RUNNING)
    assert str(caught.value) == (
        "a job cannot go from delayed to running; from delayed may follow: "
        "cancelled, expired, failed, queued"
    )
    with pytest.raises(IllegalTransition, match=r"may follow: nothing, it is final$"):
        transition(JobState.SUCCEEDED, JobState.QUEUED)


def test_states_are_their_words() -> None:
    """In the interface they are strings."""
    assert f"{JobState.QUEUED}" == JobState.QUEUED == "queued"
    assert JobState("failed") is JobState.FAILED


def test_codes_of_states_and_outcomes_never_change() -> None:
    """They are in stores and on the wire."""
    assert list(STATE_CODES.items()) == [
        ("blocked", 0), ("delayed", 1), ("queued", 2), ("running", 3), ("succeeded", 4),
        ("failed", 5), ("cancelled", 6), ("expired", 7),
    ]  # fmt: skip
    assert {kind.name: kind.value for kind in OutcomeKind} == {
        "SUCCEEDED": 0, "FAILED": 1, "RETRY": 2, "HANDED_BACK": 3, "EXPIRED": 4, "DIED": 5,
        "UNKNOWN_TASK": 6, "CANCELLED": 7, "LOST": 8, "UNANSWERED": 9,
    }  # fmt: skip


def test_a_new_job_is_queued_for_its_first_attempt_and_was_never_delivered() -> None:
    job = JobRecord("1", "q", "", b"")
    assert (job.state, job.attempt, job.delivery, job.deaths) == (JobState.QUEUED, 1, 0, 0)


def test_jobs_are_compared_by_identity() -> None:
    """Two records of one job are a fault, not the same."""
    assert JobRecord("1", "q", "", b"") != JobRecord("1", "q", "", b"")


# Ids


def test_an_id_is_a_uuid_of_version_7_that_says_its_time() -> None:
    """RFC 9562, section 5.7."""
    clock = StoppedClock()
    made = IdFactory(clock).new()
    assert re.fullmatch("[0-9a-f]{32}", made)
    assert uuid.UUID(made).version == 7
    assert uuid.UUID(made).variant == uuid.RFC_4122
    assert id_time(made) == clock.time


def test_ids_of_a_factory_ascend_and_never_repeat() -> None:
    """The order holds within a millisecond, across one, and when the clock is set back."""
    clock = StoppedClock()
    factory = IdFactory(clock)
    made = factory.new_many(5000)
    clock.time += 0.001
    made.append(factory.new())
    clock.time -= 60
    made += factory.new_many(3)
    assert made == sorted(set(made))
    assert len(made) == 5004


def test_ids_of_two_factories_differ() -> None:
    """62 random bits."""
    clock = StoppedClock()
    assert IdFactory(clock).new() != IdFactory(clock).new()


def test_ids_made_together_have_random_ends_of_their_own() -> None:
    """Listings show the end of an id: eight digits differ within a group as well."""
    made = IdFactory(StoppedClock()).new_many(100)
    assert {uuid.UUID(each).variant for each in made} == {uuid.RFC_4122}
    assert len({each[-8:] for each in made}) == 100


@pytest.mark.parametrize(
    "text", ["", "7", "x" * 32, "0" * 12 + "4" + "0" * 19, "zzzzzzzzzzzz7" + "0" * 19]
)
def test_another_id_has_no_time(text: str) -> None:
    """Clients of other kinds choose ids as they like."""
    assert id_time(text) is None
