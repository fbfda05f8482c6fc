"""Joins the calls of several middlewares around a job into one."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from eventmq.interfaces import JobContext

__all__ = ["compose"]


def compose(
    calls: Sequence[Callable[..., Any]],
) -> Callable[[JobContext, Callable[[], Any]], Any] | None:
    """Join what middlewares do around a job, outermost first; None where there is none."""
    if not calls:
        return None
    chain = calls[-1]
    for call in reversed(calls[:-1]):
        chain = partial(_nest, call, chain)
    return chain


def _nest(
    outer: Callable[..., Any], inner: Callable[..., Any], job: JobContext, call: Callable[[], Any]
) -> Any:
    return outer(job, partial(inner, job, call))
