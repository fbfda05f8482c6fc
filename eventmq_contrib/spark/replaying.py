"""Replays of failed jobs: a plan in a folder, run in slices, each job once.

The plan has the failed attempt of each job, and the broker queues a job again only if that is still
its last attempt. So a replay can be killed and started again at any time without repeating a job;
the reports of finished slices only save requests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from eventmq.errors import BrokerUnavailable, StoreError
from eventmq_contrib.atomic import write_file
from eventmq_contrib.spark.atomic import write_table
from eventmq_contrib.spark.session import map_error
from eventmq_contrib.spark.source import EventMQDataSource

if TYPE_CHECKING:
    from eventmq import EventMQ


__all__ = ["Replay", "ReplayTarget"]

#: Jobs of a slice; a rate makes it smaller.
SLICE = 10_000

#: Seconds that a slice takes at a bounded rate.
_SLICE_SECONDS = 5.0

_MIN_SLICE = 100


class ReplayTarget(NamedTuple):
    """The broker of a replay: its URL, the paths of key files, and the id of its store."""

    broker: str
    key: str
    broker_key: str
    store: str

    @classmethod
    def of(cls, app: EventMQ) -> ReplayTarget:
        """Return the broker of an app; the broker must answer."""
        settings = app.settings
        return cls(
            ",".join(settings.broker), settings.key_file, ",".join(settings.broker_key_file),
            app.ask("ping")["events_id"],
        )  # fmt: skip

    def options(self) -> dict[str, str]:
        """Return the options of the data source."""
        options = {"broker": self.broker, "key": self.key, "brokerKey": self.broker_key}
        return {name: value for name, value in options.items() if value}


class Replay:
    """A replay in its folder.

    Args:
        folder: Folder of the plan and the reports, made if it is missing.
        target: The broker.
        filters: Filters of the jobs; they must be the same when it is started again.

    Raises:
        StoreError: The folder is of another replay.
    """

    def __init__(self, folder: Path, target: ReplayTarget, filters: Mapping[str, Any]) -> None:
        self.folder = folder
        self._target = target
        self._description = folder / "replay.json"
        self._options = {"store": target.store, **filters}
        self.jobs = self.slices = 0
        #: Whether the plan has been written.
        self.planned = self._description.is_file()
        if self.planned:
            self._read()

    def _read(self) -> None:
        try:
            description = json.loads(self._description.read_text(encoding="utf-8"))
            options = description["of"]
            self.jobs, self.slices = description["jobs"], description["slices"]
        except (ValueError, KeyError, OSError) as error:
            raise StoreError(
                f"{self._description} is not of a replay: name another --checkpoint"
            ) from error
        if options != self._options:
            names = ", ".join(
                n for n in {**options, **self._options} if options.get(n) != self._options.get(n)
            )
            raise StoreError(
                f"{self.folder} is of a replay with another {names}: name another --checkpoint"
            )

    def own(self, events: DataFrame) -> DataFrame:
        """Return the events of the broker, of those of a journal.

        Raises:
            StoreError: The journal has no events of the broker.
        """
        brokers = sorted(row.broker_id for row in events.select("broker_id").distinct().collect())
        store = self._target.store
        if store not in brokers:
            raise StoreError(
                f"the journal is of other brokers ({', '.join(brokers) or 'none'}), not of the "
                f"one that answers, {store}: name the right one with --broker"
            )
        return events.where(events.broker_id == store)

    def plan(self, jobs: DataFrame, rate: float | None) -> None:
        """Write the plan, with the job that failed first at the beginning.

        Args:
            jobs: As from `eventmq_contrib.spark.analyses.failures.failed_jobs`.
            rate: Jobs per second, for the size of slices.

        Raises:
            StoreError: It cannot be written.
        """
        size = SLICE if rate is None else min(SLICE, max(_MIN_SLICE, int(rate * _SLICE_SECONDS)))
        position = f.row_number().over(Window.orderBy("ts_us", "job_id")) - 1
        plan = jobs.select("job_id", "attempt", position.alias("position")).withColumn(
            "slice", f.floor(f.col("position") / size).cast("int")
        )
        write_table(plan, self.folder / "plan")
        self.jobs = self._plan_of(jobs.sparkSession).count()
        self.slices = -(-self.jobs // size)
        (self.folder / "done").mkdir(exist_ok=True)
        description = {"of": self._options, "jobs": self.jobs, "slices": self.slices}
        write_file(self._description, json.dumps(description, indent=1))
        self.planned = True

    def _plan_of(self, spark: SparkSession) -> DataFrame:
        # Not as an URI, which Spark does not decode.
        return spark.read.parquet(f"file:{(self.folder / 'plan').absolute()}")

    def carry_out(
        self, spark: SparkSession, rate: float | None, progress: Callable[[int], None]
    ) -> dict[str, int]:
        """Replay the remaining slices; return the counts of all.

        Args:
            spark: Spark session.
            rate: Jobs per second, None for no limit.
            progress: Called after each slice with the number of jobs done.

        Raises:
            BrokerUnavailable: The broker no longer answers.
        """
        spark.dataSource.register(EventMQDataSource)
        counts = {"replayed": 0, "before": 0, "unknown": 0}
        for number in range(self.slices):
            report = self.folder / "done" / f"{number:06}.json"
            if not report.is_file():
                self._slice(spark, number, report, rate)
            for name, n in json.loads(report.read_text(encoding="utf-8")).items():
                counts[name] += n
            progress(sum(counts.values()))
        return counts

    def _slice(self, spark: SparkSession, number: int, report: Path, rate: float | None) -> None:
        rows = self._plan_of(spark).where(f"slice = {number}").orderBy("position")
        options = {**self._target.options(), "action": "replay", "report": str(report.absolute())}
        if rate is not None:
            options["rate"] = str(rate)
        writer = rows.select("job_id", "attempt").coalesce(1).write.format("eventmq")
        try:
            writer.options(**options).mode("append").save()
        except PySparkException as error:
            if not isinstance(map_error(error), BrokerUnavailable):
                raise
            raise BrokerUnavailable(
                f"the broker went away at slice {number + 1} of {self.slices}; start it again "
                f"with --checkpoint {self.folder}, and the rest is done"
            ) from error
