"""Options of plugins: names, types, bounds, text from the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import pytest

from eventmq.errors import PluginError, StoreError
from eventmq.sdk import PluginContext, check_options, factory, option, read_options
from eventmq.testing import FakeClock


@dataclass(frozen=True, slots=True)
class Options:
    flag: bool = False
    count: int = 1
    seconds: float = 1.0
    path: str = ""
    names: tuple[str, ...] = ()
    limit: int | None = None
    table: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Bounded:
    level: int = option(6, ge=1, le=9)
    unit: float = option(1.0, gt=0)
    mode: Literal["fast", "small"] = "fast"


@dataclass(frozen=True)
class Needing:
    path: str


def context(**options):
    return PluginContext("demo", options, FakeClock())


def read(**options):
    return read_options(context(**options), Options)


def refused(kind, **options):
    with pytest.raises(PluginError) as caught:
        read_options(context(**options), kind)
    return str(caught.value)


def test_what_is_not_given_has_its_default():
    assert read() == Options()
    assert read(count=7) == Options(count=7)


@pytest.mark.parametrize(
    ("name", "text", "value"),
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
        ("limit", "7", 7),
        ("limit", None, None),
        ("table", {"a": 1}, {"a": 1}),
    ],
)
def test_values_and_text_become_the_type_of_the_field(name, text, value):
    converted = getattr(read(**{name: text}), name)
    assert converted == value
    assert type(converted) is type(value)


@pytest.mark.parametrize(
    ("name", "bad_value", "allowed"),
    [
        ("flag", "perhaps", "true or false"),
        ("flag", 2, "true or false"),
        ("count", 1.5, "a whole number"),
        ("count", True, "a whole number"),
        ("count", "x", "a whole number"),
        ("seconds", (), "a number"),
        ("seconds", float("inf"), "a number"),
        ("seconds", "nan", "a number"),
        ("path", 7, "text"),
        ("names", 7, "a list of texts"),
        ("limit", "x", "a whole number"),
    ],
)
def test_a_value_of_another_type_is_refused_without_showing_a_text(name, bad_value, allowed):
    """A text may be a secret: the message has its type only."""
    others = {"perhaps": "text", "x": "text", "nan": "text"}
    shown = "empty" if bad_value == () else others.get(bad_value, bad_value)
    message = f"option {name!r} of 'demo' must be {allowed}, not {shown}"
    assert refused(Options, **{name: bad_value}) == message


@pytest.mark.parametrize(
    ("bad_value", "message"),
    [
        ({"level": 0}, "option 'level' of 'demo' must be a whole number from 1 to 9, not 0"),
        ({"level": "10"}, "option 'level' of 'demo' must be a whole number from 1 to 9, not text"),
        ({"unit": 0}, "option 'unit' of 'demo' must be a number above 0, not 0"),
        ({"mode": "slow"}, "option 'mode' of 'demo' must be fast or small"),
    ],
)
def test_what_is_out_of_bounds_is_told_what_would_be_right(bad_value, message):
    assert refused(Bounded, **bad_value) == message


def test_an_unknown_option_gets_the_nearest_one():
    assert refused(Options, counts=1) == "'demo' has no option 'counts'; did you mean 'count'?"


def test_an_option_without_a_default_must_be_given():
    assert refused(Needing) == "'demo' needs the option 'path': text"
    assert read_options(context(path="x"), Needing) == Needing("x")


def test_checks_of_the_class_are_errors_of_the_options():
    @dataclass
    class Ordered:
        low: int = 0
        high: int = 9

        def __post_init__(self):
            if self.low > self.high:
                raise ValueError("low is more than high")
            if self.low < 0:
                raise StoreError("as it is")

    assert refused(Ordered, low=10) == "'demo': low is more than high"
    with pytest.raises(StoreError, match="as it is"):
        read_options(context(low=-1), Ordered)


def test_a_factory_makes_a_dataclass_of_its_options_and_another_class_of_none():
    class Plain:
        pass

    assert factory(Bounded)(context(level=1)) == Bounded(level=1)
    assert isinstance(factory(Plain)(context()), Plain)
    with pytest.raises(PluginError, match=r"no option 'level'; known are: none"):
        factory(Plain)(context(level=1))


def test_checked_options_are_those_that_were_given():
    """They travel with a task: what is left out is decided by the plugin."""
    assert check_options("demo", Bounded, level="3") == {"level": 3}
    with pytest.raises(PluginError) as caught:
        check_options("demo", Bounded, unit=-1)
    assert str(caught.value) == "option 'unit' of 'demo' must be a number above 0, not -1"
