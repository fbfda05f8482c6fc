"""The first thing that a user runs."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.support.shell import Shell

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


#: Seconds for a whole demo, which needs 11 s of CPU, and for its test: a guard, no measure.
WHOLE, LIMIT = 280.0, 300


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A folder whose settings would break the demo if it read them."""
    (tmp_path / "tmp").mkdir()
    shell = Shell(tmp_path, TMPDIR=str(tmp_path / "tmp"), EVENTMQ_ROUTING_STRATEGY="nonsense")
    yield shell
    shell.close()


def left(shell: Shell) -> list[str]:
    """Return the names of the entries left in the folder for temporary files."""
    return [path.name for path in (shell.folder / "tmp").iterdir()]


@pytest.mark.timeout(LIMIT)
def test_the_demo_loses_nothing_and_leaves_nothing(shell: Shell) -> None:
    report = shell.json("demo", timeout=WHOLE)
    assert report["jobs"] >= 300
    assert (report["jobs"], 0) == (report["succeeded"], report["failed"])
    assert report["match"] is True
    assert report["totals"] == report["direct"]
    assert report["totals"]["functions"] > 1000
    assert 0 < report["start_delay_p50"] <= report["start_delay_p99"] <= report["seconds"]
    assert 5 == len(report["largest"]) == len(report["most_complex"])
    assert [] == left(shell)


@pytest.mark.timeout(LIMIT)
def test_the_demo_keeps_its_data_when_asked(shell: Shell) -> None:
    output = shell.output("demo", "--keep", "--workers", "1", timeout=WHOLE)
    assert "Nothing was lost" in output
    (folder,) = left(shell)
    assert folder in output
    assert (shell.folder / "tmp" / folder / "data" / "queue.sqlite").exists()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_the_demo_cleans_up_when_it_is_interrupted(shell: Shell, signum: int) -> None:
    demo = shell.start("demo")
    assert "starting" in demo.line()
    assert 130 == demo.stop(signum)
    assert [] == left(shell)
