"""The ``asyncio`` pool: thousands of waiting jobs in one event loop. For ``async def`` tasks.

Options, beside those that the app sets (``concurrency`` and ``executor``): ``threads``, the number
of plain functions that run at once, in threads beside the loop (8).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.errors import PluginError
from eventmq.hookspecs import hookimpl
from eventmq.plugins.pools.options import PoolOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq.interfaces import Factory, PluginContext, WorkerPool

__all__ = ["eventmq_worker_pools", "make_asyncio_pool"]

#: Default number of coroutines that run at once.
COROUTINES = 1000

#: Default number of threads for plain functions.
THREADS = 8


def make_asyncio_pool(context: PluginContext) -> WorkerPool:
    """Return the pool.

    Raises:
        PluginError: An option is wrong, or a middleware cannot wrap coroutines.
    """
    options = PoolOptions.of(context, {"threads": THREADS}, concurrency=COROUTINES)
    if options.executor is None:
        raise PluginError("the pool 'asyncio' needs the option executor")
    threads = options.own["threads"]
    if threads < 1:
        raise PluginError(f"threads of the pool 'asyncio' is a number from 1, not {threads}")
    from eventmq.plugins.pools.asyncio.pool import AsyncioPool  # asyncio takes long to import

    return AsyncioPool(concurrency=options.concurrency, executor=options.executor, threads=threads)


@hookimpl
def eventmq_worker_pools() -> Mapping[str, Factory[WorkerPool]]:
    """Provide the pool."""
    return {"asyncio": make_asyncio_pool}
