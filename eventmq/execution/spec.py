"""Specification of a task: what a worker needs to run it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from eventmq.execution.annotations import ArgumentPlan

__all__ = ["TaskSpec"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """Specification of a registered task.

    Attributes:
        name: Name in the headers of messages.
        function: The function; a coroutine that it returns is run to its end.
        retry_policy: Name of the retry policy if the headers name none.
        retry_options: Arguments of the retry policy.
        retry_on: Exceptions after which a failed job is retried, while it has retries left.
        no_retry_on: Exceptions after which it is not retried; these take precedence.
        ignore_result: Whether the result is discarded.
        serializer: Serializer of the result; None for that of the arguments.
        keep_logs: Whether the logs of its jobs are kept with them.
        arguments: Converts the arguments; None leaves them as they were serialised.
    """

    name: str
    function: Callable[..., Any]
    retry_policy: str = "exponential"
    retry_options: Mapping[str, Any] = field(default_factory=dict)
    retry_on: tuple[type[BaseException], ...] = (Exception,)
    no_retry_on: tuple[type[BaseException], ...] = ()
    ignore_result: bool = False
    serializer: str | None = None
    keep_logs: bool = False
    arguments: ArgumentPlan | None = None
