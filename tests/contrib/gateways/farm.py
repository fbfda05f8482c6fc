"""A broker elsewhere, for gateways that need one: in threads of this process."""

from __future__ import annotations

import threading

from eventmq.app import EventMQ
from eventmq.registry.names import GATEWAY
from tests.contrib.gateways.raw_dealer import DEADLINE

__all__ = ["Farm"]


class Farm:
    """A broker, gateways and workers in threads of this process."""

    def __init__(self, stack):
        self._stack = stack
        self.broker = ""
        self._run_broker()
        self.app = stack.enter_context(EventMQ("farm", broker=self.broker, heartbeat_interval=0.2))

    def _run_broker(self):
        app = EventMQ("broker", broker="tcp://127.0.0.1:1", heartbeat_interval=0.2)
        self._stack.callback(app.close)
        bound = threading.Event()
        runners = []

        def main():
            runner = app.make_broker(binds={"main": "tcp://127.0.0.1:0"}, store="memory")
            runners.append(runner)
            runner.bind()
            bound.set()
            runner.run()

        thread = threading.Thread(target=main)
        thread.start()
        assert bound.wait(DEADLINE)
        self.broker = runners[0].addresses["main"]
        self._stack.callback(thread.join, DEADLINE)
        self._stack.callback(runners[0].stop)

    def gateway(self, name="majordomo", **options):
        """Start a gateway; return it and its addresses."""
        options = {"bind": "tcp://127.0.0.1:0", **options}
        gateway = self.app.plugins.make(GATEWAY, name, options=options)
        self._stack.callback(gateway.stop, 0.0)
        return gateway, list(gateway.start())

    def work(self, *queues):
        """Start a worker of the app's tasks."""
        ready = threading.Event()
        worker = self.app.make_worker(
            pool="threads", concurrency=2, queues=[(1, q) for q in queues], on_ready=ready.set
        )
        thread = threading.Thread(target=worker.run)
        thread.start()
        self._stack.callback(thread.join, DEADLINE)
        self._stack.callback(worker.stop, now=True)
        assert ready.wait(DEADLINE)
