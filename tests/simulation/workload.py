"""Makes the scenario of a seed: operations of clients, and faults.

A seed uses a few features and a few faults, so that most pairs of them meet within some thousand
seeds, and a failing scenario is short.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from tests.simulation.random_faults import make_clock_faults, make_faults, make_shared_faults
from tests.simulation.scenario import LEGACY_HEADERS, JobPlan, Op, Scenario, id_of
from tests.simulation.world import EPOCH

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["make_scenario", "make_shared_scenario"]

#: Seconds in which clients submit jobs.
DURATION = 12.0

#: Seconds that a run may take; short jobs share a chunk.
RUN_TIMES = (0.001, 0.001, 0.05, 0.3, 2.0)


def make_scenario(seed: int) -> Scenario:
    """Return the scenario of a seed."""
    return _Maker(seed).make()


def make_shared_scenario(seed: int) -> Scenario:
    """Return the scenario of a seed with two or three brokers that share their store."""
    return _Maker(seed, "shared").make_shared()


class _Maker:
    def __init__(self, seed: int, kind: str = "scenario") -> None:
        self.seed = seed
        self.random = Random(f"{kind} {seed}")
        self.jobs = 0
        self.at = 0.0
        self.plans: list[JobPlan] = []
        self.queues = [f"q{n}" for n in range(self.random.choice((1, 1, 2)))]
        self.clients = self.random.choice((1, 1, 2))
        #: Whether some jobs and workers are legacy ones.
        self.legacy = self.random.random() < 0.1
        features: dict[str, Callable[[], str]] = {
            "delay": self._delay, "expiry": self._expiry, "priority": self._priority,
            "unique": self._unique, "running": self._running, "rate": self._rate,
            "transient": self._transient, "retries": self._retries, "stream": self._stream,
        }  # fmt: skip
        chosen = self.random.sample(sorted(features), self.random.randint(1, 3))
        self.features = [features[name] for name in chosen]
        operations: dict[str, Callable[[], Op]] = {
            "graph": self._graph, "cancel": self._cancel, "purge": self._purge,
            "retry": self._retry, "pause": self._pause, "inspect": self._inspect,
        }  # fmt: skip
        self.operations = [
            operations[n] for n in self.random.sample(sorted(operations), self.random.randint(0, 2))
        ]

    def make_shared(self) -> Scenario:
        draw, self.legacy = self.random, False
        ops = self._ops()
        workers = tuple(self._worker() for _ in range(draw.randint(1, 3)))
        brokers = draw.choice((2, 2, 3))
        faults = make_shared_faults(
            draw, self.at + 3.0, workers=len(workers), clients=self.clients, brokers=brokers
        )
        faults += make_clock_faults(Random(f"clocks {self.seed}"), self.at + 3.0, brokers=brokers)
        limits = self._limits()
        beats = draw.choice((1, 2)) if draw.random() < 0.05 else 0
        schedules = tuple((f"s{n}", 1.0) for n in range(3)) if beats else ()
        return Scenario(
            self.seed, ops, faults, workers, self.clients, beats, schedules, limits=limits,
            brokers=brokers,
        )  # fmt: skip

    def _ops(self) -> tuple[Op, ...]:
        draw = self.random
        ops = []
        for _ in range(draw.randint(2, 7)):
            self.at = round(self.at + draw.random() * draw.choice((0.1, 1.0, 4.0)), 3)
            operation = draw.choice([self._submit, self._submit, *self.operations])
            ops.append(operation())
        if self._pause in self.operations:
            ops += [self._call("resume", queue=queue) for queue in self.queues]
        return tuple(ops)

    def make(self) -> Scenario:
        draw = self.random
        ops = self._ops()
        workers = tuple(self._worker() for _ in range(draw.randint(1, 3)))
        legacy = tuple(self._worker() for _ in range(draw.randint(1, 2))) if self.legacy else ()
        beats = draw.choice((1, 2)) if draw.random() < 0.05 else 0
        every = draw.choice((1.0, 2.5)) if beats else 0.0
        # All schedules fire at the same time, and a beat submits one job at a time.
        schedules = tuple((f"s{n}", every) for n in range(3)) if beats else ()
        relaxed = 0.0 if draw.random() < 0.9 else 1.0
        faults = make_faults(
            draw, self.at + 3.0, workers=len(workers), clients=self.clients, beats=beats,
            relaxed=bool(relaxed), back=not (self.jobs and self._waits), legacy=len(legacy),
        )  # fmt: skip
        return Scenario(
            self.seed, ops, faults, workers, self.clients, beats, schedules, relaxed,
            limits=self._limits(), legacy=legacy,
        )  # fmt: skip

    @property
    def _waits(self) -> bool:
        """Whether some job depends on the wall clock."""
        words = ("countdown", "retry-count", "expires", "limit-rate", "unique-period")
        return any(word in job.headers for job in self.plans for word in words)

    def _limits(self) -> dict[str, Any]:
        draw = self.random
        limits: dict[str, Any] = {}
        if draw.random() < 0.3:
            limits["queue_window"] = draw.choice((1, 2, 4))
        if draw.random() < 0.3:
            limits["chunk_jobs"] = draw.choice((1, 2, 3))
        if draw.random() < 0.1:
            limits["queue_limits"] = (("q0", "", draw.choice((1, 2))),)
        return limits

    def _worker(self) -> tuple[int, tuple[tuple[int, str], ...]]:
        draw = self.random
        return draw.choice((1, 2, 3)), tuple((draw.choice((1, 10)), q) for q in self.queues)

    # Jobs

    def _plan(self, features: list[Callable[[], str]]) -> JobPlan:
        draw = self.random
        self.jobs += 1
        if self.legacy and features is self.features and draw.random() < 0.5:
            return self._legacy_job()
        headers = [f"task:sim.t{draw.randint(0, 1)}", "content-type:msgpack"]
        headers += [text for feature in features if draw.random() < 0.7 and (text := feature())]
        if draw.random() < 0.1:
            headers.append("timeout:1")
        runs = self._runs("retry-count" in ",".join(headers))
        plan = JobPlan(id_of(self.jobs, self.at), draw.choice(self.queues), ",".join(headers), runs)
        self.plans.append(plan)
        return plan

    def _legacy_job(self) -> JobPlan:
        """Return a job for legacy workers; a lease of theirs ends 30 s after its timeout."""
        draw = self.random
        runs = ((draw.choice(RUN_TIMES), draw.choice(("ok", "ok", "die"))), (0.01, "ok"))
        plan = JobPlan(id_of(self.jobs, self.at), draw.choice(self.queues), LEGACY_HEADERS, runs)
        self.plans.append(plan)
        return plan

    def _runs(self, retries: bool) -> tuple[tuple[float, str], ...]:
        draw = self.random
        fates = ["ok"] * 8 + ["fail"] * (6 if retries else 1) + ["die"]
        runs = [(draw.choice(RUN_TIMES), draw.choice(fates)) for _ in range(draw.randint(1, 3))]
        if runs[-1][1] == "die" and draw.random() < 0.5:
            runs.append((0.01, "ok"))
        return tuple(runs)

    def _delay(self) -> str:
        return f"countdown:{self.random.choice((0.5, 2, 5))}"

    def _expiry(self) -> str:
        return f"expires:{EPOCH + self.at + self.random.choice((0.5, 3.0, 30.0)):.3f}"

    def _priority(self) -> str:
        return f"priority:{self.random.choice((1, 5))}"

    def _unique(self) -> str:
        mode = self.random.choice(("reject", "replace", "keep_last"))
        return f"unique:{mode[2]}{self.random.randint(0, 1)},unique-mode:{mode}"

    def _running(self) -> str:
        return "limit-running:1,limit-key:a"

    def _rate(self) -> str:
        return "limit-rate:2/s"

    def _transient(self) -> str:
        return "guarantee:False"

    def _retries(self) -> str:
        return f"retry-count:{self.random.choice((1, 2))}"

    def _stream(self) -> str:
        return self.random.choice(("stream", "stream,replayable"))

    # Operations

    def _op(self, method: str, **arguments: Any) -> Op:
        return Op(self.at, self.random.randrange(self.clients), method, arguments)

    def _call(self, name: str, **arguments: Any) -> Op:
        return self._op("ask", name=name, arguments=arguments)

    def _submit(self) -> Op:
        count = self.random.choice((1, 1, 1, 3, 8))
        jobs = [without_conflicts(self._plan(self.features)) for _ in range(count)]
        return self._op("submit", jobs=jobs, get=self.random.random() < 0.5)

    def _graph(self) -> Op:
        draw = self.random
        alone = {self._unique, self._transient, self._stream}
        features = [feature for feature in self.features if feature not in alone]
        shape = draw.choice(("chain", "group", "chord", "chord", "nested"))
        count = draw.randint(2, 5)
        policy = draw.choice(("cancel", "continue"))
        members = [("job", n) for n in range(count)]
        last = ("job", count)
        expressions: dict[str, Any] = {
            "chain": ("chain", *members, last),
            "group": ("group", policy, *members, last),
            "chord": ("chord", policy, tuple(members), last),
            "nested": (
                "chain", ("chord", policy, tuple(members[:-1]), members[-1]), last,
            ),
        }  # fmt: skip
        jobs = [self._plan(features) for _ in range(count + 1)]
        return self._op("graph", jobs=jobs, expression=expressions[shape], get=draw.random() < 0.3)

    def _sample_ids(self) -> list[str]:
        plans = self.random.sample(self.plans, min(len(self.plans), self.random.randint(1, 3)))
        return [job.id for job in plans]

    def _cancel(self) -> Op:
        ids = self._sample_ids()
        return self._call("cancel", ids=ids) if ids else self._submit()

    def _retry(self) -> Op:
        ids = self._sample_ids()
        return self._call("retry", ids=ids) if ids else self._submit()

    def _purge(self) -> Op:
        running = self.random.random() < 0.5
        name, queue = f"bulk{self.at}", self.random.choice(self.queues)
        return self._call("bulk", id=name, action="cancel", queue=queue, running=running)

    def _pause(self) -> Op:
        return self._call(self.random.choice(("pause", "resume")), queue=self.queues[0])

    def _inspect(self) -> Op:
        name = self.random.choice(("queues", "workers", "status", "jobs", "failed", "ping"))
        return self._call(name)


def without_conflicts(plan: JobPlan) -> JobPlan:
    """Return a job without headers that the broker refuses beside ``guarantee:False``."""
    if "guarantee:False" in plan.headers:
        headers = [
            text for text in plan.headers.split(",")
            if not text.startswith(("unique", "retry-count", "limit-"))
        ]  # fmt: skip
        return plan._replace(headers=",".join(headers))
    return plan
