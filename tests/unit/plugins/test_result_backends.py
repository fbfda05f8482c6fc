"""The built-in result backends beyond the contract."""

from __future__ import annotations

import pytest

from eventmq.errors import PluginError, ResultTooLarge, ResultUnavailable
from eventmq.interfaces import PluginContext
from eventmq.plugins.result_backends import broker, memory
from eventmq.testing import FakeClock


def make_memory(**options):
    return memory.make_backend(PluginContext("memory", options, FakeClock()))


def test_the_broker_s_backend_is_inline_and_has_no_references():
    backend = broker.make_backend(PluginContext("broker", {}, FakeClock()))
    assert backend.inline is True
    assert backend.put("job-1", b"x", 1.0) == b"x"
    with pytest.raises(ResultUnavailable, match="ask the broker"):
        backend.get(b"x")


def test_memory_is_bounded_and_drops_the_oldest():
    backend = make_memory(max_bytes=10)
    first, second, third = (backend.put(f"job-{i}", b"x" * 4, 60.0) for i in range(3))
    assert backend.get(second) == backend.get(third) == b"xxxx"
    with pytest.raises(ResultUnavailable, match="'job-0' is not in this process"):
        backend.get(first)


def test_a_result_that_is_put_again_is_counted_once():
    backend = make_memory(max_bytes=10)
    for _ in range(9):
        reference = backend.put("job-1", b"x" * 4, 60.0)
    other = backend.put("job-2", b"y" * 4, 60.0)
    assert (backend.get(reference), backend.get(other)) == (b"xxxx", b"yyyy")


def test_a_result_larger_than_the_limit_is_refused_and_replaces_nothing():
    backend = make_memory(max_bytes=10)
    first = backend.put("job-0", b"x" * 10, 60.0)
    with pytest.raises(ResultTooLarge, match="11 bytes; the result backend 'memory' keeps 10"):
        backend.put("job-1", b"x" * 11, 60.0)
    assert backend.get(first) == b"x" * 10


def test_a_limit_of_zero_is_refused():
    with pytest.raises(PluginError, match=r"max_bytes.* from 1"):
        make_memory(max_bytes=0)
