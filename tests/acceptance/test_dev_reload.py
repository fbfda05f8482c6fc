"""``eventmq dev --reload``: new code without a new start, and nothing lost by it."""

from __future__ import annotations

import signal
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.shell import DEADLINE, Shell

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.shell import Program

APP = """
import pathlib
import time

from eventmq import EventMQ

from prices import PRICE

app = EventMQ("shop")


@app.task(name="price")
def price():
    return PRICE


@app.task(name="hold")
def hold():
    pathlib.Path("held").touch()
    while not pathlib.Path("go-on").exists():
        time.sleep(0.02)
    pathlib.Path("ended").write_text(str(PRICE))
"""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "prices.py").write_text("PRICE = 1\n")
    shell = Shell(tmp_path)
    yield shell
    shell.close()


@pytest.fixture
def dev(shell: Shell) -> Program:
    return shell.start(
        "dev", "-A", "shop", "--bind", "tcp://127.0.0.1:0", "-c", "1", "--reload", "--data-dir", "d"
    )


def saying(program: Program, words: str) -> str:
    """Return the next line that has these words."""
    while words not in (line := program.line(err=True)):
        pass
    return line


def price(shell: Shell, address: str) -> str:
    options = ("-A", "shop", "--broker", address, "--wait")
    return shell.output("call", *options, "price").strip()


def until_there(path: Path) -> None:
    end = time.monotonic() + DEADLINE
    while not path.exists():
        assert time.monotonic() < end, f"no {path.name}"
        time.sleep(0.02)


def test_new_code_runs_after_a_file_was_saved(shell: Shell, dev: Program) -> None:
    """Also of a module that only the app imports."""
    address = dev.ready()["main"]
    assert price(shell, address) == "1"
    (shell.folder / "prices.py").write_text("PRICE = 22\n")
    assert "prices.py changed; restarting the worker" in saying(dev, "changed")
    saying(dev, "the worker and beat have the new code")
    assert price(shell, address) == "22"
    assert dev.stop(signal.SIGINT) == 0


def test_what_runs_ends_first_with_the_code_that_it_began_with(shell: Shell, dev: Program) -> None:
    address = dev.ready()["main"]
    shell.output("call", "-A", "shop", "--broker", address, "hold")
    until_there(shell.folder / "held")
    (shell.folder / "prices.py").write_text("PRICE = 22\n")
    saying(dev, "restarting the worker")
    assert not (shell.folder / "ended").exists()
    (shell.folder / "go-on").touch()
    saying(dev, "the worker and beat have the new code")
    assert (shell.folder / "ended").read_text() == "1"
    assert price(shell, address) == "22"


def test_code_that_cannot_be_imported_waits_for_better_code(shell: Shell, dev: Program) -> None:
    """The broker continues, and so do jobs that were submitted meanwhile."""
    address = dev.ready()["main"]
    (shell.folder / "prices.py").write_text("PRICE = \n")
    assert "SyntaxError" in saying(dev, "starts again when a file changes")
    client = (
        "from eventmq import EventMQ\n"
        f"with EventMQ('c', broker='{address}') as app: print(app.send('price').get())\n"
    )
    waiting = shell.launch(sys.executable, "-c", client)
    (shell.folder / "prices.py").write_text("PRICE = 333\n")
    saying(dev, "the worker and beat have the new code")
    assert waiting.line() == "333"


def test_a_worker_that_dies_is_reported_and_started_again(shell: Shell, dev: Program) -> None:
    address = dev.ready()["main"]
    (shell.folder / "prices.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    saying(dev, "the worker ended")
    (shell.folder / "prices.py").write_text("PRICE = 4444\n")
    saying(dev, "the worker and beat have the new code")
    assert price(shell, address) == "4444"


def test_ctrl_c_ends_all_also_while_a_job_is_waited_for(shell: Shell, dev: Program) -> None:
    address = dev.ready()["main"]
    shell.output("call", "-A", "shop", "--broker", address, "hold")
    until_there(shell.folder / "held")
    (shell.folder / "prices.py").write_text("PRICE = 22\n")
    saying(dev, "restarting the worker")
    assert dev.stop(signal.SIGINT) == 0
    assert not (shell.folder / "ended").exists()
    assert "stopped" in dev.text
