"""Each example plugin is a distribution of its own: built, installed beside EventMQ, and used.

Nothing here imports EventMQ: what runs is what pip installed into a fresh environment.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import venv
from contextlib import ExitStack
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted(path.parent for path in (ROOT / "examples").glob("*/pyproject.toml"))
LEFT_BEHIND = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__", "build", "dist", "_build")
COLUMNS = ["name", "version", "origin", "hooks", "provides", "in_use"]

#: Code of a user, with a name from each plugin.
PROGRAM = """
from eventmq import EventMQ
from eventmq_retry_example import fibonacci
from eventmq_trigger_example import workdays

app = EventMQ(
    "probe",
    broker="memory://",
    serializer="json-zlib",
    accept_content=["json-zlib"],
    queue_order="lottery",
    plugin_options={"json-zlib": {"level": 9}, "lottery": {"seed": 7}},
)


@app.task(retries=2, retry_policy=fibonacci(unit=0.2), schedule=workdays("09:00"))
def total(numbers=(), *, word="sum", failed=[]):
    if not failed:
        failed.append(1)
        raise OSError("once")
    return {word: sum(numbers)}


if __name__ == "__main__":
    print(total.delay(list(range(1000)), word="sum").get(timeout=30))
    rows = {row["name"]: row["in_use"] for row in app.plugins.listing()}
    print(*(rows[name] for name in ("fibonacci", "json-zlib", "lottery", "workdays")))
    app.close()
    try:
        wrong = {"http": {"tokn": "x"}}
        EventMQ(result_backend="http://127.0.0.1:1", plugin_options=wrong).job("1").get()
    except Exception as error:
        print(error)
"""

#: The app behind a gateway.
SHOP = """
from eventmq import EventMQ

app = EventMQ("shop")


@app.task(name="add")
def add(a, b):
    return a + b
"""

pytestmark = pytest.mark.timeout(180)


def run(*command, cwd):
    """Run a command in a clean environment and return its stdout."""
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
    """The folder of programs of an environment with all wheels."""
    work = tmp_path_factory.mktemp("plugin")
    own, *examples = (build(path, work) for path in (ROOT, *EXAMPLES))
    venv.create(work / "env", with_pip=True)
    programs = work / "env" / "bin"
    run(programs / "pip", "install", "-q", own, cwd=work)
    run(programs / "pip", "install", "-q", "--no-deps", *examples, cwd=work)
    return programs


@pytest.fixture
def serve(installed, tmp_path):
    """Call it with a command of ``eventmq`` to get the fields of its line with ``ready``."""
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    with ExitStack() as stack:

        def serve(*arguments):
            command = [str(installed / "eventmq"), *arguments]
            program = stack.enter_context(
                subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
            )
            stack.callback(program.terminate)
            words = program.stdout.readline().split()
            assert words[:1] == ["ready"]
            return dict(word.partition("=")[::2] for word in words[1:])

        yield serve


def test_a_job_runs_through_the_plugins(installed, tmp_path):
    program = tmp_path / "probe.py"
    program.write_text(PROGRAM, encoding="utf-8")
    assert run(installed / "python", program, cwd=tmp_path).splitlines() == [
        "{'sum': 499500}",
        "fibonacci json-zlib lottery workdays",
        (
            "result backend 'http' of plugin 'http-results' of the distribution "
            "'eventmq-results-example': 'http' has no option 'tokn'; did you mean 'token'?; see "
            "plugin_options['http'] of the app"
        ),
    ]


def test_the_listing_has_them_in_the_columns_of_the_built_in_plugins(installed, tmp_path):
    rows = json.loads(run(installed / "eventmq", "plugins", "--json", cwd=tmp_path))
    assert [list(row) for row in rows] == [COLUMNS] * len(rows)
    by_name = {row["name"]: row for row in rows}
    assert by_name["serializers.msgpack"]["origin"] == "built in"
    origins = {row["origin"] for row in rows}
    assert {example.name for example in EXAMPLES} <= origins
    assert by_name["json-zlib"] == {
        "name": "json-zlib",
        "version": "1.0.0",
        "origin": "eventmq-serializer-example",
        "hooks": "eventmq_serializers",
        "provides": "json-zlib",
        "in_use": "",
    }


def test_one_can_be_switched_off(installed, tmp_path):
    command = [installed / "eventmq", "-p", "no:lottery", "plugins", "--json"]
    names = {row["name"] for row in json.loads(run(*command, cwd=tmp_path))}
    assert "lottery" not in names
    assert {"fibonacci", "serializers.msgpack"} <= names


def test_the_gateway_serves_and_the_command_asks(installed, serve, tmp_path):
    """Each by what its package adds to the command line."""
    broker = serve("broker", "--bind", "tcp://127.0.0.1:0", "--store", "memory")["main"]
    serve("worker", "-A", "shop", "--broker", broker, "--pool", "threads", "-c", "1")
    gateway = serve(
        "gateway", "lines", "-A", "shop", "--broker", broker, "--bind", "tcp://127.0.0.1:0",
        "--max-line", "20",
    )  # fmt: skip
    host, port = gateway["bind"].removeprefix("tcp://").split(":")
    with socket.create_connection((host, int(port)), 30) as peer:
        peer.sendall(b"add 1 2\n")
        assert peer.makefile("rb").readline() == b"3\n"
    shown = run(installed / "eventmq", "backlog", "--broker", broker, "--json", cwd=tmp_path)
    assert json.loads(shown) == []


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_its_own_tests_pass(example, tmp_path):
    """As in its README, with the suites of EventMQ, here in the environment of these tests."""
    copy = tmp_path / "example"
    shutil.copytree(example, copy, ignore=LEFT_BEHIND)
    code = "import sys, pytest; sys.path[:0] = ['src', sys.argv[1]]; sys.exit(pytest.main(['-q']))"
    shown = run(sys.executable, "-c", code, ROOT, cwd=copy)
    assert " passed" in shown
