"""A broker whose memory is capped, with many jobs that wait, while others send all they can."""

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

#: MiB of data that the broker may have: what it needs for itself is about half of it.
CAP = 256

#: Bytes of a frame, just under what a broker takes, and peers that send them.
FRAME, PEERS = 15 << 20, 4

#: Jobs that a client submits at a time, and that may wait.
PART, AHEAD = 100, 1000

#: Seconds after which a sender looks whether it should go on.
LOOK_MS = 100


class LittleMemory:
    """A broker under a cap, with jobs that wait in a queue of their own, and its usual load.

    Args:
        folder: For the processes, and the oracle's files.
        waiting: Jobs that wait all the while.
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
        #: How the broker ended under a flood: its exit code, and its last words.
        self.ended: list[str] = []

    def _start(self) -> Process:
        limit = f'ulimit -d {CAP * 1024}; exec "$@"'
        return self.system.broker(under=("sh", "-c", limit, "sh"))

    def __enter__(self) -> Self:
        self.load.start()
        return self

    def strike(self, seconds: float) -> float:
        """Send large frames for a while; return the seconds until jobs are done after it.

        Where the broker has ended, as it may, it is started again.
        """
        flood = Flood(self.system.address)
        end = time.monotonic() + seconds
        while self.broker.poll() is None and time.monotonic() < end:
            self.load.last(0.05)
        flood.stop()
        begun = time.monotonic()
        have = len(self.load.confirmed)
        until(lambda: self._alive() and len(self.load.confirmed) > have, "a receipt after a flood")
        self.load.goes_on("after a flood")
        return time.monotonic() - begun

    def _alive(self) -> bool:
        """Start the broker again where it has ended, and note how."""
        if self.broker.poll() is not None:
            self.ended.append(f"{self.broker.returncode}: {self._last_words()}")
            self.broker = self._start()
        return True

    def _last_words(self) -> str:
        """Return the sentence with which it ended, else its last line."""
        lines = (self.system.folder / "broker.log").read_text().splitlines() or [""]
        return next((line for line in reversed(lines) if line.startswith("error: ")), lines[-1])

    def finish(self) -> tuple[set[int], int, int]:
        """Have the load done; return what of it is lost, how many ran again, and how many wait."""
        self.load.stop()
        done = {str(number) for number in self.load.confirmed}
        until(lambda: done <= self.system.executed().keys(), "every confirmed job was executed")
        rows = {row["name"]: row["waiting"] for row in self.load.app.ask("queues")}
        return *self.load.compare(self.system.executed()), rows.get("backlog", 0)

    def __exit__(self, *_: object) -> None:
        self.load.stop()
        self.system.stop()


class Flood:
    """Peers that send large messages that nobody asked for, as fast as they go, until `stop`."""

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
            peer.linger, peer.sndhwm, peer.sndtimeo = 0, 1, LOOK_MS
            peer.connect(self._address)
        while not self._stop.is_set():
            for peer in peers:
                if peer.poll(LOOK_MS // PEERS, zmq.POLLOUT):
                    peer.send_multipart(message, copy=False)
        context.destroy(0)

    def stop(self) -> None:
        """End it. Idempotent."""
        self._stop.set()
        self._thread.join()


def _stand_in(number: int) -> None:
    """Run in a worker, if there were one for the queue."""
