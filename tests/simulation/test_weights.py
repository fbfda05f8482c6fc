"""Queues keep their shares of a worker when their jobs suddenly take longer."""

from __future__ import annotations

from itertools import count, groupby

import pytest

from tests.simulation.run import Simulation
from tests.simulation.scenario import JobPlan, Op, Scenario, id_of

#: Weights of the two queues, jobs whose queues are counted, and how many of them are of the first.
QUEUES, FIRST, RIGHT = ((30, "a"), (10, "b")), 160, 120


def start_order(
    slots: int, workers: int, before: float, after: float, tasks: tuple[str, str]
) -> list[str]:
    """Return from which queue each job came, in the order of their starts, once they take longer.

    Args:
        slots: Of each worker.
        workers: How many workers serve both queues.
        before: Seconds that a job takes at first.
        after: Seconds that it takes from then on.
        tasks: The task of each queue, for which run times are measured.
    """
    numbers = count(1)

    def submit(jobs: int, seconds: float, at: float) -> list[Op]:
        return [
            Op(at, 0, "submit", {"jobs": [
                JobPlan(
                    id_of(next(numbers), at), queue, f"task:{task},content-type:msgpack",
                    ((seconds, "ok"),),
                )
                for _ in range(jobs)
            ]})
            for (_, queue), task in zip(QUEUES, tasks, strict=True)
        ]  # fmt: skip

    ops = (*submit(300, before, 1.0), *submit(600, after, 10.0))
    simulation = Simulation(Scenario(1, ops, workers=((slots, QUEUES),) * workers))
    for process in simulation.processes.values():
        process.start()
    for op in ops:
        simulation.world.at(op.at, lambda op=op: simulation._apply(op))
    simulation.world.run(10.0)
    known = simulation.auditor.executions
    assert known == 600, "run times are measured"
    until = 10.0
    while simulation.auditor.executions < known + FIRST:
        until += 0.1
        simulation.world.run(until)
    starts = sorted(
        (execution.start, number, job.plan.queue)
        for number, job in enumerate(simulation.auditor.jobs.values())
        for execution in job.executions
        if execution.start >= 10.0
    )
    return [queue for _, _, queue in starts[:FIRST]]


@pytest.mark.parametrize("tasks", [("t", "t"), ("t", "u")], ids=["one task", "two tasks"])
@pytest.mark.parametrize(
    ("before", "after"),
    [(0.00005, 0.005), (0.00005, 0.05), (0.0005, 0.01), (0.002, 0.015), (0.01, 0.1)],
)
@pytest.mark.parametrize(("slots", "workers"), [(1, 1), (4, 1), (2, 2)])
def test_a_queue_keeps_its_share_when_jobs_take_longer(
    slots: int, workers: int, before: float, after: float, tasks: tuple[str, str]
) -> None:
    """Chunks that were sized by the old run time are handed back, and count for no more than ran.

    Each slot runs one for 30 ms until then; it was 160 of the first queue in most of these cases.
    """
    queues = start_order(slots, workers, before, after, tasks)
    max_run = max(len(list(run)) for _, run in groupby(queues))
    assert abs(queues.count("a") - RIGHT) <= 15
    assert max_run <= 40
