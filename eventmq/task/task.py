"""Tasks: functions with a name by which workers know them.

``@app.task`` makes a `Task`, or for coroutine and generator functions an `AsyncTask` or another
subclass. `BoundTask` is a task with options of one call, `NamedTask` a task without its code. Below
them: checks of functions, `make_template` for the jobs of a task, and jobs whose body the caller
encodes (`write_raw`).
"""

from __future__ import annotations

import inspect
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, overload

from eventmq import canvas, hints
from eventmq.client.handle import DEFAULT
from eventmq.client.templates import EncodedJob, Template
from eventmq.errors import ProtocolError, SettingsError
from eventmq.execution.annotations import make_plans
from eventmq.execution.spec import TaskSpec
from eventmq.graph import Signature
from eventmq.headers import Headers, write_headers
from eventmq.main_module import real_name
from eventmq.task import values
from eventmq.task.options import NO_OPTIONS, RESULT_TTL, STREAM_IDLE, CallOptions, TaskOptions
from eventmq.task.unique import key_maker, limit_key_maker, read_unique
from eventmq.wire.results import FRAMES_TYPE, encode_frames, frames_task

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable
    from datetime import datetime, timedelta

    from typing_extensions import Never, Unpack

    from eventmq.client.client import Pending
    from eventmq.client.handle import Default, Job
    from eventmq.client.submit import Submitter
    from eventmq.execution.annotations import ArgumentPlan, ResultPlan
    from eventmq.graph import Expression
    from eventmq.interfaces import Serializer
    from eventmq.policies import Backoff
    from eventmq.task.options import CallKeywords
    from eventmq.task.unique import Unique

__all__ = [
    "AsyncStreamTask",
    "AsyncTask",
    "BoundTask",
    "NamedTask",
    "StreamTask",
    "SubmittableTask",
    "Task",
    "TaskApp",
    "header_text",
    "is_generator",
    "make_template",
    "named_arguments",
    "named_template",
    "positional_arity",
    "signature_of",
    "write_raw",
]

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

P = ParamSpec("P")

R = TypeVar("R")


class TaskApp(Protocol):
    """The app of a task, as far as tasks use it."""

    @property
    def submitter(self) -> Submitter:
        """Submits jobs; connects when first used."""

    def queue_of(self, task: str) -> str:
        """Return the queue of a task without the option ``queue``, by its name."""

    @property
    def release(self) -> str:
        """The release of the code, for the headers of its jobs; empty for none."""

    def content(self, name: str | None) -> tuple[str, Serializer]:
        """Return content type and serializer for a name, None for the app's default."""

    def with_defaults(self, explicit: Mapping[str, Any]) -> TaskOptions | None:
        """Return a task's options with the app's defaults filled in; None if the app has none."""

    def uses_policy(self, policy: Backoff) -> None:
        """Raise `PluginError` for an unknown retry policy, or options that it does not have."""

    def now(self) -> float:
        """Return Unix time."""

    def uses_queue(self, queue: str) -> None:
        """Record that jobs will be submitted to a queue."""


class SubmittableTask(ABC):
    """Base of tasks: makes signatures and submits graphs of them."""

    _template: tuple[weakref.ref[TaskApp], Template] | None = None

    @property
    @abstractmethod
    def app(self) -> TaskApp:
        """The app that submits its jobs."""

    @abstractmethod
    def make_template(self, app: TaskApp) -> Template:
        """Return the template of its jobs; raises `SettingsError` for an invalid option."""

    @property
    def template(self) -> Template:
        """The template of its jobs, made once per app."""
        app = self.app
        cached = self._template
        if cached is None or cached[0]() is not app:
            cached = self._template = weakref.ref(app), self.make_template(app)
        return cached[1]

    @abstractmethod
    def signature_options(self) -> tuple[str, Mapping[str, Any]]:
        """Return the name of the task and the options of the call."""

    @abstractmethod
    def check(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise `TypeError` if the function does not accept these arguments."""

    def s(self, *args: Any, **kwargs: Any) -> Signature:
        """Return this call as data. In a chain it gets the previous result as first argument."""
        name, options = self.signature_options()
        return Signature(name, args, kwargs, options, origin=self)

    def si(self, *args: Any, **kwargs: Any) -> Signature:
        """Return this call as data that does not get the result of the jobs before it."""
        name, options = self.signature_options()
        return Signature(name, args, kwargs, options, immutable=True, origin=self)

    # Graphs of such calls

    def send_graph(self, expression: Expression) -> Any:
        """Return the operation that submits an expression through the app of this task."""
        return canvas.send(expression, self, self._named)

    def encode_graph(self, expression: Expression) -> tuple[Any, EncodedJob]:
        """Return the handle and the message of an expression, which is not sent."""
        return canvas.encode(expression, self, self._named)

    def _named(self, signature: Signature) -> SubmittableTask:
        """Return the task factory of a signature that was made by name."""
        return NamedTask(self.app, signature.task, signature.options)


class Task(SubmittableTask, Generic[P, R]):
    """A function that can be called directly, or submitted as a job. Made by ``@app.task``.

    ``P`` are its parameters, ``R`` is the type of its result.

    Attributes:
        name: Its name in messages.
        function: The function.
        declared: The options of its declaration.
        streams: Whether the function is a generator, whose parts ``job.stream()`` yields.
        shared_options: For a shared task: the explicit options, to which the app that submits it
            adds its defaults.
    """

    def __init__(
        self, function: Callable[..., Any], options: TaskOptions, find_app: Callable[[], TaskApp]
    ) -> None:
        _check_function(function, options)
        self.name = options.name or task_name(function)
        values.text("the name of the task", self.name)
        update_wrapper(self, function)
        self.function = function
        self.declared = options
        self.streams = is_generator(function)
        self.shared_options: Mapping[str, Any] | None = None
        self._find_app = find_app
        self._signature: inspect.Signature | None = None
        self._arity = range(0)
        #: The shared task that this one submits through another app, see `bound_to`.
        self._shared: Task[P, R] | None = None
        unique = read_unique(options.unique)
        if unique is not None:
            key_maker(unique, self.name, self.signature)
        if options.limit_key is not None:
            limit_key_maker(options.limit_key, self.name, self.signature)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def __reduce__(self) -> str:
        return self.function.__qualname__

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise `AttributeError`, with a hint for a name of Celery's API."""
            return hints.find_attribute(self, name, hints.TASK)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function directly."""
        return self.function(*args, **kwargs)  # type: ignore[no-any-return]

    # One job

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Submit a job, and return after the broker's receipt.

        With a legacy broker, which sends no receipts, it returns when the job was sent, and
        `Job.confirmed` is False. If a `call` with the same job id is in flight, it shares the
        receipt of that, which may arrive a second later.

        Raises:
            TypeError: The function does not accept these arguments; an `ArgumentError` if one does
                not fit its annotation.
            SerializationError: They cannot be encoded, or a legacy broker could not read them.
            BrokerUnavailable: There was no receipt within ``submit_timeout``.
            SubmitError: The broker refused the job.
        """
        self.check(args, kwargs)
        return self.app.submitter.submit(self.template, args, kwargs)

    async def adelay(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Do the same as `delay`, in a coroutine."""
        self.check(args, kwargs)
        return await self.app.submitter.asubmit(self.template, args, kwargs)

    @overload
    def call(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

    @overload
    def call(self, *args: Any, timeout: float | Default | None, **kwargs: Any) -> R: ...

    def call(self, *args: Any, **kwargs: Any) -> R:
        """Submit a job, wait for its end and return its result, in one exchange.

        The job is stored like any other, but fewer messages are sent than for ``delay().get()``.
        Arguments are typed if ``timeout`` is left out.

        Args:
            *args: Positional arguments.
            timeout: Total seconds, by default those of the setting ``result_timeout`` (60); None
                waits without limit. Pass a parameter of the function that has this name by
                position.
            **kwargs: Keyword arguments.

        Returns:
            The function's return value.

        Raises:
            TypeError: The function does not accept these arguments, or ``timeout`` may be one of
                them.
            NotAllowed: Inside ``app.batch()``, which sends at its end; or a middleware returned
                None instead of a handle, and nothing was submitted.
            SerializationError: The arguments cannot be encoded.
            BrokerUnavailable: There was no receipt within ``submit_timeout``. The receipt may come
                a second late: if the broker disappears in that second, and for longer than
                ``submit_timeout``, the job may be stored (``maybe_accepted`` is True), although
                ``delay()`` would have returned. The job then continues.
            SubmitError: The broker refused the job.
            ResultTimeout: The job did not end in time; it continues. For other errors see
                `Job.get`.
            ProtocolError: A legacy broker has no results; nothing was submitted.
        """
        return call_task(self, args, kwargs).wait().get()

    @overload
    async def acall(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

    @overload
    async def acall(self, *args: Any, timeout: float | Default | None, **kwargs: Any) -> R: ...

    async def acall(self, *args: Any, **kwargs: Any) -> R:
        """Do the same as `call`, in a coroutine. Cancelling it does not cancel the job."""
        return await (await call_task(self, args, kwargs)).aget()

    def options(self, **options: Unpack[CallKeywords]) -> BoundTask[P, R]:
        """Return the task with options of one call, for a typed ``delay``.

        Args:
            **options: See `eventmq.task.CallOptions`.

        Raises:
            SettingsError: A value is not allowed.
        """
        return BoundTask(self, CallOptions.read(options))

    def apply_async(
        self,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        queue: str | None = None,
        priority: int | None = None,
        countdown: float | timedelta | None = None,
        eta: datetime | None = None,
        expires: float | timedelta | datetime | None = None,
        retries: int | None = None,
        timeout: float | None = None,
        job_id: str | None = None,
        unique: str | Unique | None = None,
        headers: Mapping[str, str] | None = None,
        **others: Never,
    ) -> Job[R]:
        """Submit a job with any arguments and options, and return after the broker's receipt.

        Args:
            args: Positional arguments.
            kwargs: Keyword arguments.
            queue: Name of the queue; for this and the others see `eventmq.task.CallOptions`.
            priority: 0 to 255; higher first.
            countdown: Seconds until the job becomes ready.
            eta: An aware datetime at which the job becomes ready.
            expires: Seconds, or an aware datetime, after which it must not start.
            retries: How often it is retried after a failure.
            timeout: Seconds after which it is stopped from outside while it runs.
            job_id: Its id; submitting the same id again does nothing, see `CallOptions`.
            unique: A key that only one job may have at a time.
            headers: More headers.
            **others: None; any other name is an error with a hint.

        Raises:
            TypeError: The function does not accept these arguments.
            SettingsError: An option is not allowed, or does not exist.
            SerializationError: The arguments cannot be encoded.
            BrokerUnavailable: There was no receipt within ``submit_timeout``.
            SubmitError: The broker refused the job.
        """
        options: dict[str, Any] = {
            "queue": queue, "priority": priority, "countdown": countdown, "eta": eta,
            "expires": expires, "retries": retries, "timeout": timeout, "job_id": job_id,
            "unique": unique, "headers": headers,
        }  # fmt: skip
        call = CallOptions.read({**options, **others})
        return BoundTask(self, call).submit(*values.arguments(args, kwargs, "apply_async("))

    # Many jobs

    def map(self, calls: Iterable[Sequence[Any]], **kwargs: Any) -> list[Job[R]]:
        """Submit one job per argument tuple, and return after all receipts.

        They travel in messages of up to 1,000 jobs, each stored completely or not at all; several
        messages are in flight at a time. Inside ``app.batch()`` they are sent with the batch, and
        the handles can be used after it.

        Args:
            calls: Argument tuples.
            **kwargs: Keyword arguments of every call.

        Returns:
            The handles, in order.

        Raises:
            SettingsError: A call is not an argument tuple.
            SerializationError: Arguments of the first message cannot be encoded; nothing was sent.
            BatchError: Some jobs were not confirmed; ``jobs`` has the reasons.
        """
        tuples = self.tuples(calls, kwargs)
        return self.app.submitter.submit_many(self.template, tuples, kwargs).wait()

    async def amap(self, calls: Iterable[Sequence[Any]], **kwargs: Any) -> list[Job[R]]:
        """Do the same as `map`, in a coroutine."""
        tuples = self.tuples(calls, kwargs)
        return await self.app.submitter.submit_many(self.template, tuples, kwargs)

    def tuples(
        self, calls: Iterable[Sequence[Any]], kwargs: Mapping[str, Any]
    ) -> list[Sequence[Any]]:
        """Return the checked calls of a `map` as a list."""
        tuples = values.calls(calls)
        if tuples:
            self.check(tuples[0], kwargs)
        return tuples

    # For the client and workers

    def signature_options(self) -> tuple[str, Mapping[str, Any]]:
        """Return the name and the options of the call for a signature."""
        return self.name, {}

    @property
    def app(self) -> TaskApp:
        """The app that submits its jobs.

        Raises:
            NotAllowed: It is a shared task, and it is not clear which app to use.
        """
        return self._find_app()

    def make_template(self, app: TaskApp, call: CallOptions = NO_OPTIONS) -> Template:
        """Return the template of its jobs with the options of a call."""
        return make_template(
            app,
            self.name,
            self._options_in(app),
            call,
            self.signature,
            streams=self.streams,
            results=self.plans[1],
        )

    @property
    def signature(self) -> inspect.Signature:
        """The signature of its function."""
        if self._signature is None:
            self._signature = signature_of(self.function)
            self._arity = positional_arity(self._signature)
        return self._signature

    def check(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise `TypeError` if the function does not accept these arguments.

        It is an `ArgumentError` if an argument does not fit the annotation of its parameter.
        """
        signature = self.signature
        # Binding takes 5 microseconds; most calls are simple enough to skip it.
        if kwargs or len(args) not in self._arity:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"task {self.name}: {error}") from None
        plan = self.plans[0]
        # Nothing to do for argument types that were accepted before.
        if plan is not None and (kwargs or tuple(map(type, args)) not in plan.good):
            plan.convert(args, kwargs)

    @cached_property
    def plans(self) -> tuple[ArgumentPlan | None, ResultPlan | None]:
        """Conversion of arguments and results; made late, when all annotations can be resolved.

        Raises:
            SettingsError: Values cannot be converted to the type of an annotation.
        """
        if self._shared is not None:
            return self._shared.plans
        return make_plans(self.name, self.function, self.signature)

    def spec(self) -> TaskSpec:
        """Return the specification of the task for a worker."""
        declared = self.declared
        return TaskSpec(
            name=self.name,
            function=self.function,
            retry_policy=declared.backoff.name,
            retry_options=declared.backoff.options,
            retry_on=values.exceptions("retry_on", declared.retry_on),
            no_retry_on=values.exceptions("no_retry_on", declared.no_retry_on),
            ignore_result=declared.ignore_result,
            serializer=declared.serializer,
            keep_logs=declared.keep_logs,
            arguments=self.plans[0],
        )

    def _options_in(self, app: TaskApp) -> TaskOptions:
        """Return the options of its declaration; for a shared task with the defaults of an app."""
        if self.shared_options is None:
            return self.declared
        try:
            return app.with_defaults(self.shared_options) or self.declared
        except SettingsError as error:
            raise SettingsError(f"shared task {self.name}, with task_defaults: {error}") from error

    def bound_to(self, app: TaskApp) -> Task[P, R]:
        """Return the same task, submitted through another app."""
        task = type(self)(self.function, self._options_in(app), lambda: app)
        task._shared = self  # noqa: SLF001 - of its own kind
        return task


class BoundTask(SubmittableTask, Generic[P, R]):
    """A task with options of one call; made by ``task.options(...)``."""

    def __init__(self, task: Task[P, R], call: CallOptions) -> None:
        self._task = task
        self._call = call

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Submit a job, like `Task.delay`."""
        return self.submit(args, kwargs)

    async def adelay(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Do the same as `delay`, in a coroutine."""
        self._task.check(args, kwargs)
        submitter = self._task.app.submitter
        return await submitter.asubmit(self.template, args, kwargs, self._call.job_id)

    @overload
    def call(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

    @overload
    def call(self, *args: Any, timeout: float | Default | None, **kwargs: Any) -> R: ...

    def call(self, *args: Any, **kwargs: Any) -> R:
        """Submit a job and return its result, like `Task.call`."""
        return call_task(self, args, kwargs, self._call.job_id).wait().get()

    @overload
    async def acall(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

    @overload
    async def acall(self, *args: Any, timeout: float | Default | None, **kwargs: Any) -> R: ...

    async def acall(self, *args: Any, **kwargs: Any) -> R:
        """Do the same as `call`, in a coroutine."""
        return await (await call_task(self, args, kwargs, self._call.job_id)).aget()

    def map(self, calls: Iterable[Sequence[Any]], **kwargs: Any) -> list[Job[R]]:
        """Submit one job per argument tuple, like `Task.map`."""
        if self._call.job_id is not None:
            raise SettingsError("job_id is the id of one job; map makes the ids of its jobs")
        tuples = self._task.tuples(calls, kwargs)
        return self._task.app.submitter.submit_many(self.template, tuples, kwargs).wait()

    def submit(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Job[R]:
        """Submit a job with any arguments."""
        self._task.check(args, kwargs)
        return self._task.app.submitter.submit(self.template, args, kwargs, self._call.job_id)

    def signature_options(self) -> tuple[str, Mapping[str, Any]]:
        """Return the name and the options of the call for a signature."""
        return self._task.name, self._call.explicit()

    @property
    def app(self) -> TaskApp:
        """The app that submits its jobs."""
        return self._task.app

    @property
    def name(self) -> str:
        """Its name in messages."""
        return self._task.name

    @property
    def signature(self) -> inspect.Signature:
        """The signature of its function."""
        return self._task.signature

    def check(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise `TypeError` if the function does not accept these arguments."""
        self._task.check(args, kwargs)

    def make_template(self, app: TaskApp) -> Template:
        """Return the template of its jobs."""
        return self._task.make_template(app, self._call)


def call_task(
    task: Task[P, R] | BoundTask[P, R],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    job_id: str | None = None,
) -> Pending[Job[R]]:
    """Submit a job of a task and wait for its end; see `Task.call`.

    Raises:
        TypeError: The function does not accept these arguments, or ``timeout`` may be one of them.
        NotAllowed: A batch is open.
        SerializationError: The arguments cannot be encoded.
    """
    timeout: float | Default | None = kwargs.pop("timeout", DEFAULT)
    if (
        timeout is not DEFAULT
        and "timeout" in task.signature.parameters
        and "timeout" not in task.signature.bind_partial(*args).arguments
    ):
        raise TypeError(
            f"task {task.name}: timeout is the seconds that call() waits, and the function has "
            "a parameter of that name: give that one by position, or use delay().get()"
        )
    task.check(args, kwargs)
    return task.app.submitter.call(task.template, args, kwargs, job_id, timeout=timeout)


class NamedTask(SubmittableTask):
    """A task by its name, without its code.

    Args:
        app: The app.
        name: Name of the task.
        options: Options of the call.
    """

    def __init__(self, app: TaskApp, name: str, options: Mapping[str, Any]) -> None:
        self._app = app
        self._name = name
        self._options = options

    @property
    def app(self) -> TaskApp:
        """The app that submits its jobs."""
        return self._app

    def make_template(self, app: TaskApp) -> Template:
        """Return the template of its jobs; raises `SettingsError` for an invalid option."""
        return named_template(app, self._name, self._options)[0]

    def signature_options(self) -> tuple[str, Mapping[str, Any]]:
        """Return the name and the options."""
        return self._name, self._options

    def check(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Accept any arguments."""


def named_template(
    app: TaskApp, name: str, options: Mapping[str, Any]
) -> tuple[Template, str | None]:
    """Return the template of a job for a task by name, and the id that the caller chose.

    Raises:
        SettingsError: An option is not allowed.
    """
    values.text("the name of the task", name)
    call = CallOptions.read(options)
    return make_template(app, name, TaskOptions(), call, signature_of(_any_arguments)), call.job_id


def _any_arguments(*args: Any, **kwargs: Any) -> None:
    """Signature of an unknown function: only keyword arguments have names."""


def named_arguments(
    name: str, args: object, kwargs: object
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the checked arguments of a job for a task by name."""
    return values.arguments(args, kwargs, f"app.send({name!r}, ")


def task_name(function: Callable[..., Any]) -> str:
    """Return ``module.function``, with the importable name for ``__main__``."""
    qualname = function.__qualname__.replace("<locals>.", "")
    return f"{real_name(function.__module__)}.{qualname}"


def _check_function(function: Callable[..., Any], options: TaskOptions) -> None:
    if not inspect.isroutine(inspect.unwrap(function)):
        raise SettingsError(f"a task is a function; {function!r} is not one")
    if isinstance(function, staticmethod):
        raise SettingsError(
            f"{function.__qualname__} is a staticmethod: write @staticmethod above @app.task"
        )
    if _is_method(function):
        raise SettingsError(
            f"a task is a function, and {function.__qualname__} is a method: a worker has no "
            "object to call it on; write a function that gets what it needs as arguments, such as "
            "an id"
        )
    if "<lambda>" in function.__qualname__ and options.name is None:
        raise SettingsError("a lambda has no name by which a worker could find it: use name=...")
    if options.only_for_streams and not is_generator(function):
        names = " and ".join(options.only_for_streams)
        raise SettingsError(
            f"task {options.name or task_name(function)} is not a generator and has no parts: "
            f"leave out {names}"
        )


def _is_method(function: Callable[..., Any]) -> bool:
    """Return whether a function needs an object: it is defined in a class, or bound."""
    if isinstance(function, (classmethod, staticmethod)) or inspect.ismethod(function):
        return True
    around = function.__qualname__.rpartition(".")[0]
    in_class = around != "" and not around.endswith("<locals>")
    return in_class and next(iter(signature_of(function).parameters), "") in {"self", "cls"}


def is_generator(function: Callable[..., Any]) -> bool:
    """Return whether a function is a generator function, or an async one."""
    inner = inspect.unwrap(function)
    return inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner)


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature; for a built-in function without one, a signature for any arguments."""
    try:
        return inspect.signature(function)
    except ValueError:
        return inspect.signature(lambda *args, **kwargs: None)  # noqa: ARG005 - takes anything


def positional_arity(signature: inspect.Signature) -> range:
    """Return the possible numbers of positional arguments in a call without keywords."""
    minimum = maximum = 0
    for parameter in signature.parameters.values():
        if parameter.kind in _POSITIONAL:
            maximum += 1
            minimum += parameter.default is inspect.Parameter.empty
        elif parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            continue
        elif parameter.default is inspect.Parameter.empty:
            return range(0)
    return range(minimum, maximum + 1)


def make_template(
    app: TaskApp,
    name: str,
    options: TaskOptions,
    call: CallOptions,
    signature: inspect.Signature,
    *,
    streams: bool = False,
    results: ResultPlan | None = None,
) -> Template:
    """Return the template of the jobs of a task.

    Args:
        app: The app.
        name: Name of the task.
        options: Options of its declaration.
        call: Options of the call, which take precedence.
        signature: Signature of the function, for keys made from its arguments.
        streams: Whether the function is a generator.
        results: Converts results.
    """
    content_type, serializer = app.content(options.serializer)
    app.uses_policy(options.backoff)
    expires_in, _ = call.expiry()
    if call.expires is None:
        expires_in = options.expires or 0.0
    headers = _headers(name, content_type, options, call, app.release)
    headers = _streaming(headers, options) if streams else headers
    queue = call.queue or options.queue or app.queue_of(name)
    unique = read_unique(call.unique or options.unique)
    values.no_guarantee(
        guarantee=options.guarantee, retries=headers.retry_count, unique=unique is not None
    )
    app.uses_queue(queue)
    if unique is not None:
        headers = unique.into(headers)
    template = Template.make(queue, headers, serializer, app.now, expires_in)
    template = replace(template, results=results)
    if unique is not None:
        template = replace(template, key=key_maker(unique, name, signature))
    if options.limit_key is not None:
        template = replace(template, limit_key=limit_key_maker(options.limit_key, name, signature))
    return template


def _headers(
    name: str, content_type: str, options: TaskOptions, call: CallOptions, release: str
) -> Headers:
    countdown, eta = call.ready()
    ttl = options.result_ttl if call.result_ttl is None else call.result_ttl
    ignored = call.ignore_result
    timeout = options.timeout if call.timeout is None else call.timeout
    soft = options.soft_timeout if call.soft_timeout is None else call.soft_timeout
    values.limits(timeout, soft)
    return Headers(
        guarantee=None if options.guarantee else False,
        task=name,
        content_type=content_type,
        retry_count=options.retries if call.retries is None else call.retries,
        priority=options.priority if call.priority is None else call.priority,
        countdown=countdown,
        eta=eta,
        expires=call.expiry()[1],
        ignore_result=options.ignore_result if ignored is None else ignored,
        result_ttl=None if ttl == RESULT_TTL else ttl,
        keep_arguments=options.keep_arguments,
        timeout=float(timeout or 0.0),
        soft_limit=float(soft or 0.0),
        limit_rate=options.rate_limit or "",
        limit_running=options.max_concurrency or 0,
        extra=_extra(call, release),
    )


def _streaming(headers: Headers, options: TaskOptions) -> Headers:
    return replace(
        headers,
        stream=True,
        replayable=options.replayable,
        stream_idle=None if options.stream_idle == STREAM_IDLE else float(options.stream_idle),
        stream_unread="" if options.stream_unread == "discard" else options.stream_unread,
    )


def _extra(call: CallOptions, release: str) -> tuple[tuple[str, str], ...]:
    """Return the caller's headers, with the release unless they have one."""
    headers = call.own_headers()
    return (
        headers if not release or "release" in dict(headers) else (*headers, ("release", release))
    )


def write_raw(
    queue: str, body: object, headers: Mapping[str, Any] | None, job_id: str
) -> EncodedJob:
    """Return a job with this body.

    Args:
        queue: Name of the queue.
        body: Bytes, or a list of frames for a task that serves frames in the queue.
        headers: Names as on the wire; True stands for a header without a value.
        job_id: Id of the job.

    Raises:
        SettingsError: A value is not allowed.
    """
    values.text("queue", queue)
    values.text("job_id", job_id)
    if isinstance(body, (list, tuple)):
        return _write_frames(queue, body, headers or {}, job_id)
    if not isinstance(body, (bytes, bytearray, memoryview)):
        values.refuse("body", type(body).__name__, "bytes")
    return EncodedJob(job_id, queue, header_text(headers or {}), bytes(body))


def _write_frames(
    queue: str, frames: Sequence[object], headers: Mapping[str, Any], job_id: str
) -> EncodedJob:
    for frame in frames:
        if not isinstance(frame, (bytes, bytearray, memoryview)):
            values.refuse("a frame of the body", type(frame).__name__, "bytes")
    text = header_text({**headers, "task": frames_task(queue), "content-type": FRAMES_TYPE})
    return EncodedJob(job_id, queue, text, encode_frames(frames))  # type: ignore[arg-type]


def header_text(headers: Mapping[str, Any]) -> str:
    """Return headers in the form of the wire; True stands for a header without a value.

    Raises:
        SettingsError: A name or value is not allowed.
    """
    if not isinstance(headers, Mapping):
        values.refuse("headers", headers, "a mapping of names to values")
    pairs = [(str(name), "" if value is True else str(value)) for name, value in headers.items()]
    try:
        text = write_headers(pairs)
    except ProtocolError as error:
        raise SettingsError(str(error)) from error
    if not {"batch", "chunk"}.isdisjoint(headers):
        raise SettingsError("the headers batch and chunk are made by the client, not by callers")
    return text


class AsyncTask(Task[P, R]):
    """A task whose function is ``async def``: calling it returns a coroutine."""

    if TYPE_CHECKING:

        def __call__(  # type: ignore[override]
            self, *args: P.args, **kwargs: P.kwargs
        ) -> Coroutine[Any, Any, R]:
            """Call the function directly."""


class StreamTask(Task[P, R]):
    """A task whose function is a generator: calling it returns the generator."""

    if TYPE_CHECKING:

        def __call__(  # type: ignore[override]
            self, *args: P.args, **kwargs: P.kwargs
        ) -> Generator[Any, Any, R]:
            """Call the function directly."""


class AsyncStreamTask(Task[P, None]):
    """A task whose function is an async generator: calling it returns the generator."""

    if TYPE_CHECKING:

        def __call__(  # type: ignore[override]
            self, *args: P.args, **kwargs: P.kwargs
        ) -> AsyncGenerator[Any, Any]:
            """Call the function directly."""
