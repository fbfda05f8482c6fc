"""The page for those who come from Celery does what it says."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.page_files import ROOT, run_pytest, write_files
from tests.support.system import DEADLINE

PAGE = "howto/migrate/coming-from-celery.rst"


def run(folder, name):
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, name], cwd=folder, env=environment, check=False, timeout=DEADLINE,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["first.py", "with_celery.py", "with_eventmq.py"])
def test_a_program_on_the_page_runs(tmp_path, name):
    write_files(PAGE, tmp_path)
    run(tmp_path, name)


def test_tests_while_both_run(tmp_path):
    write_files(PAGE, tmp_path)
    ran = run_pytest(tmp_path, "test_moved.py")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "2 passed" in ran.stdout


def test_both_run_for_a_while(tmp_path, system):
    """With the workers that the page starts, on the broker of these tests."""
    write_files(PAGE, tmp_path)
    shop = tmp_path / "shop.py"
    url = system.address.replace("tcp://", "eventmq://")
    shop.write_text(shop.read_text().replace("eventmq://127.0.0.1:47291", url))
    shop.write_text(shop.read_text() + '\napp.conf.task_default_queue = "page"\n')
    moved = tmp_path / "moved.py"
    moved.write_text(
        moved.read_text().replace('"shop",\n', f'"shop",\n    broker="{system.address}",\n')
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    commands = [
        [sys.executable, "-m", "celery", "-A", "shop", "worker", "-P", "threads", "-c", "1"],
        [sys.executable, "-m", "eventmq", "worker", "-A", "moved", "-Q", "moved", "-c", "1"],
    ]
    with (tmp_path / "log").open("w") as log:
        workers = [
            subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
            for command in commands
        ]
    try:
        run(tmp_path, "both.py")
    finally:
        for worker in workers:
            worker.terminate()
            worker.wait(DEADLINE)
