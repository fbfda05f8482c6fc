"""What a stream says of itself, batch by batch: for ``eventmq spark stream --json``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["Batches"]

#: The operator of Spark that keeps the cells.
_CELLS = "stateStoreSave"

#: What is summed up at the end.
_SUMMED = ("rows", "cells", "late")


class Batches:
    """Turns the progress of a query of Spark into flat objects, each batch once."""

    def __init__(self) -> None:
        self._last = -1
        self._batches = 0
        self._sums = dict.fromkeys(_SUMMED, 0)

    def new(self, progress: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the batches that were not told yet.

        Each has ``batch`` (its number), ``rows`` (events that were read), ``cells`` (rows of the
        table ``stats`` that changed), ``late`` (cells of events that came after the watermark
        and were left out), ``watermark`` (ISO time; events before it are late) and ``seconds``.

        Args:
            progress: The last ones, as ``StreamingQuery.recentProgress`` has them; a query that
                finds nothing repeats the last number.
        """
        for each in progress:
            if each["batchId"] > self._last and "addBatch" in each["durationMs"]:
                self._last = each["batchId"]
                told = _told(each)
                self._batches += 1
                for name in _SUMMED:
                    self._sums[name] += told[name]
                yield told

    def total(self) -> dict[str, Any]:
        """Return the sums of all that were told, and the number of these ``batches``."""
        return {"what": "total", "batches": self._batches, **self._sums}


def _told(progress: Mapping[str, Any]) -> dict[str, Any]:
    states = progress["stateOperators"]
    cells = [each for each in states if each["operatorName"] == _CELLS]
    return {
        "what": "batch",
        "batch": progress["batchId"],
        "rows": progress["numInputRows"],
        "cells": sum(state["numRowsUpdated"] for state in cells),
        "late": sum(state["numRowsDroppedByWatermark"] for state in states),
        "watermark": progress["eventTime"].get("watermark"),
        "seconds": progress["durationMs"]["triggerExecution"] / 1000,
    }
