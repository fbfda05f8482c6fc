"""Conformance suite for middlewares."""

# ruff: noqa: S101 - suites are methods that assert

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from eventmq.interfaces import Execution, JobContext, Submission, SubmissionHook, current

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventmq.interfaces import Middleware

__all__ = ["MiddlewareSuite"]


class _OwnError(Exception):
    """Raised by the suite's own task."""


class MiddlewareSuite:
    """Subclass it and return your middleware from `make`.

    Tests of methods that the middleware does not have are skipped. A middleware that keeps jobs
    from running on purpose needs tests of its own instead.
    """

    def make(self) -> Middleware:
        """Return the middleware; called once per test."""
        raise NotImplementedError("define make() in your subclass: it returns your middleware")

    def submission(self) -> Submission:
        """Return a submission as the client makes it."""
        return Submission("tasks.add", (1, 2), {"x": 3}, "job-1", "default")

    def job(self) -> JobContext:
        """Return a job that is being executed."""
        return JobContext("job-1", "tasks.add", "default", 1, 1, "task:tasks.add")

    def submit(self, proceed: Callable[[Submission], Any]) -> Any:
        """Submit through the middleware, as the client does."""
        middleware = self.make()
        if not isinstance(middleware, SubmissionHook):
            pytest.skip("this middleware has no submit")
        return middleware.submit(self.submission(), proceed)

    def execute(self, proceed: Callable[[], Any]) -> Any:
        """Execute through the middleware, as the worker does."""
        middleware = self.make()
        if not isinstance(middleware, Execution):
            pytest.skip("this middleware has no execute")
        token = current.set(self.job())
        try:
            return middleware.execute(self.job(), proceed)
        finally:
            current.reset(token)

    def test_it_can_be_made_more_than_once(self) -> None:
        """A process may have several apps."""
        assert self.make() is not None
        assert self.make() is not None

    def test_submit_proceeds_once_and_returns_the_receipt(self) -> None:
        """Task, id and queue are unchanged; headers may be added."""
        proceed = Mock(return_value="receipt")
        assert self.submit(proceed) == "receipt"
        proceed.assert_called_once()
        (submission,) = proceed.call_args.args
        assert (submission.task, submission.job_id, submission.queue) == (
            "tasks.add",
            "job-1",
            "default",
        )
        assert all(type(v) is str for item in submission.headers.items() for v in item)

    def test_execute_proceeds_once_and_returns_the_result(self) -> None:
        """The result may be any value, None and False included."""
        for result in (None, False, 7, [1]):
            proceed = Mock(return_value=result)
            assert self.execute(proceed) is result
            proceed.assert_called_once_with()

    def test_submit_does_not_swallow_errors(self) -> None:
        """The caller must learn that a job was refused."""
        with pytest.raises(_OwnError):
            self.submit(Mock(side_effect=_OwnError))

    def test_execute_does_not_swallow_errors(self) -> None:
        """A job whose error is lost would not be tried again."""
        with pytest.raises(_OwnError):
            self.execute(Mock(side_effect=_OwnError))

    def test_threads_can_share_it(self) -> None:
        """One object serves all threads of a process."""
        middleware = self.make()
        if not isinstance(middleware, Execution):
            pytest.skip("this middleware has no execute")
        with ThreadPoolExecutor(4) as pool:
            results = pool.map(lambda i: middleware.execute(self.job(), lambda: i), range(200))
            assert list(results) == list(range(200))
