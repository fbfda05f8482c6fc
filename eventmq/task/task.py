"""A task: a function with a name under which workers know it."""

from __future__ import annotations

import inspect
import weakref
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar

from eventmq.client.main_module import real_name
from eventmq.errors import SettingsError
from eventmq.task import values
from eventmq.task.arity import is_generator, plain_arity, signature_of
from eventmq.task.calls import NO_OPTIONS, CallOptions
from eventmq.task.signatures import Signing
from eventmq.task.template import make_template
from eventmq.task.unique import key_maker, limit_key_maker, read_unique
from eventmq.worker.taskspec import TaskSpec

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Iterable,
        Mapping,
        Sequence,
    )
    from datetime import datetime, timedelta

    from typing_extensions import Unpack

    from eventmq.client.handle import Job
    from eventmq.client.submitter import Submitter
    from eventmq.client.templates import Template
    from eventmq.interfaces import Serializer
    from eventmq.plugins.retries.backoff import Backoff
    from eventmq.task.calls import CallKeywords
    from eventmq.task.options import TaskOptions
    from eventmq.task.unique import Unique

__all__ = ["BoundTask", "HasHost", "Host", "Task"]

P = ParamSpec("P")
R = TypeVar("R")


class Host(Protocol):
    """What a task needs of its app."""

    @property
    def submitter(self) -> Submitter:
        """Submits jobs; the first use connects."""

    @property
    def default_queue(self) -> str:
        """The queue of tasks that name none."""

    @property
    def release(self) -> str:
        """The release of the code, in the headers of its jobs; empty for none."""

    def content(self, name: str | None) -> tuple[str, Serializer]:
        """Return the content type and the serializer of a name, None for the app's own."""

    def uses_policy(self, policy: Backoff) -> None:
        """Raise `PluginError` for a retry policy that there is not, or not with its options."""

    def now(self) -> float:
        """Return Unix time."""

    def uses_queue(self, queue: str) -> None:
        """Take note that jobs will be submitted to a queue."""


class HasHost(Protocol):
    """An app."""

    @property
    def host(self) -> Host:
        """What tasks know of it."""


def task_name(function: Callable[..., Any]) -> str:
    """Return ``module.function``, with the importable name for ``__main__``."""
    qualname = function.__qualname__.replace("<locals>.", "")
    return f"{real_name(function.__module__)}.{qualname}"


class Task(Signing, Generic[P, R]):
    """A function that can be called here and now, and submitted. Made by ``@app.task``.

    ``P`` are its parameters, ``R`` is the type of its result.

    Attributes:
        name: What messages call it.
        function: The function itself.
        declared: The options of its declaration.
        streams: Whether the function is a generator, whose parts ``job.stream()`` yields.
    """

    def __init__(
        self, function: Callable[..., Any], options: TaskOptions, find_host: Callable[[], Host]
    ) -> None:
        _check_function(function, options)
        self.name = options.name or task_name(function)
        values.text("the name of the task", self.name)
        update_wrapper(self, function)
        self.function = function
        self.declared = options
        self.streams = is_generator(function)
        self._find_host = find_host
        self._template: tuple[weakref.ref[Host], Template] | None = None
        self._signature: inspect.Signature | None = None
        self._plain = range(0)
        unique = read_unique(options.unique)
        if unique is not None:
            key_maker(unique, self.name, self.signature)
        if options.limit_key is not None:
            limit_key_maker(options.limit_key, self.name, self.signature)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def __reduce__(self) -> str:
        return self.function.__qualname__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function here and now."""
        return self.function(*args, **kwargs)  # type: ignore[no-any-return]

    # One job

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Submit a job, and return after the broker's receipt.

        A legacy broker gives none: then it returns when the job was sent, and `Job.confirmed` is
        False.

        Raises:
            TypeError: The function does not take these arguments.
            SerializationError: They cannot be encoded, or a legacy broker could not read them.
            BrokerUnavailable: There was no receipt within ``submit_timeout``.
            SubmitError: The broker refused the job.
        """
        self.check(args, kwargs)
        return self.host.submitter.submit(self.template, args, kwargs)

    async def adelay(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Do the same as `delay` in a coroutine."""
        self.check(args, kwargs)
        return await self.host.submitter.asubmit(self.template, args, kwargs)

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
    ) -> Job[R]:
        """Submit a job with any arguments and options, and return after the broker's receipt.

        Args:
            args: Positional arguments.
            kwargs: Keyword arguments.
            queue: As the others: see `eventmq.task.CallOptions`.
            priority: 0 to 255; higher first.
            countdown: Seconds until the job becomes ready.
            eta: The same as an aware datetime.
            expires: Seconds, or a moment, after which it must not start.
            retries: How often it is tried again when it failed.
            timeout: Seconds after which it is stopped from outside while it runs.
            job_id: Its id; submitting the same id again does nothing, see `CallOptions`.
            unique: A key of which there is one job at a time.
            headers: More headers.

        Raises:
            TypeError: The function does not take these arguments.
            SettingsError: An option is not allowed.
            SerializationError: The arguments cannot be encoded.
            BrokerUnavailable: There was no receipt within ``submit_timeout``.
            SubmitError: The broker refused the job.
        """
        call = CallOptions(
            queue=queue,
            priority=priority,
            countdown=countdown,
            eta=eta,
            expires=expires,
            retries=retries,
            timeout=timeout,
            job_id=job_id,
            unique=unique,
            headers=headers,
        )
        return BoundTask(self, call).submit(*values.arguments(args, kwargs, "apply_async("))

    # Many jobs

    def map(self, calls: Iterable[Sequence[Any]], **kwargs: Any) -> list[Job[R]]:
        """Submit one job per argument tuple, and return after all receipts.

        They travel in parts of up to 1,000 jobs, each stored as a whole; several parts are on
        their way at a time.

        Args:
            calls: Argument tuples.
            **kwargs: Keyword arguments of every call.

        Returns:
            The handles, in order.

        Raises:
            SettingsError: Something else than argument tuples.
            SerializationError: Arguments of the first part cannot be encoded; nothing was sent.
            BatchError: Some jobs were not confirmed; ``jobs`` says which.
        """
        return self.host.submitter.submit_many(self.template, self.tuples(calls, kwargs), kwargs)

    async def amap(self, calls: Iterable[Sequence[Any]], **kwargs: Any) -> list[Job[R]]:
        """Do the same as `map` in a coroutine."""
        tuples = self.tuples(calls, kwargs)
        return await self.host.submitter.asubmit_many(self.template, tuples, kwargs)

    def tuples(
        self, calls: Iterable[Sequence[Any]], kwargs: Mapping[str, Any]
    ) -> list[Sequence[Any]]:
        """Return the calls of a `map` as a list, checked."""
        found = values.calls(calls)
        if found:
            self.check(found[0], kwargs)
        return found

    # Inside

    def signed(self) -> tuple[str, Mapping[str, Any]]:
        """Return what a signature has of it."""
        return self.name, {}

    @property
    def graph_template(self) -> Template:
        """The common part of its jobs in graphs."""
        return self.template

    @property
    def host(self) -> Host:
        """The app that it is submitted through.

        Raises:
            NotAllowed: A shared task, and it is not clear which app.
        """
        return self._find_host()

    @property
    def template(self) -> Template:
        """The common part of its jobs without options of a call."""
        host = self._find_host()
        if self._template is not None and self._template[0]() is host:
            return self._template[1]
        template = make_template(
            host, self.name, self.declared, NO_OPTIONS, self.signature, streams=self.streams
        )
        self._template = weakref.ref(host), template
        return template

    @property
    def signature(self) -> inspect.Signature:
        """The signature of its function."""
        if self._signature is None:
            self._signature = signature_of(self.function)
            self._plain = plain_arity(self._signature)
        return self._signature

    def check(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise `TypeError` if the function does not take these arguments."""
        signature = self.signature
        # Binding costs 5 microseconds; most calls are as simple as this.
        if not kwargs and len(args) in self._plain:
            return
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"task {self.name}: {error}") from None

    def spec(self) -> TaskSpec:
        """Return what a worker must know."""
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
        )

    def bound_to(self, app: HasHost) -> Task[P, R]:
        """Return the same task, submitted through another app."""
        host = app.host
        return type(self)(self.function, self.declared, lambda: host)


class BoundTask(Signing, Generic[P, R]):
    """A task with options of one call; made by ``task.options(...)``."""

    def __init__(self, task: Task[P, R], call: CallOptions) -> None:
        self._task = task
        self._call = call
        self._template: tuple[weakref.ref[Host], Template] | None = None

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Submit a job, as `Task.delay` does."""
        return self.submit(args, kwargs)

    async def adelay(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Do the same as `delay` in a coroutine."""
        self._task.check(args, kwargs)
        submitter = self._task.host.submitter
        return await submitter.asubmit(self.template(), args, kwargs, self._call.job_id)

    def map(self, calls: Iterable[Sequence[Any]], **kwargs: Any) -> list[Job[R]]:
        """Submit one job per argument tuple, as `Task.map` does."""
        if self._call.job_id is not None:
            raise SettingsError("job_id is the id of one job; map makes the ids of its jobs")
        tuples = self._task.tuples(calls, kwargs)
        return self._task.host.submitter.submit_many(self.template(), tuples, kwargs)

    def submit(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Job[R]:
        """Submit a job with any arguments."""
        self._task.check(args, kwargs)
        submitter = self._task.host.submitter
        return submitter.submit(self.template(), args, kwargs, self._call.job_id)

    def signed(self) -> tuple[str, Mapping[str, Any]]:
        """Return what a signature has of it."""
        return self._task.name, self._call.given()

    @property
    def host(self) -> Host:
        """The app that it is submitted through."""
        return self._task.host

    @property
    def graph_template(self) -> Template:
        """The common part of its jobs in graphs."""
        return self.template()

    def check(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise `TypeError` if the function does not take these arguments."""
        self._task.check(args, kwargs)

    def template(self) -> Template:
        """Return the common part of its jobs."""
        task = self._task
        host = task.host
        if self._template is not None and self._template[0]() is host:
            return self._template[1]
        template = make_template(
            host, task.name, task.declared, self._call, task.signature, streams=task.streams
        )
        self._template = weakref.ref(host), template
        return template


def _check_function(function: Callable[..., Any], options: TaskOptions) -> None:
    if not inspect.isroutine(inspect.unwrap(function)):
        raise SettingsError(f"a task is a function; {function!r} is none")
    if "<lambda>" in function.__qualname__ and options.name is None:
        raise SettingsError("a lambda has no name by which a worker could find it: say name=...")
    if options.only_for_streams and not is_generator(function):
        names = " and ".join(options.only_for_streams)
        msg = f"task {options.name or task_name(function)} is no generator and has no parts: "
        raise SettingsError(f"{msg}leave out {names}")
