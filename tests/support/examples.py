"""Numbers of examples of tests that do not use the number of the Hypothesis profile."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["examples", "some"]

T = TypeVar("T")


def examples(n: int) -> int:
    """Return ``n`` in the profile ``suite``, proportionally fewer in ``quick``.

    The profile ``long`` has its own number for all tests.
    """
    usual, current = settings.get_profile("suite").max_examples, settings().max_examples
    return max(n, current) if current > usual else max(1, n * current // usual)


def some(values: Sequence[T]) -> Sequence[T]:
    """Return all values; in ``quick`` a part, proportional to its number of examples."""
    usual, current = settings.get_profile("suite").max_examples, settings().max_examples
    return values[:: max(1, usual // current)]
