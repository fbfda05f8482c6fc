"""The session of Spark, and the group of commands that use it."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import click
import pytest
from click.testing import CliRunner

import eventmq_contrib.spark as public
from eventmq.errors import PluginError, StoreError
from eventmq_contrib.spark import command as group
from eventmq_contrib.spark.atomic import write_table
from eventmq_contrib.spark.command import JournalOptions, takes_journal
from eventmq_contrib.spark.session import SparkFailed, spark_session, using_spark
from tests.contrib.spark.histories import write_journal
from tests.contrib.spark.test_journal_read import numbered

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def test_the_session_shows_times_in_utc(spark: SparkSession) -> None:
    """As the folders of the journal are cut."""
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark_session() is spark


def test_a_session_that_was_there_goes_on(spark: SparkSession) -> None:
    with using_spark() as session:
        assert session is spark
    assert spark.range(3).count() == 3


def test_an_error_of_spark_is_a_sentence(spark: SparkSession) -> None:
    """Without the traces of the JVM."""
    with pytest.raises(SparkFailed) as caught, using_spark() as session:
        session.sql("SELECT raise_error('no luck')").collect()
    assert "no luck" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "\tat " not in str(caught.value)


def test_without_pyspark_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(PluginError, match=r"pip install '\.\[spark\]'"):
        spark_session()


def test_public_names_load_when_they_are_used() -> None:
    for name in public.__all__:
        assert getattr(public, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        public.nothing  # noqa: B018 - that it is not there


def test_every_command_has_the_shared_options_and_a_help_text() -> None:
    names = "anomaly audit capacity clocks failures replay report slo stats stream trace"
    assert sorted(group.spark.commands) == names.split()
    for name, command in group.spark.commands.items():
        assert (command.name, bool(command.help)) == (name, True)
        options = {option for param in command.params for option in param.opts}
        assert options >= {"--journal", "--since", "--until", "--queue", "--task"}
        assert options >= {"--master", "--out", "--json"}


def test_help_needs_no_spark_and_a_command_without_it_names_the_extra() -> None:
    code = """
import sys
sys.modules |= {"pyspark": None, "pyarrow": None}
from click.testing import CliRunner
from eventmq_contrib.spark.command import spark
print(CliRunner().invoke(spark, ["audit", "--help"]).exit_code)
print(repr(CliRunner().invoke(spark, ["stats", "--journal", "j"]).exception))
import eventmq_contrib.spark as public
try:
    public.read_journal
except Exception as error:
    print(repr(error))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == "0"
    assert done.stdout.count("pip install '.[spark]'") == 2


# Tables


def escaped(path: Path) -> str:
    return str(path).replace("[", "\\[").replace("]", "\\]")


def test_a_table_is_replaced_when_the_new_one_is_complete(
    spark: SparkSession, tmp_path: Path
) -> None:
    out = tmp_path / "deep=%20 [a]" / "table"
    write_table(spark.range(3), out)
    write_table(spark.range(5), out)
    assert spark.read.parquet(escaped(out)).count() == 5
    with pytest.raises(SparkFailed), using_spark():
        write_table(spark.range(9).selectExpr("raise_error('no luck') AS a"), out)
    assert spark.read.parquet(escaped(out)).count() == 5
    assert [path.name for path in out.parent.iterdir()] == ["table"]


def test_what_is_no_table_is_not_replaced(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine", encoding="utf-8")
    for out in (tmp_path, tmp_path / "mine.txt"):
        with pytest.raises(StoreError, match="is not a table: name another folder with --out"):
            write_table(spark.range(3), out)
    assert (tmp_path / "mine.txt").read_text(encoding="utf-8") == "mine"


# What commands share


@click.command
@takes_journal
def count(shared: JournalOptions) -> None:
    with shared.events() as events:
        shared.show(events.groupBy("queue").count().orderBy("queue"))


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(count, [str(argument) for argument in arguments])


def test_a_command_prints_a_table_or_json_or_writes_parquet(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Everything but the table goes to stderr."""
    write_journal(tmp_path / "journal", numbered("b", range(1, 8)))
    given = ("--journal", tmp_path / "journal")
    assert run(*given).stdout.split() == ["queue", "count", "q0", "3", "q1", "4"]
    done = run(*given, "--json", "--queue", "q1")
    assert done.stdout == '[\n  {\n    "queue": "q1",\n    "count": 4\n  }\n]\n'
    done = run(*given, "--out", tmp_path / "out", "--since", "2026-11-21T00:00")
    assert (done.exit_code, done.stdout) == (0, "")
    assert spark.read.parquet(str(tmp_path / "out")).count() == 2


def test_a_long_listing_is_cut_with_a_message(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.import_module(JournalOptions.__module__), "MAX_SHOWN", 1)
    write_journal(tmp_path, numbered("b", range(1, 8)))
    done = run("--journal", tmp_path)
    assert done.stdout.split() == ["queue", "count", "q0", "3"]
    assert "the first 1 rows of more" in done.stderr
