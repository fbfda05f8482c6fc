"""Kills of the application, the relays and the broker while jobs go through the outbox.

An application inserts orders, each with a job in the same transaction, and rolls some of them back;
the worker records the numbers of the jobs that it runs. In the end each order in the database has
run, and nothing else::

    python -m tests.contrib.outbox.kills --kills 1000

With ``--inbox`` there are no relays: two brokers share a store in the same database, and the one
that owns it reads the rows.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from eventmq import EventMQ
from eventmq_contrib import outbox
from tests.support.postgres import Home, Server, free_port
from tests.support.system import until

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Outcome", "run"]

#: The app, which records each number that it ran; as a program, the application.
SHOP = """
import os
import random
import sys

import psycopg

from eventmq import EventMQ
from eventmq_contrib import outbox

app = EventMQ("shop")


@app.task
def work(number):
    fd = os.open(os.environ["RECORD"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, f"{number}\\n".encode())
    os.close(fd)


def place_orders(number, seed):
    chance = random.Random(seed)
    with psycopg.connect(os.environ["DATABASE"]) as connection:
        print("ready", flush=True)
        while True:
            for _ in range(chance.randrange(1, 6)):
                number += 1
                connection.execute("INSERT INTO orders VALUES (%s)", [number])
                key = f"key {number % 7}" if chance.random() < 0.2 else ""
                outbox.send(connection, work.s(number), key=key)
            connection.rollback() if chance.random() < 0.2 else connection.commit()


if __name__ == "__main__":
    place_orders(int(sys.argv[1]), int(sys.argv[2]))
"""

#: Distance between the first orders of two processes of the application.
STEP = 1_000_000

#: Seconds in which everything is worked off after the last kill.
DEADLINE = 120.0

#: The most rows in the table: then the application is not started again for the moment.
AHEAD = 5000


class Outcome(NamedTuple):
    """What became of the orders."""

    kills: Counter[str]
    orders: int
    lost: list[int]
    rolled_back: list[int]
    repeated: int
    kept: int

    def __str__(self) -> str:
        kills = ", ".join(f"{name} {n}" for name, n in sorted(self.kills.items()))
        return (
            f"{sum(self.kills.values())} kills ({kills}), {self.orders} orders: {len(self.lost)} "
            f"lost, {len(self.rolled_back)} run though rolled back, {self.repeated} run more than "
            f"once, {self.kept} rows kept"
        )


class Drive:
    """The processes: one application, two relays and a broker, or two brokers, and a worker."""

    def __init__(
        self, folder: Path, server: Server, chance: random.Random, *, inbox: bool = False
    ) -> None:
        self._folder, self._server, self._chance = folder, server, chance
        self._database = server.new_database()
        for statement in outbox.DDL["postgresql"]:
            self.sql(statement)
        self.sql("CREATE TABLE orders (number BIGINT PRIMARY KEY)")
        (folder / "shop.py").write_text(SHOP)
        self._stores: list[str] = []
        if inbox:
            url = server.url(self._database)
            self._stores = ["--store", url, "--store-option", "inbox=true"]
        self._victims = ["broker 1", *(["broker 2"] if inbox else ["relay 1", "relay 2"])]
        addresses = {
            name: f"tcp://127.0.0.1:{free_port()}" for name in self._victims if "broker" in name
        }
        self._address = ",".join(addresses.values())
        self._starts = 0
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._commands: dict[str, Callable[[], list[str]]] = {
            "broker 1": lambda: self._broker("1", addresses["broker 1"]),
            "broker 2": lambda: self._broker("2", addresses["broker 2"]),
            "worker": lambda: self._eventmq(
                "worker", "-A", "shop", "--broker", self._address, "--pool", "threads", "-c", "4"
            ),
            "relay 1": self._relay,
            "relay 2": self._relay,
            "application": lambda: [
                sys.executable, "shop.py", str(self._starts * STEP), str(chance.random())[2:],
            ],
        }  # fmt: skip

    def sql(self, statement: str) -> list[tuple]:
        """Run a statement in the database."""
        return self._server.sql(statement, database=self._database)

    def _eventmq(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "eventmq", *arguments]

    def _broker(self, number: str, address: str) -> list[str]:
        data = ["--data-dir", f"broker{number}"]
        return self._eventmq("broker", "--bind", address, *data, *self._stores)

    def _relay(self) -> list[str]:
        url = self._server.url(self._database)
        return self._eventmq("outbox", "relay", "--database", url, "--broker", self._address)

    def start_all(self) -> None:
        """Start all processes."""
        for name in (*self._victims, "worker", "application"):
            self.start(name)

    def start(self, name: str) -> None:
        """Start a process and wait until it is ready."""
        self._starts += 1
        environment = {
            **os.environ, "RECORD": str(self._folder / "record"), "PYTHONUNBUFFERED": "1",
            "DATABASE": self._server.url(self._database), "EVENTMQ_SUBMIT_TIMEOUT": "2",
        }  # fmt: skip
        with (self._folder / "log").open("a") as log:
            process = subprocess.Popen(
                self._commands[name](), cwd=self._folder, env=environment, text=True,
                stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip
        self._processes[name] = process
        assert process.stdout is not None
        line = next((line for line in process.stdout if "ready" in line), None)
        assert line is not None, (self._folder / "log").read_text()[-5000:]

    def end(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal to a process; return its exit code."""
        process = self._processes.pop(name)
        process.send_signal(number)
        assert process.stdout is not None
        with process.stdout:
            return process.wait(DEADLINE)

    def rows(self) -> int:
        """Return how many rows wait."""
        return self.sql("SELECT count(*) FROM eventmq_outbox")[0][0]

    def kill(self) -> str:
        """Kill a process at a random time, and start it again; return which it was."""
        name = self._chance.choice(["application", "application", *self._victims])
        time.sleep(self._chance.random() * 0.2)  # the time of the kill is the point
        self.end(name)
        if name == "application":
            until(lambda: self.rows() < AHEAD, "the relays keep up", DEADLINE)
        self.start(name)
        return name.partition(" ")[0]

    def outcome(self, kills: Counter[str]) -> Outcome:
        """Let everything be worked off, and return what became of the orders."""
        self.end("application")
        until(lambda: not self.rows(), "all rows are sent", DEADLINE)
        with EventMQ("drive", broker=self._address) as app:
            until(
                lambda: not sum(row["waiting"] + row["running"] for row in app.ask("queues")),
                "all jobs have run", DEADLINE,
            )  # fmt: skip
        for name in self._victims[1:]:
            assert self.end(name, signal.SIGTERM) == 0
        orders = {row[0] for row in self.sql("SELECT number FROM orders")}
        runs = Counter(map(int, (self._folder / "record").read_text().split()))
        kept = self.sql("SELECT count(*) FROM eventmq_outbox WHERE error <> ''")[0][0]
        return Outcome(
            kills, len(orders), sorted(orders - set(runs)), sorted(set(runs) - orders),
            sum(n > 1 for n in runs.values()), kept,
        )  # fmt: skip

    def close(self) -> None:
        """End all processes."""
        for name in list(self._processes):
            self.end(name)


def run(
    kills: int, seed: int, server: Server, tell: Callable[[str], None] = lambda _: None,
    *, inbox: bool = False,
) -> Outcome:  # fmt: skip
    """Kill processes, and return what became of the orders."""
    counted: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="eventmq-outbox-") as folder:
        drive = Drive(Path(folder), server, random.Random(seed), inbox=inbox)
        with contextlib.closing(drive):
            drive.start_all()
            for number in range(1, kills + 1):
                counted[drive.kill()] += 1
                if number % 50 == 0:
                    tell(f"{number} kills, {drive.rows()} rows wait")
            return drive.outcome(counted)


def main() -> int:
    """Run the program; return its exit code."""
    parser = argparse.ArgumentParser(description="kills around an outbox, with PostgreSQL")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--inbox", action="store_true", help="two brokers read the table")
    options = parser.parse_args()
    home = Home()
    try:
        began = time.monotonic()
        outcome = run(
            options.kills, options.seed, Server.make(home), lambda text: print(text, flush=True),
            inbox=options.inbox,
        )  # fmt: skip
        print(f"seed {options.seed}, {time.monotonic() - began:.0f} s: {outcome}", flush=True)
    finally:
        home.close()
    return 1 if outcome.lost or outcome.rolled_back or outcome.kept else 0


if __name__ == "__main__":
    sys.exit(main())
