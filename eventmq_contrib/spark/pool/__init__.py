"""The worker pool ``spark``: jobs run on the executors of a Spark cluster.

Options, beside those that the app gives: ``master``, as Spark's ``--master``, empty for what Spark
is configured for; ``start_timeout``, seconds within which all slots are there (120);
``link_host``, the address of this machine that executors reach, empty for Spark's
``spark.driver.host``; ``link_timeout``, seconds of silence after which an executor is taken for
lost (15).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.errors import PluginError
from eventmq.plugins.pools.options import PoolOptions
from eventmq_contrib.extras import need

if TYPE_CHECKING:
    from eventmq.interfaces import PluginContext, WorkerPool

__all__ = ["make_spark_pool"]

_DEFAULTS = {"master": "", "start_timeout": 120.0, "link_host": "", "link_timeout": 15.0}


def make_spark_pool(context: PluginContext) -> WorkerPool:
    """Return the pool.

    Raises:
        PluginError: An option is wrong, or pyspark is missing.
    """
    options = PoolOptions.of(context, _DEFAULTS)
    own = options.own
    for name in ("start_timeout", "link_timeout"):
        if not 0.0 < own[name] < float("inf"):
            raise PluginError(f"{name} of the pool 'spark' is seconds, more than 0")
    if own["master"].startswith("sc://"):
        msg = "the pool 'spark' runs a process on each executor, which Spark Connect cannot start: "
        raise PluginError(f"{msg}name the master itself, such as spark://host:7077")
    if not options.loader or not options.arguments.get("path", "nowhere"):
        msg = "the pool 'spark' loads the app on the executors and must know where it is: "
        raise PluginError(f"{msg}name it as path='module:attribute', or use the pool 'threads'")
    from eventmq_contrib.spark.pool.pool import SparkPool

    need("pyspark", user="the pool 'spark'")
    return SparkPool(options)
