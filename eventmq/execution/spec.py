"""What a worker must know of a task in order to run it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["TaskSpec"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """One registered task.

    Attributes:
        name: The name that messages say.
        function: What is called; a coroutine that it returns is run to its end.
        retry_policy: Name of the retry policy, where the message names none.
        retry_options: Arguments of the retry policy.
        retry_on: Exceptions after which a failed job is tried again, while it has retries.
        no_retry_on: Exceptions after which it is not; these win.
        ignore_result: The result is thrown away.
        serializer: Writes the result; None takes what wrote the arguments.
    """

    name: str
    function: Callable[..., Any]
    retry_policy: str = "exponential"
    retry_options: Mapping[str, Any] = field(default_factory=dict)
    retry_on: tuple[type[BaseException], ...] = (Exception,)
    no_retry_on: tuple[type[BaseException], ...] = ()
    ignore_result: bool = False
    serializer: str | None = None
