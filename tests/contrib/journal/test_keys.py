"""A journal of a broker with keys: which keys may read its events, and let it delete them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from eventmq import EventMQ
from eventmq.errors import EventMQError
from eventmq.wire.curve import Certificate, write_new
from tests.support.journal_harness import command, names_of, rows_in
from tests.support.keyed_broker import Keys
from tests.support.system import System, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class House:
    """A broker with keys on a network address, and apps with the keys of some roles."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.keys = Keys(folder)
        for role in ("admin", "client", "worker", "scheduler"):
            self.keys.authorize(role, role)
            public, secret = (key.decode() for key in self.keys.pair(role))
            write_new(folder / f"{role}.key_secret", Certificate(public, secret), "test")
        self.system = System(folder)
        self.data = folder / "data"
        _, line = self.system.start(
            "broker", "--bind", "tcp://127.0.0.1:0", "--data-dir", str(self.data),
            "--keys-dir", str(self.keys.folder),
        )  # fmt: skip
        self.address = next(w for w in line.split() if "tcp://" in w).partition("=")[2]

    def settings(self, role: str) -> dict[str, str]:
        return {
            "broker": self.address,
            "broker_key_file": str(self.keys.folder / "broker.key"),
            "key_file": str(self.folder / f"{role}.key_secret"),
        }

    def app(self, role: str) -> EventMQ:
        app = EventMQ(role, **self.settings(role), submit_timeout=5.0)  # type: ignore[arg-type]
        self.system.apps.append(app)
        return app

    def journal(self, role: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a journal to its end, with the key of a role, "" for none."""
        given = self.settings(role) if role else {}
        environment = {f"EVENTMQ_{name.upper()}": value for name, value in given.items()}
        if "--data-dir" in arguments:
            environment.pop("EVENTMQ_BROKER", None)
        return subprocess.run(
            [sys.executable, "-m", "eventmq", "-p", "eventmq_contrib.journal", "journal",
             "--out", "journal", "--once", *arguments],
            cwd=self.folder, env={**os.environ, **environment}, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip

    def head(self) -> dict[str, Any]:
        """Return the events that the broker has."""
        answer: dict[str, Any] = self.app("admin").ask("events.read", {"after": 0})
        return answer


@contextlib.contextmanager
def inhabited(folder: Path) -> Iterator[House]:
    """Give a house with five jobs."""
    house = House(folder)
    try:
        client = house.app("client")
        for n in range(5):
            client.send("nobody.knows", (n,))
        yield house
    finally:
        house.system.stop()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with inhabited(tmp_path) as house:
        yield house


@pytest.fixture(scope="module")
def shut(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A house whose peers change nothing."""
    with inhabited(tmp_path_factory.mktemp("shut")) as house:
        yield house


def test_a_key_of_an_admin_takes_events_from_anywhere_and_has_them_forgotten(house: House) -> None:
    ended = house.journal("admin")
    assert ended.returncode == 0, ended.stderr
    assert [row["kind"] for row in rows_in(house.folder / "journal")] == ["enqueued"] * 5
    assert house.head()["sealed"] == 5


@pytest.mark.parametrize("role", ["client", "worker", "scheduler"])
def test_no_other_key_reads_events_or_has_them_forgotten(shut: House, role: str) -> None:
    """Whatever role it claims; the journal names the key that it needs."""
    app = shut.app(role)
    for name, arguments in (
        ("events.read", {"after": 0}),
        ("events.seal", {"journal": "j", "sealed": 5}),
    ):
        with pytest.raises(EventMQError, match="admin"):
            app.ask(name, arguments)
    ended = shut.journal(role)
    assert ended.returncode == 1
    assert "admin" in ended.stderr
    head = shut.head()
    assert (head["first"], head["next"], head["journal"], head["sealed"]) == (1, 6, "", 0)
    assert names_of(shut.folder / "journal") == []


@pytest.mark.usefixtures("quiet_signals", "impatient")
def test_beside_the_store_the_key_is_needed_to_have_events_forgotten(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    """Without it they are sealed all the same, and the broker keeps them: a warning is logged."""
    store = ("--data-dir", str(house.data))
    ended = command("journal", *store, "--out", str(house.folder / "journal"), "--once")
    assert ended.exit_code == 0, ended.stderr
    assert "the broker keeps sealed events until it answers" in caplog.text
    assert names_of(house.folder / "journal") == [(1, 5)]
    assert house.head()["sealed"] == 0
    again = house.journal("admin", *store)
    assert again.returncode == 0, again.stderr
    until(lambda: house.head()["sealed"] == 5, "the broker's word")
    assert names_of(house.folder / "journal") == [(1, 5)]
