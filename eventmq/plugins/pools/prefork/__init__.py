"""The ``prefork`` pool: jobs run in child processes. The default on Linux and macOS.

Options, beside those that the app sets (``concurrency``, ``loader``, ``arguments``):
``start_timeout``, seconds within which the app must be loaded (60); ``max_jobs_per_child`` and
``max_memory_per_child`` (MiB), after which a process is replaced between two jobs (0: never).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from eventmq.errors import PluginError, SettingsError
from eventmq.hookspecs import hookimpl
from eventmq.interfaces import CommandOption
from eventmq.plugins.pools.options import PoolOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from eventmq.interfaces import Factory, PluginContext, WorkerPool

__all__ = ["eventmq_command_options", "eventmq_worker_pools", "make_prefork_pool"]

#: Default for the seconds within which the app is loaded: large ones take many.
START_TIMEOUT = 60.0


def make_prefork_pool(context: PluginContext) -> WorkerPool:
    """Return the pool.

    Raises:
        PluginError: An option is wrong, or this system cannot fork.
        SettingsError: It is not said where the app is.
    """
    if not hasattr(os, "fork"):
        msg = "the pool 'prefork' needs fork, which this system has not; use --pool threads"
        raise PluginError(msg)
    defaults = {
        "start_timeout": START_TIMEOUT,
        "max_jobs_per_child": 0,
        "max_memory_per_child": 0,
    }
    options = PoolOptions.of(context, defaults)
    jobs, memory = (options.own[f"max_{what}_per_child"] for what in ("jobs", "memory"))
    if min(jobs, memory) < 0:
        msg = "max_jobs_per_child and max_memory_per_child of the pool 'prefork' are numbers from 0"
        raise PluginError(f"{msg}; 0 is no limit")
    start_timeout = options.own["start_timeout"]
    if not 0.0 < start_timeout < float("inf"):
        raise PluginError("start_timeout of the pool 'prefork' is seconds, more than 0")
    if not options.loader:
        raise PluginError("the pool 'prefork' needs the option loader, as module:function")
    if not options.arguments.get("path", "unused"):
        msg = "the pool 'prefork' loads the app in processes of its own and must know where it is: "
        raise SettingsError(f"{msg}name it as path='module:attribute', or use the pool 'threads'")
    from eventmq.plugins.pools.prefork.pool import PreforkPool

    return PreforkPool(
        concurrency=options.concurrency,
        loader=options.loader,
        arguments=options.arguments,
        start_timeout=start_timeout,
        initial=options.initial,
        recycling=(jobs, memory * 1024 * 1024),
    )


@hookimpl
def eventmq_worker_pools() -> Mapping[str, Factory[WorkerPool]]:
    """Provide the pool."""
    return {"prefork": make_prefork_pool}


@hookimpl
def eventmq_command_options() -> Mapping[str, Sequence[CommandOption]]:
    """Provide what replaces a process."""
    return {
        "prefork": [
            CommandOption(
                name="max_jobs_per_child", metavar="N", minimum=1,
                help="Replace a process after so many jobs.",
            ),
            CommandOption(
                name="max_memory_per_child", metavar="MIB", minimum=1,
                help="Replace a process, between two jobs, that has more memory.",
            ),
        ]
    }  # fmt: skip
