"""Pool ``prefork``: runs jobs in child processes. The default on Linux and macOS.

In addition to `Options`, the app sets ``concurrency``, ``loader`` and ``arguments``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eventmq.errors import PluginError, SettingsError
from eventmq.sdk import CommandOption, PoolOptions, ProcessPool, hookimpl, option

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from eventmq.sdk import Factory, PluginContext, WorkerPool

__all__ = ["eventmq_command_options", "eventmq_worker_pools", "make_prefork_pool"]

#: Default of ``start_timeout``, in seconds; large apps load slowly.
START_TIMEOUT = 60.0


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the pool.

    Attributes:
        start_timeout: Seconds within which the app must be loaded.
        max_jobs_per_child: Number of jobs after which a child process is replaced; 0 for never.
        max_memory_per_child: MiB of memory above which a child process is replaced between two
            jobs; 0 for never.
    """

    start_timeout: float = option(START_TIMEOUT, gt=0)
    max_jobs_per_child: int = option(0, ge=0)
    max_memory_per_child: int = option(0, ge=0)


def make_prefork_pool(context: PluginContext) -> WorkerPool:
    """Return the pool.

    Raises:
        PluginError: An option is wrong, or this system cannot fork.
        SettingsError: The location of the app is not known.
    """
    if not hasattr(os, "fork"):
        raise PluginError("it needs fork, which this system lacks; use --pool threads")
    options = PoolOptions.of(context, Options)
    if not options.loader:
        raise PluginError("it needs the option loader, as module:function")
    if not options.arguments.get("path", "unused"):
        msg = "the pool 'prefork' loads the app in processes of its own and must know where it is: "
        raise SettingsError(f"{msg}name it as path='module:attribute', or use the pool 'threads'")
    own = options.own
    return ProcessPool(
        concurrency=options.concurrency,
        loader=options.loader,
        arguments=options.arguments,
        start_timeout=own.start_timeout,
        initial=options.initial,
        recycling=(own.max_jobs_per_child, own.max_memory_per_child * 1024 * 1024),
    )


@hookimpl
def eventmq_worker_pools() -> Mapping[str, Factory[WorkerPool]]:
    """Provide the pool."""
    return {"prefork": make_prefork_pool}


@hookimpl
def eventmq_command_options() -> Mapping[str, Sequence[CommandOption]]:
    """Provide the options for replacing child processes."""
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
