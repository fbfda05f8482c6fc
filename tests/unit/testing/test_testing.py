"""What authors of tests get: a clock, and suites that find what is wrong."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import eventmq.testing
from eventmq.testing import (
    FakeClock,
    MiddlewareSuite,
    QueueOrderSuite,
    ResultBackendSuite,
    RetryPolicySuite,
    RoutingStrategySuite,
    SerializerSuite,
)


def test_a_fake_clock_goes_on_only_when_told():
    clock = FakeClock(now=100.0)
    began = clock.monotonic()
    clock.advance(5.0)
    assert (clock.now(), clock.monotonic() - began) == (105.0, 5.0)
    clock.set_now(7.0)
    assert (clock.now(), clock.monotonic() - began) == (7.0, 5.0)


def test_every_public_name_is_there():
    for name in eventmq.testing.__all__:
        assert getattr(eventmq.testing, name).__name__ == name
        assert name in dir(eventmq.testing)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = eventmq.testing.Nothing


@pytest.mark.parametrize(
    "name", sorted(name for name in eventmq.testing.__all__ if name.endswith("Suite"))
)
def test_a_suite_says_what_its_author_has_forgotten_to_define(name):
    suite = getattr(eventmq.testing, name)
    method = "open_store" if name.startswith("QueueStore") else "make"
    takes = inspect.signature(getattr(suite, method)).parameters.values()
    positional = [None for one in takes if one.name != "self" and one.kind is not one.VAR_KEYWORD]
    with pytest.raises(NotImplementedError, match=rf"define {method}\(\) in your subclass: it re"):
        getattr(suite(), method)(*positional)


def test_importing_it_needs_no_pytest():
    """It is part of installations without tests."""
    code = "import sys; sys.modules['pytest'] = None; from eventmq.testing import FakeClock"
    subprocess.run([sys.executable, "-c", code], check=True)


class Wrong:
    """An object whose methods return or call what a test gives."""

    def __init__(self, **methods):
        self.__dict__.update(methods)


def over_room(queue, workers, n):
    return [workers[0].session] * n


def swallow(*arguments):
    try:
        return arguments[-1]()
    except Exception:  # noqa: BLE001 - the mistake that is to be found
        return None


WRONG = [
    (RoutingStrategySuite, Wrong(choose=over_room), "credit_is_never_exceeded"),
    (RoutingStrategySuite, Wrong(choose=lambda q, w, n: ["z"]), "a_single_worker_gets_the_chunk"),
    (RoutingStrategySuite, Wrong(choose=lambda q, w, n: []), "many_workers_and_chunks"),
    (QueueOrderSuite, Wrong(choose=lambda queues: "z"), "a_single_queue_is_chosen"),
    (
        RetryPolicySuite,
        Wrong(delay=lambda failure: 2.0**failure.attempt),
        "every_attempt_has_a_delay_or_is_the_last",
    ),
    (RetryPolicySuite, Wrong(delay=lambda _: -1.0), "every_attempt_has_a_delay_or_is_the_last"),
    (
        RetryPolicySuite,
        Wrong(delay=lambda failure: float(len(str(failure.exception)))),
        "any_failure_has_a_delay_or_is_the_last",
    ),
    (ResultBackendSuite, Wrong(inline=1), "inline_and_local_are_bools"),
    (ResultBackendSuite, Wrong(inline=True, local=0), "inline_and_local_are_bools"),
    (
        SerializerSuite,
        Wrong(encode=lambda value, envelope: b""),
        "encode_returns_bytes_and_a_signature",
    ),
    (
        SerializerSuite,
        Wrong(
            encode=lambda value, envelope: (repr(value).encode(), "s"),
            decode=lambda data, envelope: [[1], {}],
        ),
        "a_signature_covers_the_body_and_the_envelope",
    ),
    (MiddlewareSuite, Wrong(execute=lambda job, proceed: 7), "execute_proceeds_once_and_returns"),
    (MiddlewareSuite, Wrong(execute=swallow), "execute_does_not_swallow_errors"),
    (MiddlewareSuite, Wrong(submit=lambda s, proceed: None), "submit_proceeds_once_and_returns"),
]


@pytest.mark.parametrize(
    ("suite", "wrong", "test"), WRONG, ids=[f"{s.__name__}-{t}" for s, _, t in WRONG]
)
def test_a_suite_finds_what_is_wrong(suite, wrong, test):
    made = type("Made", (suite,), {"make": lambda self: wrong})()
    method = next(getattr(made, name) for name in dir(made) if name.startswith(f"test_{test}"))
    with pytest.raises((AssertionError, pytest.fail.Exception, ValueError, OverflowError)):
        method()
