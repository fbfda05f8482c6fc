"""A broker in a process of its own, forked by `fork_server`; it prints its addresses as JSON.

Its arguments are ``DIRECTORY BINDS LIMITS [KEYS]``, where BINDS and LIMITS are JSON maps.
"""

from __future__ import annotations

import json
import logging
import signal
from pathlib import Path

from eventmq.broker.limits import Limits
from eventmq.broker.runner import BrokerRunner
from eventmq.clock import SystemClock
from eventmq.plugins.queue_stores.sqlite.store import SqliteStore
from eventmq.plugins.routing import LeastRecentlyUsed, WeightedFair


def main(arguments: list[str]) -> None:
    """Run a broker until SIGTERM."""
    directory, binds, limits, *keys = arguments
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    clock = SystemClock()
    runner = BrokerRunner(
        store=SqliteStore(Path(directory), clock),
        limits=Limits(**json.loads(limits)),
        routing=LeastRecentlyUsed(),
        queue_order=WeightedFair,
        binds=json.loads(binds),
        clock=clock,
        version="test",
        keys_dir=Path(keys[0]) if keys else None,
    )
    signal.signal(signal.SIGTERM, lambda *_: runner.stop())
    runner.bind()
    print(json.dumps(runner.addresses), flush=True)
    runner.run()
