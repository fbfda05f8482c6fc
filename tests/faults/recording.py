"""Records the messages of a broker of an earlier commit to a client and a worker of this one.

    python -m tests.faults.recording PYTHON FILE [--commit 203776b]

``PYTHON`` is the interpreter of an environment with the earlier commit. Client and worker reach its
broker through this process, which writes each message but heartbeats down, as base64, with its
direction. ``tests/unit/broker/test_recorded.py`` replays the messages of the broker to them.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path

import zmq

from eventmq.wire.commands import Heartbeat, Inform, decode
from tests.faults.upgrades import COMMIT, TASKS
from tests.support.shell import Shell, free_port

__all__ = ["main"]

#: Submits a job of each kind, one after the other, so that the messages have an order.
CLIENT = """
from mixed import add, app, parts, shaky

from eventmq import JobCancelled, JobFailed, chain

assert add.delay(1, 2).get(timeout=30) == 3
assert [job.get(timeout=30) for job in add.map([(3, 4)])] == [7]
assert chain(add.s(1, 1), add.s(2)).delay().get(timeout=30) == 4
assert shaky.delay(5).get(timeout=30) == 5
job = parts.delay(3)
assert list(job.stream(timeout=30)) == [0, 1, 2]
late = add.options(countdown=600).delay(1, 1)
assert late.cancel("not needed")
for job, error in ((late, JobCancelled), (add.delay(1, "x"), JobFailed)):
    try:
        job.get(timeout=30)
    except error:
        pass
    else:
        raise AssertionError(job)
assert app.ask("queues")
assert app.ask("status")
app.close()
"""


class _Proxy:
    """Passes messages on between peers and a broker, and keeps them. One thread.

    Args:
        broker: Address of the broker.
    """

    def __init__(self, broker: str) -> None:
        self._broker = broker
        self._context = zmq.Context()
        self._front = self._context.socket(zmq.ROUTER)
        self.address = f"tcp://127.0.0.1:{self._front.bind_to_random_port('tcp://127.0.0.1')}"
        self.messages: list[list[str]] = []
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        """Stop it and close its sockets."""
        self.ended.set()
        self._thread.join()
        self._context.destroy(0)

    def _run(self) -> None:
        poller, peers, roles = zmq.Poller(), dict[bytes, zmq.Socket[bytes]](), dict[bytes, str]()
        poller.register(self._front, zmq.POLLIN)
        while not self.ended.is_set():
            for socket, _ in poller.poll(100):
                if socket is self._front:
                    peer, *frames = self._front.recv_multipart()
                    if peer not in peers:
                        peers[peer] = self._context.socket(zmq.DEALER)
                        peers[peer].connect(self._broker)
                        poller.register(peers[peer], zmq.POLLIN)
                    message = decode(frames)
                    if isinstance(message, Inform):
                        roles[peer] = message.role
                    self._keep(f"{roles[peer]} says", frames)
                    peers[peer].send_multipart(frames)
                else:
                    peer = next(each for each, own in peers.items() if own is socket)
                    frames = socket.recv_multipart()
                    self._keep(f"{roles[peer]} hears", frames)
                    self._front.send_multipart([peer, *frames])

    def _keep(self, direction: str, frames: list[bytes]) -> None:
        if not isinstance(decode(frames), Heartbeat):
            texts = [base64.b64encode(frame).decode() for frame in frames]
            self.messages.append([direction, *texts])


def main(arguments: list[str]) -> None:
    """Record, and write the file."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.recording")
    parser.add_argument("python", help="of an environment with the earlier commit")
    parser.add_argument("file", type=Path)
    parser.add_argument("--commit", default=COMMIT)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder, bind = Path(name), f"tcp://127.0.0.1:{free_port()}"
        (folder / "mixed.py").write_text(TASKS)
        (folder / "client.py").write_text(CLIENT)
        proxy = _Proxy(bind)
        stack.callback(proxy.stop)
        here = Shell(
            folder, PYTHONPATH=f"{Path(__file__).parents[2]}:{folder}", EVENTMQ_BROKER=proxy.address
        )
        stack.callback(here.close)
        there = Shell(folder, PYTHONPATH="")
        stack.callback(there.close)
        broker = there.launch(
            options.python, "-m", "eventmq", "broker", "--bind", bind, "--data-dir", "data"
        )
        broker.ready()
        worker = here.start("worker", "-A", "mixed", "-c", "1")
        while not worker.line().startswith("ready"):
            pass
        client = here.launch(sys.executable, "client.py")
        code = client.process.wait(120)
        client.wait()
        if code:
            raise SystemExit(client.text)
        worker.stop()
        broker.stop()
    record = {"commit": options.commit, "messages": proxy.messages}
    options.file.write_text(json.dumps(record, indent=0) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
