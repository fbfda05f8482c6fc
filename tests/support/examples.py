"""How much a test looks at where that is not left to the profile of Hypothesis."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["examples", "some"]

T = TypeVar("T")


def examples(n: int) -> int:
    """Return ``n`` in the profile ``suite``; fewer in ``quick``, by as much as others have fewer.

    A ``long`` one looks at as many as it does everywhere.
    """
    usual, current = settings.get_profile("suite").max_examples, settings().max_examples
    return max(n, current) if current > usual else max(1, n * current // usual)


def some(values: Sequence[T]) -> Sequence[T]:
    """Return all of them; in ``quick`` as large a part as there are fewer examples."""
    usual, current = settings.get_profile("suite").max_examples, settings().max_examples
    return values[:: max(1, usual // current)]
