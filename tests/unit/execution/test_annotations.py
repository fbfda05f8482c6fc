"""Arguments and results become what the annotations of a function say, or the error says why not.

Values are encoded and decoded by the default serializer first, as on their way to a worker.
"""

from __future__ import annotations

import inspect
import logging
from collections import OrderedDict
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum
from pathlib import Path, PurePosixPath
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NewType,
    NoReturn,
    Optional,
    Protocol,
    TypedDict,
    TypeVar,
    Union,
)
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest

from eventmq.errors import ArgumentError, SerializationError, SettingsError
from eventmq.execution.annotations import RESULT, make_plans
from eventmq.interfaces import Envelope
from eventmq.plugins.serializers.json_ import Json
from eventmq.plugins.serializers.msgpack_ import Msgpack

if TYPE_CHECKING:
    from fractions import Fraction

ENVELOPE = Envelope("id", "msgpack")

ID = UUID(int=7)
NOON = datetime(2026, 1, 2, 12, tzinfo=timezone.utc)


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Size(IntEnum):
    SMALL = 1


class Odd(Enum):
    PAIR = (1, 2)
    HALF = 0.5


Many = Enum("Many", [(f"N{n}", f"n{n}") for n in range(12)])
TEN = ", ".join(repr(f"n{n}") for n in range(10))


class Right(Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    y: int = 0


class Row(TypedDict):
    id: UUID
    color: Color


@dataclass
class Line:
    item: str
    price: Decimal
    color: Color = Color.RED


@dataclass(frozen=True)
class Order:
    id: UUID
    lines: list[Line]
    at: datetime | None = None
    size: tuple[int, int] = (0, 0)
    total: Decimal = field(default=Decimal(0), init=False)


@dataclass
class Positive:
    number: int

    def __post_init__(self) -> None:
        if self.number <= 0:
            raise ValueError("number must be more than 0")


@attrs.define
class Customer:
    name: str
    home: Path
    _secret: int = attrs.field(default=3, validator=attrs.validators.ge(0))


class Card(msgspec.Struct, tag=True, rename="camel"):
    card_number: int


class Cash(msgspec.Struct, tag=True):
    paid: Decimal


class Item(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(populate_by_name=False)

    sku: str = pydantic.Field(alias="SKU")
    page: pydantic.HttpUrl | None = None
    tags: set[str] = set()
    color: Color = Color.RED
    parts: list[Item] = []

    @pydantic.computed_field
    def length(self) -> int:
        return len(self.sku)


class Plain:
    """A class that nothing can convert to."""


class Speaks(Protocol):
    def speak(self) -> str: ...


UserId = NewType("UserId", int)
T = TypeVar("T")


def convert(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return a function's only argument as a worker has it."""
    plan, _ = make_plans("shop.t", function, inspect.signature(function))
    for serializer in (Msgpack(), Json()):
        body, _ = serializer.encode([args, kwargs], ENVELOPE)
        decoded, named = serializer.decode(body, ENVELOPE)
        if plan is not None:
            plan.convert(args, kwargs)  # as the client does
            decoded, named = plan.convert(decoded, named)
    values = [*decoded, *named.values()]
    return values[0] if len(values) == 1 else values


def taking(kind: Any, default: Any = inspect.Parameter.empty) -> Callable[..., Any]:
    def function(value=default): ...

    if default is inspect.Parameter.empty:

        def function(value): ...

    function.__annotations__ = {"value": kind}
    return function


ORDER = Order(ID, [Line("pen", Decimal("1.50"), Color.BLUE)], NOON, (1, 2))
CUSTOMER = Customer("ada", Path("/home/ada"), 4)
ITEM = Item(SKU="a", page="https://x.org/", tags={"t"}, parts=[Item(SKU="b")])


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Order, ORDER),
        (Order | None, ORDER),
        (Optional[Order], None),  # noqa: UP045 - both ways of writing it
        (list[Order], [ORDER, ORDER]),
        (dict[str, Order], {"a": ORDER}),
        (dict[UUID, list[Line]], {ID: ORDER.lines}),
        (Sequence[Line], ORDER.lines),
        (Iterable[Line], ORDER.lines),
        (Mapping[str, Path], {"a": Path("b")}),
        (OrderedDict[str, Path], {"a": Path("b")}),
        (Customer, CUSTOMER),
        (Card, Card(5)),
        (Card | Cash, Cash(Decimal("2.5"))),
        (Item, ITEM),
        (Item | None, ITEM),
        (list[Item], [ITEM]),
        (Color, Color.BLUE),
        (Color | None, None),
        (Size, Size.SMALL),
        (Odd, Odd.PAIR),
        (list[Odd], [Odd.HALF, Odd.PAIR]),
        (Right, Right.READ | Right.WRITE),
        (Path, Path("a/b")),
        (PurePosixPath, PurePosixPath("a")),
        (list[Path | None], [Path("a"), None]),
        (str | Path, Path("a")),
        (list[int] | Path, [1]),
        (list[int] | Path, Path("a")),
        (dict[str, int | Path], {"a": Path("b"), "c": 3}),
        (Color | str, "green"),
        (Color | str, Color.RED),
        (datetime | str, "2026-01-02"),
        (datetime | str, NOON),
        (Union[Order, dict[str, int], None], ORDER),  # noqa: UP007 - as above
        (Union[Order, dict[str, int]], {"a": 3}),  # noqa: UP007
        (tuple, (1, "a")),
        (tuple[int, str], (1, "a")),
        (tuple[Color, ...], (Color.RED,)),
        (Point, Point(1, 2)),
        (Row, {"id": ID, "color": Color.BLUE}),
        (set[Color], {Color.RED}),
        (frozenset[int], frozenset({1})),
        (datetime, NOON),
        (date, date(2026, 1, 2)),
        (date, NOON),
        (time, time(3)),
        (timedelta, timedelta(days=3)),
        (UUID, ID),
        (Decimal, Decimal("1.1")),
        (bytes, b"\0"),
        (list[bytes], [b"aGVs"]),
        (complex, 1j),
        (int, True),
        (int, Size.SMALL),
        (float, 1),
        (float | None, 1.5),
        (str, "a"),
        (bool, False),
        (None, None),
        (Literal["a", 1], 1),
        (Literal[True, "auto"], True),
        (Literal[Color.RED], Color.RED),
        (Annotated[float, "seconds"], 1),
        (Annotated[int, msgspec.Meta(ge=0)], 0),
        (Annotated[list[Line], {"not": "hashable"}], ORDER.lines),
        (UserId, 3),
        (UserId | None, 3),
        (list[T], [1]),
        (Any, {"a": 1}),
        (object, [1]),
        (T, 1),
        (any, 3),
        (Speaks, {"a": 1}),
        (list[Speaks], [3]),
    ],
)
def test_a_value_arrives_as_what_it_was(kind: Any, value: object) -> None:
    """Values of all annotations come back through both serializers with the same type."""
    converted = convert(taking(kind), value)
    assert converted == value
    if kind is not int:
        assert type(converted) is type(value)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (UUID, str(ID), ID),
        (datetime, "2026-01-02T12:00:00Z", NOON),
        (Decimal, 3, Decimal(3)),
        (Decimal, "1.5", Decimal("1.5")),
        (timedelta, "PT5S", timedelta(seconds=5)),
        (Color, "red", Color.RED),
        (Path, "a", Path("a")),
        (Line, {"item": "pen", "price": "1.5"}, Line("pen", Decimal("1.5"))),
        (Item, {"SKU": "a", "tags": ["t"]}, Item(SKU="a", tags={"t"})),
        (set[int], [1, 2, 1], {1, 2}),
        (Customer, {"name": "a", "home": "b"}, Customer("a", Path("b"))),
    ],
)
def test_plain_data_does_for_what_it_says(kind: Any, value: object, expected: object) -> None:
    """Callers without Python, or without the class, send plain data."""
    assert convert(taking(kind), value) == expected


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (int, "5", "argument 'value': expected int, got str"),
        (int, 5.0, "argument 'value': expected int, got float"),
        (str, None, "argument 'value': expected str, got None"),
        (str | None, 5, "argument 'value': expected str | None, got int"),
        (bool, 1, "argument 'value': expected bool, got int"),
        (bytes, "aGVs", "argument 'value': expected bytes, got str"),
        (list[bytes], ["aGVs"], "argument 'value[0]': expected bytes, got str"),
        (list[int], "abc", "argument 'value': expected list[int], got str"),
        (list[int], [1, "2"], "argument 'value[1]': expected int, got str"),
        (Order, 5, "argument 'value': expected Order, got int"),
        (Order, {}, "argument 'value': object missing required field id"),
        (
            list[Order],
            [{"id": ID, "lines": [{"item": "pen", "price": [1]}]}],
            "argument 'value[0].lines[0].price': expected Decimal, got list",
        ),
        (Color, "secret", "argument 'value': not one of the values of Color: 'red', 'blue'"),
        (list[Color], ["secret"], "argument 'value[0]': not one of its values"),
        (Odd, "secret", "argument 'value': not one of the values of Odd: (1, 2), 0.5"),
        (Color | None, "secret", "argument 'value': not one of the values of Color | None: 'red'"),
        (Many, "secret", f"argument 'value': not one of the values of Many: {TEN} and 2 more"),
        (
            Literal["a", "b"],
            "secret",
            "argument 'value': not one of the values of Literal['a', 'b']: 'a', 'b'",
        ),
        (Literal[True, "a"], 1, "argument 'value': not one of True, 'a'"),
        (list[Literal[True]], [1], "argument 'value[0]': not one of True"),
        (UUID, "secret", "argument 'value': invalid UUID"),
        (Annotated[int, msgspec.Meta(ge=0)], -1, "argument 'value': expected int >= 0"),
        (Positive, {"number": 0}, "argument 'value': number must be more than 0"),
        (Item, {"SKU": {}}, "argument 'value': SKU: Input should be a valid string"),
        (list[Item], [{"SKU": "a", "tags": 3}], "argument 'value[0]': tags: Input should be"),
        (Path, 5, "argument 'value': expected Path, got int"),
        (str | Path, 5, "argument 'value': expected str | Path, got int"),
        (Plain, {"a": 1}, "argument 'value': expected Plain, got dict"),
        (tuple[int, int], [1], "argument 'value': expected list of length 2, got 1"),
    ],
)
def test_the_error_says_which_argument_what_was_expected_and_what_came(
    kind: Any, value: object, message: str
) -> None:
    """The value itself, which may be a secret, is not in the message."""
    with pytest.raises(ArgumentError) as caught:
        convert(taking(kind), value)
    assert str(caught.value).startswith(f"task shop.t: {message}"), str(caught.value)
    assert "secret" not in str(caught.value)
    assert (caught.value.task, caught.value.argument) == ("shop.t", "value")
    assert isinstance(caught.value, TypeError)


def test_a_class_of_the_same_name_is_said_to_be_another() -> None:
    """It may be a web framework's own model; a subclass would lose its additional fields."""
    other = type("Line", (), {"__module__": "shop.web"})
    plan, _ = make_plans("t", taking(Line), inspect.signature(taking(Line)))
    assert plan is not None
    with pytest.raises(ArgumentError, match="expected Line, got another class of that name, shop"):
        plan.convert((other(),), {})
    with pytest.raises(ArgumentError, match="expected Line, got Discounted"):
        plan.convert((type("Discounted", (Line,), {})("pen", Decimal(1)),), {})


def test_every_kind_of_parameter_is_converted() -> None:
    """This includes positional and keyword arguments, ``*args`` and ``**kwargs``."""

    def function(a: Path, /, b: Color, *rest: Line, c: UUID, d=0, **others: Decimal): ...

    line = Line("pen", Decimal(1))
    values = [Path("a"), Color.RED, line, line]
    assert convert(function, *values, c=ID, d="x", e=Decimal(2)) == [*values, ID, "x", Decimal(2)]
    for args, named, name in (
        ((3, "red"), {"c": ID}, "a"),
        (("a", 3), {"c": ID}, "b"),
        (("a", "red", 3), {"c": ID}, "rest"),
        (("a", "red"), {"c": 3}, "c"),
        (("a", "red"), {"c": ID, "e": []}, "e"),
    ):
        with pytest.raises(ArgumentError) as caught:
            convert(function, *args, **named)
        assert caught.value.argument == name


def test_none_is_taken_where_it_is_the_default() -> None:
    """Many write ``x: int = None``."""
    assert convert(taking(int, None), None) is None
    assert convert(taking(Order, None), None) is None
    with pytest.raises(ArgumentError, match="expected int, got None"):
        convert(taking(int, 3), None)


def test_a_result_that_is_not_known_yet_is_no_misfit() -> None:
    """The first argument of a link of a chain is checked where it arrives."""

    def function(first: Order, second: int): ...

    plan, _ = make_plans("t", function, inspect.signature(function))
    assert plan is not None
    plan.convert((RESULT, 3), {})
    with pytest.raises(ArgumentError, match="'second'"):
        plan.convert((RESULT, "3"), {})


def test_nothing_is_done_where_nothing_is_said() -> None:
    """A function without annotations has no plan: its jobs cost nothing more."""

    def function(a, b=3, *c, **d): ...

    assert make_plans("t", function, inspect.signature(function)) == (None, None)


def test_builtins_are_passed_on_as_they_are() -> None:
    """The arguments are the same objects, and the second call looks at their types alone."""

    def function(a: int, b: str | None, c: float): ...

    plan, results = make_plans("t", function, inspect.signature(function))
    assert plan is not None
    assert results is None
    args = (1, None, 2)
    plan.convert(args, {})
    assert plan.convert(args, {}) == (args, {})
    assert plan.convert(args, {})[0] is args


def test_annotations_for_type_checkers_only_are_left_out_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Others of the same function are followed, and so are common names of typing."""

    def function(a: Fraction, b: Color, c: MutableSequence[Color]) -> Fraction: ...  # noqa: F821

    with caplog.at_level(logging.WARNING):
        converted = convert(function, [1], Color.RED, [Color.BLUE])
    assert converted == [[1], Color.RED, [Color.BLUE]]
    assert [record.getMessage() for record in caplog.records] == [
        f"task shop.t: the annotation of {what} cannot be resolved at run time (name 'Fraction' is "
        "not defined), so values are not converted to it: import it outside of `if TYPE_CHECKING`"
        for what in ("the argument 'a'", "the result")
    ]


@dataclass
class Hidden:
    value: Fraction


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Order | Line, "Order and Line cannot be told apart once they are dicts"),
        (list[Order | Customer], "Order and Customer cannot be told apart"),
        (Item | Line | None, "Item and Line cannot be told apart"),
        (Hidden, "name 'Fraction' is not defined; import it outside of `if TYPE_CHECKING`"),
    ],
)
def test_what_cannot_be_turned_back_is_said_before_any_job_runs(kind: Any, message: str) -> None:
    """Nothing is guessed: a dict does not say which of two classes it was."""
    function = taking(kind)
    with pytest.raises(SettingsError) as caught:
        make_plans("shop.t", function, inspect.signature(function))
    start = "task shop.t: values cannot be converted to the annotation of the argument 'value', "
    assert str(caught.value).startswith(start)
    assert message in str(caught.value)


def returned(function: Callable[..., Any], value: object) -> Any:
    """Return a result as the client has it."""
    _, plan = make_plans("shop.t", function, inspect.signature(function))
    body, _ = Msgpack().encode(value, ENVELOPE)
    plain = Msgpack().decode(body, ENVELOPE)
    return plain if plan is None else plan.result("j1", plain)


def test_results_have_the_type_of_their_annotation() -> None:
    """This holds for functions, coroutines, and functions that return an awaitable."""

    def plain() -> Order: ...

    async def awaited() -> list[Order]: ...

    def awaitable() -> Awaitable[Order]: ...

    assert returned(plain, ORDER) == ORDER
    assert returned(awaited, [ORDER]) == [ORDER]
    assert returned(awaitable, ORDER) == ORDER


def test_a_result_that_does_not_fit_is_not_lost() -> None:
    """The error says where it does not fit, and how to get it all the same."""

    def function() -> Order: ...

    with pytest.raises(SerializationError) as caught:
        returned(function, {"id": ID, "lines": [{"item": 3}]})
    assert str(caught.value) == (
        "the result of job j1 does not fit the annotation of task shop.t at lines[0].item: "
        "expected str, got int; app.job(id) gives it as it was serialised"
    )


def test_plain_results_are_not_looked_at() -> None:
    """A job that has done its work does not fail for a sloppy annotation."""

    def nothing() -> None: ...

    def number() -> int: ...

    def never() -> NoReturn: ...

    for function in (nothing, number, never):
        assert make_plans("t", function, inspect.signature(function)) == (None, None)


def test_parts_of_streams_have_the_type_of_their_annotation() -> None:
    """The first argument of a generator's annotation is that of its parts, the third its result."""

    def full() -> Generator[Order, None, Color]:
        yield ORDER
        return Color.RED

    def short() -> Iterator[Order]:
        yield ORDER

    async def awaited() -> AsyncIterator[Order]:
        yield ORDER

    part = Msgpack().decode(Msgpack().encode(ORDER, ENVELOPE)[0], ENVELOPE)
    for function in (full, short, awaited):
        _, plan = make_plans("t", function, inspect.signature(function))
        assert plan is not None
        assert plan.part("j1", part) == ORDER
        assert plan.result("j1", "red") is (Color.RED if function is full else "red") or (
            function is not full
        )
        with pytest.raises(SerializationError, match="a part of job j1 does not fit"):
            plan.part("j1", 3)
