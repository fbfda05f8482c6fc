"""Builds the plan of an expression: a node for each signature, joins where others wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq.errors import SettingsError
from eventmq.graph.expressions import Chain, Chord, Expression, Group, Signature
from eventmq.graph.flags import COLLECTED, FEEDS, MARK, TAKES
from eventmq.graph.plan import MAX_DEPTH, MAX_NODES, Deadline, Handler, Plan, Tree

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Built", "Node", "build"]


class Node(NamedTuple):
    """One job of a graph, before it is written.

    Attributes:
        signature: The call.
        prefix: First arguments that are known already: results of empty groups.
        flags: The letters of `eventmq.graph.flags`.
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
        SettingsError: It has too many jobs, or is nested too deep.
    """
    builder = _Builder()
    value = builder.add(expression, None, 1)
    return builder.result(value)


@dataclass(slots=True, eq=False)
class _Value:
    """The value of a part of the expression: the tree of its results, and the nodes in it.

    A value without nodes is known already; what follows waits for the value before it.
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
        """Add an expression that comes after ``before``; return its value."""
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
            raise SettingsError(f"it is no signature, chain, group or chord: {expression!r:.80}")
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
            msg = f"a graph has at most {MAX_NODES} jobs; submit more than one, or use task.map()"
            raise SettingsError(msg)
        self.signatures.append(signature)
        self.flags.append(MARK)
        takes = before is not None and not signature.immutable
        known = takes and before is not None and not before.inside
        self.prefixes.append((before.tree,) if known and before is not None else ())
        self.inputs.append(self._join(before))
        if takes and not known and before is not None:
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
        """Return jobs and plan; handlers have the last node indexes."""
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
        plan = Plan(self.inputs, self.joins, handlers, self.deadlines)
        return Built(nodes, plan, value.tree)
