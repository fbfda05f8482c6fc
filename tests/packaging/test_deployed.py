"""What deploy/compose.yaml starts works, run here without containers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from eventmq import EventMQ
from tests.support.dockerfile import instructions, last_stage
from tests.support.shell import Shell, free_port
from tests.support.system import until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.timeout(120)

DEPLOY = Path(__file__).parents[2] / "deploy"
IMAGE = last_stage((DEPLOY / "Dockerfile").read_text("utf-8"))
HEALTH: list[str] = json.loads(IMAGE["HEALTHCHECK"].partition(" CMD ")[2])
ENV = dict(each.split("=", 1) for each in IMAGE["ENV"].split())
SERVICES: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))["services"]

#: Environment variables with the places of packages.
PIP = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}


class Containers:
    """Starts services of the file as processes: other ports, another database, all else as is."""

    def __init__(self, folder: Path, database_url: str) -> None:
        self._shells: list[Shell] = []
        self._url = database_url
        self._ports = {"broker1": free_port(), "broker2": free_port()}
        self.folder = folder

    @property
    def addresses(self) -> str:
        return ",".join(f"tcp://127.0.0.1:{port}" for port in self._ports.values())

    def _here(self, name: str, text: str) -> str:
        for broker, port in self._ports.items():
            text = text.replace(f"{broker}:47291", f"127.0.0.1:{port}")
            if broker == name:
                text = text.replace("0.0.0.0:47291", f"127.0.0.1:{port}")
                text = text.replace("127.0.0.1:47291", f"127.0.0.1:{port}")
        return text

    def _environ(self, name: str) -> dict[str, str]:
        assert set(ENV) == {"PATH", "EVENTMQ_DATA_DIR"}
        made = {"EVENTMQ_DATA_DIR": str(self.folder / "data")}
        for key, value in SERVICES[name]["environment"].items():
            if key.startswith("EVENTMQ_"):
                made[key] = self._here(name, value)
        if "EVENTMQ_STORE" in made:
            assert "postgresql://eventmq@db/eventmq" == made["EVENTMQ_STORE"]
            made["EVENTMQ_STORE"] = self._url
        return made

    def start(self, name: str) -> Any:
        line = [self._here(name, str(each)) for each in SERVICES[name]["command"]]
        return self._start(line, self._environ(name))

    def is_healthy(self, name: str) -> bool:
        line = [self._here(name, each) for each in HEALTH[1:]]
        return bool(self._start(line, {}).wait() == 0)

    def _start(self, line: list[str], environ: dict[str, str]) -> Any:
        shell = Shell(self.folder, **environ)
        self._shells.append(shell)
        return shell.start(*line)

    def close(self) -> None:
        """End what still runs."""
        for shell in reversed(self._shells):
            shell.close()


@pytest.fixture
def containers(tmp_path: Path, database_url: str) -> Iterator[Containers]:
    shutil.copy(DEPLOY / "shop.py", tmp_path)
    containers = Containers(tmp_path, database_url)
    yield containers
    containers.close()


def test_what_the_compose_file_starts_works(containers: Containers) -> None:
    """Tables, two brokers that are healthy, a worker and a beat; then the owner is killed."""
    assert 0 == containers.start("schema").wait()
    assert not containers.is_healthy("broker1"), "it does not run"
    brokers = {name: containers.start(name) for name in ("broker1", "broker2")}
    roles = {name: each.ready()["role"] for name, each in brokers.items()}
    assert ["active", "standby"] == sorted(roles.values())
    for name in brokers:
        until(lambda name=name: containers.is_healthy(name), f"{name} is healthy")
    worker, beat = containers.start("worker"), containers.start("beat")
    app = EventMQ("client", broker=containers.addresses, submit_timeout=30.0)
    try:
        assert 22.5 == app.send("shop.total", ([19.9, 5.1],), {"discount": 0.1}).get(timeout=30)
        owner = next(name for name, role in roles.items() if role == "active")
        brokers[owner].process.kill()
        assert 25.0 == app.send("shop.total", ([19.9, 5.1],)).get(timeout=30)
        [other] = set(brokers) - {owner}
        assert containers.is_healthy(other)
        assert not containers.is_healthy(owner)
    finally:
        app.close()
    assert [0, 0, 0] == [each.stop() for each in (worker, beat, brokers[other])]


def build(folder: Path) -> Path:
    """Run the steps of the Dockerfile below another root; return the programs of the image."""
    own, *paths = instructions((DEPLOY / "Dockerfile").read_text("utf-8"))
    assert own == ("FROM", "python:3.13-slim AS build")
    left_out = (DEPLOY / "Dockerfile.dockerignore").read_text("utf-8").split()
    ignored = shutil.ignore_patterns(*(each.removeprefix("**/") for each in left_out))
    steps = paths[: [name for name, _ in paths].index("FROM")]
    assert ["COPY", "RUN", "RUN"] == [name for name, _ in steps]
    for name, rest in steps:
        if name == "COPY":
            assert rest == ". /src"
            shutil.copytree(DEPLOY.parent, folder / "src", ignore=ignored)
        else:
            line = rest.replace("/opt/", f"{folder}/").replace("/src", f"{folder}/src")
            subprocess.run(
                ["sh", "-c", line.replace("python -m venv", f"{sys.executable} -m venv")],
                cwd=folder, check=True, capture_output=True,
                env={"PATH": os.environ["PATH"], "HOME": str(folder), **PIP},
            )  # fmt: skip
    assert IMAGE["COPY"] == "--from=build /opt/eventmq /opt/eventmq"
    assert ENV["PATH"] == "/opt/eventmq/bin:$PATH"
    return folder / "eventmq" / "bin"


def test_what_is_in_the_image_works(tmp_path: Path) -> None:
    """The built program starts a broker on a disk; its health check reports the broker's health."""
    programs = build(tmp_path)
    size = sum(each.stat().st_size for each in programs.parent.rglob("*") if each.is_file())
    assert size < 130e6
    [entry] = json.loads(IMAGE["ENTRYPOINT"])
    shell = Shell(tmp_path, EVENTMQ_DATA_DIR=str(tmp_path / "data"), PYTHONPATH="")
    try:
        [help_] = json.loads(IMAGE["CMD"])
        shown = shell.launch(str(programs / entry), help_)
        assert 0 == shown.wait()
        assert "task queue" in shown.text
        port = free_port()
        health = [each.replace("47291", str(port)) for each in HEALTH[1:]]
        assert 3 == shell.launch(str(programs / HEALTH[0]), *health).wait(), "no broker runs"
        bind = f"tcp://127.0.0.1:{port}"
        broker = shell.launch(str(programs / entry), "broker", "--bind", bind)
        broker.ready()
        assert (tmp_path / "data").is_dir()
        assert 0 == shell.launch(str(programs / HEALTH[0]), *health).wait()
        assert 0 == broker.stop()
    finally:
        shell.close()
