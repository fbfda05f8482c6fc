"""Kinds of tasks: coroutine and generator functions, which differ in the type of a direct call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from eventmq.task.task import Task

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine, Generator

__all__ = ["AsyncStreamTask", "AsyncTask", "StreamTask"]

P = ParamSpec("P")
R = TypeVar("R")


class AsyncTask(Task[P, R]):
    """A task whose function is ``async def``: calling it gives a coroutine."""

    if TYPE_CHECKING:

        def __call__(  # type: ignore[override]
            self, *args: P.args, **kwargs: P.kwargs
        ) -> Coroutine[Any, Any, R]:
            """Call the function directly."""


class StreamTask(Task[P, R]):
    """A task whose function is a generator: calling it gives the generator."""

    if TYPE_CHECKING:

        def __call__(  # type: ignore[override]
            self, *args: P.args, **kwargs: P.kwargs
        ) -> Generator[Any, Any, R]:
            """Call the function directly."""


class AsyncStreamTask(Task[P, None]):
    """A task whose function is an async generator: calling it gives that."""

    if TYPE_CHECKING:

        def __call__(  # type: ignore[override]
            self, *args: P.args, **kwargs: P.kwargs
        ) -> AsyncGenerator[Any, Any]:
            """Call the function directly."""
