"""Makes a failing scenario smaller, as long as it fails in the same way."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tests.simulation.run import simulate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.scenario import Scenario

__all__ = ["kind_of", "shrink"]

#: Most simulations that are run for it.
TRIES = 400


def kind_of(failure: str) -> str:
    """Return the text of a failure without ids, numbers and quoted names."""
    return re.sub(r"[0-9a-f]*\d[0-9a-f.]*|'[^']*'", "#", failure)[:60]


def shrink(scenario: Scenario, failure: str) -> Scenario:
    """Return a smaller scenario that fails in the same way.

    Args:
        scenario: Failing scenario.
        failure: Text of its failure.
    """
    kind, tries = kind_of(failure), 0
    smaller = True
    while smaller:
        smaller = False
        for candidate in _smaller(scenario):
            tries += 1
            if tries > TRIES:
                return scenario
            if kind_of(simulate(candidate).failure) == kind:
                scenario, smaller = candidate, True
                break
    return scenario


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    for index in reversed(range(len(scenario.faults))):
        yield replace(scenario, faults=_without(scenario.faults, index))
    for index in reversed(range(len(scenario.ops))):
        yield replace(scenario, ops=_without(scenario.ops, index))
    if scenario.limits:
        yield replace(scenario, limits={})
    if len(scenario.workers) > 1 and "worker" not in str(scenario.faults):
        yield replace(scenario, workers=scenario.workers[:1])
    for index, op in enumerate(scenario.ops):
        jobs = op.arguments.get("jobs", ())
        if op.method == "submit" and len(jobs) > 1:
            for drop in range(len(jobs)):
                smaller = op._replace(
                    arguments={**op.arguments, "jobs": [*_without(tuple(jobs), drop)]}
                )
                yield replace(
                    scenario, ops=(*scenario.ops[:index], smaller, *scenario.ops[index + 1 :])
                )


def _without(items: tuple[Any, ...], index: int) -> tuple[Any, ...]:
    return (*items[:index], *items[index + 1 :])
