"""Spark sessions: starts Spark, on this machine or a cluster, with the settings that are needed."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eventmq.errors import EventMQError
from eventmq_contrib.extras import need
from eventmq_contrib.spark.errors import map_error
from eventmq_contrib.spark.java import java_home
from eventmq_contrib.spark.scratch import make_scratch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

__all__ = ["SparkFailed", "spark_session", "using_spark"]

#: Settings for any master: times are in UTC, as in the journal's folders.
_ALWAYS = {"spark.sql.session.timeZone": "UTC"}

#: Partitions of a shuffle on one machine; Spark merges small ones.
_PARTS = 16

#: Most files that are listed without a Spark job.
_LISTED = 100_000


class SparkFailed(EventMQError):
    """Spark did not start, or a query failed."""


def spark_session(
    name: str = "eventmq", *, master: str | None = None, config: Mapping[str, str] | None = None
) -> SparkSession:
    """Return the session of this process, started where there is none.

    Args:
        name: Name of the application.
        master: As Spark's ``--master``: ``local[4]``, ``spark://host:7077``, ``yarn``; or
            ``sc://host:15002``, a Spark Connect server, which needs no Java here. Without one
            it is what Spark is configured for, else all cores of this machine.
        config: Settings of Spark that override those made here.

    Raises:
        PluginError: pyspark or a Java is missing, or too old.
        SparkFailed: Spark does not start.
    """
    need("pyspark", user="eventmq spark")
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    if master is not None and master.startswith("sc://"):
        return _configured(builder.remote(master), {**_ALWAYS, **(config or {})}).getOrCreate()
    if master is not None:
        builder = builder.master(master)
    if SparkSession.getActiveSession() is not None:
        return _configured(builder, {**_ALWAYS, **(config or {})}).getOrCreate()
    scratch = _scratch()
    builder = _configured(builder, {**_ALWAYS, **_starting(master, scratch), **(config or {})})
    try:
        with java_home(scratch), _same_python(master):
            session = builder.getOrCreate()
    except PySparkException as error:
        msg = f"Spark does not start: {error}; what it printed says why"
        raise SparkFailed(msg) from error
    if scratch is not None:
        _delete_at_end(session, scratch)
    return session


def _scratch() -> Path | None:
    """Return a folder for a new JVM, None if one runs already."""
    from pyspark import SparkContext

    if SparkContext._gateway is not None:  # noqa: SLF001 - nothing else says so
        return None
    try:
        return make_scratch()
    except OSError as error:
        raise SparkFailed(f"Spark has no temporary folder: {error}; name one by TMPDIR") from error


def _delete_at_end(session: SparkSession, folder: Path) -> None:
    """Let the JVM of a session delete a folder when it ends by itself."""
    jvm: Any = session._jvm  # noqa: SLF001 - Spark has its hooks there
    hooks = jvm.org.apache.spark.util.ShutdownHookManager
    hooks.registerShutdownDeleteDir(jvm.java.io.File(str(folder)))


def _configured(builder: SparkSession.Builder, settings: Mapping[str, str]) -> SparkSession.Builder:
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder


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
    """Return the settings of a new driver, with those of a single machine if it is one.

    Args:
        master: As of `spark_session`.
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
    need("pyspark", user="eventmq spark")
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    # Spark would print the error, with the traces of the JVM.
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
    """Return the message of an error of Spark, without the traces of the JVM."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    shown = [line for line in lines if not line.startswith(("at ", "JVM stacktrace"))]
    return " ".join(shown[:3]) or type(error).__name__
