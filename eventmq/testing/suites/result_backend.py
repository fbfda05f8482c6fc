"""What every result backend must do."""

# ruff: noqa: S101 - suites are methods that assert

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from eventmq.errors import ResultTooLarge, ResultUnavailable

if TYPE_CHECKING:
    from eventmq.interfaces import ResultBackend

__all__ = ["ResultBackendSuite"]

#: Bytes that a reference may have.
LONGEST_REFERENCE = 1024


class ResultBackendSuite:
    """Subclass it and return your backend from `make`; give `pass_time` if you can.

    ``shared`` is False for a backend that only the object which put a result can read.
    """

    shared = True

    def make(self) -> ResultBackend:
        """Return the backend, another object for the same results each time."""
        raise NotImplementedError("define make() in your subclass: it returns your result backend")

    def pass_time(self, seconds: float) -> None:
        """Let time pass for the backend that `make` returned, without waiting for it."""
        pytest.skip("this suite was not told how to let time pass")

    @pytest.fixture
    def backend(self) -> ResultBackend:
        """Return the backend; skip what an inline one is never asked for."""
        backend = self.make()
        if backend.inline:
            pytest.skip("results travel inline: put and get are not called")
        return backend

    def test_inline_is_said_once_and_for_all(self) -> None:
        """The worker decides by it, once, where it is wired."""
        backend = self.make()
        assert type(backend.inline) is bool
        assert type(backend.local) is bool

    @pytest.mark.parametrize("data", [b"", b"\x00\xff", b"x" * 1_000_000], ids=len)
    def test_a_result_comes_back(self, backend: ResultBackend, data: bytes) -> None:
        """Any bytes, any length."""
        reference = backend.put("job-1", data, 60.0)
        assert type(reference) is bytes
        assert backend.get(reference) == data

    def test_results_of_jobs_are_kept_apart(self, backend: ResultBackend) -> None:
        """One reference, one result, as often as it is asked for."""
        references = [backend.put(f"job-{i}", b"%d" % i, 60.0) for i in range(100)]
        expected = [b"%d" % i for i in range(100)]
        assert [backend.get(reference) for reference in references] == expected
        assert [backend.get(reference) for reference in references] == expected

    def test_putting_again_is_safe(self, backend: ResultBackend) -> None:
        """A worker that got no answer does it again, and a job can run twice."""
        first = backend.put("job-1", b"first", 60.0)
        second = backend.put("job-1", b"second", 60.0)
        assert backend.get(second) == b"second"
        assert backend.get(first) in {b"first", b"second"}

    def test_another_object_reads_what_one_has_put(self, backend: ResultBackend) -> None:
        """The worker puts, the client gets: in other processes."""
        if not self.shared:
            pytest.skip("what this backend keeps is in the object itself")
        reference = backend.put("job-1", b"data", 60.0)
        assert self.make().get(reference) == b"data"

    def test_a_reference_is_short(self, backend: ResultBackend) -> None:
        """It travels instead of the result, and the broker keeps it."""
        assert len(backend.put("j" * 255, b"x" * 10_000, 60.0)) <= LONGEST_REFERENCE

    def test_a_result_is_kept_or_refused_whatever_its_size(self, backend: ResultBackend) -> None:
        """A refusal fails the job and says the limit; half a result is none."""
        data = b"0123456789abcdef" * (4 * 1024 * 1024)
        refusal = ""
        try:
            stored = backend.get(backend.put("job-1", data, 60.0))
        except ResultTooLarge as error:
            refusal = str(error)
        assert str(len(data)) in refusal or stored == data

    def test_closing_is_final_for_nobody_else(self, backend: ResultBackend) -> None:
        """The end of one app, or a second call, is no trouble for others."""
        other = self.make()
        reference = other.put("job-1", b"data", 60.0)
        backend.close()
        backend.close()
        assert other.get(reference) == b"data"

    def test_an_unknown_reference_is_unavailable(self, backend: ResultBackend) -> None:
        """Whatever it is: it came over the wire."""
        for reference in (b"", b"nothing", b"\xff" * 100):
            with pytest.raises(ResultUnavailable):
                backend.get(reference)

    def test_a_result_is_gone_after_its_time(self, backend: ResultBackend) -> None:
        """``ttl`` is in seconds, and others stay."""
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
