"""Flags in the header ``graph`` of a job: letters.

They do not name the graph, so that jobs of one task share their header text.
"""

from __future__ import annotations

from functools import lru_cache

from eventmq.headers import parse_headers

__all__ = ["COLLECTED", "FEEDS", "MARK", "PAGED", "TAKES", "flags_of", "paged"]

#: The job gets the results of its join as first argument.
TAKES = "i"

#: Other jobs get its result, which is kept for them whatever its options.
FEEDS = "o"

#: If it does not succeed, the jobs that wait for it go on without its result.
COLLECTED = "c"

#: Every job of a graph has it.
MARK = "n"

#: Written by the store: its arguments were too long for its body, which has ids instead.
PAGED = "p"


@lru_cache(maxsize=4096)
def flags_of(headers: str) -> str:
    """Return the letters of a header text, "" for a job of no graph."""
    return parse_headers(headers).graph if "graph:" in headers else ""


def paged(headers: str) -> str:
    """Return the header text of a job of a graph with the letter `PAGED`."""
    if PAGED in flags_of(headers):
        return headers
    items = headers.split(",")
    return ",".join(
        f"{item.rstrip()}{PAGED}" if item.lstrip().startswith("graph:") else item for item in items
    )
