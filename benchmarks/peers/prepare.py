"""Prepares the server of a peer: ``python -m benchmarks.peers.prepare PEER``."""

from __future__ import annotations

import asyncio
import importlib
import sys

from benchmarks.peers.catalog import PEERS


def main() -> None:
    """Create the tables of a peer that keeps its jobs in PostgreSQL."""
    peer = PEERS[sys.argv[1]]
    if peer.server == "postgresql" and (made := importlib.import_module(peer.app).prepare()):
        asyncio.run(made)


if __name__ == "__main__":
    main()
