"""Messages of clients and workers of the Majordomo draft, as raw frames."""

from __future__ import annotations

__all__ = ["NAME", "answer", "ask", "final", "next_request", "register"]

#: NAME of the draft's worker side.
NAME = b"MDPW02"


def ask(client, service, id, *body):
    client.send("MDPC02", b"\x01", service, id, *body)


def final(service, id, *body):
    return [b"MDPC02", b"\x03", service.encode(), id, *body]


def register(dealer, address, service, keys=None):
    worker = dealer(address, b"", keys)
    worker.send(NAME, b"\x01", service)
    return worker


def next_request(worker):
    """Return client, id and body of the next REQUEST; other messages before it are skipped."""
    while True:
        frames = worker.next()
        assert frames is not None, "no request came"
        if frames[1] == b"\x02":
            assert (NAME, b"") == (frames[0], frames[3])
            return frames[2], frames[4], frames[5:]


def answer(worker, kind=b"\x04", client=b"", id=b"", body=()):
    worker.send(NAME, kind, client, b"", id, *body)
