"""Values become the types of annotations, and options are declared by them."""

from __future__ import annotations

import enum
import math
import re
import subprocess
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, make_dataclass
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import pytest

from eventmq.conversion import convert, describe, option, options_of, read_options
from eventmq.errors import PluginError

if TYPE_CHECKING:
    from fractions import Fraction


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Point:
    x: int
    y: int = 0


@dataclass(frozen=True, kw_only=True)
class Options:
    level: int = option(6, "How hard to try.", ge=0, le=9)
    pause: float = option(1.0, gt=0, unit="s")
    retries: int | None = option(None, ge=0)
    folder: Path = Path()
    names: tuple[str, ...] = ()
    strict: bool = False
    mode: Literal["fast", "safe", "both"] = "fast"
    colour: Colour = Colour.RED
    code: str = option("", pattern="^[a-z]*$", allowed="small letters")
    even: int = option(0, allowed="an even number", check=lambda number: number % 2 == 0)
    pair: tuple[str, int] = option(("", 0), name="the-pair", parse=lambda text: text.split("="))

    def __post_init__(self) -> None:
        if self.strict and self.mode == "fast":
            raise ValueError("strict excludes the mode fast")


def read(**options: Any) -> Options:
    return read_options(Options, options, owner="plugin 'demo'")


def refusal(**options: Any) -> str:
    with pytest.raises(PluginError) as caught:
        read(**options)
    return str(caught.value)


# Values


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (4, int, 4),
        (4, float, 4.0),
        ([1, 2], tuple[int, ...], (1, 2)),
        ("red", Colour, Colour.RED),
        ("2026-01-31T12:00:00Z", datetime, datetime(2026, 1, 31, 12, tzinfo=timezone.utc)),
        ("1.10", Decimal, Decimal("1.10")),
        ("12345678123456781234567812345678", uuid.UUID, uuid.UUID("12345678" * 4)),
        ("a/b", Path, Path("a/b")),
        ({"x": 1}, Point, Point(1)),
        ([{"x": 1, "y": 2}], list[Point], [Point(1, 2)]),
        (None, int | None, None),
    ],
)
def test_a_value_becomes_the_type(value: object, kind: Any, expected: object) -> None:
    converted = convert(value, kind)
    assert converted == expected
    assert type(converted) is type(expected)


def test_a_value_of_the_type_is_returned_itself() -> None:
    point = Point(1)
    assert convert(point, Point) is point


@pytest.mark.parametrize("value", ["4", 1.5, True, None, [4]])
def test_only_what_was_text_is_read_from_text(value: object) -> None:
    with pytest.raises(ValueError, match=r"^a whole number$"):
        convert(value, int)
    assert convert("4", int, text=True) == 4


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("yes", bool, True),
        ("OFF", bool, False),
        ("1", bool, True),
        ("false", bool, False),
        ("1e3", float, 1000.0),
        (" 4\n", int, 4),
        (" a ", str, " a "),
        ("a, b,", tuple[str, ...], ("a", "b")),
        ("1,2", list[int], [1, 2]),
    ],
)
def test_text_is_read_as_people_write_it(text: str, kind: Any, expected: object) -> None:
    assert convert(text, kind, text=True) == expected


def test_an_error_does_not_repeat_the_value() -> None:
    """It may be a secret."""
    with pytest.raises(ValueError, match=r"^red or blue$") as caught:
        convert("hunter2", Colour)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (int, "a whole number"),
        (Annotated[int, msgspec.Meta(ge=1)], "a whole number from 1"),
        (Annotated[float, msgspec.Meta(gt=0, le=9.5)], "a number above 0 to 9.5"),
        (Literal["a", "b", "c"], "a, b or c"),
        (Literal["a"], "a"),
        (int | None, "a whole number or nothing"),
        (tuple[str, ...], "a list of texts"),
        (list[float], "a list of numbers"),
        (list, "a list"),
        (tuple[str, int], "a list of 2 items: text, a whole number"),
        (tuple[tuple[str, int], ...], "a list, each item a list of 2 items: text, a whole number"),
        (dict, "a table"),
        (dict[str, float], "a table of numbers"),
        (Mapping[str, int], "a table of whole numbers"),
        (dict[str, bool], "a table, each key text and each value true or false"),
        (Point, "a value of the type Point"),
    ],
)
def test_types_are_said_in_words(kind: Any, words: str) -> None:
    assert describe(kind) == words


# Options


def test_what_is_not_set_has_its_default() -> None:
    assert read() == Options()


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("level", "9", 9),
        ("pause", 2, 2.0),
        ("retries", None, None),
        ("retries", "3", 3),
        ("folder", "a", Path("a")),
        ("folder", Path("a"), Path("a")),
        ("code", "ab", "ab"),
        ("names", "a, b", ("a", "b")),
        ("colour", "blue", Colour.BLUE),
        ("even", "4", 4),
    ],
)
def test_options_are_converted(name: str, value: object, expected: object) -> None:
    assert getattr(read(**{name: value}), name) == expected


def test_an_option_may_have_another_name_and_a_parser() -> None:
    assert read(**{"the-pair": "a=1"}).pair == ("a", 1)
    assert "did you mean 'the-pair'" in refusal(pair="a=1")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("level", "four", "a whole number from 0 to 9, not text"),
        ("level", 10, "a whole number from 0 to 9, not 10"),
        ("level", [1], "a whole number from 0 to 9, not a list"),
        ("pause", 0, "a number above 0, not 0"),
        ("pause", "nan", "a number above 0, not text"),
        ("pause", float("inf"), "a number above 0, not inf"),
        ("retries", -1, "a whole number from 0, not -1"),
        ("names", [7], "a list of texts: item 1 is 7"),
        ("strict", "perhaps", "true or false, not text"),
        ("mode", "slow", "fast, safe or both"),
        ("colour", "green", "red or blue"),
        ("code", "A", "small letters"),
        ("even", 3, "an even number, not 3"),
    ],
)
def test_a_wrong_value_names_option_owner_and_what_is_right(
    name: str, value: object, words: str
) -> None:
    assert refusal(**{name: value}) == f"option {name!r} of plugin 'demo' must be {words}"


def test_an_unknown_option_gets_the_nearest_one() -> None:
    assert refusal(levle=1) == "plugin 'demo' has no option 'levle'; did you mean 'level'?"


def positive(tickets: Any) -> bool:
    for queue, number in tickets.items():
        if number < 1:
            raise ValueError(f"queue {queue!r} has {number} tickets")
    return True


@dataclass(frozen=True, kw_only=True)
class Lottery:
    tickets: Mapping[str, int] = option(doc="Per queue.", default_factory=dict, check=positive)
    first: tuple[str, ...] = option((), min_length=1)
    pairs: tuple[tuple[str, int], ...] = option((("a", 1),))
    shares: Mapping[str, dict[str, float]] | None = option(None)
    name: str = option("x", min_length=2)
    code: str = option("a", pattern="^a")
    split: tuple[str, ...] = option((), parse=lambda text: text.split(";"))


PAIRS = "a list, each item a list of 2 items: text, a whole number"
SHARES = "a table, each key text and each value a table of numbers"


def test_a_table_may_have_a_default_that_is_made_anew() -> None:
    first, second = (read_options(Lottery, {}, owner="it") for _ in range(2))
    assert first.tickets == {}
    assert first.tickets is not second.tickets
    assert options_of(Lottery)["tickets"].default == {}
    assert not options_of(Lottery)["tickets"].required


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        (
            "tickets",
            {"web": 1, "mail": "x"},
            "a table of whole numbers: the value of 'mail' is text",
        ),
        ("tickets", {1: 1}, "a table of whole numbers: the key 1 is 1"),
        ("tickets", "mail:3", "a table of whole numbers, not text"),
        ("tickets", {"a": 0}, "a table of whole numbers: queue 'a' has 0 tickets"),
        ("first", ["a", 2.5], "a list of texts, 1 or more: item 2 is 2.5"),
        ("first", [], "a list of texts, 1 or more, not empty"),
        (
            "pairs",
            [["a", 1], ["b", "secret"]],
            PAIRS + ": in item 2, item 2 is text",
        ),
        (
            "pairs",
            [["a"]],
            PAIRS + ": in item 1, the number of items is 1",
        ),
        (
            "shares",
            {"a": {"b": []}},
            SHARES + ": in the value of 'a', the value of 'b' is a list",
        ),
        ("name", "", "text of 2 or more characters, not empty"),
        ("name", "y", "text of 2 or more characters"),
        ("code", "b", "text that matches '^a'"),
        ("split", 7, "a list of texts, not 7"),
    ],
)
def test_a_wrong_value_names_its_item_or_the_reason_of_the_check(
    name: str, value: object, words: str
) -> None:
    with pytest.raises(PluginError) as caught:
        read_options(Lottery, {name: value}, owner="'demo'")
    assert str(caught.value) == f"option {name!r} of 'demo' must be {words}"


def test_options_that_exclude_each_other_are_refused_with_their_reason() -> None:
    assert refusal(strict=True) == "plugin 'demo': strict excludes the mode fast"


def test_an_option_without_a_default_is_needed() -> None:
    with pytest.raises(PluginError, match=r"needs the option 'x': a whole number$"):
        read_options(Point, {"y": 1}, owner="the gateway")


def test_a_type_that_is_imported_for_the_checker_only_is_named() -> None:
    @dataclass
    class Wrong:
        share: Fraction

    with pytest.raises(PluginError, match="'Fraction' is not defined; import it outside of"):
        options_of(Wrong)


def test_what_an_option_means_can_be_listed() -> None:
    level = options_of(Options)["level"]
    assert (level.doc, level.default, level.kind) == ("How hard to try.", 6, int)
    assert (options_of(Options)["pause"].unit, level.allowed) == ("s", "a whole number from 0 to 9")


def test_values_that_have_their_type_and_lists_of_texts_load_no_library() -> None:
    """What programs hand over is typed already, and most variables are text: 5 ms a start."""
    program = """
import sys
from dataclasses import dataclass, field, make_dataclass
from eventmq.conversion import option, read_options
from eventmq.settings import load_settings
@dataclass
class Options:
    a: int = option(1, ge=1)
    b: str = option("", min_length=1)
    c: tuple[str, ...] = ()
read_options(Options, {"a": 2, "b": "x", "c": "a, b"}, owner="demo")
environ = {"EVENTMQ_BROKER": "tcp://127.0.0.1:1", "EVENTMQ_POOL": "threads"}
given = {"concurrency": 2, "queues": None, "broker": ("memory://",), "log_level": "info"}
load_settings(given, environ=environ)
print("msgspec" in sys.modules)
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    ("bounds", "good", "bad"),
    [
        ({"ge": 1}, 1, 0),
        ({"gt": 1}, 2, 1),
        ({"le": 1}, 1, 2),
        ({"lt": 1}, 0, 1),
        ({"min_length": 1}, "a", ""),
        ({"pattern": "^a"}, "ab", "ba"),
    ],
)
def test_bounds_are_kept(bounds: dict[str, Any], good: Any, bad: Any) -> None:
    declared = options_of(make_dataclass("One", [("one", type(good), option(good, **bounds))]))
    assert declared["one"].read(good) == good
    with pytest.raises(ValueError, match=re.escape(declared["one"].allowed)):
        declared["one"].read(bad)


@dataclass
class Numbers:
    pauses: tuple[float, ...] = option((), unit="s")
    weights: Mapping[str, float] = field(default_factory=dict)
    counts: tuple[int, ...] = ()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("pauses", [1.0, math.nan], "a list of numbers"),
        ("pauses", [1.0, math.inf], "a list of numbers"),
        ("pauses", [1.0, 1e12], "a list of numbers: the largest number is 1000000000"),
        ("weights", {"a": math.inf}, "a table of numbers"),
        ("counts", (1, 10**30), f"a list of whole numbers: the largest number is {2**63 - 1}"),
    ],
    ids=str,
)
def test_numbers_in_lists_and_tables_have_the_bounds_of_numbers(name, value, message) -> None:
    with pytest.raises(PluginError) as caught:
        read_options(Numbers, {name: value}, owner="plugin 'demo'")
    assert str(caught.value).startswith(f"option {name!r} of plugin 'demo' must be {message}")


def test_the_largest_numbers_are_allowed() -> None:
    read = read_options(Numbers, {"pauses": [1e9], "counts": [2**63 - 1]}, owner="plugin 'demo'")
    assert (read.pauses, read.counts) == ((1e9,), (2**63 - 1,))
