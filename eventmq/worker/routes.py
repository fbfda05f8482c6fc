"""What jobs with the same queue and headers have in common, decided once and then bound."""

from __future__ import annotations

import inspect
import json
from typing import TYPE_CHECKING, Any

from eventmq.errors import ContentNotAllowed, ResultTooLarge, SerializationError, UnknownTask
from eventmq.graph import FEEDS, PAGED, TAKES
from eventmq.headers import EMPTY, Headers, parse_headers
from eventmq.job import OutcomeKind
from eventmq.wire.frames import FRAMES_TYPE, decode_arguments, encode_value, is_service
from eventmq.wire.references import ResultHome
from eventmq.worker.failures import describe
from eventmq.worker.splice import Splicer, nothing_fetched
from eventmq.worker.taskspec import TaskSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    from eventmq.interfaces import Envelope, RetryPolicy, Serializer
    from eventmq.wire.results import RemoteError
    from eventmq.worker.splice import Fetched

__all__ = ["Route", "RouteTable"]

#: Routes that are kept; header texts that differ from job to job must not fill the memory.
ROUTES = 1024


def _undecided(*_: object) -> Any:
    raise AssertionError


def _nothing(*_: object, **__: object) -> None:
    """Stand for the function of a task that is not there."""


#: Of plain jobs and of tasks that are not known.
_NO_TASK = TaskSpec(name="", function=_nothing, no_retry_on=(SerializationError, ResultTooLarge))


class Route:
    """How jobs with the same queue and headers are run. Made by `RouteTable.route`."""

    __slots__ = (
        "awaits",
        "content_type",
        "created",
        "decode",
        "encode",
        "expires",
        "fed",
        "fetches",
        "ignore_result",
        "plain",
        "policy",
        "queue",
        "refusal",
        "result_ttl",
        "result_type",
        "retries",
        "signature",
        "soft",
        "spec",
        "task",
        "text",
        "yields",
    )

    def __init__(self, queue: str, text: str, headers: Headers, spec: TaskSpec) -> None:
        self.queue = queue
        self.text = text
        self.spec = spec
        self.task = headers.task
        function = inspect.unwrap(spec.function)
        #: Its jobs are async generators.
        self.yields = inspect.isasyncgenfunction(function)
        #: Its jobs are coroutines, which wait without blocking.
        self.awaits = self.yields or inspect.iscoroutinefunction(function)
        self.content_type = headers.content_type
        self.created = headers.created
        self.expires = headers.expires
        self.signature = headers.signature
        self.retries = headers.retry_count
        self.soft = headers.soft_limit
        self.result_ttl = headers.result_ttl
        ignored = headers.ignore_result or spec.ignore_result
        #: Whether other jobs of its graph take its result.
        self.fed = FEEDS in headers.graph
        self.ignore_result = ignored and not self.fed
        #: Whether its arguments may have to be fetched, which blocks.
        self.fetches = False
        self.plain = not headers.content_type
        self.result_type = spec.serializer or headers.content_type
        self.decode: Callable[[bytes, Envelope], Any] = _undecided
        self.encode: Callable[[object, Envelope], tuple[bytes, str]] = _undecided
        self.policy: RetryPolicy | None = None
        #: Kind and error of every job of this route, where none can even be tried.
        self.refusal: tuple[int, RemoteError] | None = None


class RouteTable:
    """Makes routes and keeps the last ones. One thread."""

    def __init__(
        self,
        tasks: Mapping[str, TaskSpec],
        serializer: Callable[[str], Serializer],
        retry_policy: Callable[[str, Mapping[str, Any]], RetryPolicy],
        accept_content: Container[str],
        home: ResultHome | None = None,
        *,
        fetched: Fetched = nothing_fetched,
    ) -> None:
        self.tasks = tasks
        self._home = home or ResultHome()
        self._fetched = fetched
        self._splicer = Splicer(serializer, accept_content, self._home, fetched)
        self._serializer = serializer
        self._retry_policy = retry_policy
        self._accept_content = accept_content
        self._routes: dict[tuple[str, str], Route] = {}

    def empty(self) -> RouteTable:
        """Return a table of the same tasks for another thread."""
        parts = (self._serializer, self._retry_policy, self._accept_content, self._home)
        return RouteTable(self.tasks, *parts, fetched=self._fetched)

    def route(self, queue: str, text: str) -> Route:
        """Return the route of the jobs of ``queue`` with the header text ``text``."""
        found = self._routes.get((queue, text))
        if found is None:
            if len(self._routes) >= ROUTES:
                self._routes.clear()
            found = self._make(queue, text)
            if found.refusal is None:  # a task may be declared, a plugin be installed later
                self._routes[queue, text] = found
        return found

    def _make(self, queue: str, text: str) -> Route:
        route = Route(queue, text, EMPTY, _NO_TASK)
        try:
            headers = parse_headers(text)
            route = Route(queue, text, headers, self.tasks.get(headers.task, _NO_TASK))
            route.policy = self._policy(headers, route.spec)
            if not route.plain:
                self._bind(route)
                if TAKES in headers.graph:
                    paged = PAGED in headers.graph
                    route.decode = self._splicer.around(route.decode, paged=paged)
                    route.fetches = paged or not self._home.inline
        except UnknownTask as error:
            route.refusal = (int(OutcomeKind.UNKNOWN_TASK), describe(error))
        except Exception as error:  # noqa: BLE001 - plugins may raise anything
            route.refusal = (int(OutcomeKind.FAILED), describe(error))
        return route

    def _bind(self, route: Route) -> None:
        if route.spec is _NO_TASK:
            raise UnknownTask(f"this worker knows no task {route.task!r}")
        if route.content_type == FRAMES_TYPE and is_service(route.task):
            route.result_type = FRAMES_TYPE
            route.decode, route.encode = decode_arguments, encode_value
            return
        for name in (route.content_type, route.result_type):
            if name not in self._accept_content:
                msg = f"task {route.task!r}: the content type {name!r} is not in accept_content"
                raise ContentNotAllowed(msg)
        route.decode = self._serializer(route.content_type).decode
        route.encode = self._serializer(route.result_type).encode

    def _policy(self, headers: Headers, spec: TaskSpec) -> RetryPolicy:
        """Return the policy that the message names, else the task's."""
        if not headers.backoff:
            return self._retry_policy(spec.retry_policy, spec.retry_options)
        name, _, options = headers.backoff.partition(":")
        return self._retry_policy(name, json.loads(options) if options else {})
