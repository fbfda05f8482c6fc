"""Spark sessions: starts Spark, on this machine or a cluster, with the settings of EventMQ."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from eventmq.errors import (
    BrokerUnavailable,
    EventMQError,
    NotAllowed,
    SettingsError,
    StoreError,
    SubmitError,
)
from eventmq_contrib.extras import need
from eventmq_contrib.spark.java import java_home
from eventmq_contrib.spark.scratch import make_scratch

__all__ = ["SparkFailed", "map_error", "spark_session", "using_spark"]

#: Settings for any master: times are in UTC, as in the names of the journal's folders.
_ALWAYS = {"spark.sql.session.timeZone": "UTC"}

#: Partitions of a shuffle on one machine; Spark merges small ones.
_PARTS = 16

#: Maximum number of files that are listed without a Spark job.
_LISTED = 100_000


class SparkFailed(EventMQError):
    """Spark did not start, or a query failed."""


def spark_session(
    name: str = "eventmq", *, master: str | None = None, config: Mapping[str, str] | None = None
) -> SparkSession:
    """Return the session of this process; start one if there is none.

    Args:
        name: Name of the application.
        master: As Spark's ``--master``: ``local[4]``, ``spark://host:7077``, ``yarn``; or
            ``sc://host:15002``, a Spark Connect server, which needs no Java here. By default
            the master that Spark is configured with, or else all cores of this machine.
        config: Settings of Spark that override those of this function.

    Raises:
        PluginError: pyspark or a Java is missing, or too old.
        SparkFailed: Spark does not start.
    """
    need("pyspark", user="eventmq spark")
    builder = SparkSession.builder.appName(name)
    settings: dict[str, Any] = {**_ALWAYS, **(config or {})}
    connects = master is not None and master.startswith("sc://")
    if master is not None:
        builder = builder.remote(master) if connects else builder.master(master)
    if connects or SparkSession.getActiveSession() is not None:
        return builder.config(map=settings).getOrCreate()
    scratch = _scratch()
    builder = builder.config(map={**_starting(master, scratch), **settings})
    try:
        with java_home(scratch), _same_python(master):
            session = builder.getOrCreate()
    except PySparkException as error:
        raise SparkFailed(f"Spark does not start: {error}; see its output") from error
    if scratch is not None:  # the JVM deletes it when it ends by itself
        jvm: Any = session._jvm  # noqa: SLF001 - Spark has its hooks there
        hooks = jvm.org.apache.spark.util.ShutdownHookManager
        hooks.registerShutdownDeleteDir(jvm.java.io.File(str(scratch)))
    return session


def _scratch() -> Path | None:
    """Return a folder for a new JVM, None if a JVM runs already."""
    if SparkContext._gateway is not None:  # noqa: SLF001 - nothing else says so
        return None
    try:
        return make_scratch()
    except OSError as error:
        raise SparkFailed(f"Spark has no temporary folder: {error}; name one by TMPDIR") from error


@contextlib.contextmanager
def _same_python(master: str | None) -> Iterator[None]:
    """Let Spark's workers on this machine run this Python, unless another one is configured.

    Spark itself uses the first ``python3`` of PATH, where EventMQ may not be installed.
    """
    name = "PYSPARK_PYTHON"
    if name in os.environ or not (master is None or master.startswith("local")):
        yield
        return
    os.environ[name] = sys.executable
    try:
        yield
    finally:
        del os.environ[name]


def _starting(master: str | None, scratch: Path | None) -> dict[str, str]:
    """Return the settings of a new driver; with those for a single machine if it is local.

    Args:
        master: As for `spark_session`.
        scratch: Temporary folder of the JVM, and default of ``spark.local.dir``.
    """
    log4j = Path(__file__).with_name("log4j2.properties")
    options = [f'"-Dlog4j2.configurationFile={log4j.as_uri()}"']
    if scratch is not None:
        options.append(f'"-Djava.io.tmpdir={scratch}"')
    settings = {
        "spark.driver.extraJavaOptions": " ".join(options),
        "spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower(),
        "spark.sql.sources.parallelPartitionDiscovery.threshold": str(_LISTED),
    }
    if master is None or master.startswith("local"):
        settings |= {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.sql.shuffle.partitions": str(_PARTS),
            "spark.ui.enabled": "false",
        }
    return settings


@contextlib.contextmanager
def using_spark(master: str | None = None) -> Iterator[SparkSession]:
    """Yield a session for a command; a session that existed before stays open.

    Raises:
        PluginError: pyspark or a Java is missing.
        SparkFailed: Spark does not start, or does not finish.
    """
    # Otherwise Spark prints the error, with the stack traces of the JVM.
    logging.getLogger("DataFrameQueryContextLogger").setLevel(logging.CRITICAL)
    running = SparkSession.getActiveSession() is not None
    spark = spark_session(master=master)
    try:
        yield spark
    except (PySparkException, Py4JError) as error:
        failed = SparkFailed(f"Spark could not finish: {_first_lines(error)}")
        raise map_error(error) or failed from error
    finally:
        if not running:
            spark.stop()


def _first_lines(error: Exception) -> str:
    """Return the message of an error of Spark, without the stack traces of the JVM."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    shown = [line for line in lines if not line.startswith(("at ", "JVM stacktrace"))]
    return " ".join(shown[:3]) or type(error).__name__


#: A line about an error of EventMQ in the text of one of Spark.
_LINE = re.compile(r"^\s*eventmq\S*\.(\w+): (.+)$", re.MULTILINE)

_KINDS: Mapping[str, type[EventMQError]] = {
    "BatchError": SubmitError,
    "BrokerUnavailable": BrokerUnavailable,
    "JournalError": StoreError,
    "NotAllowed": NotAllowed,
    "SettingsError": SettingsError,
    "StoreError": StoreError,
}


def map_error(error: Exception) -> EventMQError | None:
    """Return the EventMQ error that caused an error of Spark, None for another cause.

    Args:
        error: An exception of Spark, which contains EventMQ's errors as text.
    """
    mapped = [_KINDS[kind](text) for kind, text in _LINE.findall(str(error)) if kind in _KINDS]
    return mapped[-1] if mapped else None
