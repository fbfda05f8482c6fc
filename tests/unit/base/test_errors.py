"""The exception tree: as it is drawn, so it is."""

from __future__ import annotations

import inspect
import pickle
import re
import sys
import traceback

import pytest

from eventmq import errors
from eventmq.errors import EventMQError, did_you_mean

CLASSES = {
    name: cls
    for name, cls in vars(errors).items()
    if inspect.isclass(cls) and issubclass(cls, EventMQError)
}


def drawn() -> dict[str, str]:
    """Return class -> parent as the docstring of the module draws them."""
    parents: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        drawing = re.match(r"    ((?:[| ]   )*)(?:[|`]-- )?([A-Z]\w+)", line)
        if drawing is None:
            continue
        depth = 0 if "-- " not in line else 1 + len(drawing[1]) // 4
        above = [(d, name) for d, name in above if d < depth]
        parents[drawing[2]] = above[-1][1] if above else ""
        above.append((depth, drawing[2]))
    return parents


def test_the_tree_is_drawn_as_it_is() -> None:
    """One base, and every class in its place."""
    real = {name: cls.__mro__[1].__name__ for name, cls in CLASSES.items()}
    assert drawn() == {**real, "EventMQError": ""}


def test_what_is_also_a_standard_exception_is_drawn_so() -> None:
    """``except TimeoutError`` catches a late result."""
    documented = dict(re.findall(r"([A-Z]\w+) +\(also a (\w+)\)", errors.__doc__ or ""))
    real = {name: base.__name__ for name, cls in CLASSES.items() for base in cls.__bases__[1:]}
    assert documented == real


def test_all_is_sorted_and_names_every_class() -> None:
    assert errors.__all__ == sorted(errors.__all__)
    assert set(errors.__all__) == {*CLASSES, "did_you_mean"}


def test_every_class_says_what_happened() -> None:
    for name, cls in CLASSES.items():
        assert (cls.__doc__ or "").strip().endswith("."), name


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_an_error_says_its_message(name: str) -> None:
    cls = CLASSES[name]
    if name == "JobNotFound":
        assert str(cls("x")) == ("no job with id 'x': never submitted here, or forgotten since")
    elif name == "BatchError":
        assert str(errors.BatchError("two were refused", jobs=[])) == "two were refused"
    else:
        assert str(cls("what happened")) == "what happened"


@pytest.mark.parametrize("name", sorted(set(CLASSES) - {"BatchError", "JobNotFound"}))
def test_an_error_can_travel_between_processes(name: str) -> None:
    """A test runner or a process pool pickles what is raised."""
    copy = pickle.loads(pickle.dumps(CLASSES[name]("what happened")))
    assert (type(copy), str(copy)) == (CLASSES[name], "what happened")


def test_an_unknown_job_travels_with_its_id() -> None:
    copy = pickle.loads(pickle.dumps(errors.JobNotFound("1")))
    assert (copy.job_id, str(copy)) == ("1", str(errors.JobNotFound("1")))


def test_fields_hold_the_data() -> None:
    unavailable = errors.BrokerUnavailable("gone", job_id="1", maybe_accepted=True)
    assert (unavailable.job_id, unavailable.maybe_accepted) == ("1", True)
    failed = errors.JobFailed("no", job_id="1", remote_type="t", remote_traceback="tb")
    assert (failed.job_id, failed.remote_type, failed.remote_message) == ("1", "t", "")
    assert errors.DuplicateJob("no", job_id="2").job_id == "2"
    assert errors.ProtocolError("no").code == "bad-message"
    assert errors.JobNotFound("1").job_id == "1"
    assert errors.BatchError("no", jobs=(("j", "refused", None),)).jobs == [("j", "refused", None)]


def test_a_failed_job_that_nothing_catches_shows_the_traceback_of_the_worker() -> None:
    """The traceback is a note, which Python shows from 3.11 on, and other tools before."""
    failed = errors.JobFailed("no", remote_traceback='  File "shop.py", line 3, in sell\n')
    note = 'Traceback of the worker:\n\n  File "shop.py", line 3, in sell'
    assert failed.__notes__ == [note]
    assert pickle.loads(pickle.dumps(failed)).__notes__ == [note]
    if sys.version_info >= (3, 11):
        assert note in "".join(traceback.format_exception(failed))
    assert not hasattr(errors.JobFailed("no"), "__notes__")


def test_the_note_is_safe_to_print_and_the_traceback_is_as_it_came() -> None:
    raw = "\tat \x1b[2J\x07\nValueError: \u202e\n"
    failed = errors.JobFailed("no", remote_traceback=raw)
    (note,) = failed.__notes__
    assert note == "Traceback of the worker:\n\n\tat \\x1b[2J\\x07\nValueError: \\u202e"
    assert failed.remote_traceback == raw
    failed.note_traceback()
    assert failed.__notes__ == [note]


def test_the_nearest_name_is_suggested_else_all() -> None:
    assert did_you_mean("brokr", ["worker", "broker"]) == "did you mean 'broker'?"
    assert did_you_mean("xyz", ["worker", "broker"]) == "known are: broker, worker"
    assert did_you_mean("xyz", []) == "known are: none"
