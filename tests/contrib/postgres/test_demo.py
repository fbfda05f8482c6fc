"""The demo with its jobs in PostgreSQL."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.mark.timeout(280)
def test_the_demo_keeps_its_jobs_in_a_database(tmp_path, database_url):
    command = [sys.executable, "-m", "eventmq", "demo", "--store", database_url, "--json"]
    ended = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert 0 == ended.returncode, ended.stderr
    report = json.loads(ended.stdout)
    assert report["match"] is True
    assert (report["jobs"], 0) == (report["succeeded"], report["failed"])
