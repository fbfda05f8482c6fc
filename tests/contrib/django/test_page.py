"""The page about Django: its project, made as a reader would."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.contrib.django.conftest import ROOT
from tests.support.page_files import write_files


def test_the_project_on_the_page_works(project, tmp_path):
    import django

    environment = {
        name: value for name, value in os.environ.items()
        if not name.startswith(("PROJECT_", "DJANGO_", "EVENTMQ_"))
    }  # fmt: skip

    def run(*command):
        ran = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, check=False, capture_output=True, text=True,
            env={**environment, "PYTHONPATH": str(ROOT)}, timeout=60,
        )  # fmt: skip
        assert 0 == ran.returncode, ran.stdout + ran.stderr
        return ran.stdout + ran.stderr

    run("-m", "django", "startproject", "shop", ".")
    run("manage.py", "startapp", "orders")
    names = write_files("howto/web/django.rst", tmp_path)
    assert names == [
        "settings.py", "orders/tasks.py", "orders/models.py", "orders/views.py", "urls.py",
        "orders/tests.py", "conftest.py",
    ]  # fmt: skip
    backport = "" if django.VERSION >= (6,) else 'INSTALLED_APPS += ["django_tasks"]\n'
    settings = tmp_path / "shop" / "settings.py"
    added = (tmp_path / "settings.py").read_text(encoding="utf-8")
    settings.write_text(f"{settings.read_text(encoding='utf-8')}\n{added}\n{backport}", "utf-8")
    (tmp_path / "urls.py").replace(tmp_path / "shop" / "urls.py")
    if backport:
        tasks = tmp_path / "orders" / "tasks.py"
        text = tasks.read_text(encoding="utf-8")
        tasks.write_text(text.replace("from django.tasks", "from django_tasks"), "utf-8")
    run("manage.py", "makemigrations", "orders")
    run("manage.py", "migrate")
    assert "Ran 1 test" in run("manage.py", "test")
    run("manage.py", "eventmq_worker", "--check")
