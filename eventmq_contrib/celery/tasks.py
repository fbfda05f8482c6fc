"""Tasks with Celery's decorator and ``self``, which are tasks of EventMQ."""

from __future__ import annotations

import functools
import inspect
import json
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NoReturn, ParamSpec, TypeVar, overload

import eventmq
from eventmq import EventMQError, SettingsError, current_job
from eventmq.sdk import parse_headers
from eventmq_contrib.celery.options import check_exceptions, read_options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime
    from typing import Literal

    from eventmq import Job, Signature
    from eventmq.sdk import JobContext
    from eventmq_contrib.celery.options import RetryRules

__all__ = ["CeleryTask", "MaxRetriesExceededError", "Request", "shared_task"]

P = ParamSpec("P")
R = TypeVar("R")

#: Options of a call with another name in EventMQ.
_CALL = {"task_id": "job_id", "time_limit": "timeout", "soft_time_limit": "soft_timeout"}

#: Characters of the longest note of a progress.
MAX_NOTE = 1000

#: The arguments of the running task.
_arguments: ContextVar[tuple[tuple[Any, ...], dict[str, Any]]] = ContextVar("celery_arguments")


class MaxRetriesExceededError(EventMQError):
    """Raised by ``self.retry()`` without ``exc`` if no retry is left."""


class Request:
    """``self.request``: the running job in Celery's words.

    Attributes:
        called_directly: The function was called, and is not run by a worker; most others are None
            then.
        id: Id of the job.
        correlation_id: As ``id``.
        root_id: Id of the first job of the tree.
        parent_id: Id of the job that submitted this one.
        retries: Number of earlier attempts that failed.
        delivery_info: ``exchange``, ``routing_key`` (the queue), ``priority`` and ``redelivered``.
        headers: The caller's headers.
        args: Positional arguments, without ``self``.
        kwargs: Keyword arguments.
        is_eager: False.
    """

    is_eager = False

    def __init__(self, task: str) -> None:
        self.task = task
        self.args: tuple[Any, ...] | None = None
        self.kwargs: dict[str, Any] | None = None
        self.id = self.correlation_id = self.root_id = self.parent_id = None
        self.retries, self.delivery_info, self.headers = 0, None, None
        job = _job_of(task)
        self.called_directly = job is None
        if job is not None:
            headers = parse_headers(job.headers)
            self.id = self.correlation_id = job.id
            self.headers = dict(headers.extra)
            self.root_id = self.headers.get("root-id", job.id)
            self.parent_id = self.headers.get("parent-id")
            self.retries = job.attempt - 1
            self.args, self.kwargs = _arguments.get(((), {}))
            self.delivery_info = {
                "exchange": "", "routing_key": job.queue, "priority": headers.priority,
                "redelivered": job.delivery > 1,
            }  # fmt: skip

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise `AttributeError` for what EventMQ does not have."""
            raise AttributeError(
                f"self.request.{name} is not there with EventMQ; current_job() has the job"
            )


class CeleryTask(Generic[P, R]):
    """A task of EventMQ with the methods and attributes of Celery's; made by `shared_task`.

    Attributes:
        eventmq: The task of EventMQ; what is not listed here is taken from it.
        name: Its name in messages.
        max_retries: Option of the declaration, as are ``default_retry_delay`` and others.
    """

    MaxRetriesExceededError = MaxRetriesExceededError

    def __init__(
        self, function: Callable[..., R], options: dict[str, Any], rules: RetryRules, *, bind: bool
    ) -> None:
        self._function = functools.partial(function, self) if bind else function
        self._rules = rules
        self.max_retries, self.default_retry_delay = rules.max_retries, rules.default_retry_delay
        functools.update_wrapper(self, function)
        self.eventmq: Any = eventmq.shared_task(**options)(self._runner(function, bind=bind))
        self.name: str = self.eventmq.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def __reduce__(self) -> str:
        return self.eventmq.function.__qualname__  # type: ignore[no-any-return]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return an attribute of EventMQ's task, whose errors have hints for Celery's names."""
            if name.startswith("__") or "eventmq" not in vars(self):
                raise AttributeError(name)
            return getattr(self.eventmq, name)

    def _runner(self, function: Callable[..., R], *, bind: bool) -> Callable[..., R | None]:
        """Return the function that workers call."""

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> R | None:
            token = _arguments.set((args, kwargs))
            try:
                return self._function(*args, **kwargs)
            except (eventmq.Retry, eventmq.Reject, eventmq.JobCancelled):
                raise
            except Exception as error:
                if type(error).__module__ == "celery.exceptions":
                    if type(error).__name__ == "Ignore":
                        return None
                    if type(error).__name__ == "Reject":
                        raise eventmq.Reject(str(error)) from error
                again = self._rules.automatic(error, self.request.retries)
                if again is None:
                    raise
                self.retry(exc=error, **again)
            finally:
                _arguments.reset(token)

        signature = inspect.signature(function)
        parameters = [*signature.parameters.values()][bool(bind) :]
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return run

    # Calls

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function directly."""
        return self._function(*args, **kwargs)

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Submit a job, like ``delay()`` of any task of EventMQ."""
        return self.eventmq.delay(*args, **kwargs)  # type: ignore[no-any-return]

    def apply_async(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Job[R]:
        """Submit a job with Celery's options of a call.

        Args:
            args: Positional arguments.
            kwargs: Keyword arguments.
            **options: ``countdown``, ``eta``, ``expires``, ``queue``, ``priority``, ``headers``,
                ``ignore_result``, ``task_id``, ``time_limit`` and ``soft_time_limit``.

        Raises:
            SettingsError: There is another one, or its value is not allowed.
            TypeError: The function does not accept these arguments.
        """
        if not isinstance(args or (), tuple | list):
            raise TypeError(f"task {self.name}: args is a list or tuple, as in apply_async((1, 2))")
        chosen = {_CALL.get(name, name): value for name, value in options.items()}
        if chosen.get("retry") is True:  # the client always does
            del chosen["retry"]
        if chosen.get("retries") is not None:
            raise SettingsError(
                f"task {self.name}: apply_async() takes no 'retries'; max_retries of the task says "
                "how many there may be"
            )
        call = {name: value for name, value in chosen.items() if value is not None}
        return self.eventmq.options(**call).delay(*(args or ()), **(kwargs or {}))  # type: ignore[no-any-return]

    def s(self, *args: Any, **kwargs: Any) -> Signature:
        """Return this call as data. In a chain it gets the previous result as first argument."""
        return self.eventmq.s(*args, **kwargs)  # type: ignore[no-any-return]

    def si(self, *args: Any, **kwargs: Any) -> Signature:
        """Return this call as data that does not get the result of the jobs before it."""
        return self.eventmq.si(*args, **kwargs)  # type: ignore[no-any-return]

    # For the function

    @property
    def request(self) -> Request:
        """The running job."""
        return Request(self.name)

    def retry(
        self,
        *,
        exc: BaseException | None = None,
        throw: bool = True,
        eta: datetime | None = None,
        countdown: float | None = None,
        max_retries: int | None = None,
        **others: Any,
    ) -> NoReturn:
        """End this attempt, and try again later.

        Args:
            exc: The error of this attempt, which is raised if no retry is left.
            throw: True: the attempt ends here.
            eta: An aware datetime of the next attempt.
            countdown: Seconds until the next attempt, by default ``default_retry_delay``.
            max_retries: Fewer retries than the task's option allows.
            **others: None; any other option is an error.

        Raises:
            Retry: Always, but for the following.
            MaxRetriesExceededError: No retry is left, and there is no ``exc``.
            SettingsError: An argument cannot be honoured.
        """
        if not throw or others:
            refused = ", ".join(others) or "throw=False"
            raise SettingsError(
                f"task {self.name}: retry() does not honour {refused}: the next attempt is the "
                "same job with the same arguments and options; write raise self.retry(countdown=5)"
            )
        request = self.request
        if request.called_directly:
            raise exc or eventmq.Retry("the task was called directly, and can be retried")
        limit = self.max_retries if max_retries is None else max_retries
        if limit is not None and limit > self._rules.retries:
            raise SettingsError(
                f"task {self.name}: retry() has max_retries={limit}, and the task at most "
                f"{self._rules.retries}: declare it with max_retries={limit}"
            )
        if limit is not None and request.retries >= limit:
            raise exc or MaxRetriesExceededError(
                f"job {request.id} of task {self.name} has used up its {limit} retries"
            )
        if eta is not None:
            if eta.utcoffset() is None:
                raise SettingsError(f"task {self.name}: retry(eta={eta!r}) needs a time zone")
            countdown = max(0.0, eta.timestamp() - time.time())
        delay = self.default_retry_delay if countdown is None else countdown
        error = eventmq.Retry(str(exc or ""), countdown=float(delay))
        if exc is None:
            raise error  # the error that is being handled, if there is one, is that of the attempt
        raise error from exc

    def update_state(
        self,
        task_id: str | None = None,
        state: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        """Report a state as the progress of the job, which ``job.info()["progress"]`` shows.

        Its numbers are ``current`` and ``total`` of ``meta``; its note is JSON of ``state`` and of
        what else there is in ``meta``.

        Raises:
            SettingsError: ``task_id`` is another job, or the note is too long.
            TypeError: ``meta`` cannot be written as JSON.
        """
        job = current_job()
        if task_id not in {None, job.id}:
            raise SettingsError(f"task {self.name}: only the state of the running job can be set")
        rest = dict(meta or {})
        done, total = rest.pop("current", 0), rest.pop("total", None)
        note = json.dumps({"state": state, **rest})
        if len(note) > MAX_NOTE:
            raise SettingsError(
                f"task {self.name}: meta has {len(note)} characters; {MAX_NOTE} are allowed"
            )
        job.progress(done, total, note)


def _job_of(task: str) -> JobContext | None:
    """Return the running job of a task, None if that was called by another or by no job."""
    try:
        job = current_job()
    except EventMQError:
        return None
    return job if job.task == task else None


@overload
def shared_task(function: Callable[P, R], /) -> CeleryTask[P, R]: ...


@overload
def shared_task(
    *, bind: Literal[True], **options: Any
) -> Callable[[Callable[Concatenate[Any, P], R]], CeleryTask[P, R]]: ...


@overload
def shared_task(
    *, bind: Literal[False] = False, **options: Any
) -> Callable[[Callable[P, R]], CeleryTask[P, R]]: ...


def shared_task(function: Any = None, /, *, bind: bool = False, **options: Any) -> Any:
    """Declare a task of EventMQ with the options of Celery's ``shared_task``.

    Every option is honoured, needless, or an error or a warning that says what would be right: see
    the page "Migrate from Celery". All apps of the process have the task.

    Args:
        function: The function, if there are no options.
        bind: The first argument of the function is the task, as ``self``.
        **options: Options of Celery's decorators.

    Raises:
        SettingsError: An option cannot be honoured, or its value is not allowed.
    """

    def decorate(function: Callable[..., Any]) -> CeleryTask[Any, Any]:
        path = options.get("name") or f"{function.__module__}.{function.__qualname__}"
        coroutine = inspect.iscoroutinefunction(function)
        if coroutine or inspect.isgeneratorfunction(function) or not inspect.isfunction(function):
            raise SettingsError(
                f"task {path} is no plain function, which Celery's are: declare it with "
                "eventmq.shared_task"
            )
        check_exceptions(path, function)
        return CeleryTask(function, *read_options(path, options), bind=bind)

    return decorate if function is None else decorate(function)
