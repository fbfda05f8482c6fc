"""Routes: how jobs with the same queue and headers are run, computed once.

`RouteTable` makes a `Route` from the header text of a job. `ResultPrepender` wraps its decoder if
the job gets results of other jobs; `part_encoder` encodes the parts of its stream.
"""

from __future__ import annotations

import inspect
import json
from typing import TYPE_CHECKING, Any

from eventmq.errors import (
    ContentNotAllowed,
    ProtocolError,
    ResultTooLarge,
    ResultUnavailable,
    SerializationError,
    UnknownTask,
)
from eventmq.execution.failures import describe, error_text
from eventmq.execution.spec import TaskSpec
from eventmq.execution.streaming import PartError
from eventmq.graph import FEEDS, PAGED, TAKES
from eventmq.headers import EMPTY, Headers, parse_headers
from eventmq.interfaces import Envelope
from eventmq.job import OutcomeKind
from eventmq.wire.batches import unpack
from eventmq.wire.results import (
    FRAMES_TYPE,
    ResultLocation,
    decode_arguments,
    decode_error,
    decode_frames,
    encode_value,
    serves_frames,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping

    from eventmq.execution.annotations import ArgumentPlan
    from eventmq.execution.streaming import Encode
    from eventmq.interfaces import JobContext, RetryPolicy, Serializer
    from eventmq.wire.results import RemoteError

    Decode = Callable[[bytes, Envelope], Any]

    #: Job id -> its inputs, as lists of id, content type and bytes.
    Fetched = Callable[[str], Iterable[Any]]

__all__ = ["ResultPrepender", "Route", "RouteTable", "nothing_fetched", "part_encoder"]


#: Number of fields of a result, and of the end of a failed job.
_RESULT, _END = 3, 4


def _converted(decode: Decode, plan: ArgumentPlan) -> Decode:
    """Return a decoder whose arguments have the types of the task's annotations."""
    convert, good = plan.convert, plan.good

    def converted(data: bytes, envelope: Envelope) -> Any:
        args, kwargs = decode(data, envelope)
        # Arguments of types that needed no conversion before are skipped, which takes 0.2 us.
        if not kwargs and tuple(map(type, args)) in good:
            return args, kwargs
        return convert(args, kwargs)

    return converted


def nothing_fetched(job_id: str) -> Iterable[Any]:
    """Raise `ResultUnavailable`, since the worker fetches no inputs."""
    raise ResultUnavailable(f"this worker has fetched no inputs of job {job_id}")


class ResultPrepender:
    """Prepends the results of other jobs to the arguments of a job.

    Args:
        serializer: Returns the serializer of a content type.
        accept_content: Content types that may be decoded.
        location: Where results are kept.
        fetched: Returns the inputs that the job manager has fetched.
    """

    def __init__(
        self,
        serializer: Callable[[str], Serializer],
        accept_content: Container[str],
        location: ResultLocation,
        fetched: Fetched = nothing_fetched,
    ) -> None:
        self._serializer = serializer
        self._accept_content = accept_content
        self._location = location
        self._fetched = fetched

    def wrap(self, decode: Decode, *, paged: bool = False) -> Decode:
        """Return the decoder of a job that gets results.

        Args:
            decode: Decoder of the arguments of a job without results.
            paged: The results were fetched, and the body has only their ids.
        """
        read_input = self._paged if paged else self._inline

        def prepended(data: bytes, envelope: Envelope) -> tuple[list[Any], Any]:
            match unpack(data, "the body of a job that takes results"):
                case [bytes(payload), bytes(value)]:
                    args, kwargs = decode(payload, envelope)
                    return [read_input(unpack(value, "its input"), envelope), *args], kwargs
            msg = "a job that takes results has the body [payload, input]"
            raise ProtocolError(msg, code="bad-body")

        return prepended

    def _inline(self, tree: Any, _: Envelope) -> Any:
        return self._value(tree)

    def _paged(self, tree: Any, envelope: Envelope) -> Any:
        """Replace the ids in a tree by their values; one encoded result at a time is in memory."""
        values = {}
        for row in self._fetched(envelope.job_id):
            match row:
                case [str(job_id), str(content_type), bytes(data)]:
                    values[job_id] = self._result(job_id, content_type, data)
                case _:
                    raise ProtocolError("a result is [id, content type, bytes]", code="bad-body")
        try:
            return _filled(tree, values)
        except KeyError as error:
            text = f"the result of job {error}, which job {envelope.job_id} takes, was not fetched"
            raise ResultUnavailable(text) from None

    def _value(self, part: Any) -> Any:
        """Return the value of a result, of the end of a failed job, or of a list of these."""
        if not isinstance(part, list):
            raise ProtocolError("an input is a result or a list", code="bad-body")
        if not part or not isinstance(part[0], str):
            return list(map(self._value, part))
        if len(part) == _END:
            job_id, state, _, data = part
            return _end(job_id, state, data)
        if len(part) != _RESULT:
            raise ProtocolError("a result is [id, content type, bytes]", code="bad-body")
        return self._result(*part)

    def _result(self, job_id: str, content_type: str, data: bytes) -> Any:
        if not content_type:  # the task ignores its result
            return None
        if content_type == FRAMES_TYPE:
            return decode_frames(data)
        content_type, data = self._location.get(job_id, content_type, data)
        name, _, parameters = content_type.partition(";")
        signature, _, created = parameters.partition(";")
        if name not in self._accept_content:
            msg = f"result of job {job_id}: the content type {name!r} is not in accept_content"
            raise ContentNotAllowed(msg)
        envelope = Envelope(job_id, name, created=float(created or 0.0), signature=signature)
        return self._serializer(name).decode(data, envelope)


def _end(job_id: str, state: str, data: bytes) -> dict[str, str]:
    """Return the argument of an error callback: the end of a job."""
    error = decode_error(data) if data else None
    described = ("", "", "") if error is None else error[:3]
    names = ("id", "state", "type", "message", "traceback")
    return dict(zip(names, (job_id, state, *described), strict=True))


def _filled(tree: Any, values: dict[str, Any]) -> Any:
    """Replace the ids in a tree by values; raises KeyError for an id without one."""
    return [_filled(part, values) for part in tree] if isinstance(tree, list) else values[tree]


#: Maximum number of cached routes: header texts that differ from job to job must not fill memory.
MAX_ROUTES = 1024


def _unbound(*_: object) -> Any:
    raise AssertionError


def _no_function(*_: object, **__: object) -> None:
    """Do nothing: the function of a task that is not registered."""


#: Task of legacy jobs, and of tasks that are not registered.
_NO_TASK = TaskSpec(
    name="", function=_no_function, no_retry_on=(SerializationError, ResultTooLarge)
)


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
        "legacy",
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
        #: Whether its task is an async generator.
        self.yields = inspect.isasyncgenfunction(function)
        #: Whether its task is a coroutine function, which waits without blocking.
        self.awaits = self.yields or inspect.iscoroutinefunction(function)
        self.content_type = headers.content_type
        self.created = headers.created
        self.expires = headers.expires
        self.signature = headers.signature
        self.retries = headers.retry_count
        self.soft = headers.soft_limit
        self.result_ttl = headers.result_ttl
        ignored = headers.ignore_result or spec.ignore_result
        #: Whether other jobs of its graph get its result.
        self.fed = FEEDS in headers.graph
        self.ignore_result = ignored and not self.fed
        #: Whether decoding the arguments may read files or a result backend, which blocks.
        self.fetches = False
        self.legacy = not headers.content_type
        self.result_type = spec.serializer or headers.content_type
        self.decode: Callable[[bytes, Envelope], Any] = _unbound
        self.encode: Callable[[object, Envelope], tuple[bytes, str]] = _unbound
        self.policy: RetryPolicy | None = None
        #: Kind and error of the outcome if no job of this route can be run.
        self.refusal: tuple[int, RemoteError] | None = None

    def copy(self, text: str) -> Route:
        """Return the route of jobs whose headers differ only in unknown names."""
        route = Route.__new__(Route)
        for name in Route.__slots__:
            setattr(route, name, getattr(self, name))
        route.text = text
        return route


class RouteTable:
    """Makes routes, and caches them for jobs with the same headers. One thread."""

    def __init__(
        self,
        tasks: Mapping[str, TaskSpec],
        serializer: Callable[[str], Serializer],
        retry_policy: Callable[[str, Mapping[str, Any]], RetryPolicy],
        accept_content: Container[str],
        location: ResultLocation | None = None,
        *,
        fetched: Fetched = nothing_fetched,
    ) -> None:
        self.tasks = tasks
        self._location = location or ResultLocation()
        self._fetched = fetched
        self._prepender = ResultPrepender(serializer, accept_content, self._location, fetched)
        self._serializer = serializer
        self._retry_policy = retry_policy
        self._accept_content = accept_content
        self._routes: dict[tuple[str, str], Route] = {}
        #: Whether a route was made for a task that keeps its logs.
        self.keeps_logs = False

    def empty(self) -> RouteTable:
        """Return a table of the same tasks for another thread."""
        parts = (self._serializer, self._retry_policy, self._accept_content, self._location)
        return RouteTable(self.tasks, *parts, fetched=self._fetched)

    def route(self, queue: str, text: str) -> Route:
        """Return the route of the jobs of ``queue`` with the header text ``text``."""
        route = self._routes.get((queue, text))
        if route is None:
            if len(self._routes) >= MAX_ROUTES:
                self._routes.clear()
            prefix = _known_part(text)
            # With tracing, headers of middlewares differ from job to job: a copy takes 3 us, making
            # a route 20.
            route = self.route(queue, prefix).copy(text) if prefix else self._make(queue, text)
            self.keeps_logs = self.keeps_logs or route.spec.keep_logs
            if route.refusal is None:  # tasks and plugins may be added later
                self._routes[queue, text] = route
        return route

    def _make(self, queue: str, text: str) -> Route:
        route = Route(queue, text, EMPTY, _NO_TASK)
        try:
            headers = parse_headers(text)
            route = Route(queue, text, headers, self.tasks.get(headers.task, _NO_TASK))
            route.policy = self._policy(headers, route.spec)
            if not route.legacy:
                self._bind(route)
                if TAKES in headers.graph:
                    paged = PAGED in headers.graph
                    route.decode = self._prepender.wrap(route.decode, paged=paged)
                    route.fetches = paged or not self._location.inline
                if route.spec.arguments is not None and route.content_type != FRAMES_TYPE:
                    route.decode = _converted(route.decode, route.spec.arguments)
        except UnknownTask as error:
            route.refusal = (int(OutcomeKind.UNKNOWN_TASK), describe(error))
        except Exception as error:  # noqa: BLE001 - plugins may raise anything
            route.refusal = (int(OutcomeKind.FAILED), describe(error))
        return route

    def _bind(self, route: Route) -> None:
        if route.spec is _NO_TASK:
            raise UnknownTask(f"this worker knows no task {route.task!r}")
        if route.content_type == FRAMES_TYPE and serves_frames(route.task):
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
        """Return the retry policy that the headers name, otherwise the task's."""
        if not headers.backoff:
            return self._retry_policy(spec.retry_policy, spec.retry_options)
        name, _, options = headers.backoff.partition(":")
        return self._retry_policy(name, json.loads(options) if options else {})


def _known_part(text: str) -> str:
    """Return a header text without unknown headers if these are its end; otherwise ""."""
    try:
        headers = parse_headers(text)
        if not headers.extra or headers.signature:  # a signed one is unique
            return ""
        prefix = text.rsplit(",", len(headers.extra))[0]
        return "" if prefix == text or parse_headers(prefix).extra else prefix
    except ProtocolError:  # its route reports it
        return ""


# hot loop: python -m benchmarks stream
def part_encoder(route: Route, job: JobContext, max_length: int, *, started: float) -> Encode:
    """Return the encoder of the parts of a job, in their order.

    Args:
        route: Route of the job.
        job: The job; its id and the index of a part are signed too.
        max_length: Maximum length of a part in bytes.
        started: Unix time, which is signed too.
    """
    encode, kind, job_id = route.encode, route.result_type, job.id
    index = 0

    def encode_part(part: object) -> tuple[str, bytes]:
        nonlocal index
        envelope = Envelope(f"{job_id}.{index}", kind, created=started)
        try:
            payload, signature = encode(part, envelope)
        except Exception as error:
            subject = f"part {index}, a {type(part).__name__}, cannot be serialised"
            raise PartError(SerializationError(f"{subject}: {error_text(error)}")) from error
        if len(payload) > max_length:
            msg = f"part {index} has {len(payload)} bytes; the limit is {max_length}"
            raise PartError(ResultTooLarge(msg))
        index += 1
        return (f"{kind};{signature};{started!r}" if signature else kind), payload

    return encode_part
