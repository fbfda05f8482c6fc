"""Jobs that kill processes and hide the cause: each of them fails, and the others succeed."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from eventmq.errors import JobFailed
from tests.support.system import DEADLINE, System, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.system import Process

#: Added to the app of the workers.
POISON = """
import signal
import threading


def pid_of_manager():
    with open(f"/proc/{os.getppid()}/stat") as stat:
        return int(stat.read().rpartition(")")[2].split()[1])


@app.task
def closes_all(number):
    note(f"start {number} {os.getpid()}")
    os.closerange(3, 1024)


@app.task
def takes_places(number):
    note(f"start {number} {os.getpid()}")
    os.closerange(3, 1024)
    for n in range(100):
        os.open(f"{os.environ['RECORD']}.{os.getpid()}", os.O_RDWR | os.O_CREAT, 0o600)


@app.task
def ends_before_its_answer(number):
    note(f"start {number} {os.getpid()}")
    os.write = lambda *_: os._exit(0)


@app.task
def stops_itself(number):
    note(f"start {number} {os.getpid()}")
    os.kill(os.getpid(), signal.SIGSTOP)


@app.task
def kills_its_parent(number):
    note(f"start {number} {os.getpid()}")
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


@app.task
def kills_its_manager(number):
    note(f"start {number} {os.getpid()}")
    os.kill(pid_of_manager(), signal.SIGKILL)
    time.sleep(60)


@app.task
def ends_its_process(number):
    note(f"start {number} {os.getpid()}")
    os._exit(1)
"""

#: Jobs beside the poison, of which some run long enough to be in the middle of it.
WORK, SLOW = 400, 6


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    system = System(tmp_path)
    with (tmp_path / "survivor.py").open("a") as app:
        app.write(POISON)
    yield system
    system.stop()


class Supervisor:
    """Starts a worker again whenever it has ended, as a service manager does."""

    def __init__(self, system: System, *arguments: str) -> None:
        self.restarts = 0
        self.worker: Process | None = None
        self._system = system
        self._arguments = arguments
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def start(self) -> None:
        """Start the first worker."""
        self.worker = self._system.worker(*self._arguments)
        self._thread.start()

    def stop(self) -> None:
        """Start none any more."""
        self._ended.set()
        self._thread.join(DEADLINE)

    def _watch(self) -> None:
        while not self._ended.wait(0.05):
            assert self.worker is not None
            if self.worker.poll() is not None:
                self.restarts += 1
                self.worker = self._system.worker(*self._arguments, wait=False)


@contextmanager
def supervised(system: System, *arguments: str) -> Iterator[Supervisor]:
    """Have a worker that is started again and again."""
    supervisor = Supervisor(system, *arguments)
    supervisor.start()
    yield supervisor
    supervisor.stop()


def task(app: Any, name: str) -> Any:
    return app.task(name=f"survivor.{name}")(lambda *_: None)


def outlives(system: System, poison: str, *arguments: str) -> tuple[int, int]:
    """Let a worker meet a poison among other jobs; return its runs, and the worker's restarts."""
    system.broker()
    app = system.app()
    before = task(app, "work").map([(n,) for n in range(WORK)])
    job = task(app, poison).delay(9000)
    slow = [task(app, "slow").delay(n, 0.4) for n in range(5000, 5000 + SLOW)]
    after = task(app, "work").map([(n,) for n in range(WORK, 2 * WORK)])
    others = [*before, *slow, *after]
    with supervised(system, *arguments) as supervisor:
        with pytest.raises(JobFailed, match="suspected killer"):
            job.get(timeout=DEADLINE)
        assert app.wait(others, timeout=DEADLINE).pending == []
        assert {other.get(timeout=DEADLINE) for other in others} == {
            *range(2 * WORK), *range(5000, 5000 + SLOW)
        }  # fmt: skip
        until(lambda: app.ask("queues")[0]["running"] == 0, "everything is answered")
        late = task(app, "work").delay(7)
        assert late.get(timeout=DEADLINE) == 7, "the worker continues"
    return system.times_started("9000"), supervisor.restarts


@pytest.mark.parametrize(
    "poison",
    ["closes_all", "takes_places", "ends_before_its_answer", "stops_itself", "kills_its_parent"],
)
def test_a_job_that_kills_its_process_in_hiding_fails_and_the_worker_goes_on(
    system: System, poison: str
) -> None:
    assert outlives(system, poison) == (3, 0)
    files = [path for path in system.folder.glob("record.*") if path.stat().st_size]
    assert files == [], "no answer went into a file of the job"


def test_a_job_that_kills_its_manager_fails_after_the_third_worker(system: System) -> None:
    assert outlives(system, "kills_its_manager") == (3, 3)


@pytest.mark.parametrize("pool", ["threads", "asyncio"])
@pytest.mark.parametrize("poison", ["ends_its_process", "closes_all"])
def test_a_job_that_ends_the_process_of_all_fails_after_the_third_worker(
    system: System, poison: str, pool: str
) -> None:
    runs, restarts = outlives(system, poison, "--pool", pool)
    assert (runs, restarts) == (3, 3)


def test_a_poison_fails_although_its_broker_is_killed_meanwhile(system: System) -> None:
    """The count of deaths is stored; only a death while no broker ran is not known."""
    broker = system.broker()
    app = system.app()
    job = task(app, "kills_its_manager").delay(9000)
    with supervised(system) as supervisor:
        until(lambda: system.times_started("9000") >= 2, "it ran twice")
        broker.kill9()
        system.broker()
        with pytest.raises(JobFailed, match="suspected killer"):
            job.get(timeout=DEADLINE)
    assert 3 <= system.times_started("9000") <= 4
    assert supervisor.restarts <= 4
