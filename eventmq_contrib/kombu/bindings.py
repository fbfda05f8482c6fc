"""The bindings of queues to exchanges, which the broker keeps for all processes."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from eventmq_contrib.kombu.records import Records

if TYPE_CHECKING:
    from eventmq import EventMQ

    #: Routing key, regular expression of a topic exchange, and queue.
    Binding = tuple[str, str | None, str]

__all__ = ["Bindings"]

#: Queue of the records.
QUEUE = "celery.bindings"

#: Seconds after which a change by another process has an effect here.
READ_EVERY = 2.0


class Bindings:
    """The tables of exchanges: records of what was bound and unbound.

    Args:
        app: The app.
    """

    def __init__(self, app: EventMQ) -> None:
        self._records = Records(app, QUEUE)
        #: Exchange -> when its table was read, and the table.
        self._tables: dict[str, tuple[float, list[Binding]]] = {}

    def table(self, exchange: str, *, since: float = READ_EVERY) -> list[Binding]:
        """Return the bindings of an exchange as they were up to ``since`` seconds ago."""
        read_at, table = self._tables.get(exchange, (float("-inf"), []))
        now = time.monotonic()
        if now - read_at >= since:
            found: dict[Binding, bool] = {}
            for data in self._records.appended(_key(exchange)).values():
                bound, *binding = json.loads(data)
                found[tuple(binding)] = bound
            table = [binding for binding, bound in found.items() if bound]
            self._tables[exchange] = now, table
        return table

    def set(self, exchange: str, binding: Binding, *, bound: bool) -> None:
        """Bind a queue, or unbind it; does nothing if that is so already."""
        if (binding in self.table(exchange, since=0.0)) != bound:
            data = json.dumps([bound, *binding]).encode()
            self._records.append(_key(exchange), data, None)
            del self._tables[exchange]


def _key(exchange: str) -> str:
    return f"kombu-exchange-{exchange}"
