"""The peers on the page about other languages, which import nothing of EventMQ, take part."""

from __future__ import annotations

import ast
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.page_files import write_files
from tests.support.shell import DEADLINE, Shell, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    address = f"tcp://127.0.0.1:{free_port()}"
    shell = Shell(tmp_path, EVENTMQ_BIND=address, EVENTMQ_BROKER=address)
    assert ["client.py", "shop.py", "worker.py", "count.py"] == write_files(
        "howto/extend/clients-in-other-languages.rst", tmp_path
    )
    yield shell
    shell.close()


def shown_by(shell: Shell, program: str) -> str:
    """Run a program to its end; return its first line."""
    started = shell.launch(sys.executable, program)
    line = started.line()
    assert 0 == started.process.wait(DEADLINE)
    return line


def test_a_client_of_zeromq_and_json_gets_the_result_of_a_task(shell: Shell) -> None:
    shell.start("broker").ready()
    shell.start("worker", "-A", "shop").ready()
    assert "the total is 22.5" == shown_by(shell, "client.py")


def test_a_worker_of_zeromq_and_json_runs_jobs(shell: Shell) -> None:
    shell.start("broker").ready()
    shell.launch(sys.executable, "worker.py")
    assert "words: 6" == shown_by(shell, "count.py")


def test_neither_imports_eventmq(shell: Shell) -> None:
    for name in ("client.py", "worker.py"):
        tree = ast.parse((shell.folder / name).read_text("utf-8"))
        imports = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
        }
        assert "zmq" in imports
        assert "eventmq" not in imports
