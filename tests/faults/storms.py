"""Storms: brokers on one PostgreSQL, workers and clients, of which all may be killed or stopped.

Clients note each receipt, and workers each run with its delivery. `Audit` has the server itself say
in which order the sessions of the brokers have committed.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg

from eventmq.errors import EventMQError, JobNotFound
from eventmq_contrib.postgres.connection import Database, connect
from eventmq_contrib.postgres.tables import ALL_TABLES
from eventmq_contrib.postgres.versions import prepare
from tests.support import later_release
from tests.support.machines import Machine
from tests.support.postgres import Server, free_port
from tests.support.system import Process, System, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from typing_extensions import Self

    from tests.support.machines import ServerClock
    from tests.support.postgres import Home

__all__ = [
    "CLOCKS",
    "FAULTS",
    "REPLICAS",
    "Audit",
    "Outcome",
    "Storms",
    "make_clock",
    "make_server",
]

#: App that records each start, with the delivery and its worker, and each finished job.
APP = """
import os
import time

from eventmq import EventMQ, current_job

app = EventMQ("survivor")


def note(file, text):
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, f"{text}|{os.environ['WHO']}\\n".encode())
    os.close(fd)


@app.task
def work(number, seconds):
    started = f"{current_job().delivery} {time.monotonic():.3f}"
    note(os.environ["RECORD"] + ".starts", f"{number} {started}")
    time.sleep(seconds)
    note(os.environ["RECORD"], number)
    return number
"""

#: Seconds that a receipt may take, and the end of all.
TIMEOUT = 60.0

#: Jobs with a receipt that may wait: more are submitted as these are worked off.
AHEAD = 2000

#: The share of jobs with a countdown.
LATER = 0.05

#: Seconds by which a clock is wrong, or right again.
WRONG = (0.0, -3600.0, -300.0, 300.0, 3500.0, 3600.0, 2 * 86_400.0)

#: Seconds that a job may start early: times on the wire are rounded.
EARLY = 0.01

#: The number of the first job that is not of a client but measures how long a receipt takes.
PROBES = 10**9

_SESSION = """pg_backend_pid() || '/' || (SELECT extract(epoch FROM backend_start)
    FROM pg_stat_get_activity(pg_backend_pid()))"""


def make_server(home: Home) -> Server:
    """Return a server whose log shows the order of commits of transactions."""
    server = Server.make(home)
    server.configure(wal_level="logical")
    server.restart()
    return server


def make_clock(server: Server) -> ServerClock:
    """Return the clock of a server, which restarts.

    Raises:
        Unavailable: libfaketime is not installed.
    """
    clock = server.make_clock()
    server.restart()
    return clock


class Audit:
    """Reads the commits of the server in their order, with their sessions.

    Triggers write into the log of the server which session changes a table, and what becomes of
    the lease; the server reads that back transaction by transaction in the order of the commits.
    Once a claim is committed, no transaction of the session of an earlier claim may follow.

    Args:
        server: Made by `make_server`.
        url: A database of it with the tables.
    """

    #: Their rows are changed by standbys, too, which keep the settings there.
    OTHERS = frozenset({"meta"})

    def __init__(self, server: Server, url: str) -> None:
        self._server, self._url = server, url
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE SCHEMA audit")
            for name, said in (
                ("write", f"'write ' || {_SESSION}"),
                ("claim", "'claim ' || NEW.epoch || ' ' || NEW.backend"),
            ):
                connection.execute(
                    f"CREATE FUNCTION audit.{name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                    f"PERFORM pg_logical_emit_message(true, 'audit', {said}); "
                    "RETURN NULL; END $$"
                )
            for table in ALL_TABLES:
                if not table.periodic and table.name not in self.OTHERS:
                    connection.execute(
                        "CREATE TRIGGER audit AFTER INSERT OR UPDATE OR DELETE ON "
                        f'eventmq."{table.name}" EXECUTE FUNCTION audit.write()'
                    )
            connection.execute(
                "CREATE TRIGGER audit AFTER UPDATE ON eventmq.lease FOR EACH ROW "
                "EXECUTE FUNCTION audit.claim()"
            )
            connection.execute(
                "SELECT pg_create_logical_replication_slot('audit', 'test_decoding')"
            )

    def read(self) -> tuple[int, int, list[str]]:
        """Return the numbers of transactions and claims, and the problems."""
        transactions: dict[str, list[str]] = {}  # in the order of their commits
        with psycopg.connect(self._url, autocommit=True) as connection:
            query = """SELECT xid::text, data
                FROM pg_logical_slot_peek_changes('audit', NULL, NULL)
                WHERE data LIKE 'message: transactional: 1 prefix: audit,%'"""
            for xid, data in connection.execute(query):
                content = re.sub(r".* content:", "", data, count=1)
                transactions.setdefault(xid, []).append(content)
        return check_history(list(transactions.values()))


def check_history(transactions: list[list[str]]) -> tuple[int, int, list[str]]:
    """Return how many transactions and claims there are, and which of them may not be there.

    Args:
        transactions: Messages of each transaction, in the order of their commits.
    """
    owner, epoch, claims, wrong = "", 0, 0, []
    for number, contents in enumerate(transactions):
        allowed = {owner}
        for words in map(str.split, contents):
            if words[0] == "claim":
                owner = words[2] if len(words) > 2 else ""
                claims += bool(owner)
                if int(words[1]) < epoch or (owner and int(words[1]) == epoch):
                    wrong.append(f"transaction {number} claims {contents}, after epoch {epoch}")
                epoch = int(words[1])
                allowed.add(owner)
        if any(text.startswith("write ") and text[6:] not in allowed for text in contents):
            wrong.append(f"transaction {number} in epoch {epoch} of {owner}: {set(contents)}")
    return len(transactions), claims, wrong


class Client(threading.Thread):
    """Submits jobs, one by one or many at once, until it is stopped.

    Args:
        storms: Whose brokers get them.
        first: Number of its first job.
    """

    def __init__(self, storms: Storms, first: int) -> None:
        super().__init__()
        self._storms = storms
        self._app = storms.app(submit_timeout=TIMEOUT)
        self._chance = random.Random(first)
        self.first = self.next = first
        #: Number -> id of its job, for those with a receipt.
        self.receipts: dict[int, str] = {}
        #: Number -> monotonic time before which its job must not start, where it has a countdown.
        self.not_before: dict[int, float] = {}
        self.refused: Counter[str] = Counter()
        self.errors: list[BaseException] = []
        self.stopping = threading.Event()

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                if self._storms.ahead():
                    self.stopping.wait(0.02)
                else:
                    self._submit(self._chance.choice((1, 1, 5, 50)))
                self.stopping.wait(0.005)
        except BaseException as error:  # noqa: BLE001 - raised at the end
            self.errors.append(error)

    def _submit(self, count: int) -> None:
        numbers = range(self.next, self.next + count)
        self.next += count
        jobs: list[Any] = []
        try:
            with self._app.batch():
                for number in numbers:
                    seconds = 0.3 if self._chance.random() < 0.02 else 0.001
                    options = self._options(number)
                    jobs.append(self._app.send("survivor.work", (number, seconds), **options))
        except EventMQError as error:
            self.refused[type(error).__name__] += 1
            return
        self.receipts |= {number: job.id for number, job in zip(numbers, jobs, strict=True)}

    def _options(self, number: int) -> dict[str, Any]:
        if self._chance.random() > LATER:
            return {}
        countdown = self._chance.random() * 5
        self.not_before[number] = time.monotonic() + countdown - EARLY
        return {"countdown": countdown}


class Outcome(NamedTuple):
    """Result of a storm.

    Attributes:
        jobs: With a receipt.
        lost: Numbers of jobs with a receipt that neither ran nor failed.
        again: Runs beyond the first.
        wrong: Violations: a job that ran again although no process was killed, or before its
            time, commits of two epochs among each other, and the like.
        commits: How many transactions the audit has seen.
        claims: How often a broker took the store over.
    """

    jobs: int
    lost: list[int]
    again: int
    wrong: list[str]
    commits: int
    claims: int


class Storms(System):
    """Brokers on a database of a server, workers and clients.

    Args:
        folder: For the processes and their records.
        server: Made by `make_server`, or a primary with replicas.
        brokers: How many.
        workers: How many, each with two children.
        clients: How many.
        url: Of an empty database, where it is not a new one of the server.
        audited: Whether commits are audited; not if the server is replaced by a replica.
        clock: Of the server; each broker is on a machine of its own then, too.
        durability: Of receipts; with "replicated" the server has a synchronous replica.
    """

    def __init__(
        self, folder: Path, server: Server, *, brokers: int = 2, workers: int = 2,
        clients: int = 2, url: str = "", audited: bool = True, clock: ServerClock | None = None,
        durability: str = "durable",
    ) -> None:  # fmt: skip
        super().__init__(folder)
        (folder / "survivor.py").write_text(APP)
        self.server = server
        self.url = url or server.url(server.new_database())
        self.database = psycopg.conninfo.conninfo_to_dict(self.url)["dbname"]
        self.chance = random.Random()
        #: Number of faults by name, and for each the seconds until a job submitted then had its
        #: receipt.
        self.injected: Counter[str] = Counter()
        self.recovery_times: defaultdict[str, list[float]] = defaultdict(list)
        #: Numbers of jobs that were submitted, with or without a receipt, when a server was lost.
        self.exposed: set[int] = set()
        #: Addresses whose brokers are those of the made-up later release when they start again.
        self.later: set[str] = set()
        #: Address -> the machine of its broker, where they have some of their own.
        self.machines: dict[str, Machine] = {}
        self._clock, self._durability = clock, durability
        self._replicas = server.settings.get("synchronous_standby_names", "")
        self._killed: set[str] = set()
        self._probes: dict[int, str] = {}
        self._audit: Audit | None = None
        if audited:
            with connect(Database.of(self.url), "standby") as connection:
                prepare(connection, Database.of(self.url))
            self._audit = Audit(server, self.url)
        addresses = [f"tcp://127.0.0.1:{free_port()}" for _ in range(brokers)]
        self.address = ",".join(addresses)
        if clock is not None:
            self.machines = {a: Machine(folder, n) for n, a in enumerate(addresses, 1)}
        self.brokers = {address: self._start_broker(address) for address in addresses}
        self.workers = [self.worker(wait=False) for _ in range(workers)]
        for process in (*self.brokers.values(), *self.workers):
            self.ready(process)
        self._app = self.app(submit_timeout=TIMEOUT)
        self.clients = [Client(self, number * 10_000_000) for number in range(clients)]

    def __enter__(self) -> Self:
        for client in self.clients:
            client.start()
        try:
            until(lambda: self.has_started(100), "the first jobs run")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for client in self.clients:
            client.stopping.set()
        for client in self.clients:
            client.join(2 * TIMEOUT)
        self.stop()

    def _start_broker(self, address: str) -> Process:
        data = str(self.folder / address.rpartition(":")[2])
        machine = self.machines[address].command if address in self.machines else []
        return self.start(
            "broker", "--store", self.url, "--bind", address, "--advertise", address,
            "--data-dir", data, "--durability", self._durability, wait=False,
            under=[*machine, *self.release(address in self.later)],
        )[0]  # fmt: skip

    @staticmethod
    def release(later: bool) -> list[str]:
        """Return what runs a command as that of a release."""
        return [sys.executable, later_release.__file__] if later else []

    def run(self, *arguments: str, later: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command for the store to its end."""
        eventmq = [*self.release(later), sys.executable, "-m", "eventmq"]
        return subprocess.run(
            [*eventmq, *arguments, "--store", self.url],
            cwd=self.folder, capture_output=True, text=True, check=False, timeout=TIMEOUT,
        )  # fmt: skip

    def ahead(self) -> bool:
        """Whether enough jobs wait."""
        enough = self._receipts() - AHEAD
        return enough > 0 and not self.has_started(enough)

    def _receipts(self) -> int:
        return sum(len(client.receipts) for client in self.clients)

    # The owner of the store

    def sql(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        return self.server.sql(statement, *values, database=self.database)

    def owner(self) -> str:
        """Return the address of the owner, once there is one."""
        addresses: list[str] = []

        def owned() -> bool:
            with contextlib.suppress(psycopg.Error):
                addresses[:] = [row[0] for row in self.sql("SELECT address FROM eventmq.lease")]
            return any(addresses)

        until(owned, "a broker owns the store")
        return addresses[0]

    def _session(self) -> tuple[int, str, str]:
        """Return process id, state and wait event of the owner's session."""
        rows = self.sql(
            """SELECT pid, state, coalesce(wait_event, '') FROM pg_stat_activity, eventmq.lease
            WHERE pid::text = split_part(backend, '/', 1)"""
        )
        return rows[0] if rows else (0, "", "")

    # Faults

    def inject(self, fault: str) -> float:
        """Do something to one of them; return the seconds until a job of then has a receipt."""
        self.owner()
        heal: list[Callable[[], object]] = []
        start = getattr(self, f"_{fault}")(heal) or time.monotonic()
        seconds = self._probe(fault, start)
        for step in heal:
            step()
        return seconds

    def _probe(self, fault: str, start: float) -> float:
        number = PROBES + len(self._probes)
        self._probes[number] = self._app.send("survivor.work", (number, 0.0)).id
        seconds = time.monotonic() - start
        self.injected[fault] += 1
        self.recovery_times[fault].append(seconds)
        return seconds

    def _restart(self, address: str) -> None:
        self.brokers[address] = self._start_broker(address)
        self.ready(self.brokers[address])

    def _kill_owner(self, heal: list[Callable[[], object]]) -> float:
        owner, start = self.owner(), time.monotonic()
        self.brokers[owner].kill9()
        heal.append(lambda: self._restart(owner))
        return start

    def _end_owner(self, heal: list[Callable[[], object]]) -> None:
        owner = self.owner()
        self.brokers[owner].send_signal(signal.SIGTERM)
        heal.append(lambda: self.brokers[owner].wait(TIMEOUT))
        heal.append(lambda: self._restart(owner))

    def _kill_standby(self, heal: list[Callable[[], object]]) -> None:
        owner = self.owner()
        standby = self.chance.choice([address for address in self.brokers if address != owner])
        self.brokers[standby].kill9()
        heal.append(lambda: self._restart(standby))

    def _stop_owner(self, heal: list[Callable[[], object]]) -> float:
        """Anywhere."""
        owner, start = self.brokers[self.owner()], time.monotonic()
        owner.freeze()
        heal.append(lambda: owner.send_signal(signal.SIGCONT))
        return start

    def _stop_in_transaction(self, heal: list[Callable[[], object]]) -> None:
        """In the middle of a pipeline: the server waits for further messages."""
        owner = self.brokers[self.owner()]

        def stopped() -> bool:
            time.sleep(self.chance.random() * 0.01)
            owner.freeze()
            time.sleep(0.02)  # the server processes the received messages
            if self._session()[1] == "idle in transaction":
                return True
            owner.send_signal(signal.SIGCONT)
            return False

        until(stopped, "the owner stops in a transaction")
        heal.append(lambda: owner.send_signal(signal.SIGCONT))

    def _stop_after_commit(self, heal: list[Callable[[], object]]) -> None:
        """Between the commit and the messages that follow from it."""
        owner = self.brokers[self.owner()]
        with self._commits_hang():
            owner.freeze()
        until(lambda: self._session()[1] == "idle", "the commit ends")
        heal.append(lambda: owner.send_signal(signal.SIGCONT))

    def _end_session(self, heal: list[Callable[[], object]]) -> None:
        self.sql("SELECT pg_terminate_backend(%s)", self._session()[0])

    def _end_session_in_commit(self, heal: list[Callable[[], object]]) -> None:
        with self._commits_hang() as session:
            self.sql("SELECT pg_terminate_backend(%s)", session)

    def _kill_session_in_commit(self, heal: list[Callable[[], object]]) -> None:
        """All sessions end with it, and the server recovers."""
        with self._commits_hang(back=False) as session:
            os.kill(session, signal.SIGKILL)
        self.server.configure(synchronous_standby_names=self._replicas)
        os.kill(self.server.pid, signal.SIGHUP)

    def _kill_session(self, heal: list[Callable[[], object]]) -> None:
        os.kill(self._session()[0], signal.SIGKILL)

    def _kill_server(self, heal: list[Callable[[], object]]) -> None:
        self.server.kill()
        self.server.start()

    def _kill_worker(self, heal: list[Callable[[], object]]) -> None:
        index = self.chance.randrange(len(self.workers))
        self._killed.add(self.workers[index].who)
        self.workers[index].kill9()
        self.workers[index] = self.worker()

    @contextlib.contextmanager
    def _commits_hang(self, *, back: bool = True) -> Iterator[int]:
        """Let a commit of the owner end on the server without an answer; yield its session.

        It waits for a replica that does not exist.
        """
        self._wait_for("nobody")
        session = 0

        def hangs() -> bool:
            nonlocal session
            session, _, event = self._session()
            return event == "SyncRep"

        try:
            until(hangs, "a commit hangs")
            yield session
        finally:
            if back:
                self._wait_for(self._replicas)

    def _wait_for(self, replicas: str) -> None:
        """Let commits wait for these replicas."""
        self.server.configure(synchronous_standby_names=replicas)
        self.sql("SELECT pg_reload_conf()")

    # Clocks

    def _turn_owner_clock(self, heal: list[Callable[[], object]]) -> None:
        self._turn(self.machines[self.owner()])

    def _turn_standby_clock(self, heal: list[Callable[[], object]]) -> None:
        """Then it owns the store."""
        owner = self.owner()
        for address, machine in self.machines.items():
            if address != owner:
                self._turn(machine)
        self._kill_owner(heal)

    def _turn_server_clock(self, heal: list[Callable[[], object]]) -> None:
        assert self._clock is not None
        self._turn(self._clock)

    def _turn_server_clock_in_transaction(self, heal: list[Callable[[], object]]) -> None:
        """The server waits for its owner, and does not know for how long any more."""
        self._stop_in_transaction(heal)
        self._turn_server_clock(heal)

    def _turn(self, clock: Machine | ServerClock) -> None:
        clock.set(self.chance.choice([ahead for ahead in WRONG if ahead != clock.ahead]))

    # Replicas

    def _stop_replica(self, heal: list[Callable[[], object]]) -> None:
        """Commits wait for longer than a standby waits for a beat."""
        [(session,)] = self.sql("SELECT pid FROM pg_stat_replication")
        os.kill(session, signal.SIGSTOP)  # what sends the log to the replica
        receipts = self._receipts()
        time.sleep(1.0 + self.chance.random() * 5)
        os.kill(session, signal.SIGCONT)
        until(lambda: self._receipts() > receipts, "receipts go on")

    def _forget_replica(self, heal: list[Callable[[], object]]) -> None:
        """No commit waits for it any more: promises cannot be kept, so no broker serves."""
        owner = self.owner()
        self._wait_for("")
        app = self._app
        until(lambda: app.ask("status")["role"] == "standby", f"{owner} serves no more")
        self._wait_for(self._replicas)

    def fail_over(self, replica: Server, *, behind: bool = False) -> float:
        """Lose the server and promote its replica; return the seconds until a receipt from it.

        Args:
            replica: Which the URL names, too.
            behind: Whether it is down shortly before, so that it lacks the last commits.

        With the durability "replicated" it gets a replica of its own, as no broker serves before.
        """
        self.owner()
        if behind:
            replica.stop()
            receipts = self._receipts()
            until(lambda: self._receipts() > receipts + 50, "receipts that the replica lacks")
        start = time.monotonic()
        self.server.kill()
        # Earlier receipts may be in flight; messages sent from now on reach no server.
        self.exposed = {n for client in self.clients for n in range(client.first, client.next)}
        if behind:
            replica.start()
        replica.promote()
        self.server = replica
        if self._durability == "replicated":
            self._replicas = f"{replica.name}_of"
            replica.replica(self._replicas, synchronous=True)
        return self._probe("fail_over", start)

    # The end

    def finish(self) -> Outcome:
        """Wait for all jobs, and check the remaining state."""
        for client in self.clients:
            client.stopping.set()
        for client in self.clients:
            client.join(2 * TIMEOUT)
        errors = [error for client in self.clients for error in client.errors]
        if errors:
            raise errors[0]
        until(lambda: not self._unfinished(), "all is done", 2 * TIMEOUT)
        executed = {int(number) for number in self.executed()}
        receipts = {**self._probes}
        for client in self.clients:
            receipts |= client.receipts
        missing = sorted(receipts.keys() - executed)
        lost = [n for n in missing if self._state(receipts[n]) != "failed"]
        wrong, again = self._repetitions()
        wrong += [f"{number} was never submitted" for number in executed if not self._known(number)]
        commits, claims, mixed = self._audit.read() if self._audit else (0, 0, [])
        return Outcome(len(receipts), lost, again, wrong + mixed, commits, claims)

    def _known(self, number: int) -> bool:
        if number >= PROBES:
            return number < PROBES + len(self._probes) + 1
        return any(client.first <= number < client.next for client in self.clients)

    def _state(self, job_id: str) -> str:
        try:
            return str(self._app.job(job_id).state)
        except JobNotFound:
            return "unknown"

    def _unfinished(self) -> int:
        rows = self._app.ask("queues")
        return sum(row["waiting"] + row["running"] + row["delayed"] for row in rows)

    def _repetitions(self) -> tuple[list[str], int]:
        """Return runs that may not be, and how many were repetitions."""
        starts: defaultdict[int, list[tuple[int, str]]] = defaultdict(list)
        not_before: dict[int, float] = {}
        for client in self.clients:
            not_before |= client.not_before
        wrong, again = [], 0
        for line in self.record.with_name("record.starts").read_text().splitlines():
            text, _, who = line.rpartition("|")
            number, delivery, at = text.split()
            starts[int(number)].append((int(delivery), who))
            early = not_before.get(int(number), 0.0) - float(at)
            if early > 0:
                wrong.append(f"{number} started {early:.3f} s too early")
        for number, runs in starts.items():
            again += len(runs) - 1
            deliveries = [delivery for delivery, _ in runs]
            alive = [run for run in sorted(runs)[:-1] if run[1] not in self._killed]
            if len(set(deliveries)) < len(runs) or alive:
                wrong.append(f"{number} ran as (delivery, worker) {runs}, killed: {self._killed}")
        return wrong, again


#: What `Storms.inject` does.
FAULTS = tuple(
    name[1:] for name in vars(Storms)
    if name.startswith(("_kill_", "_end_", "_stop_")) and not name.endswith("_replica")
)  # fmt: skip

#: Additional faults if clocks can be set, and if there is a replica.
CLOCKS = tuple(name[1:] for name in vars(Storms) if name.startswith("_turn_"))
REPLICAS = tuple(name[1:] for name in vars(Storms) if name.endswith("_replica"))
