"""What one call of a task may say, beside its arguments."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any

from eventmq.errors import ProtocolError, SettingsError
from eventmq.headers import Headers, format_headers, parse_headers
from eventmq.task import values
from eventmq.task.unique import Unique, read_unique

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta

    from typing_extensions import TypedDict

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


__all__ = ["NO_OPTIONS", "CallOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """The options of one call, checked; None leaves to the task what it says.

    Attributes:
        queue: Where the job waits.
        priority: 0 to 255; higher first.
        countdown: Seconds, or a timedelta, until it becomes ready.
        eta: The same as a moment: an aware datetime.
        expires: Seconds, a timedelta or an aware datetime after which it must not start.
        retries: How often it is tried again when it failed.
        timeout: Seconds after which it is stopped from outside while it runs.
        soft_timeout: Seconds after which `SoftTimeLimitExceeded` is raised inside the task; less
            than ``timeout``.
        job_id: Its id, chosen by the caller. Submitting an id again does nothing while the broker
            knows it (the setting ``dedupe_window``): the receipt is the same, and the handle is
            that of the first job, whatever the arguments.
        unique: As of the task, for this call.
        headers: More headers, for middleware and foreign peers.
        ignore_result: The result is thrown away.
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
            raise SettingsError(
                "countdown and eta say the same in two ways; allowed is one of them"
            )
        self.ready()
        self.expiry()
        _own_headers(self.headers)

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> CallOptions:
        """Return the options for keyword arguments; an unknown one is a `SettingsError`."""
        if not given:
            return NO_OPTIONS
        values.known("a call", given, (field.name for field in fields(cls)))
        return cls(**given)

    def given(self) -> dict[str, Any]:
        """Return the options that were said, by name."""
        said = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in said.items() if value is not None}

    def ready(self) -> tuple[float, float]:
        """Return (seconds until it becomes ready, Unix time of it); 0.0 for what is not said."""
        countdown = 0.0 if self.countdown is None else values.span("countdown", self.countdown)
        return countdown, 0.0 if self.eta is None else values.moment("eta", self.eta)

    def expiry(self) -> tuple[float, float]:
        """Return (seconds until it expires, Unix time of it); 0.0 for what is not said."""
        if isinstance(self.expires, datetime):
            return 0.0, values.moment("expires", self.expires)
        if self.expires is None:
            return 0.0, 0.0
        return values.span("expires", self.expires, zero=False), 0.0

    def own_headers(self) -> tuple[tuple[str, str], ...]:
        """Return the caller's headers as (name, value) pairs."""
        return _own_headers(self.headers)


def _own_headers(given: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    if given is None:
        return ()
    pairs = values.headers(given)
    try:
        kept = parse_headers(format_headers(Headers(extra=pairs))).extra
    except ProtocolError:
        kept = ()
    if kept != pairs:
        values.refuse("headers", dict(given), "names that are not eMQP's own; use the options")
    return pairs


NO_OPTIONS = CallOptions()
