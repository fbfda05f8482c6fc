"""Options of plugins: names, types, text from the command line."""

from __future__ import annotations

import pytest

from eventmq.errors import PluginError
from eventmq.interfaces import PluginContext
from eventmq.plugins.options import read_options
from eventmq.testing import FakeClock

DEFAULTS = {"flag": False, "count": 1, "seconds": 1.0, "path": "", "names": ()}


def read(**options):
    return read_options(PluginContext("demo", options, FakeClock()), DEFAULTS)


def test_what_is_not_given_has_its_default():
    assert read() == DEFAULTS
    assert read(count=7) == {**DEFAULTS, "count": 7}


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("flag", True, True),
        ("flag", "yes", True),
        ("flag", "False", False),
        ("count", "7", 7),
        ("seconds", 2, 2.0),
        ("seconds", "2.5", 2.5),
        ("path", "x", "x"),
        ("names", ["a", "b"], ("a", "b")),
        ("names", "a, b", ("a", "b")),
    ],
)
def test_values_and_text_become_the_type_of_the_default(name, given, value):
    found = read(**{name: given})[name]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("name", "given", "wanted"),
    [
        ("flag", "perhaps", "true or false"),
        ("flag", 2, "true or false"),
        ("count", 1.5, "a whole number"),
        ("count", True, "a whole number"),
        ("count", "x", "a whole number"),
        ("seconds", [], "a number"),
        ("path", 7, "text"),
        ("names", 7, "a list of texts"),
        ("names", [7], "a list of texts"),
    ],
)
def test_a_value_of_another_type_is_refused_without_showing_a_text(name, given, wanted):
    """A text may be a secret: the message has its type only."""
    with pytest.raises(PluginError) as caught:
        read(**{name: given})
    shown = given if isinstance(given, (int, float)) else type(given).__name__
    expected = f"option {name!r} of plugin 'demo' must be {wanted}, not {shown}"
    assert str(caught.value) == expected


def test_an_unknown_option_gets_the_nearest_one():
    with pytest.raises(PluginError) as caught:
        read(counts=1)
    assert str(caught.value) == "plugin 'demo' has no option 'counts'; did you mean 'count'?"
