"""Options of tasks: those of a declaration, and those of one call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any

from eventmq import hints
from eventmq.errors import PluginCollision, PluginError, ProtocolError, SettingsError
from eventmq.headers import Headers, format_headers, parse_headers
from eventmq.policies import Backoff, Timing
from eventmq.rates import RATES, parse_rate
from eventmq.task import values
from eventmq.task.unique import Unique, check_key, read_unique

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from typing_extensions import TypedDict

    from eventmq.interfaces import TaskRole

    #: Options that plugins declare: name -> function that reads the value.
    RoleReaders = Mapping[str, Callable[[Any], TaskRole]]

    Exceptions = type[BaseException] | tuple[type[BaseException], ...]

    class TaskKeywords(TypedDict, total=False):
        """The arguments of ``app.task(...)``; see `TaskOptions`."""

        name: str | None
        queue: str | None
        retries: int
        retry_policy: str | Backoff
        retry_on: Exceptions
        no_retry_on: Exceptions
        timeout: float | None
        soft_timeout: float | None
        priority: int
        expires: float | None
        unique: str | Unique | None
        rate_limit: str | None
        max_concurrency: int | None
        limit_key: str | None
        guarantee: bool
        ignore_result: bool
        result_ttl: float
        keep_logs: bool
        keep_arguments: bool
        serializer: str | None
        schedule: Timing | None
        replayable: bool
        stream_idle: float
        stream_unread: str
        #: Declared by a plugin; listed here because type checkers do not know plugins.
        majordomo: str | None

    class CallKeywords(TypedDict, total=False):
        """The arguments of ``task.options(...)``; see `CallOptions`."""

        queue: str | None
        priority: int | None
        countdown: float | timedelta | None
        eta: datetime | None
        expires: float | timedelta | datetime | None
        retries: int | None
        timeout: float | None
        soft_timeout: float | None
        job_id: str | None
        unique: str | Unique | None
        headers: Mapping[str, str] | None
        ignore_result: bool | None
        result_ttl: float | None


__all__ = [
    "NO_OPTIONS",
    "RESULT_TTL",
    "STREAM_IDLE",
    "CallOptions",
    "TaskOptions",
    "check_defaults",
]


#: Default seconds that a result is kept; a task with this value uses the broker's setting.
RESULT_TTL = 86400.0

#: Default seconds without a reader after which the parts of a stream are discarded.
STREAM_IDLE = 60.0

#: Options that cannot be set for all tasks together.
_SINGLE_TASK_ONLY = frozenset({"name", "schedule", "replayable", "stream_idle", "stream_unread"})

#: Values of ``stream_unread``.
_UNREAD = ("discard", "cancel")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """The checked options of a task.

    Attributes:
        name: Its name in messages; by default ``module.function``.
        queue: Queue of its jobs; by default that of the settings ``routes`` and ``default_queue``.
        retries: How often a failed job is retried.
        retry_policy: Name of a retry policy, or ``fixed(...)`` or ``exponential(...)``.
        retry_on: Exceptions after which a job is retried.
        no_retry_on: Exceptions after which it is not retried; these take precedence.
        timeout: Seconds after which a running job is stopped from outside and fails with
            `TimeLimitExceeded`; its retries apply. None for no limit.
        soft_timeout: Seconds after which `SoftTimeLimitExceeded` is raised inside the task; less
            than ``timeout``. None for no limit.
        priority: 0 to 255; higher first.
        expires: Seconds after which a job that has not started must not start; None for never.
        unique: A key that only one job may have at a time: a template over the arguments, such as
            ``"user:{to}"``, or `eventmq.Unique`.
        rate_limit: How many of its jobs may start per time, over all workers: ``"5/s"``,
            ``"100/m"``, ``"1000/h"``, ``"5000/d"``, ``"2/10s"``. After an idle period that many may
            start at once.
        max_concurrency: How many of its jobs may run at a time, over all workers.
        limit_key: A template over the arguments, such as ``"user:{to}"``: the two limits above
            apply to each key separately, and jobs of one key do not delay those of another one in
            the queue.
        guarantee: False keeps its jobs only in the broker's memory: they run at most once instead
            of at least once, and are lost with the broker or the worker; not together with
            ``retries``, ``unique`` or limits.
        ignore_result: Whether the result is discarded.
        result_ttl: Seconds that the result is kept.
        keep_logs: Whether the last ``max_job_log_bytes`` of a job's log are kept with it, for
            `Job.logs` and ``eventmq job ID --logs``. Not together with ``guarantee=False``.
        keep_arguments: Whether ``job.info(args=True)`` has the arguments of a job that succeeded,
            was cancelled or expired, as long as the broker knows it. Those of unfinished and failed
            jobs are kept in any case. Not together with ``guarantee=False``.
        serializer: Name of the serializer; by default the setting ``serializer``.
        schedule: When a scheduler calls it without arguments: ``every``, ``cron`` or ``at``.
        replayable: For a generator: each run yields the same parts, so that after the death of its
            worker a reader continues where it was, without `StreamRestarted`.
        stream_idle: For a generator: seconds without a reader after which its parts are discarded,
            and it does not wait for one.
        stream_unread: What happens then: ``"discard"`` keeps only the result, ``"cancel"`` cancels
            the job.
        roles: Roles from options of plugins (`eventmq.interfaces.TaskRole`).

    Raises:
        SettingsError: A value is not allowed.
    """

    name: str | None = None
    queue: str | None = None
    retries: int = 0
    retry_policy: str | Backoff = "exponential"
    retry_on: Exceptions = (Exception,)
    no_retry_on: Exceptions = ()
    timeout: float | None = None
    soft_timeout: float | None = None
    priority: int = 0
    expires: float | None = None
    unique: str | Unique | None = None
    rate_limit: str | None = None
    max_concurrency: int | None = None
    limit_key: str | None = None
    guarantee: bool = True
    ignore_result: bool = False
    result_ttl: float = RESULT_TTL
    keep_logs: bool = False
    keep_arguments: bool = False
    serializer: str | None = None
    schedule: Timing | None = None
    replayable: bool = False
    stream_idle: float = STREAM_IDLE
    stream_unread: str = "discard"
    roles: tuple[TaskRole, ...] = ()

    def __post_init__(self) -> None:
        for name in ("name", "queue", "serializer"):
            if getattr(self, name) is not None:
                values.text(name, getattr(self, name))
        values.whole("retries", self.retries)
        values.whole("priority", self.priority, 255)
        for name in ("ignore_result", "guarantee", "keep_logs", "keep_arguments", "replayable"):
            values.flag(name, getattr(self, name))
        for name, what in (("keep_logs", "logs"), ("keep_arguments", "arguments")):
            if getattr(self, name) and not self.guarantee:
                raise SettingsError(
                    f"guarantee=False and {name} exclude each other: {what} are kept with stored "
                    "jobs; allowed is one of them"
                )
        values.seconds("stream_idle", self.stream_idle, zero=False)
        if self.stream_unread not in _UNREAD:
            values.refuse("stream_unread", self.stream_unread, " or ".join(map(repr, _UNREAD)))
        object.__setattr__(self, "unique", read_unique(self.unique))
        values.no_guarantee(
            guarantee=self.guarantee, retries=self.retries, unique=self.unique is not None
        )
        self._check_limits()
        values.seconds("result_ttl", self.result_ttl)
        if self.expires is not None:
            values.seconds("expires", self.expires, zero=False)
        values.limits(self.timeout, self.soft_timeout)
        if self.schedule is not None and not isinstance(self.schedule, Timing):
            values.refuse("schedule", self.schedule, "every(...), cron(...) or at(...)")
        for name in ("retry_on", "no_retry_on"):
            object.__setattr__(self, name, values.exceptions(name, getattr(self, name)))
        object.__setattr__(self, "retry_policy", _policy(self.retry_policy))
        for role in self.roles:
            if role.queue:
                if self.queue not in {None, role.queue}:
                    values.refuse("queue", self.queue, f"that of {role.what}, or none")
                object.__setattr__(self, "queue", role.queue)

    def _check_limits(self) -> None:
        for name in ("rate_limit", "max_concurrency", "limit_key"):
            if getattr(self, name) is not None and not self.guarantee:
                raise SettingsError(
                    f"guarantee=False and {name} exclude each other: only stored jobs are held "
                    "back; allowed is one of them"
                )
        if self.rate_limit is not None:
            _rate(self.rate_limit)
        if self.max_concurrency is not None:
            values.whole("max_concurrency", self.max_concurrency, minimum=1)
        if self.limit_key is not None:
            check_key("limit_key", self.limit_key)

    @classmethod
    def read(
        cls, explicit: Mapping[str, Any], declared: Callable[[], RoleReaders] | None = None
    ) -> TaskOptions:
        """Return the options for keyword arguments.

        Args:
            explicit: The arguments.
            declared: Returns the options that plugins declare; called for an option that EventMQ
                does not have. None stands for those of the installed plugins.

        Raises:
            SettingsError: An option does not exist, or a value is not allowed.
            PluginError: The declaration of a plugin is wrong.
        """
        standard = {field.name for field in fields(cls)} - {"roles"}
        if explicit.keys() <= standard:
            return cls(**explicit)
        readers = (declared or _installed)()
        for name in standard.intersection(readers):
            raise PluginCollision(
                f"a plugin declares the task option {name!r}, which all tasks have"
            )
        values.reject_unknown("a task", explicit, [*standard, *readers], hints.TASK_OPTIONS)
        more = {name: value for name, value in explicit.items() if name not in standard}
        roles = (readers[name](value) for name, value in more.items() if value is not None)
        return cls(
            **{name: explicit[name] for name in explicit if name in standard}, roles=tuple(roles)
        )

    @property
    def only_for_streams(self) -> list[str]:
        """The explicit options that apply only to generators."""
        explicit = {
            "replayable": self.replayable,
            "stream_idle": self.stream_idle != STREAM_IDLE,
            "stream_unread": self.stream_unread != "discard",
        }
        return [name for name, is_explicit in explicit.items() if is_explicit]

    @property
    def backoff(self) -> Backoff:
        """The retry policy."""
        policy = self.retry_policy
        assert isinstance(policy, Backoff)  # noqa: S101 - made by __post_init__
        return policy


def check_defaults(
    explicit: Mapping[str, Any], declared: Callable[[], RoleReaders] | None = None
) -> None:
    """Check the defaults for the options of all tasks of an app.

    Raises:
        SettingsError: It is not a mapping, an option does not exist or is for single tasks only, or
            a value is not allowed.
    """
    if not isinstance(explicit, Mapping):
        allowed = "a mapping of options of tasks to values, such as {'timeout': 60}"
        values.refuse("task_defaults", explicit, allowed)
    for name in sorted(_SINGLE_TASK_ONLY.intersection(explicit)):
        raise SettingsError(
            f"task_defaults has {name!r}, which is an option of single tasks: set it there"
        )
    TaskOptions.read(explicit, declared)


@cache  # finding plugins takes milliseconds, and a module may have many shared tasks
def _installed() -> RoleReaders:
    from eventmq.registry.manager import PluginManager
    from eventmq.settings import load_settings

    manager = PluginManager(load_settings({}))
    manager.load()
    return manager.task_options()


def _rate(value: object) -> None:
    if not isinstance(value, str):
        values.refuse("rate_limit", value, RATES)
    try:
        parse_rate(value)
    except ValueError:
        values.refuse("rate_limit", value, RATES)


def _policy(value: object) -> Backoff:
    if isinstance(value, Backoff):
        return value
    allowed = "the name of a retry policy, fixed(delay=...) or exponential(base=..., cap=...)"
    if not isinstance(value, str) or not value:
        values.refuse("retry_policy", value, allowed)
    try:
        return Backoff.parse(value)
    except PluginError as error:
        raise SettingsError(f"retry_policy is {value!r}; allowed is: {allowed}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """The checked options of one call; None leaves an option to the task.

    Attributes:
        queue: Queue of the job.
        priority: 0 to 255; higher first.
        countdown: Seconds, or a timedelta, until it becomes ready.
        eta: An aware datetime at which it becomes ready.
        expires: Seconds, a timedelta or an aware datetime after which it must not start.
        retries: How often it is retried after a failure.
        timeout: Seconds after which it is stopped from outside while it runs.
        soft_timeout: Seconds after which `SoftTimeLimitExceeded` is raised inside the task; less
            than ``timeout``.
        job_id: Its id, chosen by the caller. Submitting an id again does nothing while the broker
            knows it (the setting ``dedupe_window``): the receipt is the same, and the handle is
            that of the first job, whatever the arguments.
        unique: As for the task, for this call.
        headers: More headers, for middleware and foreign peers.
        ignore_result: Whether the result is discarded.
        result_ttl: Seconds that the result is kept.

    Raises:
        SettingsError: A value is not allowed.
        NotAllowed: An option is not supported by this version yet.
    """

    queue: str | None = None
    priority: int | None = None
    countdown: float | timedelta | None = None
    eta: datetime | None = None
    expires: float | timedelta | datetime | None = None
    retries: int | None = None
    timeout: float | None = None
    soft_timeout: float | None = None
    job_id: str | None = None
    unique: str | Unique | None = None
    headers: Mapping[str, str] | None = None
    ignore_result: bool | None = None
    result_ttl: float | None = None

    def __post_init__(self) -> None:
        values.limits(self.timeout, self.soft_timeout)
        object.__setattr__(self, "unique", read_unique(self.unique))
        for name in ("queue", "job_id"):
            if getattr(self, name) is not None:
                values.text(name, getattr(self, name))
        if self.priority is not None:
            values.whole("priority", self.priority, 255)
        if self.retries is not None:
            values.whole("retries", self.retries)
        if self.ignore_result is not None:
            values.flag("ignore_result", self.ignore_result)
        if self.result_ttl is not None:
            values.seconds("result_ttl", self.result_ttl)
        if self.countdown is not None and self.eta is not None:
            raise SettingsError("countdown and eta exclude each other; allowed is one of them")
        self.ready()
        self.expiry()
        _own_headers(self.headers)

    @classmethod
    def read(cls, explicit: Mapping[str, Any]) -> CallOptions:
        """Return the options for keyword arguments; an unknown one is a `SettingsError`."""
        if not explicit:
            return NO_OPTIONS
        values.reject_unknown(
            "a call", explicit, [field.name for field in fields(cls)], hints.CALL_OPTIONS
        )
        return cls(**explicit)

    def explicit(self) -> dict[str, Any]:
        """Return the options that are set, by name."""
        values_ = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: value for name, value in values_ if value is not None}

    def ready(self) -> tuple[float, float]:
        """Return (countdown in seconds, eta as Unix time); 0.0 for an unset one."""
        countdown = 0.0 if self.countdown is None else values.duration("countdown", self.countdown)
        return countdown, 0.0 if self.eta is None else values.timestamp("eta", self.eta)

    def expiry(self) -> tuple[float, float]:
        """Return (seconds until it expires, Unix time of expiry); 0.0 for an unset one."""
        if isinstance(self.expires, datetime):
            return 0.0, values.timestamp("expires", self.expires)
        if self.expires is None:
            return 0.0, 0.0
        return values.duration("expires", self.expires, zero=False), 0.0

    def own_headers(self) -> tuple[tuple[str, str], ...]:
        """Return the caller's headers as (name, value) pairs."""
        return _own_headers(self.headers)


def _own_headers(explicit: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    if explicit is None:
        return ()
    pairs = values.headers(explicit)
    try:
        parsed = parse_headers(format_headers(Headers(extra=pairs))).extra
    except ProtocolError:
        parsed = ()
    if parsed != pairs:
        values.refuse("headers", dict(explicit), "names that are not eMQP's own; use the options")
    return pairs


NO_OPTIONS = CallOptions()
