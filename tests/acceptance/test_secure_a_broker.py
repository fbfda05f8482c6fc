"""The how-to "Secure a broker": its files are written and its commands typed, host by host."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.shell import Shell, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).resolve().parents[2] / "docs/howto/operate/secure-a-broker.rst"
BLOCK = re.compile(
    r"\.\. code-block:: (\w+)\n(?:   :caption: (.*)\n)?\n((?:(?:    .*)?\n)+)", re.MULTILINE
)


class Hosts:
    """A folder per host, and the commands typed there."""

    def __init__(self, folder: Path) -> None:
        self.address = f"tcp://127.0.0.1:{free_port()}"
        self.shells = {name: Shell(folder / name) for name in ("broker", "worker", "web")}
        for shell in self.shells.values():
            shell.folder.mkdir()
        # On the broker's host it is in the default folder of the commands, except for the port.
        self.shells["broker"].environ["EVENTMQ_BROKER"] = self.address

    def here(self, text: str) -> str:
        """Return a text with the real address."""
        for host in ("broker.example", "0.0.0.0"):
            text = text.replace(f"tcp://{host}:47291", self.address)
        return text

    def write(self, where: str, text: str) -> None:
        """Write a file: ``host: name``, or only a name for the hosts of the app."""
        host, _, name = where.rpartition(": ")
        for each in [host] if host else ["worker", "web"]:
            (self.shells[each].folder / name).write_text(self.here(text), encoding="utf-8")

    def copy(self, host: str, source: str, target: str) -> None:
        """Do what scp does."""

        def path(text: str) -> Path:
            there, colon, rest = text.rpartition(":")
            name = there.removesuffix(".example") if colon else host
            return self.shells[name].folder / rest

        shutil.copy(path(source), path(target))

    def type_in(self, host: str, command: str) -> str:
        """Type a command; return its output if it ends by itself."""
        shell, words = self.shells[host], shlex.split(self.here(command))
        if words[0] == "scp":
            self.copy(host, *words[1:])
        elif words[0] == "export":
            name, _, value = words[1].partition("=")
            shell.environ[name] = value
        elif words[1] in {"broker", "worker"}:
            shell.start(*words[1:]).ready()
        else:
            return shell.output(*words[1:])
        return ""

    def close(self) -> None:
        for shell in reversed(self.shells.values()):
            shell.close()


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    hosts = Hosts(tmp_path)
    yield hosts
    hosts.close()


def test_every_step_of_the_page_works_and_prints_the_text_of_the_page(hosts: Hosts) -> None:
    text = PAGE.read_text(encoding="utf-8")
    blocks = BLOCK.findall(text)
    assert len(blocks) == text.count(".. code-block::")
    expected, actual = [], []
    for _, caption, block in blocks:
        code = re.sub("^    ", "", block, flags=re.MULTILINE).strip() + "\n"
        if caption:
            hosts.write(caption, code)
            continue
        for line in code.splitlines():
            host, prompt, command = line.partition("$ ")
            if prompt:
                actual += hosts.type_in(host, command).splitlines()
            else:
                expected.append(line)
    assert expected == [line for line in actual if not line.startswith(("paused", "resumed"))]
    _check_the_end(hosts)


def _check_the_end(hosts: Hosts) -> None:
    """The last step was to revoke the client, which gets an error."""
    shell = hosts.shells["web"]
    code, message = shell.error("call", "-A", "shop", "shop.greet", '"Ada"', "--wait")
    assert 3 == code
    assert "it refused the key" in message
    ops = hosts.shells["broker"]
    assert ["ops", "worker-1"] == [row["name"] for row in ops.json("keys", "list")]
    assert 1 == len(ops.json("workers"))
