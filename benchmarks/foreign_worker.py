"""A worker that knows nothing of EventMQ, for `benchmarks.gateways`: emqp or majordomo."""

from __future__ import annotations

import itertools
import sys
import time

import zmq

#: Seconds between two heartbeats.
_INTERVAL = 2.0

_IDS = itertools.count(1)


def emqp(dealer: zmq.Socket[bytes]) -> None:
    """Work as in the published document: one READY, one REQUEST, one REPLY."""

    def send(command: bytes, *frames: bytes) -> None:
        dealer.send_multipart([b"", b"eMQP/1.0", command, b"%d" % next(_IDS), *frames])

    send(b"INFORM", b'[[10, "default"]]', b"worker")
    assert dealer.recv_multipart()[2] == b"ACK"
    send(b"READY")
    print("ready", flush=True)
    last_sent = time.monotonic()
    while True:
        if dealer.poll(_INTERVAL * 1000):
            frames = dealer.recv_multipart()
            if frames[2] == b"REQUEST":
                send(b"REPLY", b'{"value": true}', frames[3])
                send(b"READY")
        if time.monotonic() - last_sent > _INTERVAL:
            last_sent = time.monotonic()
            send(b"HEARTBEAT", b"%.2f" % time.time())


def majordomo(dealer: zmq.Socket[bytes]) -> None:
    """Work as in the draft."""
    dealer.send_multipart([b"MDPW02", b"\x01", b"service"])
    print("ready", flush=True)
    last_sent = time.monotonic()
    while True:
        if dealer.poll(_INTERVAL * 1000):
            frames = dealer.recv_multipart()
            if frames[1] == b"\x02":
                dealer.send_multipart([b"MDPW02", b"\x04", *frames[2:5], b"true"])
        if time.monotonic() - last_sent > _INTERVAL:
            last_sent = time.monotonic()
            dealer.send_multipart([b"MDPW02", b"PING"])


if __name__ == "__main__":
    socket = zmq.Context().socket(zmq.DEALER)
    socket.connect(sys.argv[2])
    {"emqp": emqp, "majordomo": majordomo}[sys.argv[1]](socket)
