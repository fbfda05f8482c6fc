"""Listing calls: ``jobs failed failures count``, each a page of a bounded search.

The store is searched beside the commits where it can be (`eventmq.broker.reading`); what runs, and
what is only in memory, is added here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eventmq.broker.operations import failed_filter
from eventmq.errors import ProtocolError
from eventmq.headers import parse_headers
from eventmq.job import JobState
from eventmq.store.reads import CountJobs, GroupFailures, JobPage, JobRow, ListFailed, ListJobs
from eventmq.store.writes import subqueue_of
from eventmq.wire.commands import read_limit, read_text, read_time

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from eventmq.broker.calls import Calls
    from eventmq.broker.peers import Peer
    from eventmq.broker.state import State
    from eventmq.job import JobRecord
    from eventmq.store.reads import FailureGroup
    from eventmq.store.writes import Operation

__all__ = ["ListingCalls"]

#: Running jobs that one page examines.
_MAX_RUNNING = 5000


class ListingCalls:
    """Answers the calls that search for jobs.

    Args:
        state: The memory of the broker.
        calls: Shows a job.
        read_operation: Returns the filters of a bulk operation.
    """

    def __init__(
        self,
        state: State,
        calls: Calls,
        read_operation: Callable[[Mapping[str, Any]], Operation],
    ) -> None:
        self.state = state
        self.calls = calls
        self._read_operation = read_operation
        state.calls |= {
            "jobs": self._jobs,
            "failed": self._failed,
            "failures": self._failures,
            "count": self._count,
        }

    def _read(
        self, peer: Peer, call: str, query: Any, answer: Callable[[Any], Mapping[str, Any]]
    ) -> None:
        """Answer a call with a read; ``answer`` returns its result for the peer."""
        self.state.read(
            query,
            lambda result: self.state.answer(peer, call, answer(result)),
            lambda reason: self.state.error(peer, call, "not-read", reason),
        )

    def _page(self, name: str, page: JobPage, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        at = page.searched_to
        return {
            name: rows, "cursor": page.cursor, "complete": not page.cursor,
            "searched_to": self.state.keeper.wall_of(at) if at else 0.0, "examined": page.examined,
        }  # fmt: skip

    # Jobs

    def _jobs(self, peer: Peer, call: str, arguments: Mapping[str, Any]) -> None:
        state, query = self.state, self._query(arguments)

        def answer(page: JobPage) -> dict[str, Any]:
            rows, cursor = state.transient.merge(query, page.rows, page.cursor, state.now)
            maps = [self.calls.row(row) for row in rows]
            if query.state is not None:
                maps = [row for row in maps if row["state"] == query.state.value]
            return self._page("jobs", page._replace(cursor=cursor), maps)

        if query.state is JobState.RUNNING:
            state.answer(peer, call, answer(self._running(query)))
        else:
            self._read(peer, call, query, answer)

    def _query(self, arguments: Mapping[str, Any]) -> ListJobs:
        name = read_text(arguments, "state")
        try:
            job_state = JobState(name) if name else None
        except ValueError:
            states = ", ".join(JobState)
            raise ProtocolError(
                f"state is one of {states}, not {name[:40]!r}", code="bad-arguments"
            ) from None
        ahead = self.state.keeper.ahead
        since, until = read_time(arguments, "since"), read_time(arguments, "until")
        return ListJobs(
            job_state, read_text(arguments, "queue") or None, read_text(arguments, "task") or None,
            read_text(arguments, "cursor"), read_limit(arguments),
            read_text(arguments, "key") or None,
            since - ahead if since else 0.0, until - ahead if until else 0.0,
        )  # fmt: skip

    def _running(self, query: ListJobs) -> JobPage:
        """List running jobs of the store from memory, the largest id first."""
        state, cursor = self.state, query.cursor
        jobs, others = state.jobs, state.transient.jobs
        known = (i for i in state.running if i in jobs and i not in others)
        ids = sorted((i for i in known if not cursor or i < cursor), reverse=True)
        rows: list[JobRow] = []
        searched_to, examined = 0.0, 0
        for examined, job_id in enumerate(ids, 1):
            job = jobs[job_id]
            searched_to = job.created
            if _matches(job, query):
                rows.append(JobRow(job))
            if len(rows) >= query.limit or examined >= _MAX_RUNNING:
                return JobPage(rows, job_id, searched_to, examined)
        return JobPage(rows, "", searched_to, examined)

    # Failed jobs

    def _failed(self, peer: Peer, call: str, arguments: Mapping[str, Any]) -> None:
        filters = failed_filter(arguments, self.state.keeper.ahead)
        query = ListFailed(
            filters, read_text(arguments, "cursor"), read_limit(arguments),
            read_text(arguments, "text"),
        )  # fmt: skip

        def answer(page: JobPage) -> dict[str, Any]:
            return self._page("failed", page, [self.calls.row(row) for row in page.rows])

        self._read(peer, call, query, answer)

    def _failures(self, peer: Peer, call: str, arguments: Mapping[str, Any]) -> None:
        filters = failed_filter(arguments, self.state.keeper.ahead)
        wall_of = self.state.keeper.wall_of

        def answer(result: tuple[list[FailureGroup], str, float]) -> dict[str, Any]:
            groups, cursor, at = result
            maps = [
                {
                    "task": group.task, "error": group.error, "count": group.size,
                    "queues": group.queues, "first": wall_of(group.first),
                    "last": wall_of(group.last), "sample": group.sample, "result": group.result,
                }
                for group in groups
            ]  # fmt: skip
            searched_to = wall_of(at) if at else 0.0
            return {
                "groups": maps, "cursor": cursor, "complete": not cursor,
                "searched_to": searched_to,
            }  # fmt: skip

        self._read(peer, call, GroupFailures(filters, read_text(arguments, "cursor")), answer)

    # Counts

    def _count(self, peer: Peer, call: str, arguments: Mapping[str, Any]) -> None:
        operation = self._read_operation(arguments)
        count = self._known(operation)
        if count is not None:
            self.state.answer(peer, call, {"count": count, "complete": True})
            return
        excluded = frozenset() if operation.running else self.state.leased_numbers()
        self._read(
            peer, call, CountJobs(operation, excluded),
            lambda result: {"count": result[0], "complete": result[1]},
        )  # fmt: skip

    def _known(self, operation: Operation) -> int | None:
        """Return the number of jobs that match, None if it is not kept as a count."""
        filters = operation.task, operation.error, operation.since, operation.until
        if any(filters) or operation.state is not None:
            return None
        queues = self.state.queues
        chosen = [queues[operation.queue]] if operation.queue else list(queues.values())
        if operation.action != "cancel":
            return sum(queue.counts.failed for queue in chosen)
        counts = [queue.counts for queue in chosen]
        unfinished = sum(each.queued + each.delayed + each.blocked for each in counts)
        return unfinished - (0 if operation.running else sum(queue.running for queue in chosen))


def _matches(job: JobRecord, query: ListJobs) -> bool:
    """Return whether the filters other than the state match a running job."""
    return (
        (query.queue is None or job.queue == query.queue)
        and (query.task is None or parse_headers(job.headers).task == query.task)
        and (query.key is None or subqueue_of(job.headers).key == query.key)
        and (not query.since or job.created >= query.since)
        and (not query.until or job.created < query.until)
    )
