"""Runs a row against peers in turn, EventMQ first each time, and computes the ratios."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from subprocess import PIPE
from typing import TYPE_CHECKING

from benchmarks.peers.board import FOLDER
from benchmarks.peers.catalog import PEERS
from benchmarks.peers.client import URL
from benchmarks.peers.measure import SECONDS, SETTINGS, SPAN
from benchmarks.peers.servers import SERVERS, Missing, server_versions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from benchmarks.figures import Figures

__all__ = ["SPAN", "about", "compare", "one_run", "ratios", "span"]

ROOT = Path(__file__).resolve().parents[2]

#: Timeout of one row against one peer, in seconds.
_LIMIT = 240

#: Seconds for starting and stopping a server and its workers.
_START = {"rabbitmq": 11.0, "postgresql": 8.0, "eventmq-postgresql": 10.0}
_USUAL_START = 4.0

#: Row -> multiple of the seconds of work that it takes; 1 for other rows.
_LENGTHS = {"drain": 1.5, "latency_under_load": 2.0, "memory": 5.0, "mixed": 2.2, "recovery": 3.5}

#: System that is compared with all others -> beginning of its lines.
_CLAIMS = {"eventmq": "", "eventmq-postgresql": "with PostgreSQL "}

#: Minimum seconds of work for a meaningful figure.
_SHORTEST = 1.0


def span(row: str, peers: Sequence[str], seconds: float) -> float:
    """Return the seconds of work of a run such that the runs of all peers fit into a time."""
    servers = [PEERS[name].server for name in ("eventmq", *peers)]
    remaining = seconds - sum(_START.get(server, _USUAL_START) for server in servers)
    return min(SPAN, max(_SHORTEST, remaining / len(servers) / _LENGTHS.get(row, 1.0)))


def one_run(name: str, row: str, length: float = SPAN) -> dict[str, float]:
    """Run a row against a peer, with a fresh server, and return its figures.

    Args:
        name: Name of the peer.
        row: Name of the row.
        length: Seconds of work.

    Raises:
        RuntimeError: The row failed; the text has the output of the row and the workers.
    """
    folder = Path(tempfile.mkdtemp(prefix="eventmq-peers-"))
    folder.chmod(0o755)
    board = folder / "board"
    board.mkdir()
    (folder / "server").mkdir()
    try:
        with SERVERS[PEERS[name].server](folder / "server") as server:
            environment = {
                **os.environ, URL: server.url, FOLDER: str(board), SECONDS: str(length),
                "PEERS_SERVER": " ".join(map(str, server.pids)),
            }  # fmt: skip
            prepare = [sys.executable, "-m", "benchmarks.peers.prepare", name]
            subprocess.run(prepare, env=environment, cwd=ROOT, check=True, capture_output=True)
            return _measured(name, row, environment)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _measured(name: str, row: str, environment: Mapping[str, str]) -> dict[str, float]:
    """Run a row in a process of its own; end it and its workers even if this process ends."""
    command = [sys.executable, "-m", "benchmarks.peers.measure", name, row]
    process = subprocess.Popen(
        command, env=environment, cwd=ROOT, stdout=PIPE, stderr=PIPE, text=True
    )
    try:
        out, errors = process.communicate(timeout=_LIMIT)
    except BaseException:
        process.terminate()  # it stops its workers
        process.communicate()
        raise
    if process.returncode:
        log = Path(environment[FOLDER]) / "workers.log"
        worker_log = log.read_text()[-2000:] if log.exists() else ""
        raise RuntimeError(f"{row} of {name} failed:\n{errors[-3000:]}\n{worker_log}")
    figures: dict[str, float] = json.loads(out.splitlines()[-1])
    return figures


def compare(figures: Figures, row: str, peers: Sequence[str], length: float = SPAN) -> None:
    """Add one run of each peer as figures ``PEER NAME``; print failed peers to stderr."""
    for name in ("eventmq", *peers):
        if row == "call" and not PEERS[name].results:
            continue
        try:
            values = one_run(name, row, length)
        except (Missing, RuntimeError, subprocess.TimeoutExpired) as error:
            if name == "eventmq":
                raise
            print(f"{name} is left out: {error}", file=sys.stderr)
            continue
        figures.add(**{f"{name} {key}": value for key, value in values.items()})


def about(peers: Sequence[str]) -> dict[str, object]:
    """Return the versions of the libraries and servers, and the promises of each peer."""
    names = {d for peer in ("eventmq", *peers) for d in PEERS[peer].distributions}
    promises = {
        peer: {"on disk": PEERS[peer].on_disk, "job of a killed worker": PEERS[peer].killed}
        for peer in ("eventmq", *peers)
    }
    versions = {name: metadata.version(name) for name in sorted(names)}
    servers = {PEERS[peer].server for peer in peers}
    return {"versions": versions | server_versions(servers), "promises": promises}


def ratios(figures: Figures, row: str, peers: Sequence[str]) -> Iterator[str]:
    """Yield a line per figure and peer: EventMQ's median over the peer's, of runs in turn.

    EventMQ with its jobs in PostgreSQL gets lines of its own.
    """
    medians = {name: statistics.median(values) for name, values in figures.series.items()}
    for name, value in medians.items():
        peer, _, key = name.partition(" ")
        if peer not in _CLAIMS or key in SETTINGS:
            continue
        for other in peers:
            peer_value = medians.get(f"{other} {key}")
            if peer_value and other not in _CLAIMS:
                ratio = value / peer_value
                yield f"  {row} {key}: {_CLAIMS[peer]}{ratio:.3g} times that of {other}"
