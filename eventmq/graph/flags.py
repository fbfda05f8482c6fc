"""What the header ``graph`` of a job says: letters, the same for all jobs of a kind.

It does not name the graph, so that jobs of one task share their header text.
"""

from __future__ import annotations

from functools import lru_cache

from eventmq.headers import parse_headers

__all__ = ["COLLECTED", "FEEDS", "MARK", "PAGED", "TAKES", "flags_of", "paged"]

#: It gets what ran before it as first argument.
TAKES = "i"

#: Others get its result, which is kept for them whatever the job says.
FEEDS = "o"

#: What waits for it goes on without it if it does not succeed.
COLLECTED = "c"

#: Of every job of a graph.
MARK = "n"

#: Written by the store: what it takes was too much for its body, which has ids instead.
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
