"""Writes the jobs of a graph as one message, and makes the handle of what was sent."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq.client.groups import GraphJob, JobGroup
from eventmq.client.handle import Job
from eventmq.client.templates import Template, Written
from eventmq.errors import NotAllowed
from eventmq.graph import refs_of
from eventmq.headers import format_headers
from eventmq.wire.graphs import encode_graph

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from eventmq.client.results import Results
    from eventmq.graph import Plan

    #: (template, args, kwargs, id) -> the job as the middlewares leave it.
    Write = Callable[[Template, Sequence[Any], Mapping[str, Any], str], Written]

__all__ = ["Part", "empty_handle", "make_handle", "write_graph"]


class Part(NamedTuple):
    """One job of a graph, before it is written; ``flags`` go into its header ``graph``."""

    template: Template
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    flags: str


def write_graph(
    parts: Sequence[Part],
    plan: Plan,
    ids: Sequence[str],
    write: Write | None,
) -> Written:
    """Return the message of a graph.

    Args:
        parts: Its jobs by place.
        plan: Which waits for which.
        ids: Of the jobs.
        write: Writes a job, with the middlewares around it; None where there are none.

    Raises:
        NotAllowed: A job is unique, or has no guarantee.
        SerializationError: Arguments cannot be encoded.
    """
    places: dict[tuple[str, str], int] = {}
    rows: list[tuple[str, int, bytes]] = []
    for written in _written(parts, ids, write):
        place = places.setdefault((written.queue, written.headers), len(places))
        rows.append((written.id, place, written.body))
    return Written(ids[0], "", f"nodes:{len(rows)}", encode_graph(list(places), rows, plan))


def _written(
    parts: Sequence[Part],
    ids: Sequence[str],
    write: Write | None,
) -> Iterator[Written]:
    marked: dict[tuple[int, str], Template] = {}

    def key(pair: tuple[str, Part]) -> tuple[int, str, bool]:
        return id(pair[1].template), pair[1].flags, bool(pair[1].kwargs)

    for (number, flags, _), some in groupby(zip(ids, parts, strict=True), key):
        run = list(some)
        template = marked.get((number, flags))
        if template is None:
            template = marked[number, flags] = _marked(run[0][1].template, flags)
        if write is None and not run[0][1].kwargs:
            calls = [part.args for _, part in run]
            for job_id, text, body in template.bodies([i for i, _ in run], calls, {}):
                yield Written(job_id, template.queue, text, body)
        else:
            for job_id, part in run:
                one = write or _plainly
                yield one(template, part.args, part.kwargs, job_id)


def _plainly(
    template: Template, args: Sequence[Any], kwargs: Mapping[str, Any], job_id: str
) -> Written:
    return template.write(job_id, args, kwargs)


def _marked(template: Template, flags: str) -> Template:
    """Return a template for jobs of a graph."""
    headers = template.headers
    if template.key is not None or headers.guarantee is False:
        what = "a unique key" if template.key is not None else "guarantee=False"
        msg = f"task {headers.task!r} has {what}, which jobs of a graph cannot have"
        raise NotAllowed(f"{msg}: submit it by itself, or from within a task")
    headers = replace(headers, graph=flags)
    return replace(template, headers=headers, text=format_headers(headers))


def empty_handle(tree: Any) -> JobGroup:
    """Return the handle of what has no job."""
    return JobGroup(tree, [])


def make_handle(
    sent: Job[Any], ids: Sequence[str], tree: Any, results: Results
) -> GraphJob[Any] | JobGroup:
    """Return the handle of a graph.

    Args:
        sent: What the message was sent as; it has the id of the graph.
        ids: By place.
        tree: What the result is.
        results: For the handles.
    """
    origin = sent.origin
    if not isinstance(tree, list):
        return GraphJob(ids[tree], results, origin, sent.id)
    jobs: list[Job[Any]] = [Job(ids[place], results, origin) for place in refs_of(tree)]
    return JobGroup(tree, jobs, GraphJob(sent.id, results, origin, sent.id), results)
