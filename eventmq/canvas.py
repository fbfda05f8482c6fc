"""Chains, groups and chords: composed of ``task.s(...)`` and sent as one message.

The expressions are in `eventmq.graph`. This module checks their arguments, turns them into jobs by
the templates of their tasks, and sends them through the submitter of the app.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

from eventmq import hints
from eventmq.client.graphs import GraphMember, empty_handle
from eventmq.errors import NotAllowed, SettingsError
from eventmq.execution.annotations import RESULT
from eventmq.graph import TAKES, Chain, Chord, Group, Signature, build, members_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

    from typing_extensions import Never

    from eventmq.client.client import Pending
    from eventmq.client.submit import Submitter
    from eventmq.client.templates import EncodedJob, Template
    from eventmq.graph import Built, Expression

__all__ = ["TaskFactory", "chain", "chord", "encode", "group", "send"]

#: Default of an argument that must be given.
_MISSING: Any = object()

_NO_JOBS = "a group without members has no jobs to encode"


def chain(*links: Any) -> Chain:
    """Return links that run one after the other: ``chain(a.s(1), b.s(2))``, or ``a.s(1) | b.s(2)``.

    A link made by ``.s()`` gets the result of the one before it as first argument, one made by
    ``.si()`` does not. If one fails, those after it are cancelled.

    Args:
        *links: Signatures, chains, groups or chords; or one iterable of them.

    Raises:
        SettingsError: There are no links, or one is not an expression.
    """
    return Chain(members_of("a link of a chain", links))


def group(*members: Any, on_failure: str = "cancel", deadline: float | None = None) -> Group:
    """Return members that run in parallel: ``group(a.s(i) for i in range(9))``.

    Args:
        *members: As the links of a chain. Without any, the result is the empty list.
        on_failure: What happens to the jobs after the group if a member does not succeed:
            ``"cancel"``, or ``"continue"`` with the list of the results of the others.
        deadline: Seconds after the submission at which members that have not ended are cancelled.

    Raises:
        SettingsError: A member is not an expression, or an option is not allowed.
    """
    parts = members_of("a member of a group", members)
    return Group(parts, on_failure=on_failure, deadline=deadline, origin=_EMPTY_SENDER)


def chord(
    members: Group | Iterable[Any],
    callback: Expression = _MISSING,
    *,
    on_failure: str = "cancel",
    deadline: float | None = None,
) -> Chord:
    """Return a group with a callback that gets its results: ``chord([a.s(1), a.s(2)], b.s())``.

    Args:
        members: As in `group`; without any, the callback gets the empty list.
        callback: A signature, chain, group or chord.
        on_failure: As in `group`.
        deadline: As in `group`.

    Raises:
        SettingsError: A member is not an expression, or an option is not allowed.
        TypeError: There is no callback.
    """
    if callback is _MISSING:
        raise TypeError(hints.NO_CALLBACK)
    if not isinstance(members, Group):
        return Chord(group(members, on_failure=on_failure, deadline=deadline), callback)
    if on_failure != "cancel" or deadline is not None:
        raise SettingsError("the members are a group: give on_failure and deadline to that")
    return Chord(members, callback)


class _EmptySender:
    """Graph sender of expressions without jobs: sends nothing, since the result is known."""

    def send_graph(self, expression: Expression) -> _Completed:
        """Return an operation that is done already."""
        return _Completed(empty_handle(build(expression).tree))

    def encode_graph(self, expression: Expression) -> Never:
        """Raise `NotAllowed`."""
        raise NotAllowed(_NO_JOBS)


class _Completed:
    """An operation whose value is known; see `eventmq.client.client.Pending`."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def wait(self) -> Any:
        """Return the value."""
        return self._value

    def __await__(self) -> Generator[None, None, Any]:
        yield from ()
        return self._value


_EMPTY_SENDER = _EmptySender()


class GraphApp(Protocol):
    """The part of an app that graphs are sent through."""

    @property
    def submitter(self) -> Submitter:
        """Sends jobs."""


class TaskFactory(Protocol):
    """Makes the jobs of signatures; a task of an app."""

    @property
    def app(self) -> GraphApp:
        """The app that submits the jobs."""

    @property
    def template(self) -> Template:
        """The part that its jobs have in common."""

    def check(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise `TypeError` if the function does not take these arguments."""


def send(
    expression: Expression, factory: TaskFactory, named: Callable[[Signature], TaskFactory]
) -> Pending[Any] | _Completed:
    """Submit an expression and wait for the receipt; see `eventmq.graph.Expression.delay`.

    Args:
        expression: What to submit.
        factory: Task factory of the first signature that has one.
        named: Returns the task factory of a signature that has none.
    """
    built = build(expression)
    if not built.nodes:
        return _Completed(empty_handle(built.tree))
    submitter = factory.app.submitter
    parts = _parts(built, named, submitter.mark)
    if _is_single(expression, built):
        return submitter.asubmit(*parts[0][:3], expression.options.get("job_id"))
    ids = submitter.begin_graph(len(parts))
    return submitter.submit_graph(parts, built.plan, ids, built.tree)


def encode(
    expression: Expression, factory: TaskFactory, named: Callable[[Signature], TaskFactory]
) -> tuple[Any, EncodedJob]:
    """Encode an expression as `send` would send it; see `eventmq.graph.Expression.encode`."""
    built = build(expression)
    if not built.nodes:
        raise NotAllowed(_NO_JOBS)
    submitter = factory.app.submitter
    parts = _parts(built, named, submitter.mark)
    if _is_single(expression, built):
        return submitter.encode(*parts[0][:3], expression.options.get("job_id"))
    ids = submitter.begin_graph(len(parts))
    return submitter.encode_graph(parts, built.plan, ids, built.tree)


def _is_single(expression: Expression, built: Built) -> TypeGuard[Signature]:
    """Return whether an expression is one job, not a graph.

    Raises:
        NotAllowed: A job of a graph has an id of its own.
    """
    if expression is built.nodes[0].signature and len(built.nodes) == 1:
        return True
    for signature in (node.signature for node in built.nodes):
        if signature.options.get("job_id") is not None:
            raise NotAllowed(
                f"task {signature.task!r}: the ids of jobs of a graph are made with it"
            )
    return False


def _parts(
    built: Built, named: Callable[[Signature], TaskFactory], mark: Callable[[Template], Template]
) -> list[GraphMember]:
    """Return the jobs of an expression after a check of their arguments."""
    templates: dict[int, tuple[TaskFactory, Template]] = {}
    parts = []
    for signature, prefix, flags in built.nodes:
        origin = signature.origin
        entry = templates.get(id(origin)) if origin is not None else None
        if entry is None:
            factory = named(signature) if origin is None else origin
            entry = templates[id(factory)] = (factory, mark(factory.template))
        args = (*prefix, *signature.args) if prefix else signature.args
        entry[0].check((RESULT, *args) if TAKES in flags else args, signature.kwargs)
        parts.append(GraphMember(entry[1], args, signature.kwargs, flags))
    return parts
