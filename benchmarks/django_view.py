"""The row about Django: from a view that enqueues a task in a transaction to the task's start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING
from unittest.mock import patch

from benchmarks.system import ROOT, running

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.figures import Figures

__all__ = ["GOALS", "ROWS"]

#: Requests, one after the other.
_REQUESTS = 500


def django_view(figures: Figures) -> None:
    """Milliseconds from ``enqueue()`` in a view to the start of the task, and of the request.

    The view writes a row to SQLite; the task is sent after that commit, and the broker answers
    after a commit of its own. The request passes through Django's handler without a server.
    """
    requests = figures.sizes[0] if figures.sizes else _REQUESTS
    with running() as system:
        variables = {
            "DJANGO_SETTINGS_MODULE": "benchmarks.django_project.settings",
            "BENCHMARK_DATABASE": str(system.folder / "orders.sqlite3"),
            "BENCHMARK_BROKER": system.address,
        }
        with patch.dict(os.environ, variables):
            system.app = "eventmq_contrib.django.worker:default"
            system.start_worker(2)
            command = [sys.executable, "-m", "benchmarks.django_project.visits", str(requests)]
            text = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    starts, times = zip(*json.loads(text), strict=True)
    figures.more |= {"requests": requests}
    figures.add(
        p50_ms=_quantile(starts, 0.5), p99_ms=_quantile(starts, 0.99),
        request_p50_ms=_quantile(times, 0.5),
    )  # fmt: skip


def _quantile(values: Sequence[float], part: float) -> float:
    return sorted(values)[int(len(values) * part)]


ROWS = {"django": django_view}

#: Figure -> goal.
GOALS: dict[str, dict[str, str]] = {"django": {"p50_ms": "< 5"}}
