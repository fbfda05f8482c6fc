"""The sample report agrees with itself: its service levels and its tasks are of the same starts."""

from __future__ import annotations

import re
from html import unescape

from tests.support.page_files import ROOT

PAGE = (ROOT / "docs" / "_static" / "report.html").read_text(encoding="utf-8")

#: Share of starts that are at most as late as the percentile of a task's waiting times.
SHARES = {"p50": 50.0, "p95": 95.0, "p99": 99.0}
UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}


def section(title: str) -> list[list[str]]:
    """Return the cells of the rows of a table."""
    html = PAGE[PAGE.index(f"<h2>{title}</h2>") :]
    html = html[: html.index("</table>")]
    return [
        [
            unescape(re.sub(r"<[^>]+>", "", cell))
            for cell in re.findall(r"<td.*?</td>", row, re.DOTALL)
        ]
        for row in html.split("<tr>")[2:]
    ]


def seconds(text: str) -> float:
    number, unit = text.split()
    return float(number) * UNITS[unit]


def test_what_started_in_time_is_what_the_percentiles_say() -> None:
    """A queue with a single task has the starts of that task."""
    tasks = section("Tasks")
    compared = 0
    for queue, objective, reached, starts, *_ in section("Service levels"):
        own = [row for row in tasks if row[1] == queue]
        if len(own) > 1:
            continue
        [(_, _, runs, _, _, *waits)] = own
        assert runs == starts
        within = float(re.findall(r"within ([\d.]+) s", objective)[0])
        share = float(reached.removesuffix(" %"))
        for percentile, wait in zip(SHARES.values(), waits, strict=False):
            assert (seconds(wait) <= within) == (share >= percentile)
        compared += 1
    assert compared
