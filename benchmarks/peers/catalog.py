"""The peers: their names, the commands of their workers, and their promises."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["PEERS", "Peer"]

_APPS = "benchmarks.peers.apps"


@dataclass(frozen=True)
class Peer:
    """One library with one server.

    Attributes:
        name: Name on the command line.
        server: Name of its server in `benchmarks.peers.servers`.
        app: Module with its app.
        worker: Returns the arguments of Python that start a number of worker processes.
        drain: Jobs of its row ``drain`` in 8 s: some seconds of work for two processes.
        on_disk: Whether a job is on disk when the call that submits it returns.
        killed: Whether, and when, the job of a killed worker comes back.
        distributions: Names of the distributions whose versions are recorded.
        results: Whether it keeps results, for the round trip.
    """

    name: str
    server: str
    app: str
    worker: Callable[[int], Sequence[str]]
    drain: int
    on_disk: str
    killed: str
    distributions: tuple[str, ...]
    results: bool = True

    def command(self, processes: int) -> list[str]:
        """Return the command that starts its workers."""
        return [sys.executable, *self.worker(processes)]


def _module(name: str, *arguments: str) -> list[str]:
    """Return the arguments for the command of a library, installed beside this Python."""
    code = (
        f"import sys; from importlib.metadata import entry_points as e; sys.argv[0] = {name!r}; "
        f"sys.exit([p for p in e(group='console_scripts') if p.name == {name!r}][0].load()())"
    )
    return ["-c", code, *arguments]


def _several(n: int, *arguments: str) -> list[str]:
    """Return the arguments for ``n`` processes of a library whose workers have one process each."""
    return ["-m", "benchmarks.peers.several", str(n), *arguments]


def _eventmq(n: int) -> list[str]:
    return ["-m", "eventmq", "worker", "-A", f"{_APPS}.eventmq_app:app", "-c", str(n)]


def _celery(n: int) -> list[str]:
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "WARNING"]
    return ["-m", "celery", "-A", f"{_APPS}.celery_app", "worker", "-c", str(n), *quiet]


def _dramatiq(n: int) -> list[str]:
    return ["-m", "dramatiq", f"{_APPS}.dramatiq_app", "-p", str(n), "-t", "8"]


def _huey(n: int) -> list[str]:
    return _module("huey_consumer", f"{_APPS}.huey_app.huey", "-w", str(n), "-k", "process",
                   "-d", "0.001", "-m", "0.01", "-q")  # fmt: skip


def _taskiq(n: int) -> list[str]:
    return ["-m", "taskiq", "worker", f"{_APPS}.taskiq_app:broker", "-w", str(n),
            "--log-level", "WARNING"]  # fmt: skip


def _rq(n: int) -> list[str]:
    from benchmarks.peers.client import url

    return _module("rq", "worker-pool", "-q", "-n", str(n), "-u", url())


def _saq(n: int) -> list[str]:
    return _module("saq", f"{_APPS}.saq_app.settings", "--workers", str(n), "-q")


def _procrastinate(n: int) -> list[str]:
    app = f"{_APPS}.procrastinate_app.app"
    return _several(n, *_module("procrastinate", "-a", app, "worker", "-c", "10"))


def _pgqueuer(n: int) -> list[str]:
    return _several(n, "-m", f"{_APPS}.pgqueuer_app")


def _awa(n: int) -> list[str]:
    return _several(n, "-m", f"{_APPS}.awa_app")


def _dbos(n: int) -> list[str]:
    return _several(n, "-m", f"{_APPS}.dbos_app")


_CLOSED = "at once where its connection closes, else after the liveness limit"
_LIST = "no: it was taken off the list"
_UNSYNCED = "no: Redis syncs once a second, if at all"

PEERS = {
    peer.name: peer
    for peer in (
        Peer("eventmq", "eventmq", f"{_APPS}.eventmq_app", _eventmq, 200_000,
             "yes: synced before the receipt", _CLOSED, ("eventmq", "pyzmq")),
        Peer("celery-redis", "redis", f"{_APPS}.celery_app", _celery, 4_000, _UNSYNCED,
             "no: acknowledged when it is taken; with acks_late after visibility_timeout, 1 h",
             ("celery", "kombu", "redis")),
        Peer("celery-rabbitmq", "rabbitmq", f"{_APPS}.celery_app", _celery, 4_000,
             "no: without publisher confirms",
             "no: acknowledged when it is taken; with acks_late at once", ("celery", "kombu")),
        Peer("dramatiq-redis", "redis", f"{_APPS}.dramatiq_app", _dramatiq, 20_000, _UNSYNCED,
             "after the heartbeat time-out of its worker, 60 s", ("dramatiq", "redis")),
        Peer("dramatiq-rabbitmq", "rabbitmq", f"{_APPS}.dramatiq_app", _dramatiq, 10_000,
             "no: without publisher confirms", "at once where its connection closes",
             ("dramatiq", "pika"), results=False),
        Peer("dramatiq-eventmq", "eventmq", f"{_APPS}.dramatiq_app", _dramatiq, 5_000,
             "yes: synced before the receipt", _CLOSED, ("dramatiq", "eventmq", "pyzmq")),
        Peer("huey-redis", "redis", f"{_APPS}.huey_app", _huey, 20_000, _UNSYNCED, _LIST,
             ("huey", "redis")),
        Peer("huey-sqlite", "none", f"{_APPS}.huey_app", _huey, 5_000, "yes", _LIST, ("huey",)),
        Peer("taskiq-redis", "redis", f"{_APPS}.taskiq_app", _taskiq, 15_000, _UNSYNCED, _LIST,
             ("taskiq", "taskiq-redis", "redis")),
        Peer("rq", "redis", f"{_APPS}.rq_app", _rq, 400, _UNSYNCED,
             "no: it is found and failed by the next maintenance", ("rq", "redis")),
        Peer("saq", "redis", f"{_APPS}.saq_app", _saq, 5_000, _UNSYNCED,
             "after its timeout, by the sweep", ("saq", "redis")),
        Peer("procrastinate", "postgresql", f"{_APPS}.procrastinate_app", _procrastinate, 2_000,
             "yes: a commit of PostgreSQL", "no: until somebody retries stalled jobs",
             ("procrastinate", "psycopg"), results=False),
        Peer("pgqueuer", "postgresql", f"{_APPS}.pgqueuer_app", _pgqueuer, 40_000,
             "yes: a commit of PostgreSQL", "after its heartbeat timeout, 30 s",
             ("pgqueuer", "asyncpg"), results=False),
        Peer("awa", "postgresql", f"{_APPS}.awa_app", _awa, 20_000,
             "yes: a commit of PostgreSQL", "after its heartbeat is stale, 90 s", ("awa-pg",),
             results=False),
        Peer("dbos", "postgresql", f"{_APPS}.dbos_app", _dbos, 8_000,
             "yes: a commit of PostgreSQL",
             "no: until a process with the name of the killed one starts", ("dbos", "psycopg")),
        Peer("eventmq-postgresql", "eventmq-postgresql", f"{_APPS}.eventmq_app", _eventmq, 200_000,
             "yes: a commit of PostgreSQL before the receipt", _CLOSED,
             ("eventmq", "pyzmq", "psycopg")),
        # The other durabilities, for comparison only.
        Peer("eventmq-relaxed", "eventmq-relaxed", f"{_APPS}.eventmq_app", _eventmq, 200_000,
             "no: synced every 50 ms", _CLOSED, ("eventmq", "pyzmq")),
        Peer("eventmq-memory", "eventmq-memory", f"{_APPS}.eventmq_app", _eventmq, 200_000,
             "no: kept in memory alone", _CLOSED, ("eventmq", "pyzmq")),
    )
}  # fmt: skip
