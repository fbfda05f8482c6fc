"""The audit of what really happened: a broker, workers and a journal as processes, killed at work.

The client's own log says which jobs it holds a receipt for, the record of the workers which of them
were executed; the audit has the journal alone.
"""

from __future__ import annotations

import json
import shutil
import threading
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from eventmq_contrib.spark.command import spark as group
from tests.support.system import DEADLINE, System, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.system import Process

JOBS = 1000


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    system = System(tmp_path)
    yield system
    system.stop()


def journal(system: System, *more: str) -> Process:
    data, out = str(system.folder / "data"), str(system.folder / "journal")
    given = ("--data-dir", data, "--out", out, "--broker", system.address, *more)
    return system.start("journal", *given)[0]


def submit(system: System, confirmed: list[Any]) -> None:
    """Submit numbers, a hundred at a time; jobs with a receipt are confirmed."""
    app = system.app(submit_timeout=30.0)

    def stand_in(number: int) -> None:
        """Run in a worker."""

    work = app.task(name="survivor.work")(stand_in)
    for start in range(0, JOBS, 100):
        confirmed.extend(work.map([(number,) for number in range(start, start + 100)]))


def audit(folder: Path, *more: str) -> tuple[int, dict[str, Any]]:
    given = ["audit", "--journal", str(folder), "--json", *more]
    done = CliRunner().invoke(group, given, standalone_mode=False)
    assert done.exception is None, done.output
    assert "the clock of" not in done.stderr, "all of them have the same one"
    return done.return_value, json.loads(done.stdout)


def test_after_kills_the_journal_alone_agrees_with_the_clients(
    spark: SparkSession, system: System, as_users: Callable[[], AbstractContextManager[None]]
) -> None:
    """Broker, worker and journal are each killed in the middle; nothing is lost."""
    confirmed: list[Any] = []
    broker = system.broker()
    keeper, worker = journal(system), system.worker()
    client = threading.Thread(target=submit, args=(system, confirmed))
    client.start()
    until(lambda: system.has_started(101), "the first jobs run")
    keeper.kill9()
    worker.kill9()
    system.worker()
    keeper = journal(system)
    until(lambda: system.has_started(401), "more jobs run")
    broker.kill9()
    system.broker()
    client.join(DEADLINE)
    until(lambda: len(system.executed()) >= JOBS, "every job was executed")
    app = system.apps[0]
    idle = {"waiting": 0, "running": 0, "delayed": 0}
    until(lambda: idle.items() <= app.ask("queues")[0].items(), "everything is answered and queued")
    keeper.terminate()
    keeper.wait(DEADLINE)
    journal(system, "--once").wait(DEADLINE)  # events that the other had not read yet
    with as_users():
        code, result = audit(system.folder / "journal", "--broker", system.address)
    assert len({job.id for job in confirmed}) == JOBS
    assert (result["jobs"], result["succeeded"]) == (JOBS, JOBS)
    assert (code, result["proven"], result["damage"]) == (0, True, [])
    assert (result["conclusion"], result["anchored"]) == ("clean", True)

    # An earlier state of it, log and files, agrees with itself, and not with the broker.
    earlier = system.folder / "earlier"
    shutil.copytree(system.folder / "journal", earlier)
    [log] = (earlier / "_seals").glob("*.jsonl")
    *lines, last = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines))
    [path] = earlier.rglob(f"*-{json.loads(last)['first']}-*.parquet")
    path.unlink()
    code, result = audit(earlier, "--broker", system.address)
    first, end = json.loads(last)["first"], json.loads(last)["last"]
    assert (code, result["missing_events"]) == (1, end - first + 1)
    assert f"the events {first} to {end} of the broker" in result["damage"][0]

    # Then one event goes missing, and the audit must not agree any more.
    path = min((system.folder / "journal").rglob("*.parquet"))
    table = pq.ParquetFile(path).read()
    kinds = table["kind"].to_pylist()
    index = next(n for n, kind in enumerate(kinds) if kind == "succeeded")
    job_id = table["job_id"][index].as_py()
    pq.write_table(pa.concat_tables([table[:index], table[index + 1 :]]), path)
    code, result = audit(system.folder / "journal")
    assert (code, result["missing_events"], result["lost_ids"]) == (1, 1, [job_id])
