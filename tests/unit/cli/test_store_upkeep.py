"""``eventmq store``: what it asks of a shared store, and what it says of others."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.cli_harness import Cli, open_cli

if TYPE_CHECKING:
    from pathlib import Path

PLUGIN = """
from eventmq.sdk import Finding, StoreError, hookimpl, read_options

class Kept:
    def __init__(self, window):
        self.window = window

    def init(self):
        return ["the store is made"]

    def check(self):
        if self.window == 5.0:
            found = "brokers have 9.0"
            return [Finding("settings", "dedupe_window", found, "refused", "set 9.0", False)]
        return []

    def contract(self):
        raise StoreError("cannot connect to shared://nowhere: start the server")

    def accept_settings(self):
        return [f"dedupe_window = {self.window}, before 9.0", "another\\x1b"]

    def accept_restore(self):
        return ["jobs may run again"]

class Shared:
    ownership = tools = None
    event_log = reader = open = submit = finished = verify = lambda self: None
    gauges = fileno = close = lambda self: None

    def __init__(self, context):
        self.upkeep = Kept(context.app.settings.dedupe_window)

@hookimpl
def eventmq_queue_stores():
    return {"shared": Shared}
"""


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    (tmp_path / "sharing.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    return open_cli(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("init", ["the store is made"]),
        ("check", ["the store is in order"]),
        ("accept-settings", ["dedupe_window = 86400.0, before 9.0", r"another\x1b"]),
        ("accept-restore", ["jobs may run again"]),
    ],
)
def test_each_command_says_what_was_done(cli: Cli, name: str, lines: list[str]) -> None:
    result = cli.run("-p", "sharing", "store", name, "--store", "shared")
    assert (0, lines) == (result.exit_code, result.stdout.splitlines())


def test_what_is_found_is_a_failure(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings are those of a broker that is started in the same place."""
    monkeypatch.setenv("EVENTMQ_DEDUPE_WINDOW", "5")
    command = ("-p", "sharing", "store", "check", "--store", "shared://x")
    result = cli.run(*command)
    assert 1 == result.exit_code
    assert "settings (dedupe_window): brokers have 9.0" in result.stdout
    result = cli.run(*command, "--json")
    assert 1 == result.exit_code
    assert [("settings", "set 9.0")] == [
        (row["check"], row["help"]) for row in json.loads(result.stdout)
    ]


def test_a_store_that_cannot_be_reached_is_one_sentence(cli: Cli) -> None:
    result = cli.run("-p", "sharing", "store", "contract", "--store", "shared://x")
    assert (1, "") == (result.exit_code, result.stdout)
    assert "error: cannot connect to shared://nowhere: start the server" in result.stderr


@pytest.mark.parametrize("name", ["init", "check", "contract", "accept-settings", "accept-restore"])
def test_the_store_of_one_broker_needs_none_of_it(cli: Cli, name: str) -> None:
    result = cli.run("store", name)
    assert (1, "") == (result.exit_code, result.stdout)
    assert "the store 'sqlite' belongs to one broker" in result.stderr
