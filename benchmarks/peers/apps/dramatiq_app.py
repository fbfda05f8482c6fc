"""Dramatiq on Redis, RabbitMQ or EventMQ; results in Redis or EventMQ if that runs."""

from __future__ import annotations

from typing import Any

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from benchmarks.peers.client import Client, url
from benchmarks.peers.tasks import TASKS

if url().startswith("redis"):
    broker: dramatiq.Broker = RedisBroker(url=url())
    broker.add_middleware(Results(backend=RedisBackend(url=url())))
elif url().startswith("tcp"):
    from eventmq_contrib.dramatiq import EventMQBackend, EventMQBroker

    broker = EventMQBroker(url=url())
    broker.add_middleware(Results(backend=EventMQBackend(broker.app)))
else:
    broker = RabbitmqBroker(url=url())
dramatiq.set_broker(broker)


def _actor(task: Any) -> Any:
    keeps = task.__name__ == "same" and url().startswith(("redis", "tcp"))
    more = {"store_results": True} if keeps else {}
    return dramatiq.actor(task, **more)


TASK = {task.__name__: _actor(task) for task in TASKS}


class _Client(Client):
    def submit(self, task: str, *arguments: Any) -> None:
        TASK[task].send(*arguments)

    def submit_many(self, n: int) -> None:
        # There is no bulk call; a group would send jobs one by one too.
        send = TASK["nothing"].send
        for _ in range(n):
            send()

    def call(self, number: int) -> Any:
        return TASK["same"].send(number).get_result(block=True, timeout=30_000)

    def close(self) -> None:
        broker.close()


def client() -> Client:
    """Return the client that submits jobs."""
    return _Client()
