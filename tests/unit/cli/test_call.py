from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.support.cli_harness import Cli, open_cli

if TYPE_CHECKING:
    from pathlib import Path

SHOP = """
import time

from eventmq import EventMQ

app = EventMQ("shop", broker="memory://")

@app.task
def total(prices, *, discount=0.0, of=None):
    return [sum(prices) * (1 - discount), of]

@app.task
def broken():
    raise ValueError("first line\\nsecond line")

@app.task
def slow(seconds):
    time.sleep(seconds)

@app.task
def odd():
    return {"bytes": b"a", "text": "é"}
"""


LIMITED = """
from eventmq import EventMQ

app = EventMQ("shop", broker="memory://", queue_limits={"mail": {"rate_limit": "5/s"}})
"""


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    cli = open_cli(tmp_path, monkeypatch)
    cli.write("shop.py", SHOP)
    return cli


def call(cli: Cli, *arguments: str) -> object:
    return cli.json("call", "-A", "shop", *arguments, "--wait")


def test_arguments_are_json_by_place_and_by_name(cli: Cli) -> None:
    assert [1.5, None] == call(cli, "shop.total", "[1, 2]", "discount=0.5")
    assert [-3.0, "a=b"] == call(cli, "shop.total", "[1, -4]", 'of="a=b"', "discount=0")


def test_a_negative_number_is_no_option(cli: Cli) -> None:
    code, message = cli.error("call", "-A", "shop", "total", "-5", "-6")
    assert 2 == code
    assert "too many positional arguments" in message


def test_the_name_of_the_module_may_be_left_out(cli: Cli) -> None:
    assert [3.0, None] == call(cli, "total", "[1, 2]")


def test_without_wait_the_id_is_printed(cli: Cli) -> None:
    printed = cli.run("call", "-A", "shop", "total", "[1]").stdout
    assert 32 == len(printed.strip())


def test_who_does_not_wait_any_longer_is_told_which_job_goes_on(cli: Cli, monkeypatch) -> None:
    def interrupted(job, timeout=None):
        raise KeyboardInterrupt

    monkeypatch.setattr("eventmq.client.handle.Job.get", interrupted)
    result = cli.run("call", "-A", "shop", "total", "[1]", "--wait")
    assert re.search(
        r"^not waiting any longer; .*: eventmq job [0-9a-f]{32}$", result.stderr, re.MULTILINE
    )
    assert result.exit_code not in {0, 1}


def test_what_json_has_no_form_for_is_printed_as_text(cli: Cli) -> None:
    assert {"bytes": "a", "text": "é"} == call(cli, "odd")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["total", "hello"], "argument 1 is not JSON: hello; if it is a text, write '\"hello\"'"),
        (
            ["total", "[1]", "of=x"],
            "the argument 'of' is not JSON: x; if it is a text, write 'of=\"x\"'",
        ),
        (["total", "['x']"], "argument 1 is not JSON: ['x']; JSON writes it as '[\"x\"]'"),
        (["total", "of={'a': None}"], "JSON writes it as 'of={\"a\": null}'"),
        (["total", "{'a': b}"], "if it is a text, write '\"{'\"'\"'a'\"'\"': b}\"'"),
        (["total", "{1, 2}"], "if it is a text, write '\"{1, 2}\"'"),
        (["total", "discount=1", "[1]"], "argument 2, [1], stands after one with a name"),
        (["total", "[1]", "--wiat"], "--wiat"),
        (["total"], "task shop.total: missing a required argument: 'prices'"),
        (["total", "[1]", "nope=1"], "unexpected keyword argument 'nope'"),
        (["totl", "[1]"], "the app has no task 'totl'; did you mean 'total'?"),
        (["shop.totl", "[1]"], "the app has no task 'shop.totl'; did you mean 'shop.total'?"),
    ],
)
def test_wrong_usage_names_the_argument(cli: Cli, arguments, expected) -> None:
    code, message = cli.error("call", "-A", "shop", *arguments)
    assert 2 == code
    assert expected in message


def test_a_failed_job_is_one_line_and_exit_code_1(cli: Cli) -> None:
    code, message = cli.error("-q", "call", "-A", "shop", "broken", "--wait")
    assert 1 == code
    assert "ValueError" in message
    assert "first line second line" in message


def test_json_says_id_state_and_result(cli: Cli) -> None:
    done = cli.json("call", "-A", "shop", "total", "[1, 2]", "--wait", "--json")
    assert 32 == len(done.pop("id"))
    assert {"state": "succeeded", "result": [3.0, None], "error": None} == done
    sent = cli.json("call", "-A", "shop", "total", "[1]", "--json")
    assert sent["state"] in {"queued", "running", "succeeded"}
    assert sent["result"] is None


def test_json_says_how_a_job_failed(cli: Cli) -> None:
    result = cli.run("-q", "call", "-A", "shop", "broken", "--wait", "--json")
    assert 1 == result.exit_code
    output = json.loads(result.stdout)
    assert ("failed", None) == (output["state"], output["result"])
    assert "ValueError" in output["error"]


def test_json_says_the_state_of_a_job_that_did_not_end_in_time(cli: Cli) -> None:
    options = ("--wait", "--json", "--timeout", "0.2")
    result = cli.run("-q", "call", "-A", "shop", "slow", "1", *options)
    assert 1 == result.exit_code
    assert "running" == json.loads(result.stdout)["state"]
    assert "is still running after 0.2 s" in result.stderr


def test_queues_that_are_limited_say_so(cli: Cli) -> None:
    """The limits are in a column of their own, which other listings do not have."""
    cli.write("limited.py", LIMITED)
    limits = {row["name"]: row["limits"] for row in cli.json("queues", "-A", "limited", "--json")}
    assert limits["mail"] == "rate=5/s"
    header, *lines = cli.run("queues", "-A", "limited").stdout.splitlines()
    assert header.split()[-1] == "limits"
    assert next(line for line in lines if line.startswith("mail")).split()[-1] == "rate=5/s"
    assert "limits" not in cli.run("queues", "-A", "shop").stdout


TYPED = """
from dataclasses import dataclass
from enum import Enum

from eventmq import EventMQ

app = EventMQ("typed", broker="memory://")


class Size(Enum):
    LARGE = "L"


@dataclass
class Item:
    name: str
    size: Size


@app.task
def pack(item: Item) -> list[Item]:
    assert item.size is Size.LARGE
    return [item]
"""


def test_arguments_become_what_the_task_says_and_its_result_is_plain_again(cli: Cli) -> None:
    """What does not fit is wrong usage, and nothing is submitted."""
    cli.write("typed.py", TYPED)
    argument = '{"name": "hat", "size": "L"}'
    output = cli.json("call", "-A", "typed", "pack", argument, "--wait")
    assert [{"name": "hat", "size": "L"}] == output
    code, message = cli.error("call", "-A", "typed", "pack", '{"name": "hat", "size": 3}')
    assert 2 == code
    assert "task typed.pack: argument 'item.size': expected str, got int" in message
