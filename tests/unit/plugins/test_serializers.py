"""The built-in serializers beyond the contract: formats, error messages and limits."""

from __future__ import annotations

import contextlib
import enum
import json
import math
import subprocess
import sys
from collections import OrderedDict
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from pathlib import PurePosixPath
from typing import NamedTuple

import attrs
import msgpack
import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventmq.errors import ContentError, PluginError, SerializationError
from eventmq.graph import Signature
from eventmq.interfaces import Envelope, PluginContext
from eventmq.plugins.serializers import dill_, json_, msgpack_
from eventmq.plugins.serializers.extended import BY_CODE, BY_TAG
from eventmq.testing import FakeClock

ENVELOPE = Envelope("id", "x")
MSGPACK = msgpack_.make_serializer(PluginContext("msgpack", {}, FakeClock()))
JSON = json_.make_serializer(PluginContext("json", {}, FakeClock()))
BOTH = pytest.mark.parametrize("serializer", [MSGPACK, JSON], ids=["msgpack", "json"])


def round_trip(serializer, value):
    return serializer.decode(serializer.encode(value, ENVELOPE)[0], ENVELOPE)


class Colour(str, enum.Enum):
    RED = "red"


class Point(NamedTuple):
    x: int
    y: int


@dataclass
class Data:
    x: int = 1


@dataclass(frozen=True)
class Frozen:
    x: int = 1


@attrs.frozen
class Attrs:
    x: int
    data: Data


class Struct(msgspec.Struct, tag="s", rename="upper"):
    x: int


class Model(pydantic.BaseModel):
    x: int = pydantic.Field(alias="X")
    page: pydantic.HttpUrl
    colours: set[Colour]

    @pydantic.computed_field
    def twice(self) -> int:
        return 2 * self.x


class Number(enum.Enum):
    ONE = 1


class Bag(set):
    """A subclass that is refused, since it would come back as a set."""


class NoRepr:
    def __repr__(self):
        raise ValueError("no")


class Own(datetime):
    """A subclass that is refused, since it would come back as its base."""


keys = st.one_of(st.text(), st.integers(), st.binary(), st.dates(), st.tuples(st.integers()))
values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False),
        st.text(),
        st.binary(),
        st.datetimes(),
        st.dates(),
        st.times(),
        st.timedeltas(),
        st.decimals(allow_nan=False),
        st.uuids(),
        st.complex_numbers(allow_nan=False),
        st.frozensets(st.one_of(st.integers(), st.tuples(st.text()))),
    ),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(keys, inner)),
    max_leaves=20,
)


@BOTH
@given(value=values)
def test_every_value_of_the_known_types_comes_back(serializer, value):
    assert round_trip(serializer, value) == value


@BOTH
@given(data=st.binary())
def test_any_bytes_decode_or_raise_a_content_error(serializer, data):
    with contextlib.suppress(ContentError):
        serializer.decode(data, ENVELOPE)


@BOTH
def test_tuples_come_back_as_lists(serializer):
    """They stay tuples where a list cannot be: as a key of a dict, and in a set."""
    assert round_trip(serializer, (1, (2,))) == [1, [2]]
    assert round_trip(serializer, {(1, (2,)): {(3, (4,))}}) == {(1, (2,)): {(3, (4,))}}
    with pytest.raises(SerializationError, match=r"tuple \(read as a list\)"):
        serializer.encode(object(), ENVELOPE)


@BOTH
def test_subclasses_and_views_of_plain_types_become_plain(serializer):
    value = [Colour.RED, Point(1, 2), OrderedDict(a=1), bytearray(b"b"), memoryview(b"m")]
    assert round_trip(serializer, value) == ["red", [1, 2], {"a": 1}, b"b", b"m"]
    assert type(round_trip(serializer, Colour.RED)) is str


@BOTH
@pytest.mark.parametrize(
    ("value", "where"),
    [
        ([[1, object()], {}], "the object at value[0][1];"),
        ([[], {"conn": {"x": [print]}}], "the builtin_function_or_method at value[1]['conn']['x']"),
        ({"a": {1, Colour}}, "the EnumType at value['a'], member <enum 'Colour'>;"),
        ({print: 1}, "key <built-in function print>;"),
        (Own(2026, 1, 2), "the Own at value;"),
        ([Bag([1])], "the Bag at value[0];"),
        ([[Own(2026, 1, 2)], {}], "the Own at value[0][0];"),
        (Data(print), "the builtin_function_or_method at value['x'];"),
        ({10**5000: print}, "the builtin_function_or_method at value[<int>];"),
        ({NoRepr(): 1}, "the NoRepr at value, key <NoRepr>;"),
    ],
)
def test_the_error_names_the_object_and_its_path(serializer, value, where):
    with pytest.raises(SerializationError) as caught:
        serializer.encode(value, ENVELOPE)
    if sys.version_info < (3, 11):
        where = where.replace("EnumType", "EnumMeta")
    assert where in str(caught.value)
    assert "Decimal" in str(caught.value)


@BOTH
def test_text_with_surrogates_is_refused(serializer):
    with pytest.raises(SerializationError, match="the str at value: UTF-8 has no surrogates"):
        serializer.encode("\ud800", ENVELOPE)
    with pytest.raises(SerializationError, match=r"str at value\['a'\]\[1\]: UTF-8 has no surrog"):
        serializer.encode({"a": ["ok", "\ud800"]}, ENVELOPE)


@BOTH
def test_a_value_that_contains_itself_is_refused(serializer):
    value = {}
    value["self"] = value
    with pytest.raises(SerializationError, match=r"dict at value\['self'\]: it contains itself"):
        serializer.encode(value, ENVELOPE)
    twice = [1]
    assert round_trip(serializer, [twice, twice]) == [[1], [1]]
    deep = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(SerializationError, match="list at value: it is nested too deeply"):
        serializer.encode(deep, ENVELOPE)


@BOTH
def test_values_that_do_not_equal_themselves_come_back(serializer):
    nan, decimal, key = round_trip(serializer, [math.nan, Decimal("NaN"), {math.nan: 1}])
    assert math.isnan(nan)
    assert decimal.is_nan()
    assert [math.isnan(name) for name in key] == [True]


@BOTH
def test_keys_of_similar_text_stay_distinct(serializer):
    value = {1: "int", "1": "text", None: 0, "None": 1, (1, "a"): 2, 10**30: 3, 1.5: 4, "": 5}
    assert round_trip(serializer, value) == value
    assert [type(key) for key in round_trip(serializer, value)] == [type(key) for key in value]


def test_codes_and_tags_never_change():
    """They are part of the format: stores keep old messages, and other languages read them."""
    table = [(code, ext.tag, ext.type.__name__) for code, ext in BY_CODE.items()]
    assert table == [
        (1, "datetime", "datetime"),
        (2, "date", "date"),
        (3, "time", "time"),
        (4, "timedelta", "timedelta"),
        (5, "decimal", "Decimal"),
        (6, "uuid", "UUID"),
        (7, "set", "set"),
        (8, "frozenset", "frozenset"),
        (9, "int", "int"),
        (10, "complex", "complex"),
    ]
    assert list(BY_TAG) == [tag for _, tag, _ in table]


def test_msgpack_of_plain_data_is_plain_msgpack():
    value = [["a@b.c", 1], {"subject": "hi", "raw": b"x"}]
    assert MSGPACK.encode(value, ENVELOPE)[0] == msgpack.packb(value)


def test_msgpack_bounds_sets_within_sets():
    """Each level takes stack of the decoder, and no message may crash a process."""
    data = msgpack.packb([])
    for _ in range(200):
        data = msgpack.packb(msgpack.ExtType(8, b"\x91" + data))
    with pytest.raises(SerializationError, match="too many levels"):
        MSGPACK.decode(data, ENVELOPE)
    value = frozenset()
    for _ in range(17):
        value = frozenset({value})
    with pytest.raises(SerializationError, match="nested too deeply"):
        MSGPACK.encode(value, ENVELOPE)


def test_msgpack_with_an_unknown_extension_is_refused():
    with pytest.raises(SerializationError, match="KeyError: 99"):
        MSGPACK.decode(msgpack.packb(msgpack.ExtType(99, b"\x01")), ENVELOPE)


def test_json_of_plain_data_is_plain_json():
    value = {"a": [1, "ü", None, True, 1.5]}
    assert JSON.encode(value, ENVELOPE)[0] == '{"a":[1,"ü",null,true,1.5]}'.encode()
    assert JSON.decode(b' {"a": 1} ', ENVELOPE) == {"a": 1}


def test_json_tags_the_types_that_json_lacks():
    data = json.loads(JSON.encode([b"\x00", {1: 2}, 2**70, float("inf")], ENVELOPE)[0])
    assert data == [
        {"$eventmq": "bytes", "value": "AA=="},
        {"$eventmq": "dict", "value": [[1, 2]]},
        {"$eventmq": "int", "value": hex(2**70)},
        {"$eventmq": "float", "value": "inf"},
    ]


@pytest.mark.parametrize("tag", ["no such", 7, None, [1]])
def test_json_with_an_unknown_tag_is_refused(tag):
    with pytest.raises(SerializationError, match="decoded as json"):
        JSON.decode(json.dumps({"$eventmq": tag, "value": 1}).encode(), ENVELOPE)


def test_json_nested_too_deeply_is_refused():
    with pytest.raises(SerializationError, match="RecursionError"):
        JSON.decode(b"[" * 100_000, ENVELOPE)


# dill


def make_dill(**options):
    return dill_.make_serializer(PluginContext("dill", options, FakeClock()))


def test_dill_without_a_key_says_how_to_make_one():
    with pytest.raises(PluginError, match=r"no key to sign with; make a key with python -c"):
        make_dill()


def test_dill_refuses_a_short_key():
    with pytest.raises(PluginError, match="less than 32 characters"):
        make_dill(keys=["k" * 32, "short"])


def test_dill_reads_keys_from_a_file(tmp_path):
    path = tmp_path / "keys"
    path.write_text("a" * 32 + "\n" + "b" * 32 + "\n", encoding="utf-8")
    assert make_dill(keys_file=str(path))._keys == [b"a" * 32, b"b" * 32]
    with pytest.raises(PluginError, match="keys_file cannot be read"):
        make_dill(keys_file=str(tmp_path / "none"))


@pytest.mark.parametrize("age", [0, -1, 86401, float("nan")])
def test_dill_refuses_an_age_beyond_the_dedupe_window(age):
    """After the window the broker would accept a replayed message."""
    with pytest.raises(PluginError, match="signature_max_age"):
        make_dill(keys=["k" * 32], signature_max_age=age)


@settings(max_examples=50)
@given(value=values)
def test_every_value_comes_back_from_dill_with_its_types(value):
    envelope = Envelope("id", "x", created=FakeClock().now())
    data, signature = make_dill(keys=["k" * 32]).encode(value, envelope)
    decoded = make_dill(keys=["k" * 32]).decode(data, replace(envelope, signature=signature))
    assert (decoded, type(decoded)) == (value, type(value))


def test_the_error_of_dill_names_the_object_and_its_path():
    with pytest.raises(
        SerializationError, match=r"the generator at value\[1\]\['rows'\]\[1\]: Type"
    ):
        make_dill(keys=["k" * 32]).encode([[1], {"rows": (1, (n for n in ()))}], ENVELOPE)


def test_dill_is_imported_with_the_first_serializer_of_it():
    code = (
        "import sys, eventmq.plugins.serializers.dill_ as d; print('dill' in sys.modules);"
        "from eventmq.interfaces import PluginContext as C; from eventmq.clock import SystemClock;"
        "d.make_serializer(C('dill', {'keys': ['k' * 32]}, SystemClock()));"
        "print('dill' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert shown.stdout.split() == ["False", "True"]


@BOTH
@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Data([Data(2)]), {"x": [{"x": 2}]}),
        (Attrs(1, Data(date(2026, 1, 2))), {"x": 1, "data": {"x": date(2026, 1, 2)}}),
        (Struct(1), {"type": "s", "X": 1}),
        (
            Model(X=1, page="https://x.org", colours={Colour.RED}),
            {"x": 1, "page": "https://x.org/", "colours": {"red"}},
        ),
        ([Colour.RED, Number.ONE], ["red", 1]),
        ({Number.ONE: 2}, {1: 2}),
        ({Number.ONE}, {1}),
        (PurePosixPath("a/b"), "a/b"),
    ],
)
def test_objects_with_a_plain_form_are_encoded_in_it(serializer, value, plain):
    """All fields arrive and keep their types; annotations turn them back into the object."""
    assert round_trip(serializer, value) == plain


@BOTH
def test_a_secret_of_pydantic_is_not_sent_as_asterisks(serializer):
    """Such a value is refused instead of lost. A field serializer can define its form."""

    class Login(pydantic.BaseModel):
        password: pydantic.SecretStr

    with pytest.raises(SerializationError, match=r"the SecretStr at value\['password'\];"):
        serializer.encode(Login(password="x"), ENVELOPE)


@BOTH
def test_a_set_refuses_objects_that_are_encoded_as_dicts(serializer):
    """A dict is not hashable, so the set could not be decoded."""
    with pytest.raises(SerializationError, match="a set has a Frozen, which is written as a dict"):
        serializer.encode({Frozen()}, ENVELOPE)


@BOTH
def test_an_object_that_contains_itself_is_refused(serializer):
    loop = Data()
    loop.x = [loop]
    with pytest.raises(SerializationError, match="it contains itself"):
        serializer.encode(loop, ENVELOPE)


@BOTH
def test_a_signature_is_no_argument(serializer):
    """As a dataclass it would arrive as a dict."""
    with pytest.raises(SerializationError, match="the Signature at value"):
        serializer.encode(Signature("add"), ENVELOPE)
