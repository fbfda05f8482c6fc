"""Limited memory: a broker with a cap and many waiting jobs, flooded with large messages."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import zmq

from tests.faults.load import Load
from tests.support.system import System, until

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self

    from tests.support.system import Process

__all__ = ["LittleMemory"]

#: MiB of data that the broker may allocate; it needs about half of that for itself.
CAP = 256

#: Bytes of a frame, just below the limit of a broker, and the number of peers that send them.
FRAME, PEERS = 15 << 20, 4

#: Jobs that the load submits at a time, and jobs that may wait.
PART, AHEAD = 100, 1000

#: Milliseconds between two checks of whether a sender should stop.
CHECK_MS = 100


class LittleMemory:
    """Broker with limited memory, jobs that wait in a queue without workers, and a load.

    Args:
        folder: Folder of the processes and of the load's records.
        waiting: Number of jobs that wait all the time.
    """

    def __init__(self, folder: Path, waiting: int) -> None:
        self.system = System(folder)
        self.broker = self._start()
        self.worker = self.system.worker()
        self.load = Load(self.system, part=PART, ahead=AHEAD, submit_timeout=60.0)
        task = self.load.app.task(name="survivor.other", queue="backlog")(_stand_in)
        for start in range(0, waiting, 10_000):
            task.map([(n,) for n in range(start, min(start + 10_000, waiting))])
        self.waiting = waiting
        #: How the broker ended under a flood: exit code and error.
        self.ended: list[str] = []

    def _start(self) -> Process:
        limit = f'ulimit -d {CAP * 1024}; exec "$@"'
        return self.system.broker(under=("sh", "-c", limit, "sh"))

    def __enter__(self) -> Self:
        self.load.start()
        return self

    def inject(self, seconds: float) -> float:
        """Send large frames for a while; return the seconds until jobs are done again.

        A broker that has ended, as it may, is restarted.
        """
        flood = Flood(self.system.address)
        end = time.monotonic() + seconds
        while self.broker.poll() is None and time.monotonic() < end:
            self.load.last(0.05)
        flood.stop()
        start = time.monotonic()
        before = len(self.load.confirmed)
        until(
            lambda: self._alive() and len(self.load.confirmed) > before, "a receipt after a flood"
        )
        self.load.wait_for_progress("after a flood")
        return time.monotonic() - start

    def _alive(self) -> bool:
        """Restart the broker if it has ended, and record how it ended."""
        if self.broker.poll() is not None:
            self.ended.append(f"{self.broker.returncode}: {self._error()}")
            self.broker = self._start()
        return True

    def _error(self) -> str:
        """Return the error with which the broker ended, else its last line."""
        lines = (self.system.folder / "broker.log").read_text().splitlines() or [""]
        return next((line for line in reversed(lines) if line.startswith("error: ")), lines[-1])

    def finish(self) -> tuple[set[int], int, int]:
        """Finish the load; return which jobs are lost, how many ran again, and how many wait."""
        self.load.stop()
        done = {str(number) for number in self.load.confirmed}
        until(lambda: done <= self.system.executed().keys(), "every confirmed job was executed")
        rows = {row["name"]: row["waiting"] for row in self.load.app.ask("queues")}
        return *self.load.compare(self.system.executed()), rows.get("backlog", 0)

    def __exit__(self, *_: object) -> None:
        self.load.stop()
        self.system.stop()


class Flood:
    """Peers that send large invalid messages as fast as they can, until `stop`."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        context = zmq.Context()
        message = [b"", b"eMQP/1.0", b"DANCE", b"flood", zmq.Frame(b"x" * FRAME)]
        peers = [context.socket(zmq.DEALER) for _ in range(PEERS)]
        for peer in peers:
            peer.linger, peer.sndhwm, peer.sndtimeo = 0, 1, CHECK_MS
            peer.connect(self._address)
        while not self._stop.is_set():
            for peer in peers:
                if peer.poll(CHECK_MS // PEERS, zmq.POLLOUT):
                    peer.send_multipart(message, copy=False)
        context.destroy(0)

    def stop(self) -> None:
        """Stop sending. Idempotent."""
        self._stop.set()
        self._thread.join()


def _stand_in(number: int) -> None:
    """Stand in for a task; no worker serves its queue."""
