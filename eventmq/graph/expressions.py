"""Expressions: signatures, and chains, groups and chords of them.

All are immutable values, so none contains itself. The task that makes a signature injects the
`GraphSender` that submits it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from eventmq.errors import NotAllowed, SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

__all__ = ["Chain", "Chord", "Expression", "GraphSender", "Group", "Signature", "members_of"]

#: What a group does if a member does not succeed.
POLICIES = ("cancel", "continue")


class GraphSender(Protocol):
    """Submits expressions; implemented by tasks."""

    def send_graph(self, expression: Expression) -> Any:
        """Return the operation that submits an expression: with ``wait()``, and for ``await``."""


class Expression(ABC):
    """A call, or a composition of calls, that can be submitted or composed further."""

    __slots__ = ()

    handlers: tuple[Signature, ...]

    def __or__(self, other: object) -> Chain:
        """Return the chain of both: ``a.s() | b.s()``."""
        if not isinstance(other, Expression):
            return NotImplemented
        return Chain((*_links(self), *_links(other)))

    def on_error(self, *handlers: Signature) -> Self:
        """Return the same with signatures that are called once if any job of it fails.

        Each gets one argument before its own: a dict with ``id``, ``state``, ``type``, ``message``
        and ``traceback`` of the first job that failed, expired or was cancelled.

        Raises:
            SettingsError: Something else than signatures.
        """
        for handler in handlers:
            if not isinstance(handler, Signature) or handler.handlers:  # type: ignore[redundant-expr]
                msg = f"an error callback is a signature without its own, not {handler!r:.80}"
                raise SettingsError(msg)
        return replace(self, handlers=(*self.handlers, *handlers))  # type: ignore[type-var]

    def delay(self) -> Any:
        """Submit it as one message, and return after the broker's receipt.

        Returns:
            The handle: the job whose result is the result of the whole, or a
            `eventmq.client.graphs.JobGroup` where that is a list.

        Raises:
            NotAllowed: Nothing in it knows an app.
            TypeError: A task does not take its arguments.
            SerializationError: Arguments cannot be encoded.
            BrokerUnavailable: There was no receipt within ``submit_timeout``.
            SubmitError: The broker refused the whole of it.
        """
        return self._origin().send_graph(self).wait()

    async def adelay(self) -> Any:
        """Do the same as `delay` in a coroutine."""
        return await self._origin().send_graph(self)

    @abstractmethod
    def parts(self) -> tuple[Expression, ...]:
        """Return its parts, in order."""

    def _origin(self) -> GraphSender:
        """Return the sender of the first signature that has one."""
        stack: list[Expression] = [self]
        calls, empty = False, None
        while stack:
            part = stack.pop()
            if isinstance(part, Signature):
                calls = True
                if part.origin is not None:
                    return part.origin  # type: ignore[no-any-return]
            else:
                empty = part.origin if isinstance(part, Group) else empty
                stack += reversed(part.parts())
        if empty is not None and not calls:
            return empty  # type: ignore[no-any-return]
        msg = "nothing in it was made by a task of an app: use task.s(...)"
        raise NotAllowed(msg)


@dataclass(frozen=True, slots=True)
class Signature(Expression):
    """One call of a task, not submitted.

    Attributes:
        task: Name of the task.
        args: Positional arguments.
        kwargs: Keyword arguments.
        options: Options of the call, by name; see `eventmq.task.CallOptions`.
        immutable: It gets no result of the jobs before it.
        handlers: Called if it fails.
        origin: The task that made it, which submits it.
    """

    task: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    immutable: bool = False
    handlers: tuple[Signature, ...] = ()
    origin: Any = field(default=None, compare=False, repr=False)

    def parts(self) -> tuple[Expression, ...]:
        """Return no parts."""
        return ()


@dataclass(frozen=True, slots=True)
class Chain(Expression):
    """Links that run one after the other, each with the result of the one before it."""

    links: tuple[Expression, ...]
    handlers: tuple[Signature, ...] = ()

    def __post_init__(self) -> None:
        _check("a link of a chain", self.links)
        if not self.links:
            raise SettingsError("a chain has at least one link; this one is empty")

    def parts(self) -> tuple[Expression, ...]:
        """Return its links."""
        return self.links


@dataclass(frozen=True, slots=True)
class Group(Expression):
    """Members that run beside each other; their results are a list, in their order.

    Attributes:
        members: Any number; without any, its result is the empty list.
        on_failure: What happens to the jobs after the group if a member does not succeed:
            ``cancel``, or ``continue`` with the results of the others.
        deadline: Seconds after the submission at which unfinished members are cancelled.
        handlers: Called once if any job of it fails.
        origin: Submits it if it has no signature.
    """

    members: tuple[Expression, ...]
    on_failure: str = "cancel"
    deadline: float | None = None
    handlers: tuple[Signature, ...] = ()
    origin: Any = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        _check("a member of a group", self.members)
        if self.on_failure not in POLICIES:
            msg = f"on_failure is {self.on_failure!r}; allowed are {', '.join(map(repr, POLICIES))}"
            raise SettingsError(msg)
        if self.deadline is not None and not (
            type(self.deadline) in {int, float} and 0 < self.deadline < 1e9  # noqa: PLR2004
        ):
            raise SettingsError(f"deadline is {self.deadline!r}; allowed are seconds above 0")

    def parts(self) -> tuple[Expression, ...]:
        """Return its members."""
        return self.members


@dataclass(frozen=True, slots=True)
class Chord(Expression):
    """A group, and a callback that gets the list of its results."""

    header: Group
    callback: Expression
    handlers: tuple[Signature, ...] = ()

    def __post_init__(self) -> None:
        _check("the callback of a chord", (self.callback,))

    def parts(self) -> tuple[Expression, ...]:
        """Return group and callback."""
        return self.header, self.callback


def _links(part: Expression) -> tuple[Expression, ...]:
    return part.links if isinstance(part, Chain) and not part.handlers else (part,)


def members_of(what: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments as they are, or the items of the only one if it is an iterable."""
    if len(arguments) == 1 and not isinstance(arguments[0], Expression):
        if not isinstance(arguments[0], Iterable) or isinstance(arguments[0], (str, bytes)):
            _check(what, arguments)
        return tuple(arguments[0])
    return arguments


def _check(what: str, parts: tuple[Any, ...]) -> None:
    for part in parts:
        if not isinstance(part, Expression):
            msg = f"{what} is a signature, chain, group or chord, not {part!r:.80}: say task.s(...)"
            raise SettingsError(msg)
