"""The Dramatiq application of the row about Dramatiq, on the broker that ``BENCH_URL`` names."""

from __future__ import annotations

import os

import dramatiq

from benchmarks.delays import append_delay

__all__ = ["record"]

_URL = os.environ["BENCH_URL"]

if _URL.startswith("amqp"):  # send() returns when the message is on disk, as with the others
    from dramatiq.brokers.rabbitmq import RabbitmqBroker

    dramatiq.set_broker(RabbitmqBroker(url=_URL, confirm_delivery=True))
elif _URL.startswith("redis"):
    from dramatiq.brokers.redis import RedisBroker

    dramatiq.set_broker(RedisBroker(url=_URL))
else:
    from eventmq_contrib.dramatiq import EventMQBroker

    dramatiq.set_broker(EventMQBroker(url=_URL))


@dramatiq.actor
def record(sent: float) -> None:
    """Record how long the message took."""
    append_delay(sent)
