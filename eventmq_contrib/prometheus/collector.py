"""Makes metrics of a broker's status at each scrape.

``prometheus_client`` is needed to collect, not to import this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eventmq.errors import EventMQError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from prometheus_client.core import Metric

    from eventmq import EventMQ

__all__ = ["BrokerCollector"]

#: The counters of the broker for jobs that did not end well; ``ended`` is about all.
_BAD_ENDS = ("failed", "cancelled", "expired")

_ENDS = frozenset({"ended", "succeeded", *_BAD_ENDS})

_STATES = ("waiting", "delayed", "running", "failed")

_ERRORS = "errors."


class BrokerCollector:
    """A collector of Prometheus; ``eventmq_up`` is 0 while the broker is unavailable.

    Args:
        app: Client of the broker.
    """

    def __init__(self, app: EventMQ) -> None:
        self._app = app

    def describe(self) -> Iterable[Metric]:
        """Return nothing: registering does not ask the broker."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics."""
        from prometheus_client.core import GaugeMetricFamily

        try:
            status = self._app.ask("status")
            queues = self._app.ask("queues")
            workers = self._app.ask("workers")
        except EventMQError:
            yield GaugeMetricFamily("eventmq_up", _UP, 0)
            return
        yield GaugeMetricFamily("eventmq_up", _UP, 1)
        yield from _broker(status, len(workers))
        yield from _queues(queues)
        yield from _counters(status["counters"])


_UP = "Whether the broker answered."


def _broker(status: Mapping[str, Any], workers: int) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    started = "Unix time of the broker's start."
    yield GaugeMetricFamily("eventmq_broker_start_time_seconds", started, status["started"])
    yield GaugeMetricFamily("eventmq_broker_peers", "Peers that the broker knows.", status["peers"])
    yield GaugeMetricFamily("eventmq_workers", "Worker sessions.", workers)


def _queues(queues: Iterable[Mapping[str, Any]]) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    jobs = GaugeMetricFamily("eventmq_queue_jobs", "Jobs by queue.", labels=("queue", "state"))
    paused = GaugeMetricFamily("eventmq_queue_paused", "1 where paused.", labels=("queue",))
    served = GaugeMetricFamily("eventmq_queue_workers", "Workers that serve it.", labels=("queue",))
    for row in queues:
        name = row["name"]
        for state in _STATES:
            jobs.add_metric((name, state), row[state])
        paused.add_metric((name,), float(bool(row["paused"])))
        served.add_metric((name,), row["workers"])
    yield from (jobs, paused, served)


def _counters(counters: Mapping[str, int]) -> Iterator[Metric]:
    """Yield what the broker has counted since its start."""
    from prometheus_client.core import CounterMetricFamily

    ended = CounterMetricFamily("eventmq_jobs_ended", "Jobs that ended.", labels=("state",))
    bad = {state: counters.get(state, 0) for state in _BAD_ENDS}
    ended.add_metric(("succeeded",), counters.get("ended", 0) - sum(bad.values()))
    for state, value in bad.items():
        ended.add_metric((state,), value)
    errors = CounterMetricFamily("eventmq_errors", "ERROR messages sent.", labels=("code",))
    others = CounterMetricFamily(
        "eventmq_broker_events", "What else the broker counts, by its name.", labels=("name",)
    )
    for name, value in sorted(counters.items()):
        if name.startswith(_ERRORS):
            errors.add_metric((name.removeprefix(_ERRORS),), value)
        elif name not in _ENDS:
            others.add_metric((name,), value)
    yield from (ended, errors, others)
