"""The minimal broker: one loop that forwards messages.

Messages of a client are acknowledged and go to the worker, messages of the worker go to the client.
No message is decoded or stored. With a file as the argument, a page of it is written and synced
before messages are forwarded. With ``receipts`` as a second argument there is no worker, with
``results`` no message is acknowledged (`benchmarks.bare`; without a file, `benchmarks.limit`). When
its input ends, the loop prints its CPU seconds.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

import zmq

from eventmq.wire.commands import Ack
from eventmq.wire.sockets import Link, new_context, open_router

if TYPE_CHECKING:
    from collections.abc import Callable

#: Bytes of a page, and number of pages of the file, which are overwritten in turn.
_PAGE, _PAGES = 4096, 1024


def main() -> None:
    """Forward messages until stdin ends."""
    context = new_context()
    front, back = open_router(context), open_router(context)
    print(*(link.bind("tcp://127.0.0.1:0") for link in (front, back)), flush=True)
    worker = b""
    if "receipts" not in sys.argv[2:]:
        back.socket.poll()
        [worker, *_] = back.receive() or [b""]
    print("ready", flush=True)
    sync = _sync(sys.argv[1]) if sys.argv[1:] else lambda: None
    acknowledges = "results" not in sys.argv[2:]
    print(_forward(front, back, worker, sync, acknowledges=acknowledges), flush=True)
    for link in (front, back):
        link.close(0)
    context.term()


def _sync(path: str) -> Callable[[], None]:
    """Return a function that writes and syncs a page of a file of constant size."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.write(file, bytes(_PAGE * _PAGES))
    os.fsync(file)
    page, done = b"x" * _PAGE, 0

    def sync() -> None:
        nonlocal done
        os.pwrite(file, page, done % _PAGES * _PAGE)
        os.fdatasync(file)
        done += 1

    return sync


# hot loop: python -m benchmarks limit
def _forward(
    front: Link, back: Link, worker: bytes, sync: Callable[[], None], *, acknowledges: bool
) -> float:
    poller = zmq.Poller()
    for socket in (front.socket, back.socket, sys.stdin.fileno()):
        poller.register(socket, zmq.POLLIN)
    client = b""
    begin = time.process_time()
    while True:
        for socket, _ in poller.poll():
            if socket is front.socket:
                while (frames := front.receive()) is not None:
                    client = frames[0]
                    sync()
                    if acknowledges:
                        front.send([client, *Ack("1", frames[4].decode()).frames()])
                    if worker:
                        back.send([worker, *frames[1:]])
            elif socket is back.socket:
                while (frames := back.receive()) is not None:
                    sync()
                    front.send([client, *frames[1:]])
            else:
                return time.process_time() - begin


if __name__ == "__main__":
    main()
