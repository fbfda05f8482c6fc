"""The plan of a graph, as it travels: which jobs wait for which, and what they get.

Plans of peers are checked, and bounded.

Jobs have node indexes from 0, each smaller than those of the jobs that wait for it, so there is no
cycle. A *join* is a set of jobs whose ends others wait for. It is a *tree*, which gives the shape
of the results that these get: a node index stands for a result, a list for a list. A job is in at
most one join.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MAX_DEPTH", "MAX_NODES", "Deadline", "Handler", "Plan", "Tree", "refs_of"]

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
        inputs: By node index: the join that the job waits for, -1 for none.
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
        """Read a plan that came from a peer.

        Args:
            value: What `Plan` is on the wire: lists in lists.
            count: Number of jobs.

        Raises:
            ProtocolError: It is malformed, or what waits comes before what it waits for.
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
            raise _bad(f"{count} jobs have {count} inputs, and no more of the rest")
        firsts: dict[int, int] = {}
        for node, at in enumerate(self.inputs):
            if type(at) is not int or not -1 <= at < len(self.joins):
                raise _bad(f"the input of node {node} is no number of a join")
            firsts.setdefault(at, node)
        seen: set[int] = set()
        for number, tree in enumerate(self.joins):
            refs = refs_of(tree)
            if not all(type(node) is int for node in refs):
                raise _bad("a tree is a node index, or a list of trees")
            if number not in firsts or not refs or max(refs) >= firsts[number] or min(refs) < 0:
                raise _bad(f"join {number} does not come before what waits for it: a cycle")
            if len(refs) != len(set(refs)) or not seen.isdisjoint(refs):
                raise _bad(f"join {number} waits for a node index that is waited for already")
            seen.update(refs)
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
        ProtocolError: It is too deep.
    """
    if not isinstance(tree, list):
        return [tree]
    found: list[int] = []
    stack = [iter(tree)]
    while stack:
        for part in stack[-1]:
            if isinstance(part, list):
                stack.append(iter(part))
                if len(stack) > MAX_DEPTH:
                    raise _bad(f"a tree is more than {MAX_DEPTH} deep")
                break
            found.append(part)
        else:
            stack.pop()
    return found


def _check_range(first: object, end: object, count: int) -> None:
    if not (type(first) is type(end) is int and 0 <= first < end <= count):
        raise _bad(f"a part is [first, end] of {count} node indexes")


def _bad(why: str) -> ProtocolError:
    return ProtocolError(f"the plan of the graph is malformed: {why}", code="bad-body")
