"""Graphs: chains, groups and chords of calls, as data.

`Signature`, `Chain`, `Group` and `Chord` are what users write, nested at will; `build` makes a
`Plan` of them: jobs, and which job waits for which. The client sends plans, the broker executes
them. Expressions are immutable values, so none contains itself. The task that makes a signature
injects the `GraphSender` that submits it.

A plan names for each job the jobs that it waits for and the results that it gets. Plans of peers
are checked and bounded. Jobs have node indexes from 0, each smaller than those of the jobs that
wait for it, so there is no cycle. A *join* is a set of jobs whose ends other jobs wait for. It is a
*tree* that gives the shape of the results that these jobs get: a node index stands for a result, a
list for a list. A job is in at most one join.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from eventmq import hints
from eventmq.errors import NotAllowed, ProtocolError, SettingsError
from eventmq.headers import parse_headers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Self

__all__ = [
    "COLLECTED",
    "FEEDS",
    "MARK",
    "MAX_DEPTH",
    "MAX_NODES",
    "PAGED",
    "TAKES",
    "Built",
    "Chain",
    "Chord",
    "Deadline",
    "Expression",
    "GraphSender",
    "Group",
    "Handler",
    "Node",
    "Plan",
    "Signature",
    "Tree",
    "build",
    "flags_of",
    "members_of",
    "paged",
    "refs_of",
]

# Flags in the header ``graph`` of a job: letters. They do not name the graph, so that the jobs of
# one task share their header text.

#: The job gets the results of its join as its first argument.
TAKES = "i"

#: Other jobs get the result of this job; it is kept for them whatever the options of the job.
FEEDS = "o"

#: If the job does not succeed, the jobs that wait for it continue without its result.
COLLECTED = "c"

#: Every job of a graph has this flag.
MARK = "n"

#: Set by the store: the arguments were too long for the body, which has ids instead.
PAGED = "p"


@lru_cache(maxsize=4096)
def flags_of(headers: str) -> str:
    """Return the letters in a header text, "" for a job outside a graph."""
    return parse_headers(headers).graph if "graph:" in headers else ""


def paged(headers: str) -> str:
    """Return the header text of a job of a graph with the letter `PAGED` added."""
    if PAGED in flags_of(headers):
        return headers
    items = headers.split(",")
    return ",".join(
        f"{item.rstrip()}{PAGED}" if item.lstrip().startswith("graph:") else item for item in items
    )


#: Maximum number of jobs in one graph: they are one message and one commit.
MAX_NODES = 50_000

#: Maximum depth of nested expressions; MessagePack is read by recursion.
MAX_DEPTH = 200

#: A node index, or a list of trees.
Tree = Any


class Handler(NamedTuple):
    """An error callback: job ``node`` runs if one of ``range(first, end)`` fails."""

    node: int
    first: int
    end: int


class Deadline(NamedTuple):
    """Seconds after which the unfinished jobs of ``range(first, end)`` are cancelled."""

    first: int
    end: int
    seconds: float


class Plan(NamedTuple):
    """The dependencies of the jobs of a graph.

    Attributes:
        inputs: By node index: number of the join that the job waits for, -1 for none.
        joins: Trees, by number.
        handlers: Error callbacks, which have no input and the last node indexes.
        deadlines: Deadlines of groups.
    """

    inputs: Sequence[int]
    joins: Sequence[Tree] = ()
    handlers: Sequence[Handler] = ()
    deadlines: Sequence[Deadline] = ()

    @classmethod
    def decode(cls, value: object, count: int) -> Plan:
        """Read a plan that a peer sent.

        Args:
            value: The plan as on the wire: lists in lists.
            count: Number of jobs.

        Raises:
            ProtocolError: It is malformed, or a job has a lower index than one that it waits for.
        """
        match value:
            case [list(inputs), list(joins), list(handlers), list(deadlines)]:
                pass
            case _:
                raise _bad("it is [inputs, joins, handlers, deadlines]")
        try:
            plan = cls(
                inputs,
                joins,
                [Handler(*handler) for handler in handlers],
                [Deadline(*deadline) for deadline in deadlines],
            )
        except TypeError:
            raise _bad("a part has too few fields, or too many") from None
        plan._check(count)
        return plan

    def _check(self, count: int) -> None:
        if len(self.inputs) != count or max(map(len, self[1:])) > count:
            raise _bad(f"{count} jobs have {count} inputs, and at most {count} of the others")
        firsts: dict[int, int] = {}
        for node, at in enumerate(self.inputs):
            if type(at) is not int or not -1 <= at < len(self.joins):
                raise _bad(f"the input of node {node} is not the number of a join")
            firsts.setdefault(at, node)
        members: set[int] = set()
        for number, tree in enumerate(self.joins):
            refs = refs_of(tree)
            if not all(type(node) is int for node in refs):
                raise _bad("a tree is a node index, or a list of trees")
            if number not in firsts or not refs or max(refs) >= firsts[number] or min(refs) < 0:
                raise _bad(f"join {number} does not come before what waits for it: a cycle")
            if len(refs) != len(set(refs)) or not members.isdisjoint(refs):
                raise _bad(f"join {number} waits for a node index that is waited for already")
            members.update(refs)
        self._check_ranges(count)

    def _check_ranges(self, count: int) -> None:
        regular = count - len(self.handlers)
        for number, (node, first, end) in enumerate(self.handlers):
            if not (node == regular + number and self.inputs[node] == -1):
                raise _bad("handlers have no inputs, and the last node indexes")
            _check_range(first, end, regular)
        for first, end, seconds in self.deadlines:
            _check_range(first, end, regular)
            if type(seconds) not in {int, float} or not 0 < seconds < 1e12:  # noqa: PLR2004
                raise _bad("a deadline is seconds above 0")


def refs_of(tree: Tree) -> list[int]:
    """Return the node indexes in a tree, in order.

    Raises:
        ProtocolError: The tree is too deep.
    """
    if not isinstance(tree, list):
        return [tree]
    nodes: list[int] = []
    stack = [iter(tree)]
    while stack:
        for part in stack[-1]:
            if isinstance(part, list):
                stack.append(iter(part))
                if len(stack) > MAX_DEPTH:
                    raise _bad(f"a tree is more than {MAX_DEPTH} deep")
                break
            nodes.append(part)
        else:
            stack.pop()
    return nodes


def _check_range(first: object, end: object, count: int) -> None:
    if not (type(first) is type(end) is int and 0 <= first < end <= count):
        raise _bad(f"a part is [first, end] of {count} node indexes")


def _bad(reason: str) -> ProtocolError:
    return ProtocolError(f"the plan of the graph is malformed: {reason}", code="bad-body")


#: Values of a group's ``on_failure``.
POLICIES = ("cancel", "continue")


class GraphSender(Protocol):
    """Submits expressions; implemented by tasks."""

    def send_graph(self, expression: Expression) -> Any:
        """Return the operation that submits an expression: it has ``wait()`` and can be awaited."""

    def encode_graph(self, expression: Expression) -> tuple[Any, tuple[str, str, str, bytes]]:
        """Return what `Expression.encode` returns."""


class Expression(ABC):
    """A call, or a composition of calls, that can be submitted or composed further."""

    __slots__ = ()

    handlers: tuple[Signature, ...]

    def __or__(self, other: object) -> Chain:
        """Return the chain of both: ``a.s() | b.s()``."""
        if not isinstance(other, Expression):
            raise TypeError(f"{self!r:.80} cannot be followed by {other!r:.80}: {hints.MIXED}")
        return Chain((*_links(self), *_links(other)))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise `AttributeError`, with a hint for a name of Celery's API."""
            return hints.find_attribute(self, name, hints.EXPRESSION)

        def __call__(self, *_args: Any, **_kwargs: Any) -> Any:
            """Raise `TypeError`: Celery's chains, groups and chords are submitted by a call."""
            raise TypeError(hints.CALLED)

        def __ror__(self, other: object) -> Any:
            """Raise `TypeError` for ``other | self`` whose other side is not an expression."""
            raise TypeError(f"{other!r:.80} cannot be followed by {self!r:.80}: {hints.MIXED}")

    def on_error(self, *handlers: Signature) -> Self:
        """Return a copy with error callbacks, which run once if any job of the expression fails.

        Each gets one argument before its own: a dict with ``id``, ``state``, ``type``, ``message``
        and ``traceback`` of the first job that failed, expired or was cancelled.

        Raises:
            SettingsError: A handler is not a signature, or has error callbacks itself.
        """
        for handler in handlers:
            if not isinstance(handler, Signature) or handler.handlers:  # type: ignore[redundant-expr]
                raise SettingsError(
                    f"an error callback is a signature without its own, not {handler!r:.80}"
                )
        return replace(self, handlers=(*self.handlers, *handlers))  # type: ignore[type-var]

    def delay(self) -> Any:
        """Submit the expression as one message, and return after the broker's receipt.

        Returns:
            The handle: the job whose result is the result of the expression, or a
            `eventmq.client.graphs.JobGroup` if that result is a list.

        Raises:
            NotAllowed: No signature in it belongs to an app.
            TypeError: A task does not accept its arguments.
            SerializationError: Arguments cannot be encoded.
            BrokerUnavailable: There was no receipt within ``submit_timeout``.
            SubmitError: The broker refused the whole expression.
        """
        return self._origin().send_graph(self).wait()

    async def adelay(self) -> Any:
        """Do the same as `delay` in a coroutine."""
        return await self._origin().send_graph(self)

    def encode(self) -> tuple[Any, tuple[str, str, str, bytes]]:
        """Encode the expression as `delay` would send it, and send nothing.

        For a place that keeps the job until it is submitted, such as an outbox table; from there
        `eventmq.EventMQ.send_encoded` submits it, in any process. Middlewares run here. A countdown
        begins when the broker gets the job; the time of ``expires`` is fixed here.

        Returns:
            The handle that `delay` would return, and id, queue, headers and body of the message.

        Raises:
            NotAllowed: No signature in it belongs to an app, there are no jobs in it, or a
                middleware held a job back.
            TypeError: A task does not accept its arguments.
            SerializationError: Arguments cannot be encoded.
        """
        return self._origin().encode_graph(self)

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
        raise NotAllowed("nothing in it was made by a task of an app: use task.s(...)")


@dataclass(frozen=True, slots=True)
class Signature(Expression):
    """One call of a task, not submitted.

    Attributes:
        task: Name of the task.
        args: Positional arguments.
        kwargs: Keyword arguments.
        options: Options of the call, by name; see `eventmq.task.CallOptions`.
        immutable: It does not get the result of the jobs before it.
        handlers: Error callbacks.
        origin: The task that made it, which submits it.
    """

    task: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    immutable: bool = False
    handlers: tuple[Signature, ...] = ()
    origin: Any = field(default=None, compare=False, repr=False)

    def __hash__(self) -> int:
        # Celery's chords look their members up by hash.
        raise TypeError(f"a signature has no hash; {hints.MIXED}")

    def parts(self) -> tuple[Expression, ...]:
        """Return no parts, as a signature has none."""
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
    """Members that run in parallel; their results are a list, in their order.

    Attributes:
        members: Any number; without any, its result is the empty list.
        on_failure: What happens to the jobs after the group if a member does not succeed:
            ``cancel``, or ``continue`` with the results of the others.
        deadline: Seconds after the submission at which unfinished members are cancelled.
        handlers: Error callbacks, called once if any job of the group fails.
        origin: Submits the group if no signature is in it.
    """

    members: tuple[Expression, ...]
    on_failure: str = "cancel"
    deadline: float | None = None
    handlers: tuple[Signature, ...] = ()
    origin: Any = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        _check("a member of a group", self.members)
        if self.on_failure not in POLICIES:
            raise SettingsError(
                f"on_failure is {self.on_failure!r}; allowed are {', '.join(map(repr, POLICIES))}"
            )
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


def members_of(role: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments, or the items of the only argument if that is an iterable."""
    if len(arguments) == 1 and not isinstance(arguments[0], Expression):
        if not isinstance(arguments[0], Iterable) or isinstance(arguments[0], (str, bytes)):
            _check(role, arguments)
        return tuple(arguments[0])
    return arguments


def _check(role: str, parts: tuple[Any, ...]) -> None:
    for part in parts:
        if not isinstance(part, Expression):
            raise SettingsError(
                f"{role} is a signature, chain, group or chord, not {part!r:.80}: use task.s(...)"
            )


class Node(NamedTuple):
    """One job of a graph, before it is written.

    Attributes:
        signature: The call.
        prefix: First arguments that are known already: results of empty groups.
        flags: Letters of this module, such as `TAKES`.
    """

    signature: Signature
    prefix: tuple[Any, ...]
    flags: str


class Built(NamedTuple):
    """The jobs and the plan of an expression.

    Attributes:
        nodes: By node index.
        plan: Which jobs wait for which.
        tree: The shape of the result: a node index, or a list of trees.
    """

    nodes: list[Node]
    plan: Plan
    tree: Tree


def build(expression: Expression) -> Built:
    """Return the jobs and the plan of an expression.

    Raises:
        SettingsError: It has too many jobs, or is nested too deeply.
    """
    builder = _Builder()
    return builder.result(builder.add(expression, None, 1))


@dataclass(slots=True, eq=False)
class _Value:
    """The value of a part of the expression: the tree of its results, and the nodes in it.

    A value without nodes is known already; the next part waits for the value before it.
    """

    tree: Tree
    inside: list[int]
    before: _Value | None = None
    #: Number of its join, -1 while no job waits for it.
    join: int = -1
    #: Whether a job gets the results.
    fed: bool = False


class _Builder:
    def __init__(self) -> None:
        self.signatures: list[Signature] = []
        self.prefixes: list[tuple[Any, ...]] = []
        self.flags: list[str] = []
        self.inputs: list[int] = []
        self.joins: list[Tree] = []
        self.handlers: list[tuple[Signature, int, int]] = []
        self.deadlines: list[Deadline] = []

    def add(self, expression: Expression, before: _Value | None, depth: int) -> _Value:
        """Add an expression that follows ``before``; return its value."""
        if depth > MAX_DEPTH:
            raise SettingsError(f"it is nested more than {MAX_DEPTH} deep; a chain can be long")
        first = len(self.signatures)
        if isinstance(expression, Signature):
            value = self._signature(expression, before)
        elif isinstance(expression, Chain):
            value = self._chain(expression.links, before, depth)
        elif isinstance(expression, Chord):
            value = self._chain(expression.parts(), before, depth)
        elif isinstance(expression, Group):
            value = self._group(expression, before, depth)
        else:
            raise SettingsError(f"it is not a signature, chain, group or chord: {expression!r:.80}")
        end = len(self.signatures)
        if end > first:
            self.handlers += [(handler, first, end) for handler in expression.handlers]
            if isinstance(expression, Group) and expression.deadline is not None:
                self.deadlines.append(Deadline(first, end, float(expression.deadline)))
        return value

    def _chain(self, links: Sequence[Expression], before: _Value | None, depth: int) -> _Value:
        for link in links:
            before = self.add(link, before, depth + 1)
        assert before is not None  # noqa: S101 - a chain has a link
        return before

    def _group(self, group: Group, before: _Value | None, depth: int) -> _Value:
        values = [self.add(member, before, depth + 1) for member in group.members]
        inside = [node for value in values for node in value.inside]
        if group.on_failure == "continue":
            for node in inside:
                self._flag(node, COLLECTED)
        return _Value([value.tree for value in values], inside, before)

    def _signature(self, signature: Signature, before: _Value | None) -> _Value:
        node = len(self.signatures)
        if node >= MAX_NODES:
            raise SettingsError(
                f"a graph has at most {MAX_NODES} jobs; submit more than one, or use task.map()"
            )
        self.signatures.append(signature)
        self.flags.append(MARK)
        takes = before is not None and not signature.immutable
        constant = takes and before is not None and not before.inside
        self.prefixes.append((before.tree,) if constant and before is not None else ())
        self.inputs.append(self._join(before))
        if takes and not constant and before is not None:
            self._flag(node, TAKES)
            if not before.fed:
                before.fed = True
                for earlier in before.inside:
                    self._flag(earlier, FEEDS)
        return _Value(node, [node])

    def _join(self, value: _Value | None) -> int:
        while value is not None and not value.inside:
            value = value.before
        if value is None:
            return -1
        if value.join < 0:
            value.join = len(self.joins)
            self.joins.append(value.tree)
        return value.join

    def _flag(self, node: int, letter: str) -> None:
        if letter not in self.flags[node]:
            self.flags[node] += letter

    def result(self, value: _Value) -> Built:
        """Return jobs and plan; error callbacks have the last node indexes."""
        handlers = []
        for signature, first, end in self.handlers:
            handlers.append(Handler(len(self.signatures), first, end))
            self.signatures.append(signature)
            self.prefixes.append(())
            self.flags.append(MARK + ("" if signature.immutable else TAKES))
            self.inputs.append(-1)
        if len(self.signatures) > MAX_NODES:
            raise SettingsError(f"a graph has at most {MAX_NODES} jobs, error callbacks included")
        flags = ["".join(sorted(letters)) for letters in self.flags]
        nodes = list(map(Node, self.signatures, self.prefixes, flags))
        return Built(nodes, Plan(self.inputs, self.joins, handlers, self.deadlines), value.tree)
