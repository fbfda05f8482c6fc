"""The rows: each injects faults into a system and counts the losses."""

from __future__ import annotations

import contextlib
import logging
import math
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.faults.connections import come_and_go
from benchmarks.faults.hostile import FILES, send_malformed
from benchmarks.faults.order import receipts_after_syncs
from benchmarks.faults.results import Row
from benchmarks.faults.soak import run_soak
from benchmarks.faults.storm import Storm
from tests.faults.corruption import ALTERED, LOST, Store, is_cut
from tests.faults.crashes import Lost, Tape
from tests.faults.injected import calls_of, once, run_with_fault
from tests.faults.memory import LittleMemory
from tests.faults.network import FAULTS, SERVING, Network
from tests.faults.races import race
from tests.faults.shim import FAULTS as FAULTS_OF_CALLS
from tests.faults.shim import can_fail
from tests.faults.shortage import FewDescriptors
from tests.faults.storms import CLOCKS, REPLICAS, Outcome, Storms, make_clock, make_server
from tests.faults.storms import FAULTS as FAULTS_OF_BROKERS
from tests.support.executors import Cluster
from tests.support.postgres import Home

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["ROWS"]

ROOT = Path(__file__).resolve().parents[2]

#: Commits that race on one store.
COMMITS_OF_ROUND = 200_000

#: Jobs that wait while memory is short.
WAITING = 1_000_000

#: Last line of the simulation.
_CLOSING = re.compile(r": (\d+) failed[^;]*; (\d+) jobs, \d+ executions, (\d+) ends")


def crashes(n: int) -> Row:
    """A kill at the end and in the middle of each page that a script of 500 jobs writes."""
    again: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        tape = Tape(Path(folder), 500)
        offsets = list(tape.points())
        commits = range(len(tape.ends))
        lost = int(_fails(lambda: tape.check_cuts(offsets)))
        holes = tape.holes(1, 10 * n)
        for number in commits:
            lost += _fails(lambda number=number: again.append(tape.resume(number)["twice"]))
        for seed in range(n):
            lost += _fails(lambda seed=seed: again.append(tape.resume_torn(seed)["twice"]))
    more = {
        "cuts": len(offsets), "missing pages": holes, "torn checkpoints": n,
        "resumed": len(commits),
    }  # fmt: skip
    return Row(len(tape.promises.confirmed), sum(more.values()), lost, sum(again), more)


def _fails(check: Callable[[], object]) -> bool:
    """Return whether a check finds a broken promise, and print it."""
    try:
        check()
    except Lost as error:
        print(f"  {error}", flush=True)
        return True
    return False


def injected(n: int) -> Row:
    """Failing reads, writes, syncs and truncations under the store, one in each run of a script."""
    logging.disable(logging.CRITICAL)
    counted: Counter[str] = Counter()
    lost = jobs = 0
    with tempfile.TemporaryDirectory() as folder:
        calls, opening = calls_of(Path(folder) / "sound", 100)
        cases = [
            (position, fault)
            for position, call in enumerate(calls)
            for fault in FAULTS_OF_CALLS
            if can_fail(call, fault)
        ]
        for position, fault in random.sample(cases, min(n, len(cases))):
            run = Path(folder) / "run"
            try:
                outcome = run_with_fault(run, 100, once(position, fault))
            except AssertionError as error:
                lost += 1
                kind = calls[position].kind
                print(f"  {fault} at call {position}, a {kind}: {error}", flush=True)
            else:
                jobs += outcome.confirmed
                counted[f"{fault}: {'broker ended' if outcome.ended else 'went on'}"] += 1
                must_end = "ENOSPC" not in fault or position < opening
                if outcome.failed and bool(outcome.ended) != must_end:
                    lost += 1
                    print(f"  {fault} at call {position}: {outcome.ended or 'went on'}", flush=True)
            shutil.rmtree(run, ignore_errors=True)
    logging.disable(logging.NOTSET)
    return Row(jobs, sum(counted.values()), lost, None, {"of them": dict(sorted(counted.items()))})


def races(n: int) -> Row:
    """Commits that race with the thread that moves the log, and with a reader."""
    jobs = restarts = reads = done = 0
    while done < n:
        # A store of its own for each round: all rows are compared again and again.
        commits = min(n - done, COMMITS_OF_ROUND)
        with tempfile.TemporaryDirectory() as folder:
            seed = random.randrange(1 << 30)
            try:
                raced = race(Path(folder) / "store", commits, seed=seed)
            except Lost as error:
                print(f"  seed {seed}: {error}", flush=True)
                return Row(jobs, done + commits, 1, None, {})
        done, jobs = done + commits, jobs + raced.jobs
        restarts, reads = restarts + raced.restarts, reads + raced.reads
        print(f"  {done} commits: nothing lost", flush=True)
    return Row(jobs, n, 0, None, {"log begun anew": restarts, "reads": reads})


def corruption(n: int) -> Row:
    """Flipped bits, garbage, zeros and cuts at random places of a store, closed or killed."""
    logging.disable(logging.CRITICAL)
    counted: Counter[str] = Counter()
    lost = 0
    for killed in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            store = Store(Path(folder), killed=killed)
            for seed in range(n // 2):
                damage, (diagnosis, text) = store.damage(seed)
                cut = is_cut(damage) and diagnosis == LOST
                counted[f"{'log' if killed else 'file'}: {'cut off' if cut else diagnosis}"] += 1
                if diagnosis in {ALTERED, LOST} and not cut:
                    lost += 1
                    print(f"  seed {seed}: {damage}: {text}", flush=True)
    logging.disable(logging.NOTSET)
    return Row(100, n, lost, None, {"what came of it": dict(sorted(counted.items()))})


def network(n: int) -> Row:
    """A network that breaks and heals, and processes that stand still, under load."""
    chance = random.Random()
    slow, slowest = 0, 0.0
    counted: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, Network(Path(folder)) as net:
        for _ in range(n):
            outcome = net.inject(chance.choice(FAULTS), chance.choice((0.3, 1.0, 2.0, 4.0)))
            counted[outcome.fault] += 1
            slow += outcome.served > SERVING
            slowest = max(slowest, outcome.served)
        lost, twice = net.finish()
    more = {
        "of them": dict(counted), "not serving after 5 s": slow,
        "seconds until it served at worst": round(slowest, 2),
    }  # fmt: skip
    return Row(len(net.load.confirmed), n, len(lost), twice, more)


def kills(n: int) -> Row:
    """Kill -9 of the broker, of a worker and of its children, one after the other, under load."""
    with tempfile.TemporaryDirectory() as folder, Storm(Path(folder)) as storm:
        for _ in range(n):
            storm.inject()
        lost, twice = storm.finish()
    more = {
        "of them": dict(storm.killed), "failed and kept": storm.failed,
        "seconds until it served at worst": round(max(storm.serving), 2),
    }  # fmt: skip
    return Row(len(storm.load.confirmed), n, len(lost), twice, more)


def shared(n: int) -> Row:
    """Faults of brokers on PostgreSQL, their workers and the server, under load."""
    with _storms(brokers=3) as storms:
        _inject(storms, n, FAULTS_OF_BROKERS)
        return _shared_row(n, storms.finish(), _injected(storms))


def clocks(n: int) -> Row:
    """Clocks of brokers and server that jump, by minutes to days, in addition to ``shared``."""
    with _storms(brokers=3, clocks=True) as storms:
        _inject(storms, n, FAULTS_OF_BROKERS + CLOCKS * 3)
        outcome = storms.finish()
    later = sum(len(client.not_before) for client in storms.clients)
    return _shared_row(n, outcome, _injected(storms) | {"of the jobs with a countdown": later})


def replicated(n: int) -> Row:
    """Replicas that stop or are not waited for, in addition to ``shared``; then a failover."""
    with _home() as home, tempfile.TemporaryDirectory() as folder:
        server = make_server(home)
        replica = server.replica(f"replica{server.port}", synchronous=True)
        name = server.new_database()
        url = f"postgresql://eventmq@127.0.0.1:{server.port},127.0.0.1:{replica.port}/{name}"
        with Storms(
            Path(folder), server, url=url, audited=False, durability="replicated"
        ) as storms:
            _inject(storms, n - 1, FAULTS_OF_BROKERS + REPLICAS * 5)
            storms.fail_over(replica)
            outcome = storms.finish()
    more = _injected(storms) | {"submitted before the failover": len(storms.exposed)}
    return _row_of(n, outcome, more)


def _inject(storms: Storms, n: int, faults: Sequence[str]) -> None:
    for _ in range(n):
        time.sleep(storms.chance.random())
        storms.inject(storms.chance.choice(faults))


def _injected(storms: Storms) -> dict[str, Any]:
    worst = max(seconds for times in storms.recovery_times.values() for seconds in times)
    return {"of them": dict(storms.injected), "seconds until a receipt at worst": round(worst, 2)}


def takeovers(n: int) -> Row:
    """Kill -9 and SIGSTOP, in turn, of the owner of a store: until a receipt of the next."""
    with _storms() as storms:
        for number in range(n):
            time.sleep(1.0 + storms.chance.random())
            storms.inject(("kill_owner", "stop_owner")[number % 2])
        outcome = storms.finish()
    more: dict[str, object] = {}
    for fault, signal_name in (("kill_owner", "kill -9"), ("stop_owner", "SIGSTOP")):
        times = sorted(storms.recovery_times[fault]) or [0.0]
        for share in (50, 99):
            index = math.ceil(len(times) * share / 100) - 1
            more[f"seconds until a receipt after {signal_name}, p{share}"] = round(times[index], 2)
    return _shared_row(n, outcome, more)


@contextlib.contextmanager
def _home() -> Iterator[Home]:
    home = Home()
    try:
        yield home
    finally:
        home.close()


@contextlib.contextmanager
def _storms(brokers: int = 2, *, clocks: bool = False) -> Iterator[Storms]:
    with _home() as home, tempfile.TemporaryDirectory() as name:
        server = make_server(home)
        clock = make_clock(server) if clocks else None
        with Storms(Path(name), server, brokers=brokers, clock=clock) as storms:
            yield storms


def _shared_row(n: int, outcome: Outcome, more: dict[str, Any]) -> Row:
    more |= {"takeovers": outcome.claims - 1, "commits in order": outcome.commits}
    return _row_of(n, outcome, more)


def _row_of(n: int, outcome: Outcome, more: dict[str, Any]) -> Row:
    for text in (*map(str, outcome.lost), *outcome.wrong):
        print(f"  {text}", flush=True)
    return Row(outcome.jobs, n, len(outcome.lost) + len(outcome.wrong), outcome.again, more)


def executors(n: int) -> Row:
    """Kill -9 of the JVM of a Spark executor while a job runs on it and others wait behind it."""
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder)) as cluster:
        times = [cluster.inject() for _ in range(n)]
        comparison = cluster.finish()
    wrong = comparison.wrong(cluster.killed_jobs)
    more = {
        "charged with a death": len(comparison.deaths),
        "seconds until all had ended at worst": round(max(times), 2),
    }  # fmt: skip
    return Row(len(cluster.jobs), n, len(wrong), len(comparison.again), more)


def order(n: int) -> Row:
    """Strace of a broker: no receipt leaves before the sync of its commit has returned."""
    sends, syncs, early = receipts_after_syncs(n)
    return Row(n, sends, early, None, {"messages to peers": sends, "syncs": syncs})


def simulation(n: int) -> Row:
    """New seeds of the deterministic simulation."""
    first = int(1000 * time.time())  # a seed takes longer than that
    command = ["-m", "tests.simulation", "--seeds", str(n), "--first", str(first), "--keep-going"]
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    last = done.stdout.strip().splitlines()[-1]
    failed, jobs, ends = map(int, _CLOSING.search(last).groups())  # type: ignore[union-attr]
    more = {"seeds": f"{first} to {first + n - 1}", "ends of the broker": ends}
    return Row(jobs, n, failed, None, more)


def connections(n: int) -> Row:
    """Visitors, 200 a second, half of which leave without goodbye, beside 2,000 peers that stay."""
    load, lost, twice, more = come_and_go(n)
    return Row(len(load.confirmed), n, len(lost), twice, more)


def descriptors(n: int) -> Row:
    """All 256 descriptors of a broker taken by others, for some seconds, under load."""
    with tempfile.TemporaryDirectory() as folder, FewDescriptors(Path(folder)) as few:
        served = [few.inject(2.0) for _ in range(n)]
        lost, twice = few.finish()
    more = {"seconds until it served a new peer at worst": round(max(served), 2)}
    return Row(len(few.load.confirmed), n, len(lost), twice, more)


def memory(n: int) -> Row:
    """Floods of large frames at a broker with 256 MiB of data and a million jobs that wait."""
    with tempfile.TemporaryDirectory() as folder, LittleMemory(Path(folder), WAITING) as little:
        served = [little.inject(5.0) for _ in range(n)]
        lost, twice, waiting = little.finish()
    explained = sum("no memory left" in words for words in little.ended)
    more = {
        "broker ended and said why": explained, "ended otherwise": len(little.ended) - explained,
        "seconds until it served at worst": round(max(served), 2), "still waiting": waiting,
    }  # fmt: skip
    missing = max(0, WAITING - waiting)
    return Row(len(little.load.confirmed) + WAITING, n, len(lost) + missing, twice, more)


def hostile(n: int) -> Row:
    """Malformed messages to each port of broker and gateways, beside a well-behaved peer."""
    failed, ports = 0, 0
    for file, its_ports in FILES.items():
        _, wrong, seconds = send_malformed(file, n)
        print(f"  {file}: {seconds:.0f} s", flush=True)
        failed, ports = failed + wrong, ports + its_ports
    return Row(0, n * ports, failed, None, {"messages": f"{n:,} on each of {ports} ports"})


def soak(n: int) -> Row:
    """Seconds of all features at 70 % of the peak load: which resources grow?"""
    with tempfile.TemporaryDirectory() as folder:
        return run_soak(Path(folder), float(n))


#: Name -> function, and default number of faults.
ROWS: dict[str, tuple[Callable[[int], Row], int]] = {
    "crashes": (crashes, 20),
    "injected": (injected, 100_000),
    "races": (races, 10_000_000),
    "corruption": (corruption, 1000),
    "network": (network, 200),
    "kills": (kills, 500),
    "shared": (shared, 200),
    "clocks": (clocks, 100),
    "replicated": (replicated, 60),
    "takeovers": (takeovers, 60),
    "executors": (executors, 20),
    "order": (order, 10_000),
    "simulation": (simulation, 10_000),
    "connections": (connections, 20_000),
    "descriptors": (descriptors, 20),
    "memory": (memory, 20),
    "hostile": (hostile, 100_000),
    "soak": (soak, 3600),
}
