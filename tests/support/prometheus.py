"""Prometheus for tests: a private server on a free port of loopback, and ``promtool``.

Both are in Debian's package ``prometheus``.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.support.shell import free_port
from tests.support.system import until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

__all__ = ["Prometheus", "program", "promtool"]

#: Timeout of every wait, in seconds.
DEADLINE = 40.0


def program(name: str) -> str:
    """Return the path of ``prometheus`` or ``promtool``; skip the test if it is missing."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"needs prometheus: no {name} is installed")
    return path


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``promtool`` to its end; its output is in ``stdout``."""
    return subprocess.run(
        [program("promtool"), *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=DEADLINE, check=False,
    )  # fmt: skip


class Prometheus:
    """A server that scrapes twice a second.

    Args:
        folder: Folder of its files, with the file of rules.
        rules: Name of that file.
        targets: Name of each scrape job -> addresses, ``HOST:PORT``.
    """

    def __init__(self, folder: Path, rules: str, targets: Mapping[str, Sequence[str]]) -> None:
        config = {
            "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms",
                       "evaluation_interval": "500ms"},
            "rule_files": [rules],
            "scrape_configs": [
                {"job_name": name, "static_configs": [{"targets": list(addresses)}]}
                for name, addresses in targets.items()
            ],
        }  # fmt: skip
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        self.url = f"http://127.0.0.1:{free_port()}"
        self._log = (folder / "prometheus.log").open("w+")
        self._process = subprocess.Popen(
            [
                program("prometheus"),
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'tsdb'}",
                f"--web.listen-address={self.url.removeprefix('http://')}",
                "--log.level=warn",
            ],
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT, cwd=folder,
            env={**os.environ, "GOMAXPROCS": "2"},
        )  # fmt: skip
        try:
            until(self._is_ready, "Prometheus is ready", DEADLINE)
        except BaseException:
            self.close()
            raise

    def _is_ready(self) -> bool:
        if self._process.poll() is not None:
            self._log.seek(0)
            raise AssertionError(f"Prometheus ended: {self._log.read()}")
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=DEADLINE):
                return True
        except OSError:
            return False

    def _get(self, path: str, **parameters: str) -> Any:
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"{self.url}{path}?{query}", timeout=DEADLINE) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{parameters}: {error.read().decode()}") from None

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the samples of an expression now."""
        answer: list[dict[str, Any]] = self._get("/api/v1/query", query=expression)["result"]
        return answer

    def firing(self) -> dict[str, dict[str, Any]]:
        """Return the alerts that fire, by name."""
        alerts = self._get("/api/v1/alerts")["alerts"]
        return {each["labels"]["alertname"]: each for each in alerts if each["state"] == "firing"}

    def rules(self) -> Iterator[dict[str, Any]]:
        """Yield the rules, with the result of their last evaluation."""
        for group in self._get("/api/v1/rules")["groups"]:
            yield from group["rules"]

    def names(self) -> set[str]:
        """Return the names of all metrics that were ever scraped."""
        return set(self._get("/api/v1/label/__name__/values"))

    def close(self) -> None:
        """End the server."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(DEADLINE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(DEADLINE)
        self._log.close()
