"""``task.s(...)`` and ``task.si(...)``: a call as data, for schedules, chains and chords."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Any

from eventmq import canvas
from eventmq.graph import Signature
from eventmq.task.raw import named_template

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from eventmq.client.submitter import Submitter
    from eventmq.client.templates import Template
    from eventmq.graph import Expression
    from eventmq.task.task import Host

__all__ = ["NamedTask", "Signing"]


class Signing(ABC):
    """What a task, and one with options of a call, have in common here."""

    @property
    @abstractmethod
    def host(self) -> Host:
        """The app that it is submitted through."""

    @property
    @abstractmethod
    def graph_template(self) -> Template:
        """The common part of its jobs in graphs."""

    @abstractmethod
    def signed(self) -> tuple[str, Mapping[str, Any]]:
        """Return the name of the task and the options of the call."""

    @abstractmethod
    def check(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise `TypeError` if the function does not take these arguments."""

    def s(self, *args: Any, **kwargs: Any) -> Signature:
        """Return this call as data. In a chain it gets the result before it as first argument."""
        name, options = self.signed()
        return Signature(name, args, kwargs, options, origin=self)

    def si(self, *args: Any, **kwargs: Any) -> Signature:
        """Return this call as data that takes nothing from what runs before it."""
        name, options = self.signed()
        return Signature(name, args, kwargs, options, immutable=True, origin=self)

    # Submitting what such calls are a part of

    @property
    def graph_submitter(self) -> Submitter:
        """Sends jobs."""
        return self.host.submitter

    def send_graph(self, expression: Expression) -> Any:
        """Submit an expression through the app of this task."""
        return canvas.send(expression, self, self._named)

    async def asend_graph(self, expression: Expression) -> Any:
        """Do the same in a coroutine."""
        return await canvas.asend(expression, self, self._named)

    def _named(self, signature: Signature) -> Signing:
        """Return what makes the jobs of a signature that no task has made."""
        return NamedTask(self.host, signature.task, signature.options)


class NamedTask(Signing):
    """A task by its name, without its code.

    Args:
        host: The app.
        name: Of the task.
        options: Of the call.
    """

    def __init__(self, host: Host, name: str, options: Mapping[str, Any]) -> None:
        self._host = host
        self._name = name
        self._options = options

    @property
    def host(self) -> Host:
        """The app that it is submitted through."""
        return self._host

    @cached_property
    def graph_template(self) -> Template:
        """The common part of its jobs; raises `SettingsError` for an option that is not allowed."""
        return named_template(self._host, self._name, self._options)[0]

    def signed(self) -> tuple[str, Mapping[str, Any]]:
        """Return the name and the options."""
        return self._name, self._options

    def check(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Take any arguments."""
