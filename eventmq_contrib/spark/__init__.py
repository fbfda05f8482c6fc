"""Spark integration: analyses of journals, the commands ``eventmq spark ...``, and a worker pool.

The analyses are functions from a journal's events to DataFrames, and other programs can call them.
``eventmq[spark]`` installs pyspark, and ``eventmq[spark-jre]`` a Java for machines without one.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from eventmq import hookimpl
from eventmq.sdk import CommandOption
from eventmq_contrib.extras import need

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import click

    from eventmq.sdk import Factory, WorkerPool
    from eventmq_contrib.spark.journal import JournalError, read_journal
    from eventmq_contrib.spark.session import spark_session
    from eventmq_contrib.spark.source import EventMQDataSource, enqueue

__all__ = [
    "EventMQDataSource",
    "JournalError",
    "enqueue",
    "eventmq_add_commands",
    "eventmq_command_options",
    "eventmq_worker_pools",
    "read_journal",
    "spark_session",
]

_MODULES = {
    "EventMQDataSource": "eventmq_contrib.spark.source",
    "enqueue": "eventmq_contrib.spark.source",
    "JournalError": "eventmq_contrib.spark.journal",
    "read_journal": "eventmq_contrib.spark.journal",
    "spark_session": "eventmq_contrib.spark.session",
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used."""
    if name in _MODULES:
        for library in ("pyspark", "pyarrow.parquet"):
            need(library, user=__name__)
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@hookimpl
def eventmq_worker_pools() -> Mapping[str, Factory[WorkerPool]]:
    """Provide the pool ``spark``."""
    from eventmq_contrib.spark.pool import make_spark_pool

    return {"spark": make_spark_pool}


@hookimpl
def eventmq_command_options() -> Mapping[str, Sequence[CommandOption]]:
    """Provide the address of the cluster."""
    help_ = "Master of the cluster, as Spark's own --master."
    return {"spark": [CommandOption(name="master", metavar="URL", help=help_)]}


@hookimpl
def eventmq_add_commands(cli: click.Group) -> None:
    """Add ``eventmq spark``."""
    from eventmq_contrib.spark.command import spark

    cli.add_command(spark)
