"""The handles of graphs: of the job that ends one, and of a group of jobs whose results are a list.

Both know the whole: to cancel it, and to look at all of its jobs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from eventmq.client.handle import DEFAULT, Job
from eventmq.client.outcomes import with_error
from eventmq.client.waiting import Completed
from eventmq.wire.calls import MAX_ROWS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eventmq.client.handle import Default, Origin
    from eventmq.client.results import Results

__all__ = ["GraphJob", "JobGroup"]

T = TypeVar("T")


class GraphJob(Job[T]):
    """The job whose result is that of a whole graph: what ``chain(...).delay()`` returns.

    As any `Job`; but `cancel` ends the whole graph.

    Attributes:
        root: Id of the graph, which is that of its first job.
    """

    __slots__ = ("root",)

    def __init__(self, job_id: str, results: Results, origin: Origin, root: str) -> None:
        super().__init__(job_id, results, origin)
        self.root = root

    def cancel(self, reason: str = "") -> bool:
        """Cancel all jobs of the graph that have not ended; say whether any was."""
        question = self._results.question(self, "cancel_graph", {"id": self.root, "reason": reason})
        return _count(self._results.runner.ask(question))

    async def acancel(self, reason: str = "") -> bool:
        """Do the same as `cancel` in a coroutine."""
        question = self._results.question(self, "cancel_graph", {"id": self.root, "reason": reason})
        return _count(await self._results.runner.aask(question))

    def graph(self) -> list[dict[str, Any]]:
        """Return all jobs of the graph, in the order in which they were written.

        Returns:
            For each what `Job.info` has, without the attempts, and ``place input output handler``:
            see ``graph`` in the table of calls on the protocol page.

        Raises:
            JobNotFound: The broker does not know it, or not any more.
            BrokerUnavailable: No answer within ``submit_timeout``.
        """
        rows: list[dict[str, Any]] = []
        while True:
            page = self._results.runner.ask(self._look(len(rows)))
            rows += map(with_error, page["jobs"])
            if len(rows) >= page["size"] or not page["jobs"]:
                return rows

    async def agraph(self) -> list[dict[str, Any]]:
        """Do the same as `graph` in a coroutine."""
        rows: list[dict[str, Any]] = []
        while True:
            page = await self._results.runner.aask(self._look(len(rows)))
            rows += map(with_error, page["jobs"])
            if len(rows) >= page["size"] or not page["jobs"]:
                return rows

    def _look(self, first: int) -> Any:
        arguments = {"id": self.root, "first": first, "limit": MAX_ROWS}
        return self._results.question(self, "graph", arguments)


def _count(answer: dict[str, Any]) -> bool:
    return bool(answer["count"] > 0)


class JobGroup:
    """Jobs that were submitted together: what ``group(...).delay()`` returns.

    Iterating yields their handles in order, those of groups in groups included.

    Attributes:
        id: Of the graph; "" where there is no job.
        jobs: The handles.
    """

    __slots__ = ("_results", "_tree", "_whole", "id", "jobs")

    def __init__(
        self,
        tree: Any,
        jobs: list[Job[Any]],
        whole: GraphJob[Any] | None = None,
        results: Results | None = None,
    ) -> None:
        self._tree = tree
        self._results = results
        self._whole = whole
        self.jobs = jobs
        self.id = whole.root if whole is not None else ""

    def __repr__(self) -> str:
        return f"<JobGroup {self.id} of {len(self.jobs)}>"

    def __len__(self) -> int:
        return len(self.jobs)

    def __iter__(self) -> Iterator[Job[Any]]:
        return iter(self.jobs)

    def __getitem__(self, place: int) -> Job[Any]:
        return self.jobs[place]

    # Results

    def get(
        self, timeout: float | Default | None = DEFAULT, *, return_errors: bool = False
    ) -> list[Any]:
        """Wait for all jobs and return their results: a list in their order, nested as the groups.

        Args:
            timeout: Seconds for all of them together, as for `Job.get`.
            return_errors: Put what `Job.get` would raise in the place of a result, and wait for
                all jobs; else it is raised as soon as a job does not succeed.

        Raises:
            ResultTimeout: They had not ended in time.
            JobError: As `Job.get`.
        """
        for job in self._completed(timeout):
            if not return_errors:
                job.get(timeout)
        return self._read(return_errors=return_errors)

    async def aget(
        self, timeout: float | Default | None = DEFAULT, *, return_errors: bool = False
    ) -> list[Any]:
        """Do the same as `get` in a coroutine."""
        if self.jobs:
            async for job in self._completed(timeout):
                if not return_errors:
                    await job.aget(timeout)
        return self._read(return_errors=return_errors)

    def _completed(self, timeout: float | Default | None) -> Any:
        return () if self._results is None else Completed(self.jobs, self._results, timeout)

    def _read(self, *, return_errors: bool) -> list[Any]:
        rest = iter(self.jobs)

        def value(part: Any) -> Any:
            if isinstance(part, list):
                return list(map(value, part))
            try:
                return next(rest).get()
            except Exception as error:
                if return_errors:
                    return error
                raise

        values: list[Any] = value(self._tree)
        return values

    def ready(self) -> bool:
        """Return whether all jobs have ended; raises what `Job.state` raises."""
        return all(job.ready() for job in self.jobs)

    def successful(self) -> bool:
        """Return whether all jobs have ended by success; raises what `Job.state` raises."""
        return all(job.successful() for job in self.jobs)

    # The whole

    def cancel(self, reason: str = "") -> bool:
        """Cancel all jobs of the graph that have not ended; say whether any was."""
        return self._whole is not None and self._whole.cancel(reason)

    async def acancel(self, reason: str = "") -> bool:
        """Do the same as `cancel` in a coroutine."""
        return self._whole is not None and await self._whole.acancel(reason)

    def graph(self) -> list[dict[str, Any]]:
        """Return all jobs of the graph; see `GraphJob.graph`."""
        return [] if self._whole is None else self._whole.graph()

    async def agraph(self) -> list[dict[str, Any]]:
        """Do the same as `graph` in a coroutine."""
        return [] if self._whole is None else await self._whole.agraph()
