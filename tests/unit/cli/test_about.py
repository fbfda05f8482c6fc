from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

import apsw
import pytest

from eventmq.settings import Settings, describe
from tests.support.cli_harness import Cli, open_cli

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    return open_cli(tmp_path, monkeypatch)


def test_the_plugins_are_listed_with_where_they_come_from(cli: Cli) -> None:
    rows = cli.json("plugins", "--json")
    columns = ["name", "version", "origin", "hooks", "provides", "in_use"]
    assert all(columns == list(row) for row in rows)
    assert "built in" == next(r["origin"] for r in rows if r["name"] == "pools.prefork")


def test_a_plugin_in_use_is_shown_as_such(cli: Cli) -> None:
    cli.write("eventmq.toml", 'routing_strategy = "round-robin"\n')
    rows = {row["name"]: row for row in cli.json("plugins", "--json")}
    assert "round-robin" == rows["routing.round_robin"]["in_use"]
    assert "" == rows["routing.least_recently_used"]["in_use"]


def test_all_settings_are_listed_with_their_source(cli: Cli, monkeypatch) -> None:
    cli.write("eventmq.toml", "queue_window = 7\n")
    monkeypatch.setenv("EVENTMQ_SHUTDOWN_GRACE", "3")
    rows = cli.json("settings", "--json")
    assert [row["name"] for row in describe(Settings())] == [row["name"] for row in rows]
    columns = ["name", "value", "source", "type", "unit", "default", "env"]
    assert all(columns == list(row) for row in rows)
    by_name = {row["name"]: (row["value"], row["source"]) for row in rows}
    assert ("7", "eventmq.toml") == by_name["queue_window"]
    assert ("3.0", "EVENTMQ_SHUTDOWN_GRACE") == by_name["shutdown_grace"]
    assert ("sqlite", "default") == by_name["store"]


def test_a_broker_on_the_command_line_wins(cli: Cli, monkeypatch) -> None:
    monkeypatch.setenv("EVENTMQ_BROKER", "tcp://127.0.0.1:1")
    rows = cli.json("settings", "--json", "--broker", "tcp://127.0.0.1:2")
    assert ("tcp://127.0.0.1:2", "argument") == (rows[0]["value"], rows[0]["source"])


@pytest.mark.parametrize(
    "options",
    [["--broker", "tcp://a:1,tcp://b:1"], ["--broker", "tcp://a:1", "--broker", "tcp://b:1"]],
)
def test_several_brokers_are_named_one_by_one_or_together(cli: Cli, options: list[str]) -> None:
    rows = cli.json("settings", "--json", *options)
    assert "tcp://a:1,tcp://b:1" == rows[0]["value"]


def test_a_broker_that_is_named_twice_is_wrong_usage(cli: Cli) -> None:
    result = cli.run("settings", "--broker", "tcp://a:1", "--broker", "tcp://a:1")
    assert result.exit_code == 2
    assert "at least one, none twice" in result.stderr


def test_a_table_in_a_pipe_is_plain_columns(cli: Cli) -> None:
    lines = cli.run("settings").stdout.splitlines()
    assert ["name", "value", "source", "type", "unit", "default", "env"] == lines[0].split()
    assert "\x1b" not in "".join(lines)


def test_the_version_names_what_it_stands_on(cli: Cli) -> None:
    versions = cli.json("version", "--json")
    assert {"eventmq", "python", "pyzmq", "sqlite"} == set(versions)
    assert apsw.sqlite_lib_version() == versions["sqlite"]
    assert version("pyzmq") == versions["pyzmq"]
    assert cli.run("version").stdout.startswith(f"eventmq {versions['eventmq']} ")
