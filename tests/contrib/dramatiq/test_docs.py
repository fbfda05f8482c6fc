"""The page about Dramatiq, RQ and Huey does what it says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.contrib.dramatiq.kills import kill_group
from tests.support.page_files import ROOT, write_files
from tests.support.system import DEADLINE, System, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


MIGRATION = "howto/migrate/migrate-from-dramatiq-rq-and-huey.rst"


@pytest.mark.timeout(120)
def test_the_program_on_the_page_runs(tmp_path: Path) -> None:
    """With a broker and the command ``dramatiq``, as the page starts them."""
    assert {"shop.py", "order.py"} < set(write_files(MIGRATION, tmp_path))
    system = System(tmp_path)
    system.broker()
    shop = tmp_path / "shop.py"
    text = shop.read_text("utf-8")
    shop.write_text(text.replace("tcp://127.0.0.1:47291", system.address), "utf-8")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "dramatiq", "shop", "-p", "1", "-t", "2"]
    with (tmp_path / "dramatiq.log").open("wb") as log:
        worker = subprocess.Popen(
            command, cwd=tmp_path, env=environment, stderr=log, start_new_session=True
        )
    try:
        order = [sys.executable, "order.py"]
        subprocess.run(order, cwd=tmp_path, env=environment, check=True, timeout=DEADLINE)
        app = system.app()
        until(lambda: app.ask("failed", {"queue": "dramatiq.mail"})["failed"], "a failed job")
        (job,) = app.ask("failed", {"queue": "dramatiq.mail"})["failed"]
        assert (
            "no answer from the server of a@example.com"
            in app.job(job["id"]).info()["error"].message
        )
        queues = {row["name"]: (row["delayed"], row["failed"]) for row in app.ask("queues")}
        assert queues == {"dramatiq.default": (1, 0), "dramatiq.mail": (0, 1)}
    finally:
        kill_group(worker)
        system.stop()


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., None]:
    """Call it with a program of the page and its arguments to run it."""
    write_files(MIGRATION, tmp_path)

    def run(*command: str) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
        subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=environment, check=True, timeout=DEADLINE
        )

    return run


@pytest.mark.parametrize(
    "name", ["first.py", "with_eventmq.py", "with_dramatiq.py", "with_huey.py"]
)
def test_the_patterns_on_the_page_run(run: Callable[..., None], name: str) -> None:
    run(name)


def test_the_patterns_of_rq_run(run: Callable[..., None], tmp_path: Path) -> None:
    server = shutil.which("redis-server")
    if server is None:
        pytest.skip("needs redis: there is no redis-server")
    address = str(tmp_path / "redis.sock")
    options = ["--port", "0", "--unixsocket", address, "--save", "", "--dir", str(tmp_path)]
    redis = subprocess.Popen([server, *options], stdout=subprocess.DEVNULL)
    try:
        until(lambda: os.path.exists(address), "Redis is there")  # noqa: PTH110 - a socket
        run("with_rq.py", f"unix://{address}")
    finally:
        redis.terminate()
        redis.wait(DEADLINE)
