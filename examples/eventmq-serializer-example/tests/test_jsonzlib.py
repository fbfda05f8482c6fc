"""The serializer keeps EventMQ's contract, and its own promises."""

from __future__ import annotations

import zlib

import pytest
from eventmq import EventMQ
from eventmq.sdk import PluginError, SerializationError
from eventmq.testing import SerializerSuite

from eventmq_serializer_example import jsonzlib
from eventmq_serializer_example.jsonzlib import JsonZlib


class TestContract(SerializerSuite):
    def make(self):
        return JsonZlib()


def test_long_data_is_compressed_and_short_data_is_not() -> None:
    envelope = SerializerSuite().envelope()
    short, _ = JsonZlib().encode([1], envelope)
    long, _ = JsonZlib().encode(["x" * 10_000], envelope)
    assert short == b"j[1]"
    assert (long[:1], len(long) < 100) == (b"z", True)


def test_data_that_would_fill_the_memory_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(jsonzlib, "MAX_BYTES", 1000)
    bomb = b"z" + zlib.compress(b" " * 100_000)
    with pytest.raises(SerializationError, match="too long"):
        JsonZlib().decode(bomb, SerializerSuite().envelope())


def app(**options) -> EventMQ:
    return EventMQ(
        "test", broker="memory://", plugins=[jsonzlib],
        serializer="json-zlib", accept_content=["json-zlib"], plugin_options={"json-zlib": options},
    )  # fmt: skip


def test_arguments_and_results_travel_in_it() -> None:
    with app(level=9) as shop:
        total = shop.task(name="total")(sum)
        assert total.delay([1, 2, 3]).get(timeout=30) == 6


def test_a_level_that_zlib_does_not_have_is_refused() -> None:
    with app(level=10) as shop, pytest.raises(PluginError, match="from 1 to 9, not 10"):
        shop.task(name="total")(sum).delay([1])
