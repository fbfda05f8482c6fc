"""The built-in serializers keep the contract."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from types import SimpleNamespace

import pytest

from eventmq.errors import SignatureError
from eventmq.interfaces import PluginContext
from eventmq.plugins.serializers import dill_, json_, msgpack_
from eventmq.testing import FakeClock, SerializerSuite

EAST = timezone(timedelta(hours=5, minutes=30))

#: What msgpack and json carry beyond plain data.
EXTENDED = (
    b"",
    b"\x00\xff",
    datetime(2026, 1, 2, 3, 4, 5, 678901),  # noqa: DTZ001 - without a zone on purpose
    datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc),
    datetime(2026, 1, 2, 3, 4, 5, tzinfo=EAST),
    date(2026, 1, 2),
    time(3, 4, 5, 678901),
    time(3, 4, tzinfo=EAST),
    timedelta(days=-3, seconds=5, microseconds=7),
    timedelta.max,
    Decimal("-1.50"),
    Decimal("1E+400"),
    uuid.UUID("0190a0b0-c0d0-7000-8000-000000000000"),
    {1, 2, 3},
    set(),
    frozenset({"a", (1, (2, 3)), frozenset({4})}),
    complex(1.5, -2.0),
    2**64,
    -(2**4000),
    float("inf"),
    float("-inf"),
    {1: "int", None: "none", 1.5: "float", b"b": "bytes"},
    {(1, (2, 3)): "tuple", date(2026, 1, 2): "date"},
    {"$eventmq": "not a tag", "value": 1},
    {"deep": [{"er": [Decimal(1), {2}]}]},
)


class TestMsgpack(SerializerSuite):
    values = EXTENDED

    def make(self):
        return msgpack_.make_serializer(PluginContext("msgpack", {}, FakeClock()))


class TestJson(SerializerSuite):
    values = EXTENDED

    def make(self):
        return json_.make_serializer(PluginContext("json", {}, FakeClock()))


class TestDill(SerializerSuite):
    values = (*EXTENDED, (1, (2,)), timezone.utc, ValueError)

    @pytest.fixture(autouse=True)
    def _clock(self):
        self.clock = FakeClock()

    def make(self, *keys):
        options = {"keys": keys or ["k" * 32]}
        return dill_.make_serializer(PluginContext("dill", options, self.clock))

    def envelope(self):
        return replace(super().envelope(), created=self.clock.now())

    def test_a_function_comes_back(self):
        assert self.round_trip(lambda x: x + 1)(2) == 3

    def test_a_new_key_takes_over_from_an_old_one(self):
        """The first key signs, all verify."""
        old, both, new = self.make("o" * 32), self.make("n" * 32, "o" * 32), self.make("n" * 32)
        for signer, readers, strangers in ((old, (old, both), (new,)), (both, (both, new), (old,))):
            data, signature = signer.encode([1], self.envelope())
            signed = replace(self.envelope(), signature=signature)
            assert [reader.decode(data, signed) for reader in readers] == [[1]] * len(readers)
            for stranger in strangers:
                with pytest.raises(SignatureError, match="another key"):
                    stranger.decode(data, signed)

    def test_an_old_signature_is_refused(self):
        envelope = self.envelope()
        data, signature = self.make().encode([1], envelope)
        signed = replace(envelope, signature=signature)
        self.clock.advance(86400.0)
        assert self.make().decode(data, signed) == [1]
        self.clock.advance(1.0)
        with pytest.raises(SignatureError, match="86401 s old"):
            self.make().decode(data, signed)

    def test_a_signature_of_a_later_time_is_refused(self):
        """It would be taken for longer than signatures may; clocks differ by minutes at most."""
        now = self.clock.now()
        for ahead, accepted in ((300.0, True), (301.0, False), (1e9, False)):
            envelope = replace(self.envelope(), created=now + ahead)
            data, signature = self.make().encode([1], envelope)
            signed = replace(envelope, signature=signature)
            if accepted:
                assert self.make().decode(data, signed) == [1]
            else:
                with pytest.raises(SignatureError, match="ahead of this clock"):
                    self.make().decode(data, signed)

    def test_an_envelope_without_a_time_is_too_old(self):
        envelope = replace(self.envelope(), created=0.0)
        data, signature = self.make().encode([1], envelope)
        with pytest.raises(SignatureError, match="old"):
            self.make().decode(data, replace(envelope, signature=signature))

    def test_nothing_is_decoded_before_the_signature_is_right(self):
        """Decoding would run code that the data names."""
        touched = []
        library = SimpleNamespace(dumps=lambda value: b"data", loads=touched.append)
        serializer = dill_.Dill(library, self.clock, ["k" * 32], 60.0)
        for signature in ("", "0" * 64):
            with pytest.raises(SignatureError):
                serializer.decode(b"data", replace(self.envelope(), signature=signature))
        assert touched == []
