"""The first step of the page for those who come from Celery does what it says."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.page_files import ROOT, write_files
from tests.support.system import DEADLINE, until


def test_the_program_on_the_page_runs(tmp_path, url):
    names = write_files("howto/migrate/coming-from-celery.rst", tmp_path)
    assert names[:2] == ["shop.py", "order.py"]
    shop = tmp_path / "shop.py"
    shop.write_text(shop.read_text().replace("eventmq://127.0.0.1:47291", url))
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    celery = [sys.executable, "-m", "celery", "-A", "shop"]
    log = tmp_path / "worker.log"
    with log.open("w") as file:
        command = [*celery, "worker", "-c", "1"]
        worker = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=file, stdout=file)
    try:
        order = [sys.executable, "order.py"]
        subprocess.run(order, cwd=tmp_path, env=environment, check=True, timeout=DEADLINE)
        until(lambda: worker.poll() is None and ping(celery, tmp_path, environment), "a pong")
    finally:
        worker.terminate()
        worker.wait(DEADLINE)


def ping(celery, folder, environment):
    command = [*celery, "inspect", "ping"]
    done = subprocess.run(
        command, cwd=folder, env=environment, check=False, capture_output=True, text=True
    )
    return "pong" in done.stdout
