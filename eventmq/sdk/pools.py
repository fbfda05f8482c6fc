"""Options of worker pools: those that the app sets for every pool, and those of the user."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from eventmq.errors import PluginError
from eventmq.sdk.options import read_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq.execution.executor import Executor
    from eventmq.interfaces import PluginContext

__all__ = ["PoolOptions"]

T = TypeVar("T")

_OF_THE_APP = frozenset({"concurrency", "loader", "arguments", "executor", "initial"})


@dataclass(frozen=True, slots=True)
class PoolOptions(Generic[T]):
    """Options of a worker pool.

    Attributes:
        concurrency: Number of slots.
        loader: ``module:function`` that returns the `Executor` in another process.
        arguments: Keyword arguments of the loader.
        executor: Runs jobs in this process; None where they run in others.
        initial: Slots to begin with, None for all.
        own: The options that the user may set.
    """

    concurrency: int
    loader: str
    arguments: Mapping[str, Any]
    executor: Executor | None
    initial: int | None
    own: T

    @classmethod
    def of(
        cls, context: PluginContext, own: type[T], *, concurrency: int | None = None
    ) -> PoolOptions[T]:
        """Read the options of a factory of pools.

        Example::

            def make_pool(context):
                options = PoolOptions.of(context, Options)
                return Pool(options.concurrency, options.executor, options.own.start_timeout)

        Args:
            context: As the factory got it.
            own: Dataclass of the options that the user may set, as for `read_options`.
            concurrency: Default number of slots; None for one per CPU.

        Raises:
            PluginError: An option is unknown or wrong.
        """
        options = context.options
        slots = options.get("concurrency", concurrency or os.cpu_count() or 1)
        if not isinstance(slots, int) or slots < 1:
            raise PluginError(f"a pool needs a concurrency from 1, not {slots!r}")
        users = {name: value for name, value in options.items() if name not in _OF_THE_APP}
        return cls(
            slots,
            str(options.get("loader", "")),
            options.get("arguments", {}),
            options.get("executor"),
            options.get("initial"),
            read_options(replace(context, options=users), own),
        )
