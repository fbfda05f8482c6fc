"""Unique keys: an index over the records of jobs, so that no key outlives its job.

The tables ``jobs``, ``failed`` and those of the outcome periods have a column ``unique_key``, which
is NULL for most jobs. `Writes` calls this module when a job with a key is admitted or ends.
"""

from __future__ import annotations

from collections import Counter
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from eventmq.engine.rows import INSERT_ROW, JOB_ROW
from eventmq.engine.tables import period_name
from eventmq.job import HELD, STATE_CODES, TERMINAL, JobState
from eventmq.store.writes import Finished, UniqueRule, WriteResult, unique_rule
from eventmq.wire.results import ERROR_TYPE, RemoteError, encode_error

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

    from eventmq.engine.rows import Tables
    from eventmq.job import JobRecord
    from eventmq.timekeeping import Timekeeper

__all__ = ["UniqueKeys", "key_of"]

#: Final states that the period of a key counts; a cancelled or expired job never ran.
_RAN = (STATE_CODES[JobState.SUCCEEDED], STATE_CODES[JobState.FAILED])

_INSERT = (*INSERT_ROW, "unique_key", "subqueue")

#: Held jobs that one scan reads.
_SLICE = 1000


class UniqueKeys:
    """Admits, refuses or replaces jobs that have a unique key.

    Args:
        tables: The tables of the store.
        store: Stores outcomes and counts them.
        retention: Seconds for which the outcome of a replaced job is kept.
        keeper: Computes the age of jobs.
    """

    def __init__(
        self,
        tables: Tables,
        store: Callable[[Sequence[Finished]], None],
        retention: float,
        keeper: Timekeeper,
    ) -> None:
        self.tables = tables
        self._keeper = keeper
        self._store = store
        self._keep = retention

    # Admission

    def admit(
        self, jobs: Mapping[int, JobRecord], running: Container[str]
    ) -> dict[int, WriteResult]:
        """Insert jobs with a key, except those whose id or key is taken.

        Args:
            jobs: Position in the write -> job; none of them ended within the dedupe window.
            running: Ids of leased jobs.

        Returns:
            Position -> result, for the jobs that were refused or that replaced others.
        """
        rounds: list[dict[int, JobRecord]] = []  # a round has no id and no key twice
        ids: dict[str, int] = {}
        keys: dict[str, int] = {}
        for position, job in jobs.items():
            key = _rule_of(job).key
            number = max(ids.get(job.id, 0), keys.get(key, 0))
            ids[job.id] = keys[key] = number + 1
            if number == len(rounds):
                rounds.append({})
            rounds[number][position] = job
        results: dict[int, WriteResult] = {}
        for each in rounds:
            results |= self._admit(each, running)
        return results

    def _admit(
        self, jobs: Mapping[int, JobRecord], running: Container[str]
    ) -> dict[int, WriteResult]:
        store = self.tables.store
        rules = {position: _rule_of(job) for position, job in jobs.items()}
        ids = [job.id for job in jobs.values()]
        states = dict(store.get("jobs", ("id", "state"), ids, by="jobs_id"))
        ended = self._ended((rules[position], job.created) for position, job in jobs.items())
        holders = self._holders([rule.key for rule in rules.values()])
        results: dict[int, WriteResult] = {}
        replaced: list[Finished] = []
        rows: list[tuple[Any, ...]] = []
        for position, job in jobs.items():
            rule = rules[position]
            counted = [
                holder for holder in holders.get(rule.key, ())
                if _state(holder, running) in rule.states
            ]  # fmt: skip
            if job.id in states:
                state = list(JobState)[states[job.id]]
                results[position] = WriteResult("same_id", state.value)
            elif rule.key in ended:
                results[position] = WriteResult("unique_conflict", ended[rule.key])
            elif counted:
                results[position], row = self._resolve_conflict(job, rule, counted, running)
                replaced += results[position].ended
                rows += row
            else:
                rows.append(self._row(job, rule, job))
        if replaced:
            store.delete("jobs", [row.job.seq for row in replaced])
            self._store(replaced)
        store.insert("jobs", _INSERT, rows)
        return results

    def _holders(self, keys: Sequence[str]) -> dict[str, list[JobRecord]]:
        """Return key -> the unfinished jobs that have it, in the order of their numbers."""
        holders: dict[str, list[JobRecord]] = {}
        rows = self.tables.get("jobs", (*JOB_ROW, "unique_key"), keys, by="jobs_unique")
        for *row, key in sorted(rows, key=itemgetter(0)):
            holders.setdefault(key, []).append(self.tables.job(tuple(row)))
        return holders

    def _resolve_conflict(
        self,
        job: JobRecord,
        rule: UniqueRule,
        holders: Sequence[JobRecord],
        running: Container[str],
    ) -> tuple[WriteResult, list[tuple[Any, ...]]]:
        """Return the result for a job whose key others hold, and its row if it is admitted."""
        keeps_last = rule.mode == "keep_last"
        leased = [holder for holder in holders if holder.id in running]
        waiting = [holder for holder in holders if holder.id not in running]
        if rule.mode == "reject" or (leased and not keeps_last):
            return WriteResult("unique_conflict", (leased or holders)[0].id), []
        if not waiting:
            return WriteResult("held", leased[0].id), [self._row(job, rule, job, hold=True)]
        held = [holder for holder in waiting if keeps_last and holder.ready_at >= HELD]
        replaced = held or waiting
        text = f"replaced by job {job.id}, which has the same unique key"
        error = encode_error(RemoteError("eventmq.errors.JobCancelled", text))
        ended = tuple(
            Finished(h, JobState.CANCELLED, job.created, self._keep, ERROR_TYPE, error)
            for h in replaced
        )
        row = self._row(job, rule, replaced[0] if keeps_last else job)
        return WriteResult("replaced", replaced[0].id, ended), [row]

    def _row(
        self, job: JobRecord, rule: UniqueRule, replaced: JobRecord, *, hold: bool = False
    ) -> tuple[Any, ...]:
        """Count a job and return its row, with the state, rank and ready time of ``replaced``."""
        row = list(self.tables.row(job))
        state = JobState.DELAYED if hold else replaced.state
        row[3], row[4] = replaced.rank, STATE_CODES[state]
        row[8], row[13] = replaced.ready_at + HELD if hold else replaced.ready_at, replaced.eta
        subqueue = self.tables.subqueue_id(job.queue, job.headers)
        delayed = state is JobState.DELAYED
        self.tables.count(self.tables.queue_id(job.queue), not delayed, delayed)
        return (*row, rule.key, subqueue)

    def _ended(self, jobs: Iterable[tuple[UniqueRule, float]]) -> dict[str, str]:
        """Return key -> id of the ended job that blocks it, for those keys that are blocked.

        Args:
            jobs: Rule and admission time of each job that is to be admitted.
        """
        #: Key and state -> jobs in that state admitted after this time block the key.
        since: dict[tuple[str, int], float] = {}
        for rule, created in jobs:
            if rule.period:
                begin = self._keeper.before(created - rule.period)
                since.update({(rule.key, code): begin for code in _RAN})
            counted = rule.states & TERMINAL
            since.update({(rule.key, STATE_CODES[state]): float("-inf") for state in counted})
        blocked: dict[str, str] = {}
        newest_first = [period_name("outcomes_unique", n) for n in reversed(self.tables.periods)]
        for index in ("failed_unique", *newest_first):
            pairs = [pair for pair in since if pair[0] not in blocked]
            if not pairs:
                break
            last = self.tables.store.heads(index, ("created", "id"), pairs, descending=True)
            for pair, row in zip(pairs, last, strict=True):
                if row is not None and row[0] > since[pair]:
                    blocked.setdefault(pair[0], row[1])
        return blocked

    # Ends

    def ended(self, rows: Iterable[Finished]) -> None:
        """Release jobs that were held until a job with their key ended.

        A released job is ready at once, or at its own ready time if that is later.
        """
        ends: dict[str, float] = {}
        for row in rows:
            key = key_of(row.job.headers)
            if key is not None:
                ends.setdefault(key, row.at)
        store = self.tables.store
        held = store.get("jobs", ("ready_at", "unique_key", "seq"), list(ends), by="jobs_held")
        values = [(max(ready_at - HELD, ends[key]), seq) for ready_at, key, seq in held]
        store.update("jobs", ("ready_at",), values)

    def release_orphans(self) -> None:
        """Release held jobs for whose key no other job exists any more.

        Repairs stores in which the end of the other job did not release them. This runs at each
        start, so it reads only held jobs.
        """
        tables, last = self.tables, ()
        while True:
            rows = tables.scan(
                "jobs_held", ("unique_key", "seq", "ready_at"), gt=last, limit=_SLICE
            )
            held = list(rows)
            if not held:
                return
            last = held[-1][:1]
            keys = list({key for key, _, _ in held})
            holders = Counter(tables.get("jobs", ("unique_key",), keys, by="jobs_unique"))
            values = [(ready_at - HELD, seq) for key, seq, ready_at in held if holders[key,] == 1]
            tables.store.update("jobs", ("ready_at",), values)


def key_of(headers: str) -> str | None:
    """Return the unique key in headers, None for none."""
    rule = unique_rule(headers)
    return None if rule is None else rule.key


def _rule_of(job: JobRecord) -> UniqueRule:
    rule = unique_rule(job.headers)
    assert rule is not None  # noqa: S101 - the job has a key
    return rule


def _state(job: JobRecord, running: Container[str]) -> JobState:
    leased = job.state is JobState.QUEUED and job.id in running
    return JobState.RUNNING if leased else job.state
