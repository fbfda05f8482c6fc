"""Runs the tests that stand on pages of the documentation."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.support.page_files import ROOT, TIMEOUT, run_pytest, write_files

if TYPE_CHECKING:
    from pathlib import Path


def test_the_tests_on_the_page_about_testing_pass(tmp_path: Path) -> None:
    names = write_files("howto/tasks/test-your-tasks.rst", tmp_path)
    assert names == ["shop.py", "pytest.ini", "test_shop.py", "test_more.py"]
    ran = run_pytest(tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "10 passed" in ran.stdout


def test_the_plugin_and_the_middleware_on_their_page_work(tmp_path: Path) -> None:
    names = write_files("howto/extend/write-a-plugin.rst", tmp_path)
    files = ["fullest.py", "first.py", "test_fullest.py", "tracing.py", "shop.py"]
    assert names == [*files, "test_tracing.py"]
    ran = run_pytest(tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    command = [sys.executable, "first.py"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=TIMEOUT)


def test_the_module_on_the_page_for_users_of_celery_works_as_described(tmp_path: Path) -> None:
    names = write_files("howto/migrate/coming-from-celery.rst", tmp_path)
    assert {"mail.py", "test_mail.py"} < {*names}
    ran = run_pytest(tmp_path, "test_mail.py")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "3 passed" in ran.stdout
