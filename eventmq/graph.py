"""Calls as data: what is to be called later, once or as part of something larger.

A `Signature` is what ``task.s(...)`` returns. It knows the task by its name and belongs to no app.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Signature"]


@dataclass(frozen=True, slots=True)
class Signature:
    """One call of a task, not submitted.

    Attributes:
        task: Name of the task.
        args: Positional arguments.
        kwargs: Keyword arguments.
        options: Of the call, by name; see `eventmq.task.CallOptions`.
        immutable: It takes nothing from what runs before it.
    """

    task: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    immutable: bool = False
