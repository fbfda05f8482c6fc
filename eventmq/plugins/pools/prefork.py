"""The ``prefork`` pool: jobs run in child processes. The default on Linux and macOS.

Options, beside those that the app gives (``concurrency``, ``loader``, ``arguments``):
``start_timeout``, seconds within which the app must be loaded (60).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from eventmq.errors import PluginError
from eventmq.hookspecs import hookimpl
from eventmq.plugins.pools.options import PoolOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq.interfaces import Factory, PluginContext, WorkerPool

__all__ = ["eventmq_worker_pools", "make_prefork_pool"]

#: Seconds within which an app is loaded, unless told: large ones take many.
START_TIMEOUT = 60.0


def make_prefork_pool(context: PluginContext) -> WorkerPool:
    """Return the pool.

    Raises:
        PluginError: An option is wrong, or this system cannot fork.
    """
    if not hasattr(os, "fork"):
        msg = "the pool 'prefork' needs fork, which this system has not; use --pool threads"
        raise PluginError(msg)
    options = PoolOptions.of(context, {"start_timeout": START_TIMEOUT})
    start_timeout = options.own["start_timeout"]
    if not 0.0 < start_timeout < float("inf"):
        raise PluginError("start_timeout of the pool 'prefork' is seconds, more than 0")
    if not options.loader:
        raise PluginError("the pool 'prefork' needs the option loader, as module:function")
    from eventmq.plugins.pools.processes import PreforkPool

    return PreforkPool(
        concurrency=options.concurrency,
        loader=options.loader,
        arguments=options.arguments,
        start_timeout=start_timeout,
    )


@hookimpl
def eventmq_worker_pools() -> Mapping[str, Factory[WorkerPool]]:
    """Provide the pool."""
    return {"prefork": make_prefork_pool}
