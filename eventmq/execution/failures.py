"""What is said about an exception that a task raised: the error, its traceback, another attempt.

The traceback begins with the task's own frame: what called it is of no use to its author.
"""

from __future__ import annotations

import inspect
import logging
import traceback
from typing import TYPE_CHECKING, Any

from eventmq.errors import EventMQError
from eventmq.wire.exceptions import take_apart
from eventmq.wire.results import MESSAGE_LIMIT, RemoteError, shorten

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, TracebackType

    from eventmq.execution.spec import TaskSpec
    from eventmq.interfaces import RetryPolicy

__all__ = ["Reject", "Retry", "describe", "error_text", "reason_of", "retry_delay"]


class Retry(EventMQError):
    """Raised by a task: end this attempt and try again later.

    Every attempt counts against the ``retries`` of the job, whose default is 0. Where none is
    left the job fails: with the error that this one was raised from, or raised while handling,
    else with this one, which then says that the retries are used up::

        @app.task(retries=5)
        def fetch(url):
            try:
                return download(url)
            except TimeoutError as error:
                raise Retry(countdown=30) from error

    Args:
        reason: Why, for people.
        countdown: Seconds until the next attempt; None leaves it to the retry policy.

    Attributes:
        countdown: As given.

    Raises:
        ValueError: ``countdown`` is no number, negative or without end.
    """

    def __init__(self, reason: str = "", *, countdown: float | None = None) -> None:
        known = countdown is None or isinstance(countdown, int | float)
        if not known or not 0.0 <= (countdown or 0.0) < float("inf"):
            msg = f"countdown is {countdown!r}; allowed are seconds from 0"
            raise ValueError(msg)
        super().__init__(reason or "the task asked for another attempt")
        self.countdown = countdown


class Reject(EventMQError):
    """Raised by a task: the job has failed for good, whatever its retries.

    Attributes:
        reason: Why, for people.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "the task rejected the job")
        self.reason = reason


#: Groups within groups of exceptions whose members are told of.
LEVELS = 3

_log = logging.getLogger(__name__)


def _codes(function: Callable[..., Any] | None) -> set[CodeType]:
    """Return the code objects of a task's function and of what it wraps."""
    if function is None:
        return set()
    chain = [function, inspect.unwrap(function), getattr(function, "__call__", None)]  # noqa: B004
    codes = (getattr(link, "__code__", None) for link in chain)
    return {code for code in codes if code is not None}


def _task_frames(
    frames: TracebackType | None, function: Callable[..., Any] | None, ours: str
) -> TracebackType | None:
    """Return the traceback from the task's frame on, or what is left without our frames."""
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
    """Return the text without what UTF-8 cannot say: names of files may have lone surrogates."""
    return text.encode(errors="replace").decode()


def error_text(error: BaseException) -> str:
    """Return the beginning of ``str(error)``, or its type where that is empty or fails itself."""
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
    """Return what the broker and the log are told of an exception.

    Args:
        error: What was raised.
        function: The task; the traceback begins at its frame.
        ours: File whose frames are left out where the task's is not found.
    """
    frames = _task_frames(error.__traceback__, function, ours)
    return _told(error, _traceback_text(error, frames), LEVELS)


def _told(error: BaseException, traceback: str, levels: int) -> RemoteError:
    """Return what is told of an exception and, so many levels deep, of the members of a group."""
    kind = type(error)
    apart = take_apart(error)
    return RemoteError(
        f"{kind.__module__}.{kind.__qualname__}",
        error_text(error),
        traceback,
        apart.arguments,
        apart.state,
        tuple(_told(member, "", levels - 1) for member in apart.members if levels),
    )


def reason_of(error: BaseException, retries: int, *, again: bool) -> BaseException:
    """Return the exception that is to be told of where a task raised ``error``.

    That is itself, but for a `Retry` what it was raised from or while handling. One without such
    a cause that finds no retries left says so.

    Args:
        error: What the task raised.
        retries: How often the job is tried again.
        again: Another attempt comes.
    """
    if not isinstance(error, Retry):
        return error
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None or again:
        return cause or error
    spent = f"its {retries} retries are used up" if retries else "the job has no retries"
    last = Retry(f"{error_text(error)}; {spent}", countdown=error.countdown)
    return last.with_traceback(error.__traceback__)


def _asked(error: Retry, attempt: int, policy: RetryPolicy) -> float:
    """Return the delay that the task asked for."""
    if error.countdown is not None:
        return float(error.countdown)
    return float(policy.delay(attempt) or 0.0)


def retry_delay(
    error: BaseException, attempt: int, retries: int, spec: TaskSpec, policy: RetryPolicy
) -> float | None:
    """Return seconds until the next attempt, or None if the job has failed for good.

    Args:
        error: What the task raised.
        attempt: The attempt that failed, 1 for the first.
        retries: How often a failed job is tried again.
        spec: The task.
        policy: Says how long to wait.
    """
    try:
        if isinstance(error, Reject) or attempt > retries:
            return None
        if isinstance(error, Retry):
            return _asked(error, attempt, policy)
        if isinstance(error, spec.no_retry_on):
            return None
        delay = policy.delay(attempt) if isinstance(error, spec.retry_on) else None
        return None if delay is None else float(delay)
    except Exception:  # noqa: BLE001 - policies are plugins
        _log.exception("the retry policy of task %s failed; the job is not tried again", spec.name)
        return None
