"""The least that a broker does with messages: one loop that passes them on, for `benchmarks.limit`.

What comes from a client is acknowledged and goes to the worker, what comes from the worker goes to
the client. Nothing is read, decided or stored. When its input ends it prints its CPU seconds.
"""

from __future__ import annotations

import sys
import time

import zmq

from eventmq.wire.commands import Ack
from eventmq.wire.socket import Link, new_context, open_router


def main() -> None:
    """Pass messages on until stdin ends."""
    context = new_context()
    front, back = open_router(context), open_router(context)
    print(*(link.bind("tcp://127.0.0.1:0") for link in (front, back)), flush=True)
    back.socket.poll()
    [worker, *_] = back.receive() or [b""]
    print("ready", flush=True)
    print(_forward(front, back, worker), flush=True)
    for link in (front, back):
        link.close(0)
    context.term()


# hot loop: benchmarks/limit.py
def _forward(front: Link, back: Link, worker: bytes) -> float:
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
                    front.send([client, *Ack("1", frames[4].decode()).frames()])
                    back.send([worker, *frames[1:]])
            elif socket is back.socket:
                while (frames := back.receive()) is not None:
                    front.send([client, *frames[1:]])
            else:
                return time.process_time() - begin


if __name__ == "__main__":
    main()
