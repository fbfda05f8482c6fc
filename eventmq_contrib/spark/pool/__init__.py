"""The worker pool ``spark``: jobs run on the executors of a Spark cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eventmq.errors import PluginError
from eventmq.sdk import PoolOptions, option
from eventmq_contrib.extras import need

if TYPE_CHECKING:
    from eventmq.sdk import PluginContext, WorkerPool

__all__ = ["make_spark_pool"]


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the pool that users set.

    Attributes:
        master: Spark's ``--master``; empty for the configured one.
        start_timeout: Seconds within which all slots must have connected.
        link_host: Address of this machine that executors can reach; empty for Spark's
            ``spark.driver.host``.
        link_timeout: Seconds of silence after which an executor counts as lost.
    """

    master: str = ""
    start_timeout: float = option(120.0, gt=0)
    link_host: str = ""
    link_timeout: float = option(15.0, gt=0)


def make_spark_pool(context: PluginContext) -> WorkerPool:
    """Return the pool.

    Raises:
        PluginError: An option is wrong, or pyspark is missing.
    """
    options = PoolOptions.of(context, Options)
    if options.own.master.startswith("sc://"):
        raise PluginError(
            "it runs a process on each executor, which Spark Connect cannot start: name the "
            "master itself, such as spark://host:7077"
        )
    if not options.loader or not options.arguments.get("path", "nowhere"):
        raise PluginError(
            "it loads the app on the executors and must know its path: name it as "
            "path='module:attribute', or use the pool 'threads'"
        )
    need("pyspark", user="the pool 'spark'")
    from eventmq_contrib.spark.pool.pool import SparkPool

    return SparkPool(options)
