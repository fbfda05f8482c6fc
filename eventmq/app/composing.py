"""What an app does with graphs of jobs: calls as data, by name, for chains, groups and chords."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from eventmq.graph import Signature
from eventmq.task.options import CallOptions
from eventmq.task.task import NamedTask

if TYPE_CHECKING:
    from eventmq.app.app import EventMQ
    from eventmq.task.options import CallKeywords

__all__ = ["Composing"]


class Composing:
    """The part of `EventMQ` that is about graphs."""

    def signature(
        self,
        name: str,
        *args: Any,
        immutable: bool = False,
        options: CallKeywords | None = None,
        **kwargs: Any,
    ) -> Signature:
        """Return a call of a task by its name as data, without having its code.

        Args:
            name: Of the task.
            *args: Positional arguments.
            immutable: It takes nothing from what runs before it, as one of ``task.si(...)``.
            options: ``queue`` and others; see `eventmq.task.CallOptions`.
            **kwargs: Keyword arguments.

        Raises:
            SettingsError: An option is not allowed.
        """
        given = CallOptions.read(options or {}).given()
        origin = NamedTask(cast("EventMQ", self).host, name, given)
        return Signature(name, args, kwargs, given, immutable=immutable, origin=origin)
