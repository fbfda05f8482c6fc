"""Live figures: the cells of pages, and the streams of server-sent events that update them.

A stream begins with all cells and then has those that changed, once a second. A page shows the same
cells when it is loaded. The number of streams is bounded; a browser that gets none polls.
"""

from __future__ import annotations

import asyncio
import json
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from eventmq_contrib.dashboard.data import Brokers, Snapshot, attention
from eventmq_contrib.dashboard.shapes import sparkline
from eventmq_contrib.figures import clock, figures_of, length_text, number_text, shown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

__all__ = ["MAX_STREAMS", "Streams", "cells_of"]

#: Number of streams, each one connection and some 20 KiB.
MAX_STREAMS: Final = 50

#: Seconds between two comments, which keep proxies from closing a stream.
COMMENT: Final = 15.0

#: Seconds after which a stream ends; its browser then opens another, as who is still allowed to.
MAX_AGE: Final = 3600.0

#: Queues with live cells, and of these the busiest with live sparklines, which are the most of it.
MAX_QUEUES: Final = 200
MAX_SPARKLINES: Final = 50

#: Numbers of a queue that are live.
NUMBERS = ("waiting", "running", "delayed", "failed", "workers")


def cells_of(snapshot: Snapshot) -> dict[str, str]:
    """Return the live cells of a broker as text: key -> what a page shows.

    A page whose cell ``shape`` changes has to be loaded again: queues came or went, or what needs
    attention has changed. Keys with ``spark/`` are data of SVG's path.
    """
    shape, history = [*attention(snapshot)], snapshot.history
    cells = {"state": snapshot.state, "missing": ""}
    if snapshot.metrics and not snapshot.standby:
        queues = sorted(snapshot.queues, key=lambda row: row["name"])[:MAX_QUEUES]
        shape += [f"{row['name']}\0{row['paused']}" for row in queues]
        cells |= figures_of(snapshot.metrics, history)
        rates = {
            name: history.rate("ended", name) or 0.0 for name in ("", *(q["name"] for q in queues))
        }
        busiest = sorted(queues, key=lambda row: rates[row["name"]] + row["waiting"])
        drawn = {"", *(row["name"] for row in busiest[-MAX_SPARKLINES:])}
        for name, rate in rates.items():
            prefix = f"queue/{name}/" if name else ""
            cells[f"{prefix}rate"] = number_text(rate)
            if name in drawn:
                cells[f"spark/{prefix}rate"] = sparkline(history.rates("ended", name))
                cells[f"spark/{prefix}waiting"] = sparkline(history.values("waiting", name))
        for row in queues:
            prefix = f"queue/{row['name']}/"
            cells |= {f"{prefix}{name}": number_text(row[name]) for name in NUMBERS}
            cells[f"{prefix}waited"] = length_text(row["waited"])
    if snapshot.missing:
        since = f" What is shown is from {clock(snapshot.at)} UTC." if snapshot.at else ""
        cells["missing"] = f"The broker is missing: {snapshot.missing}{since}"
    cells["shape"] = sha256(json.dumps(shape).encode()).hexdigest()[:16]
    return {key: str(shown(text)) for key, text in cells.items()}


class Streams:
    """The streams of a dashboard.

    Args:
        brokers: The brokers.
    """

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self.open = 0
        self._closed = False
        #: Broker -> its last snapshot and the cells of that.
        self._cells: dict[str, tuple[Snapshot, dict[str, str]]] = {}

    def cells(self, name: str) -> dict[str, str]:
        """Return the cells of one broker; they are made once for each snapshot."""
        snapshot = self._brokers.brokers[name].snapshot
        known = self._cells.get(name)
        if known is None or known[0] is not snapshot:
            known = self._cells[name] = (snapshot, cells_of(snapshot))
        return known[1]

    def all_cells(self) -> dict[str, str]:
        """Return the cells of all brokers, with ``NAME:`` before their keys."""
        return {
            f"{name}:{key}": text
            for name in self._brokers.brokers
            for key, text in self.cells(name).items()
        }

    def close(self) -> None:
        """End all streams at their next news."""
        self._closed = True
        for listener in [*self._brokers.listeners]:
            listener()

    async def events(self) -> AsyncIterator[bytes]:
        """Yield the events of one stream until it is closed."""
        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def notify() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(news.set)

        self.open += 1
        self._brokers.listeners.add(notify)
        self._brokers.look()
        try:
            last = self.all_cells()
            yield _event("snapshot", last)
            commented = begun = loop.time()
            while not self._closed and loop.time() < begun + MAX_AGE:
                try:
                    await asyncio.wait_for(news.wait(), max(0.0, commented + COMMENT - loop.time()))
                except asyncio.TimeoutError:
                    yield b": still here\n\n"
                    commented = loop.time()
                    continue
                news.clear()
                before, last = last, self.all_cells()
                changed = {key: text for key, text in last.items() if before.get(key) != text}
                yield _event("change", changed)
        finally:
            self._brokers.listeners.discard(notify)
            self.open -= 1


def _event(name: str, data: Mapping[str, str]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()
