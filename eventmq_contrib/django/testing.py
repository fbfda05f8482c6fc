"""A test runner: jobs run in the thread of the test, in a broker in memory of its own."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.test.runner import DiscoverRunner
from django.test.utils import iter_test_cases, override_settings
from django.utils.module_loading import import_string

from eventmq.testing import InlineApp, use_app
from eventmq_contrib.django.backend import EventMQBackend

if TYPE_CHECKING:
    from collections.abc import Iterator
    from unittest import TestSuite

    from eventmq import EventMQ

__all__ = ["EventMQTestRunner", "InlineBackend", "inline_jobs", "run_jobs"]

#: The apps that the running test has used, and what closes them.
_inline: dict[EventMQ, InlineApp] = {}
_stack = ExitStack()


class InlineBackend(EventMQBackend):
    """The backend in tests: asking for a result runs the jobs that are due."""

    inline = True

    @property
    def app(self) -> EventMQ:
        """The app, with a broker that lasts for the test."""
        app = super().app
        if app not in _inline:
            _inline[app] = _stack.enter_context(use_app(app))
        return app

    def get_result(self, result_id: str) -> Any:
        """Run the jobs that are due, unless one of them asks, and return the result."""
        run_jobs()
        return super().get_result(result_id)


def run_jobs() -> int:
    """Run the jobs that are due, and those that they submit; return their number."""
    return sum(each.drain() for each in _inline.values())


@contextmanager
def inline_jobs() -> Iterator[None]:
    """Do what `EventMQTestRunner` does, around one test of another runner, such as pytest's.

    Inside another one, or a test of `EventMQTestRunner`, this uses the apps that were used there,
    and leaves their jobs.
    """
    with _override():
        outer, closes_outer = dict(_inline), _stack.pop_all()
        try:
            yield
        finally:
            _close()
            _inline.update(outer)
            _stack.push(closes_outer)


def _override() -> override_settings:
    return override_settings(TASKS={
        alias: {**params, "BACKEND": _inline_backend(params["BACKEND"])}
        for alias, params in settings.TASKS.items()
    })  # fmt: skip


def _inline_backend(path: str) -> str:
    """Return the path of the class that replaces a backend in tests; of others their own."""
    backend = import_string(path)
    if not issubclass(backend, EventMQBackend) or issubclass(backend, InlineBackend):
        return path
    name = path.replace(".", "_")
    globals()[name] = type(backend.__name__, (InlineBackend, backend), {"__module__": __name__})
    return f"{__name__}.{name}"


def _close() -> None:
    _inline.clear()
    _stack.close()


class EventMQTestRunner(DiscoverRunner):
    """For ``TEST_RUNNER``: no broker and no worker is needed, and each test begins without jobs.

    A `TestCase` has a transaction around it, which is never committed: send the jobs with
    ``with self.captureOnCommitCallbacks(execute=True)``.
    """

    def setup_test_environment(self, **kwargs: Any) -> None:
        """Replace the backends of EventMQ, and those derived from it, by `InlineBackend`."""
        super().setup_test_environment(**kwargs)
        self._override = _override()
        self._override.enable()

    def teardown_test_environment(self, **kwargs: Any) -> None:
        """Restore the backends."""
        self._override.disable()
        super().teardown_test_environment(**kwargs)

    def build_suite(self, *args: Any, **kwargs: Any) -> TestSuite:
        """Return the tests; each ends by forgetting its jobs."""
        suite: TestSuite = super().build_suite(*args, **kwargs)
        for test in iter_test_cases(suite):
            test.addCleanup(_close)
        return suite
