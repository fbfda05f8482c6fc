"""The app of the quickstart, for the containers in this folder: replace it by your own."""

from __future__ import annotations

from eventmq import EventMQ

app = EventMQ("shop")


@app.task(retries=3)
def total(prices: list[float], *, discount: float = 0.0) -> float:
    """Return what a basket costs."""
    return round(sum(prices) * (1 - discount), 2)
