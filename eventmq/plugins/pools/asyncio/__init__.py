"""Pool ``asyncio``: runs thousands of ``async def`` jobs in one event loop.

In addition to `Options`, the app sets ``concurrency`` and ``executor``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eventmq.errors import PluginError
from eventmq.sdk import PoolOptions, hookimpl, option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq.sdk import Factory, PluginContext, WorkerPool

__all__ = ["eventmq_worker_pools", "make_asyncio_pool"]

#: Default number of jobs that run at once.
COROUTINES = 1000

#: Default number of threads for plain functions.
THREADS = 8


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the pool. ``threads``: maximum number of plain functions that run at once."""

    threads: int = option(THREADS, ge=1)


def make_asyncio_pool(context: PluginContext) -> WorkerPool:
    """Return the pool.

    Raises:
        PluginError: An option is wrong, or a middleware cannot wrap coroutines.
    """
    options = PoolOptions.of(context, Options, concurrency=COROUTINES)
    if options.executor is None:
        raise PluginError("it needs the option executor")
    from eventmq.plugins.pools.asyncio.pool import AsyncioPool  # asyncio takes long to import

    return AsyncioPool(
        concurrency=options.concurrency, executor=options.executor, threads=options.own.threads
    )


@hookimpl
def eventmq_worker_pools() -> Mapping[str, Factory[WorkerPool]]:
    """Provide the pool."""
    return {"asyncio": make_asyncio_pool}
