"""Failures: the handling of exceptions that a task raised, and the control-flow exceptions.

A task raises `Retry` or `Reject` to decide itself; `retry_delay` decides for all exceptions.
`describe` returns the error as it is sent and logged. Its traceback begins with the task's own
frame, since the frames of its caller do not help its author.
"""

from __future__ import annotations

import inspect
import logging
import traceback
from typing import TYPE_CHECKING, Any

from eventmq.errors import EventMQError
from eventmq.interfaces import Failure
from eventmq.wire.results import MESSAGE_LIMIT, RemoteError, shorten, take_apart

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import CodeType, TracebackType

    from eventmq.execution.spec import TaskSpec
    from eventmq.interfaces import JobContext, RetryPolicy

__all__ = [
    "Reject",
    "Retry",
    "describe",
    "error_text",
    "is_misfit",
    "reported_error",
    "retry_delay",
]


class Retry(EventMQError):
    """Raised by a task: end this attempt and try again later.

    Every attempt counts against the ``retries`` of the job, whose default is 0. If none is left
    the job fails, with the error from which this one was raised, or during whose handling, or else
    with this one, whose message then names the used-up retries. With a countdown the retry policy
    is not asked; without one it decides, and the job fails if it gives up, as ``none`` does after
    any attempt::

        @app.task(retries=5)
        def fetch(url):
            try:
                return download(url)
            except TimeoutError as error:
                raise Retry(countdown=30) from error

    Args:
        reason: The reason, as text.
        countdown: Seconds until the next attempt; with None the retry policy decides about that
            and whether there is one.

    Attributes:
        countdown: The argument ``countdown``.

    Raises:
        ValueError: ``countdown`` is not a number, negative or infinite.
    """

    def __init__(self, reason: str = "", *, countdown: float | None = None) -> None:
        is_number = countdown is None or isinstance(countdown, int | float)
        if not is_number or not 0.0 <= (countdown or 0.0) < float("inf"):
            msg = f"countdown is {countdown!r}; allowed are seconds from 0"
            raise ValueError(msg)
        super().__init__(reason or "the task asked for another attempt")
        self.countdown = countdown


class Reject(EventMQError):
    """Raised by a task: the job has failed for good, whatever its retries.

    Attributes:
        reason: The reason, as text.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "the task rejected the job")
        self.reason = reason


#: Maximum depth of nested exception groups whose members are described.
MAX_GROUP_DEPTH = 3

_log = logging.getLogger(__name__)


def _codes(function: Callable[..., Any] | None) -> set[CodeType]:
    """Return the code objects of a task's function and of the function that it wraps."""
    if function is None:
        return set()
    chain = [function, inspect.unwrap(function), getattr(function, "__call__", None)]  # noqa: B004
    codes = (getattr(link, "__code__", None) for link in chain)
    return {code for code in codes if code is not None}


def _task_frames(
    frames: TracebackType | None, function: Callable[..., Any] | None, ours: str
) -> TracebackType | None:
    """Return the traceback from the task's frame on, otherwise without the first EventMQ frames."""
    codes = _codes(function)
    step = frames
    while step is not None:
        if step.tb_frame.f_code in codes:
            return step
        step = step.tb_next
    step = frames
    while step is not None and step.tb_frame.f_code.co_filename == ours:
        step = step.tb_next
    return step


def _utf8(text: str) -> str:
    """Replace characters that UTF-8 cannot encode: file names may have lone surrogates."""
    return text.encode(errors="replace").decode()


def error_text(error: BaseException) -> str:
    """Return the start of ``str(error)``, or the type if that is empty or raises."""
    try:
        return _utf8(str(error)[:MESSAGE_LIMIT]) or type(error).__name__
    except Exception:  # noqa: BLE001 - an exception of the user that cannot be shown
        return f"{type(error).__name__} (its text cannot be shown)"


def _traceback_text(error: BaseException, frames: TracebackType | None) -> str:
    try:
        text = "".join(traceback.TracebackException(type(error), error, frames).format())
        return _utf8(shorten(text))
    except Exception:  # noqa: BLE001 - as in error_text
        return ""


def describe(
    error: BaseException, *, function: Callable[..., Any] | None = None, ours: str = ""
) -> RemoteError:
    """Return the description of an exception for the broker and the log.

    Args:
        error: The exception.
        function: Function of the task; the traceback begins at its frame.
        ours: File whose frames are left out if the task's frame is not found.
    """
    frames = _task_frames(error.__traceback__, function, ours)
    return _describe(error, _traceback_text(error, frames), MAX_GROUP_DEPTH)


def _dotted(kind: type[BaseException]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _describe(error: BaseException, traceback: str, levels: int) -> RemoteError:
    """Describe an exception and the members of a group, down to a depth."""
    parts = take_apart(error)
    return RemoteError(
        _dotted(type(error)),
        error_text(error),
        traceback,
        parts.arguments,
        parts.state,
        tuple(_describe(member, "", levels - 1) for member in parts.members if levels),
    )


def reported_error(
    error: BaseException, attempt: int, retries: int, *, again: bool
) -> BaseException:
    """Return the exception to report for an exception of a task.

    It is ``error`` itself; for a `Retry` its cause or context. A `Retry` without one that is not
    followed by another attempt gets the reason for that.

    Args:
        error: The exception of the task.
        attempt: The attempt that failed, from 1.
        retries: How often the job is retried.
        again: Another attempt follows.
    """
    if not isinstance(error, Retry):
        return error
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None or again:
        return cause or error
    if attempt <= retries:
        reason = "its retry policy allows no further attempt"
    else:
        reason = f"its {retries} retries are used up" if retries else "the job has no retries"
    last = Retry(f"{error_text(error)}; {reason}", countdown=error.countdown)
    return last.with_traceback(error.__traceback__)


def is_misfit(
    error: BaseException,
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> bool:
    """Return whether a function raised because it does not accept its arguments.

    Only its own signature counts, not that of a function that it wraps: a wrapper may add
    arguments.
    """
    if type(error) is not TypeError:
        return False
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # a built-in function
        return False
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return True
    return False


def _failure(error: BaseException, job: JobContext) -> Failure:
    """Return the failed attempt of a job as a retry policy sees it."""
    cause = reported_error(error, job.attempt, 0, again=True)
    return Failure(
        attempt=job.attempt,
        exception=cause,
        error_type=_dotted(type(cause)),
        task=job.task,
        queue=job.queue,
        job_id=job.id,
        created=job.created,
    )


def retry_delay(
    error: BaseException, job: JobContext, retries: int, spec: TaskSpec, policy: RetryPolicy
) -> float | None:
    """Return seconds until the next attempt, or None if the job has failed for good.

    Args:
        error: The exception of the task.
        job: The job, with the failed attempt.
        retries: How often a failed job is retried.
        spec: The task.
        policy: Retry policy of the job.
    """
    try:
        if isinstance(error, Reject) or job.attempt > retries:
            return None
        if isinstance(error, Retry):
            if error.countdown is not None:
                return float(error.countdown)
        elif isinstance(error, spec.no_retry_on) or not isinstance(error, spec.retry_on):
            return None
        delay = policy.delay(_failure(error, job))
        return None if delay is None else float(delay)
    except Exception:  # noqa: BLE001 - policies are plugins
        _log.exception("the retry policy of task %s failed; the job is not tried again", spec.name)
        return None
