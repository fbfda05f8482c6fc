"""``task.s(...)`` and ``task.si(...)``: a call as data, for schedules and larger things."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eventmq.graph import Signature

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Signing"]


class Signing:
    """What a task, and one with options of a call, have in common here."""

    def signed(self) -> tuple[str, Mapping[str, Any]]:
        """Return the name of the task and the options of the call."""
        raise NotImplementedError(f"{type(self).__name__} must define signed()")

    def s(self, *args: Any, **kwargs: Any) -> Signature:
        """Return this call as data. In a chain it gets the result before it as first argument."""
        name, options = self.signed()
        return Signature(name, args, kwargs, options)

    def si(self, *args: Any, **kwargs: Any) -> Signature:
        """Return this call as data that takes nothing from what runs before it."""
        name, options = self.signed()
        return Signature(name, args, kwargs, options, immutable=True)
