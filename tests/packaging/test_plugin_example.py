"""The example plugin is a distribution of its own: built, installed beside EventMQ, and used.

Nothing here imports EventMQ: what runs is what pip installed into a fresh environment.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "eventmq-plugin-example"
LEFT_BEHIND = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__", "build", "dist", "_build")
COLUMNS = ["name", "version", "origin", "hooks", "provides", "in_use"]

#: What a user would write, with both names of the plugin.
PROGRAM = """
from eventmq import EventMQ

app = EventMQ(
    "probe",
    broker="memory://",
    serializer="json-zlib",
    accept_content=["json-zlib"],
    routing_strategy="random-two-choices",
    plugin_options={"json-zlib": {"level": 9}},
)


@app.task
def total(numbers, *, word):
    return {word: sum(numbers)}


if __name__ == "__main__":
    print(total.delay(list(range(1000)), word="sum").get(timeout=30))
    rows = {row["name"]: row for row in app.plugins.listing()}
    print(rows["example"]["in_use"])
"""

pytestmark = pytest.mark.timeout(180)


def run(*command, cwd):
    """Run a command in a clean environment and return what it wrote to stdout."""
    keep = {"PATH", "HOME", "TMPDIR", "LANG", "SSL_CERT_FILE"}
    env = {n: v for n, v in os.environ.items() if n in keep or n.startswith("PIP_")}
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={**env, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build(source, work):
    """Build the wheel of a copy of a source tree and return its path."""
    copy = work / source.name
    shutil.copytree(source, copy, ignore=LEFT_BEHIND)
    out = work / f"{source.name}-wheel"
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, copy]
    run(*command, cwd=work)
    (wheel,) = out.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder of programs of an environment with both wheels."""
    work = tmp_path_factory.mktemp("plugin")
    own, example = build(ROOT, work), build(EXAMPLE, work)
    venv.create(work / "env", with_pip=True)
    programs = work / "env" / "bin"
    run(programs / "pip", "install", "-q", own, cwd=work)
    run(programs / "pip", "install", "-q", "--no-deps", example, cwd=work)
    return programs


def test_a_job_runs_through_the_plugin(installed, tmp_path):
    program = tmp_path / "probe.py"
    program.write_text(PROGRAM, encoding="utf-8")
    shown = run(installed / "python", program, cwd=tmp_path).splitlines()
    assert shown == ["{'sum': 499500}", "random-two-choices, json-zlib"]


def test_the_listing_has_it_in_the_columns_of_the_built_in_plugins(installed, tmp_path):
    rows = json.loads(run(installed / "eventmq", "plugins", "--json", cwd=tmp_path))
    assert [list(row) for row in rows] == [COLUMNS] * len(rows)
    found = {row["name"]: row for row in rows}
    assert found["serializers.msgpack"]["origin"] == "built in"
    assert found["example"] == {
        "name": "example",
        "version": "1.0.0",
        "origin": "eventmq-plugin-example",
        "hooks": "eventmq_routing_strategies, eventmq_serializers",
        "provides": "random-two-choices, json-zlib",
        "in_use": "",
    }


def test_it_can_be_switched_off(installed, tmp_path):
    command = [installed / "eventmq", "-p", "no:example", "plugins", "--json"]
    names = {row["name"] for row in json.loads(run(*command, cwd=tmp_path))}
    assert "example" not in names
    assert "serializers.msgpack" in names


def test_its_own_tests_pass(tmp_path):
    """As its README says: with the suites of EventMQ, here in the environment of these tests."""
    copy = tmp_path / "example"
    shutil.copytree(EXAMPLE, copy, ignore=LEFT_BEHIND)
    code = "import sys, pytest; sys.path[:0] = ['src', sys.argv[1]]; sys.exit(pytest.main(['-q']))"
    shown = run(sys.executable, "-c", code, ROOT, cwd=copy)
    assert " passed" in shown
