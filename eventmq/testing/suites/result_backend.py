"""Conformance suite for result backends."""

# ruff: noqa: S101 - suites are methods that assert

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from eventmq.errors import ResultTooLarge, ResultUnavailable

if TYPE_CHECKING:
    from eventmq.interfaces import ResultBackend

__all__ = ["ResultBackendSuite"]

#: Most bytes of a reference.
MAX_REFERENCE = 1024


class ResultBackendSuite:
    """Subclass it, return your backend from `make`, and define `pass_time` if you can.

    ``shared`` is False if only the object that put a result can read it.
    """

    shared = True

    def make(self) -> ResultBackend:
        """Return the backend: each time another object for the same results."""
        raise NotImplementedError("define make() in your subclass: it returns your result backend")

    def pass_time(self, seconds: float) -> None:
        """Advance the clock of the backend, without waiting."""
        pytest.skip("pass_time() is not defined")

    @pytest.fixture
    def backend(self) -> ResultBackend:
        """Return the backend; skip the test if it is inline: put and get are not called then."""
        backend = self.make()
        if backend.inline:
            pytest.skip("results travel inline: put and get are not called")
        return backend

    def test_inline_and_local_are_bools(self) -> None:
        """The worker reads them once, at its start."""
        backend = self.make()
        assert type(backend.inline) is bool
        assert type(backend.local) is bool

    @pytest.mark.parametrize("data", [b"", b"\x00\xff", b"x" * 1_000_000], ids=len)
    def test_a_result_comes_back(self, backend: ResultBackend, data: bytes) -> None:
        """The result may have any bytes and any length."""
        reference = backend.put("job-1", data, 60.0)
        assert type(reference) is bytes
        assert backend.get(reference) == data

    def test_each_reference_has_its_own_result(self, backend: ResultBackend) -> None:
        """It can be read more than once."""
        references = [backend.put(f"job-{i}", b"%d" % i, 60.0) for i in range(100)]
        expected = [b"%d" % i for i in range(100)]
        assert [backend.get(reference) for reference in references] == expected
        assert [backend.get(reference) for reference in references] == expected

    def test_putting_again_is_safe(self, backend: ResultBackend) -> None:
        """A worker repeats a put without an answer, and a job may run twice."""
        first = backend.put("job-1", b"first", 60.0)
        assert backend.get(backend.put("job-1", b"second", 60.0)) == b"second"
        assert backend.get(first) in {b"first", b"second"}

    def test_another_object_can_read_a_result(self, backend: ResultBackend) -> None:
        """The worker puts it and the client gets it, in different processes."""
        if not self.shared:
            pytest.skip("this backend keeps results in the object itself")
        assert self.make().get(backend.put("job-1", b"data", 60.0)) == b"data"

    def test_a_reference_is_short(self, backend: ResultBackend) -> None:
        """It travels instead of the result, and the broker stores it."""
        assert len(backend.put("j" * 255, b"x" * 10_000, 60.0)) <= MAX_REFERENCE

    def test_a_result_is_kept_or_refused_whatever_its_size(self, backend: ResultBackend) -> None:
        """A refusal names the size; a part of a result is never returned."""
        data = b"0123456789abcdef" * (4 * 1024 * 1024)
        refusal = ""
        try:
            stored = backend.get(backend.put("job-1", data, 60.0))
        except ResultTooLarge as error:
            refusal = str(error)
        assert str(len(data)) in refusal or stored == data

    def test_closing_one_object_does_not_affect_others(self, backend: ResultBackend) -> None:
        """Closing twice is legal."""
        other = self.make()
        reference = other.put("job-1", b"data", 60.0)
        backend.close()
        backend.close()
        assert other.get(reference) == b"data"

    def test_an_unknown_reference_raises_result_unavailable(self, backend: ResultBackend) -> None:
        """A reference comes from the network and may have any bytes."""
        for reference in (b"", b"nothing", b"\xff" * 100):
            with pytest.raises(ResultUnavailable):
                backend.get(reference)

    def test_a_result_is_gone_after_its_ttl(self, backend: ResultBackend) -> None:
        """The ttl is in seconds; other results stay."""
        short = backend.put("job-1", b"1", 10.0)
        long = backend.put("job-2", b"2", 1000.0)
        self.pass_time(11.0)
        with pytest.raises(ResultUnavailable):
            backend.get(short)
        assert backend.get(long) == b"2"

    def test_threads_can_share_it(self, backend: ResultBackend) -> None:
        """One object serves all threads of a process."""

        def work(number: int) -> bool:
            data = b"%d" % number
            return backend.get(backend.put(f"job-{number}", data, 60.0)) == data

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(work, range(200)))
