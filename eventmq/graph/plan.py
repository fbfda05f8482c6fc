"""A graph as it travels: which jobs wait for which, and what they get. Checked, and bounded.

Jobs are numbered by their places from 0, each before all that wait for it, so there is no cycle. A
*barrier* is what some jobs wait for together: the ends of others. It is a *tree* that says what
they may take then: a place stands for a result, a list for a list. A job is in one at most.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MAX_DEPTH", "MAX_NODES", "Deadline", "Handler", "Plan", "Tree", "refs_of"]

#: Jobs in one graph: they are one message and one commit.
MAX_NODES = 50_000

#: How deep expressions may be nested; MessagePack is read by recursion.
MAX_DEPTH = 200

#: A place, or a list of trees.
Tree = Any


class Handler(NamedTuple):
    """A job that runs if one of the places from ``first`` to before ``end`` fails."""

    place: int
    first: int
    end: int


class Deadline(NamedTuple):
    """Seconds after which what is left of the places ``first`` to before ``end`` is cancelled."""

    first: int
    end: int
    seconds: float


class Plan(NamedTuple):
    """How the jobs of a graph hang together.

    Attributes:
        inputs: By place: the barrier that the job waits for, -1 for none.
        barriers: Trees, by number.
        handlers: Jobs for failures, which have no input and the last places.
        deadlines: Of parts.
    """

    inputs: Sequence[int]
    barriers: Sequence[Tree] = ()
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
            case [list(inputs), list(barriers), list(handlers), list(deadlines)]:
                pass
            case _:
                raise _bad("it is [inputs, barriers, handlers, deadlines]")
        try:
            plan = cls(
                inputs,
                barriers,
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
        for place, at in enumerate(self.inputs):
            if type(at) is not int or not -1 <= at < len(self.barriers):
                raise _bad(f"the input of place {place} is no number of a barrier")
            firsts.setdefault(at, place)
        seen: set[int] = set()
        for number, tree in enumerate(self.barriers):
            refs = refs_of(tree)
            if not all(type(place) is int for place in refs):
                raise _bad("a tree is a place, or a list of trees")
            if number not in firsts or not refs or max(refs) >= firsts[number] or min(refs) < 0:
                raise _bad(f"barrier {number} does not come before what waits for it: a cycle")
            if len(refs) != len(set(refs)) or not seen.isdisjoint(refs):
                raise _bad(f"barrier {number} waits for a place that is waited for already")
            seen.update(refs)
        self._check_ranges(count)

    def _check_ranges(self, count: int) -> None:
        regular = count - len(self.handlers)
        for number, (place, first, end) in enumerate(self.handlers):
            if not (place == regular + number and self.inputs[place] == -1):
                raise _bad("handlers have no inputs, and the last places")
            _check_range(first, end, regular)
        for first, end, seconds in self.deadlines:
            _check_range(first, end, regular)
            if type(seconds) not in {int, float} or not 0 < seconds < 1e12:  # noqa: PLR2004
                raise _bad("a deadline is seconds above 0")


def refs_of(tree: Tree) -> list[int]:
    """Return the places in a tree, in order; raises `ProtocolError` for one that is too deep."""
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
        raise _bad(f"a part is [first, end] of {count} places")


def _bad(why: str) -> ProtocolError:
    return ProtocolError(f"the plan of the graph is malformed: {why}", code="bad-body")
