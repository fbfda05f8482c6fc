"""What the header ``graph`` of a job says: letters, the same for all jobs of a kind.

It does not name the graph, so that jobs of one task share their header text.
"""

from __future__ import annotations

from functools import lru_cache

from eventmq.headers import parse_headers

__all__ = ["COLLECTED", "FEEDS", "MARK", "TAKES", "flags_of"]

#: It gets what ran before it as first argument.
TAKES = "i"

#: Others get its result, which is kept for them whatever the job says.
FEEDS = "o"

#: What waits for it goes on without it if it does not succeed.
COLLECTED = "c"

#: Of every job of a graph.
MARK = "n"


@lru_cache(maxsize=4096)
def flags_of(headers: str) -> str:
    """Return the letters of a header text, "" for a job of no graph."""
    return parse_headers(headers).graph if "graph:" in headers else ""
