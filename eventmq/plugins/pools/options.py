"""Options of worker pools: those that the app sets for every pool, and those of the user."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from eventmq.errors import PluginError
from eventmq.plugins.options import read_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq.execution.executor import Executor
    from eventmq.interfaces import PluginContext

__all__ = ["PoolOptions"]

_OF_THE_APP = frozenset({"concurrency", "loader", "arguments", "executor", "initial"})


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """Validated options of a pool. ``own`` has the options that the user may set."""

    concurrency: int
    loader: str
    arguments: Mapping[str, Any]
    executor: Executor | None
    initial: int | None
    own: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        context: PluginContext,
        defaults: Mapping[str, Any],
        *,
        concurrency: int | None = None,
    ) -> PoolOptions:
        """Read the options of a pool.

        Args:
            context: As the factory got it.
            defaults: Of the options that the user may set.
            concurrency: Default number of slots; None for one per CPU.

        Raises:
            PluginError: An option is unknown or wrong.
        """
        options = context.options
        own = {name: value for name, value in options.items() if name not in _OF_THE_APP}
        slots = options.get("concurrency", concurrency or os.cpu_count() or 1)
        if not isinstance(slots, int) or slots < 1:
            msg = f"the pool {context.name!r} needs a concurrency from 1, not {slots!r}"
            raise PluginError(msg)
        return cls(
            slots,
            str(options.get("loader", "")),
            options.get("arguments", {}),
            options.get("executor"),
            options.get("initial"),
            read_options(replace(context, options=own), defaults),
        )
