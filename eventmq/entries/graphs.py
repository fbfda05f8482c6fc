"""The entries about graphs: jobs that wait for others (`eventmq.graph.Plan`).

When jobs end, what waits for them changes in the same commit: that is the store's, whatever entry
ended them. `Follow` tells the broker about it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq.entries.changes import Finished
    from eventmq.entries.reads import Found
    from eventmq.graph import Plan
    from eventmq.job import Job
    from eventmq.operations import Stamp

__all__ = [
    "AdmitGraph",
    "CancelGraph",
    "EndDeadlines",
    "FindKin",
    "Follow",
    "Followed",
    "GraphPage",
    "GraphRow",
    "InputsPage",
    "Kin",
    "ListGraph",
    "ReadInputs",
]


class AdmitGraph(NamedTuple):
    """Store the jobs of a graph, all or none. Verdict: None, or the Verdict for all of them.

    Their numbers are consecutive, by place; those that wait are blocked. The first job's id is
    that of the graph. ``same_id``: it was admitted before; ``full``; ``taken``: a job has an id
    of it already, which is the detail.
    """

    jobs: Sequence[Job]
    plan: Plan


class Follow(NamedTuple):
    """Do what the ends in this commit cause in graphs. Verdict: Followed.

    A barrier that has counted down makes what waits at it ready: its body becomes MessagePack
    ``[body, input]``, where the job takes one; the input is MessagePack, ``[id, content type,
    result]`` for a result and a list for a list. A job that did not succeed cancels what waits
    for it, and so on, unless its header ``graph`` has the letter of `eventmq.graph.COLLECTED`. It
    also makes ready the handlers of what it is a part of, with ``[id, state, content type,
    result]``. Handlers that nothing called for are cancelled when all else has ended.

    Where the results are too long for a body, the input has the id of its job for each of them,
    and the header ``graph`` gets the letter of `eventmq.graph.PAGED`. They are kept for
    `ReadInputs` until the job has ended, and where it failed as long as it is kept, since it may
    be retried.

    A store does the same at the end of a commit without this entry, as of ``at`` 0.
    """

    #: Store time; ready jobs rank by it. A step of priority is worth ``step`` seconds of waiting.
    at: float
    step: float = 0.0
    #: Seconds that the outcomes of cancelled jobs are kept.
    ttl: float = 0.0
    #: Longest body. A job that would get a longer one gets ids.
    max_body: int = 16 * 1024 * 1024
    #: Bytes that all jobs of one barrier may get together in their bodies; if it is more all of
    #: them get ids.
    max_copies: int = 64 * 1024 * 1024
    #: Bytes of results that one job may take; it fails if it is more.
    max_input_bytes: int = 256 * 1024 * 1024
    #: Bytes of bodies that the verdict may have.
    max_bytes: int = 4 * 1024 * 1024
    #: Jobs that become ready or are cancelled in one commit, since others ended. What is more goes
    #: on with the next commit that has this entry.
    limit: int = 1000
    #: Seconds by which wall time is ahead of store time.
    ahead: float = 0.0


class Followed(NamedTuple):
    """What became of jobs that waited for others."""

    #: Queued or delayed now.
    ready: list[Job]
    #: The same, without their bodies.
    more: list[Job]
    #: Ended now.
    ended: list[Finished]
    #: More is to be done.
    left: bool = False


class CancelGraph(NamedTuple):
    """Cancel what has not ended of the graph of a job, the last jobs first.

    Verdict: (id of the graph or "", Acted). Where it has ``limit`` jobs there may be more.
    """

    id: str
    stamp: Stamp
    limit: int = 1000


class EndDeadlines(NamedTuple):
    """Cancel what is left of parts past their deadline, so many jobs at most.

    Verdict: (Acted, next deadline or None); that has passed where there is more to cancel.
    """

    now: float
    stamp: Stamp
    limit: int = 1000


class Kin(NamedTuple):
    """Where a job stands in its graph: ids of the graph and of the first job that it waits for.

    Of what is there for failures the second is the first job whose failure it is for; "" for none.
    """

    root: str
    parent: str


class FindKin(NamedTuple):
    """Look up where a job stands. Verdict: Kin, or None for a job of no known graph."""

    id: str


class GraphRow(NamedTuple):
    """A job of a graph. ``input`` and ``output`` are numbers of barriers, 0 for none."""

    place: int
    input: int
    output: int
    #: Whether it is there for failures.
    handler: bool
    found: Found


class GraphPage(NamedTuple):
    """Some jobs of a graph by place; ``size`` is the number of all."""

    root: str
    size: int
    rows: list[GraphRow]


class ListGraph(NamedTuple):
    """Read jobs of the graph of a job, from a place on. Verdict: GraphPage, or None."""

    id: str
    first: int
    limit: int


class ReadInputs(NamedTuple):
    """Read results that a job takes and whose ids its body has, in pages.

    Verdict: InputsPage, or None where nothing is kept for such a job.
    """

    id: str
    #: 0, then `InputsPage.next` of the page before.
    cursor: int
    #: Of the results of a page, beside its last one.
    max_bytes: int


class InputsPage(NamedTuple):
    """Some results: (id, content type, bytes), by place; ``next`` is 0 after the last."""

    rows: list[tuple[str, str, bytes]]
    next: int
