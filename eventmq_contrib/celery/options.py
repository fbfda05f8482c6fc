"""Options of Celery's decorator: what each becomes in EventMQ, checked at declaration."""

from __future__ import annotations

import difflib
import math
import random
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from eventmq import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Exceptions = tuple[type[BaseException], ...]

__all__ = ["RetryRules", "check_exceptions", "read_options"]

#: Number of retries that stands for no limit.
UNLIMITED = 1_000_000_000

#: Options with the same meaning, and their names in EventMQ.
_SAME = {
    "name": "name", "queue": "queue", "priority": "priority", "ignore_result": "ignore_result",
    "time_limit": "timeout", "soft_time_limit": "soft_timeout",
}  # fmt: skip

#: Options that are attributes of `RetryRules`.
_RETRIES = frozenset({
    "autoretry_for", "default_retry_delay", "dont_autoretry_for", "max_retries", "retry_backoff",
    "retry_backoff_max", "retry_jitter", "retry_kwargs",
})  # fmt: skip

#: Options whose values need nothing: it is always so, or it makes no difference.
_NEEDLESS: Mapping[str, tuple[object, ...]] = {
    "acks_late": (True,), "acks_on_failure": (True,), "acks_on_failure_or_timeout": (True,),
    "acks_on_timeout": (True,), "pydantic": (True,), "reject_on_worker_lost": (True,),
    "retry_on_worker_lost": (True,), "send_events": (True, False), "throws": ((), []),
    "store_errors_even_if_ignored": (True, False), "track_started": (True, False),
    "trail": (True, False), "typing": (True,),
}  # fmt: skip

_LATE = (
    "a job is acknowledged when it has ended, and runs again if its worker dies; a task that must "
    "rather be lost is declared with eventmq.shared_task(guarantee=False)"
)
_KEPT = "a failed job is acknowledged and kept: eventmq failed retry runs it again"
_MIDDLEWARE = "there are no task classes: write a middleware with execute(), or .on_error()"
_QUEUE = "there are no exchanges: use queue=..."
_VALIDATED = "arguments are validated by their annotations, in pydantic's default mode"

#: Other options: what would be right.
_REFUSED: Mapping[str, str] = {
    "acks_late": _LATE, "acks_on_failure": _KEPT, "acks_on_failure_or_timeout": _KEPT,
    "acks_on_timeout": _KEPT, "after_return": _MIDDLEWARE, "backend": "results are kept where the "
    "setting result_backend says", "base": _MIDDLEWARE, "before_start": _MIDDLEWARE,
    "exchange": _QUEUE, "on_bound": _MIDDLEWARE, "on_failure": _MIDDLEWARE,
    "on_retry": _MIDDLEWARE, "on_success": _MIDDLEWARE, "pydantic": "arguments are always "
    "converted by their annotations; leave these out for plain data",
    "pydantic_context": _VALIDATED, "pydantic_dump_kwargs": _VALIDATED,
    "pydantic_strict": _VALIDATED, "reject_on_worker_lost": _LATE, "retry_on_worker_lost": _LATE,
    "routing_key": _QUEUE,
}  # fmt: skip

_UNKNOWN = (
    "Celery makes it an attribute of the task, which a task of EventMQ does not have: leave it "
    "out, or declare the task with eventmq.shared_task if it is an option of EventMQ"
)

#: Other options that only weaken: a warning says what happens instead.
_WARNED: Mapping[str, str] = {
    "compression": "arguments are not compressed",
    "throws": "these exceptions are logged and kept like all others",
    "typing": "delay() always checks the arguments",
}

_KNOWN = frozenset({
    *_SAME, *_RETRIES, *_NEEDLESS, *_REFUSED, *_WARNED, "expires", "rate_limit", "serializer",
})  # fmt: skip

#: Exceptions of Celery's module that a task of EventMQ never sees.
_FOREIGN = {
    "MaxRetriesExceededError": "self.MaxRetriesExceededError",
    "SoftTimeLimitExceeded": "eventmq.SoftTimeLimitExceeded",
    "TimeLimitExceeded": "eventmq.TimeLimitExceeded",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRules:
    """Celery's rules about retries, with Celery's names and defaults."""

    max_retries: int | None = 3
    default_retry_delay: float = 180.0
    autoretry_for: Exceptions = ()
    dont_autoretry_for: Exceptions = ()
    retry_kwargs: Mapping[str, Any] = field(default_factory=dict)
    retry_backoff: bool | float = False
    retry_backoff_max: int = 600
    retry_jitter: bool = True

    def __post_init__(self) -> None:
        for name in ("autoretry_for", "dont_autoretry_for"):
            object.__setattr__(self, name, tuple(getattr(self, name) or ()))
        if unknown := sorted(self.retry_kwargs.keys() - {"countdown", "max_retries"}):
            raise SettingsError(
                f"retry_kwargs has {', '.join(unknown)}; allowed are countdown and max_retries"
            )

    @property
    def retries(self) -> int:
        """How often a job may be retried: as often as any of its rules allows."""
        limits = [self.max_retries, self.retry_kwargs.get("max_retries", 0)]
        return max(UNLIMITED if limit is None else limit for limit in limits)

    def automatic(self, error: BaseException, retries: int) -> dict[str, Any] | None:
        """Return the arguments of ``retry()`` after an error; None if it is not retried."""
        if isinstance(error, self.dont_autoretry_for) or not isinstance(error, self.autoretry_for):
            return None
        if not self.retry_backoff:
            return dict(self.retry_kwargs)
        longest = math.log2(self.retry_backoff_max + 1) + 1  # 2 ** retries may be a huge number
        delay = int(max(1.0, self.retry_backoff)) * 2 ** min(retries, int(longest))
        delay = min(self.retry_backoff_max, delay)
        return {
            **self.retry_kwargs,
            "countdown": random.randrange(delay + 1) if self.retry_jitter else delay,
        }


def read_options(task: str, explicit: Mapping[str, Any]) -> tuple[dict[str, Any], RetryRules]:
    """Return EventMQ's options for those of Celery, and the rules about retries.

    An option that is None has its default, as in Celery. One that changes less than what a task
    does is a warning.

    Args:
        task: Name of the function, for errors.
        explicit: The options, except ``bind``.

    Raises:
        SettingsError: An option cannot be honoured; the message says what would be right.
    """
    options: dict[str, Any] = {"retry_on": ()}
    for name, value in explicit.items():
        if name in _RETRIES or (value is None and name in _KNOWN):
            continue
        if name in _SAME:
            options[_SAME[name]] = value
        elif name in _NEEDLESS and value in _NEEDLESS[name]:
            continue
        elif name in _WARNED:
            _warn(task, name, value, f"is not honoured: {_WARNED[name]}")
        elif name == "serializer":
            options[name] = _serializer(task, value)
        elif name == "expires":
            if not isinstance(value, int | float):
                _refuse(task, name, value, "use seconds, or an aware datetime in apply_async()")
            options[name] = value
        elif name == "rate_limit":
            options[name] = _rate(task, value)
        else:
            nearest = difflib.get_close_matches(name, _KNOWN, 1)
            guess = f"did you mean {nearest[0]!r}?" if nearest else _UNKNOWN
            _refuse(task, name, value, _REFUSED.get(name, guess))
    given: dict[str, Any] = {
        name: explicit[name]
        for name in _RETRIES & explicit.keys()
        if explicit[name] is not None or name == "max_retries"  # for which it means no limit
    }
    rules = RetryRules(**given)
    options["retries"] = rules.retries
    return options, rules


def check_exceptions(task: str, function: Callable[..., Any]) -> None:
    """Refuse a function that names an exception of Celery that EventMQ does not raise.

    Raises:
        SettingsError: It does.
    """
    code = getattr(function, "__code__", None)
    for name in getattr(code, "co_names", ()):
        value = getattr(function, "__globals__", {}).get(name)
        module = getattr(value, "__module__", "")
        right = _FOREIGN.get(getattr(value, "__name__", ""))
        if right and module in {"celery.exceptions", "billiard.exceptions"}:
            raise SettingsError(
                f"task {task} uses {name} of Celery, which is never raised here: use {right}"
            )


def _serializer(task: str, value: object) -> object:
    if value not in {"json", "msgpack"}:
        _refuse(task, "serializer", value, "allowed are 'json' and 'msgpack'")
    return value


def _rate(task: str, value: object) -> str | None:
    """Return a rate of EventMQ; Celery takes numbers, which are per second, as well."""
    if value in {None, 0}:
        return None
    if isinstance(value, float) and not value.is_integer():
        _refuse(task, "rate_limit", value, 'write a count and a time, such as "1/2s"')
    _warn(task, "rate_limit", value, "holds for all workers together; with Celery for each of them")
    return f"{value:g}/s" if isinstance(value, int | float) else str(value)


def _warn(task: str, name: str, value: object, text: str) -> None:
    warnings.warn(f"task {task}: {name}={value!r} {text}", stacklevel=5)


def _refuse(task: str, name: str, value: object, right: str) -> None:
    raise SettingsError(f"task {task}: {name}={value!r:.80} is not honoured: {right}")
