"""Graphs on the client: their handles, and the encoding of their jobs as one message."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from eventmq import hints
from eventmq.client.handle import DEFAULT, Job
from eventmq.client.templates import EncodedJob, Template
from eventmq.client.waiting import Completed
from eventmq.errors import NotAllowed
from eventmq.graph import refs_of
from eventmq.headers import format_headers
from eventmq.wire.batches import encode_graph
from eventmq.wire.commands import MAX_ROWS
from eventmq.wire.outcomes import with_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from eventmq.client.client import Pending, Steps
    from eventmq.client.handle import Default, JobOrigin, ResultClient
    from eventmq.graph import Plan

    Write = Callable[[Template, Sequence[Any], Mapping[str, Any], str, Sequence[str]], EncodedJob]

__all__ = ["GraphJob", "GraphMember", "JobGroup", "empty_handle", "make_handle", "write_graph"]


T = TypeVar("T")


class GraphJob(Job[T]):
    """The job whose result is that of a whole graph; returned by ``chain(...).delay()``.

    Like any `Job`, except that `cancel` cancels the whole graph.

    Attributes:
        root: Id of the graph, which is that of its first job.
    """

    __slots__ = ("root",)

    def __init__(self, job_id: str, results: ResultClient, origin: JobOrigin, root: str) -> None:
        super().__init__(job_id, results, origin)
        self.root = root

    def cancel(self, reason: str = "") -> bool:
        """Cancel all jobs of the graph that have not ended; return whether there was one."""
        return self._cancelling(reason).wait()

    async def acancel(self, reason: str = "") -> bool:
        """Do the same as `cancel`, in a coroutine."""
        return await self._cancelling(reason)

    def _cancelling(self, reason: str) -> Pending[bool]:
        call = self._results.job_call(self, "cancel_graph", {"id": self.root, "reason": reason})
        return self._results.runner.ask(call, _any_cancelled)

    def graph(self) -> list[dict[str, Any]]:
        """Return all jobs of the graph, in the order in which they were encoded.

        Returns:
            For each job the fields of `Job.info`, without the attempts, and ``place input output
            handler``: see ``graph`` in the table of calls on the protocol page.

        Raises:
            JobNotFound: The broker does not know the graph, or has forgotten it.
            BrokerUnavailable: No answer within ``submit_timeout``.
        """
        return self._results.runner.run(self._listing()).wait()

    async def agraph(self) -> list[dict[str, Any]]:
        """Do the same as `graph`, in a coroutine."""
        return await self._results.runner.run(self._listing())

    def _listing(self) -> Steps[list[dict[str, Any]]]:
        rows: list[dict[str, Any]] = []
        while True:
            arguments = {"id": self.root, "first": len(rows), "limit": MAX_ROWS}
            call = self._results.job_call(self, "graph", arguments)
            page: dict[str, Any] = yield from self._results.runner.asking(call)
            rows += map(with_error, page["jobs"])
            if len(rows) >= page["size"] or not page["jobs"]:
                return rows


def _any_cancelled(answer: dict[str, Any]) -> bool:
    return bool(answer["count"] > 0)


class JobGroup:
    """Jobs that were submitted together; returned by ``group(...).delay()``.

    Iteration yields their handles in order, those of nested groups included.

    Attributes:
        id: Id of the graph; "" if it has no job.
        jobs: The handles.
    """

    __slots__ = ("_graph_job", "_results", "_tree", "id", "jobs")

    def __init__(
        self,
        tree: Any,
        jobs: list[Job[Any]],
        graph_job: GraphJob[Any] | None = None,
        results: ResultClient | None = None,
    ) -> None:
        self._tree = tree
        self._results = results
        self._graph_job = graph_job
        self.jobs = jobs
        self.id = graph_job.root if graph_job is not None else ""

    def __repr__(self) -> str:
        return f"<JobGroup {self.id} of {len(self.jobs)}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise `AttributeError`, with a hint for a name of Celery's API."""
            return hints.find_attribute(self, name, hints.GROUP)

    def __len__(self) -> int:
        return len(self.jobs)

    def __iter__(self) -> Iterator[Job[Any]]:
        return iter(self.jobs)

    def __getitem__(self, index: int) -> Job[Any]:
        return self.jobs[index]

    # Results

    def get(
        self, timeout: float | Default | None = DEFAULT, *, return_errors: bool = False
    ) -> list[Any]:
        """Wait for all jobs and return their results: a list in their order, nested as the groups.

        Args:
            timeout: Seconds for all of them together, as for `Job.get`.
            return_errors: Wait for all jobs, and return the exception that `Job.get` would raise in
                place of a result; otherwise it is raised as soon as a job does not succeed.

        Raises:
            ResultTimeout: The jobs did not end in time.
            JobError: As for `Job.get`.
        """
        if self._results is None:
            return _nested(self._tree, iter(()))
        return self._getting(self._results, timeout, return_errors=return_errors).wait()

    async def aget(
        self, timeout: float | Default | None = DEFAULT, *, return_errors: bool = False
    ) -> list[Any]:
        """Do the same as `get`, in a coroutine."""
        if self._results is None:
            return _nested(self._tree, iter(()))
        return await self._getting(self._results, timeout, return_errors=return_errors)

    def _getting(
        self, results: ResultClient, timeout: float | Default | None, *, return_errors: bool
    ) -> Pending[list[Any]]:
        def steps() -> Steps[list[Any]]:
            completed = Completed(self.jobs, results, timeout)
            try:
                while (job := (yield from completed.next())) is not None:
                    if not return_errors:
                        yield from results.getting(job, timeout)
            finally:
                completed.close()
            values: list[Any] = []
            for job in self.jobs:
                try:
                    values.append((yield from results.getting(job, timeout)))
                except Exception as error:
                    if not return_errors:
                        raise
                    values.append(error)
            return _nested(self._tree, iter(values))

        return results.runner.run(steps())

    def ready(self) -> bool:
        """Return whether all jobs have ended; raises what `Job.state` raises."""
        return all(job.ready() for job in self.jobs)

    def successful(self) -> bool:
        """Return whether all jobs have succeeded; raises what `Job.state` raises."""
        return all(job.successful() for job in self.jobs)

    # The graph

    def cancel(self, reason: str = "") -> bool:
        """Cancel all jobs of the graph that have not ended; return whether there was one."""
        return self._graph_job is not None and self._graph_job.cancel(reason)

    async def acancel(self, reason: str = "") -> bool:
        """Do the same as `cancel`, in a coroutine."""
        return self._graph_job is not None and await self._graph_job.acancel(reason)

    def graph(self) -> list[dict[str, Any]]:
        """Return all jobs of the graph; see `GraphJob.graph`."""
        return [] if self._graph_job is None else self._graph_job.graph()

    async def agraph(self) -> list[dict[str, Any]]:
        """Do the same as `graph`, in a coroutine."""
        return [] if self._graph_job is None else await self._graph_job.agraph()


def _nested(tree: list[Any], values: Iterator[Any]) -> list[Any]:
    """Return values in the shape of nested groups."""
    return [_nested(part, values) if isinstance(part, list) else next(values) for part in tree]


class GraphMember(NamedTuple):
    """One job of a graph, before it is encoded; ``flags`` go into its header ``graph``."""

    template: Template
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    flags: str


def write_graph(
    parts: Sequence[GraphMember],
    plan: Plan,
    ids: Sequence[str],
    write: Write | None,
) -> EncodedJob:
    """Return the message of a graph.

    Args:
        parts: Its jobs by node index.
        plan: Which jobs wait for which.
        ids: Their ids.
        write: Encodes a job within the middlewares; also gets the ids of the jobs that it waits
            for. None without middlewares.

    Raises:
        NotAllowed: A job is unique, or has no guarantee.
        SerializationError: Arguments cannot be encoded.
    """
    indexes: dict[tuple[str, str], int] = {}
    rows: list[tuple[str, int, bytes]] = []
    for encoded in _encoded(parts, ids, write, {} if write is None else _waits(plan, ids)):
        index = indexes.setdefault((encoded.queue, encoded.headers), len(indexes))
        rows.append((encoded.id, index, encoded.body))
    return EncodedJob(ids[0], "", f"nodes:{len(rows)}", encode_graph(list(indexes), rows, plan))


def _waits(plan: Plan, ids: Sequence[str]) -> dict[str, Sequence[str]]:
    """Return job -> ids of the jobs that it waits for, for the jobs that wait."""
    waits: dict[str, Sequence[str]] = {
        ids[node]: [ids[index] for index in refs_of(plan.joins[at])]
        for node, at in enumerate(plan.inputs) if at >= 0
    }  # fmt: skip
    return waits | {ids[node]: ids[first:end] for node, first, end in plan.handlers}


def _encoded(
    parts: Sequence[GraphMember],
    ids: Sequence[str],
    write: Write | None,
    waits: Mapping[str, Sequence[str]],
) -> Iterator[EncodedJob]:
    marked: dict[tuple[int, str], Template] = {}

    def key(pair: tuple[str, GraphMember]) -> tuple[int, str, bool]:
        return id(pair[1].template), pair[1].flags, bool(pair[1].kwargs)

    for (number, flags, _), some in groupby(zip(ids, parts, strict=True), key):
        run = list(some)
        template = marked.get((number, flags))
        if template is None:
            template = marked[number, flags] = _marked(run[0][1].template, flags)
        if write is None and not run[0][1].kwargs:
            calls = [part.args for _, part in run]
            for job_id, text, body in template.bodies([i for i, _ in run], calls, {}):
                yield EncodedJob(job_id, template.queue, text, body)
        else:
            for job_id, part in run:
                if write is None:
                    yield template.write(job_id, part.args, part.kwargs)
                else:
                    yield write(template, part.args, part.kwargs, job_id, waits.get(job_id, ()))


def _marked(template: Template, flags: str) -> Template:
    """Return a template for jobs of a graph."""
    headers = template.headers
    if template.key is not None or headers.guarantee is False:
        feature = "a unique key" if template.key is not None else "guarantee=False"
        raise NotAllowed(
            f"task {headers.task!r} has {feature}, which jobs of a graph cannot have: "
            "submit it by itself, or from within a task"
        )
    headers = replace(headers, graph=flags)
    return replace(template, headers=headers, text=format_headers(headers))


def empty_handle(tree: Any) -> JobGroup:
    """Return the handle of a graph without jobs."""
    return JobGroup(tree, [])


def make_handle(
    sent: Job[Any],
    parts: Sequence[GraphMember],
    ids: Sequence[str],
    tree: Any,
    results: ResultClient,
) -> GraphJob[Any] | JobGroup:
    """Return the handle of a graph.

    Args:
        sent: Handle of the message, which has the id of the graph.
        parts: Its jobs by node index.
        ids: Job ids by node index.
        tree: The shape of the result.
        results: Result client of the handles.
    """

    def origin(node: int) -> JobOrigin:
        plan = parts[node].template.results
        return sent.origin if plan is None else replace(sent.origin, results=plan)

    if not isinstance(tree, list):
        return GraphJob(ids[tree], results, origin(tree), sent.id)
    jobs: list[Job[Any]] = [Job(ids[node], results, origin(node)) for node in refs_of(tree)]
    return JobGroup(tree, jobs, GraphJob(sent.id, results, sent.origin, sent.id), results)
