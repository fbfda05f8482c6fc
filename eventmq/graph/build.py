"""Makes a plan of an expression: places for its signatures, barriers for what waits."""

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
        signature: What it calls.
        prefix: First arguments that are known already: of what had no members.
        flags: The letters of `eventmq.graph.flags`.
    """

    signature: Signature
    prefix: tuple[Any, ...]
    flags: str


class Built(NamedTuple):
    """What `build` makes.

    Attributes:
        nodes: By place.
        plan: Which waits for which.
        tree: What the result is: a place, or a list of trees.
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
    """What runs before something: the tree of its results, and the places in it.

    Without places it is known already; there is then only what is before it to wait for.
    """

    tree: Tree
    inside: list[int]
    before: _Value | None = None
    #: Number of the barrier, once somebody waits.
    barrier: int = -1
    #: Whether somebody takes the results.
    fed: bool = False


class _Builder:
    def __init__(self) -> None:
        self.signatures: list[Signature] = []
        self.prefixes: list[tuple[Any, ...]] = []
        self.flags: list[str] = []
        self.inputs: list[int] = []
        self.barriers: list[Tree] = []
        self.handlers: list[tuple[Signature, int, int]] = []
        self.deadlines: list[Deadline] = []

    def add(self, expression: Expression, before: _Value | None, depth: int) -> _Value:
        """Add an expression that comes after ``before``; return what it results in."""
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
        inside = [place for value in values for place in value.inside]
        if group.on_failure == "continue":
            for place in inside:
                self._flag(place, COLLECTED)
        return _Value([value.tree for value in values], inside, before)

    def _signature(self, signature: Signature, before: _Value | None) -> _Value:
        place = len(self.signatures)
        if place >= MAX_NODES:
            msg = f"a graph has at most {MAX_NODES} jobs; submit more than one, or use task.map()"
            raise SettingsError(msg)
        self.signatures.append(signature)
        self.flags.append(MARK)
        takes = before is not None and not signature.immutable
        known = takes and before is not None and not before.inside
        self.prefixes.append((before.tree,) if known and before is not None else ())
        self.inputs.append(self._barrier(before))
        if takes and not known and before is not None:
            self._flag(place, TAKES)
            if not before.fed:
                before.fed = True
                for place_before in before.inside:
                    self._flag(place_before, FEEDS)
        return _Value(place, [place])

    def _barrier(self, value: _Value | None) -> int:
        while value is not None and not value.inside:
            value = value.before
        if value is None:
            return -1
        if value.barrier < 0:
            value.barrier = len(self.barriers)
            self.barriers.append(value.tree)
        return value.barrier

    def _flag(self, place: int, letter: str) -> None:
        if letter not in self.flags[place]:
            self.flags[place] += letter

    def result(self, value: _Value) -> Built:
        """Return all of it; handlers have the last places."""
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
        plan = Plan(self.inputs, self.barriers, handlers, self.deadlines)
        return Built(nodes, plan, value.tree)
