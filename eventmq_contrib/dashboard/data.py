"""What the dashboard knows of its brokers: calls, and one snapshot a second for all viewers.

Every call of a broker is made here, in a bounded number of threads, so that the event loop never
waits for one. A thread polls while pages are open, and else asks nothing; the number of open pages
makes no difference to the broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from eventmq.errors import BrokerUnavailable, EventMQError, JobNotFound, SettingsError
from eventmq.sdk import decode_error, find_zone
from eventmq_contrib.brokers import info_of
from eventmq_contrib.figures import History, problems_of, sample_of

if TYPE_CHECKING:
    from eventmq import EventMQ
    from eventmq.sdk import Schedule

__all__ = ["Broker", "Brokers", "Busy", "Page", "Snapshot", "attention"]

logger = logging.getLogger("eventmq.dashboard")

T = TypeVar("T")

#: Seconds between two polls, and for which their answers are used.
EVERY: Final = 1.0

#: Seconds after the last look after which nothing is polled.
IDLE: Final = 10.0

#: Seconds for which a broker that did not answer is not asked again by a page.
AWAY: Final = 2.0

#: Threads that wait for brokers, and pages that may wait for such a thread.
THREADS: Final = 8
MAX_WAITING: Final = 64

#: Seconds that a page waits for a thread and the answer.
TIMEOUT: Final = 15.0

#: Seconds for which a listing searches on before it shows what it has.
SEARCH: Final = 0.15

#: Jobs of a graph that are read.
MAX_GRAPH: Final = 1000

#: Next fire times of a schedule, and jobs that it fired, on its page.
NEXT_TIMES, FIRED_JOBS = 5, 20

Row = Mapping[str, Any]


class Busy(EventMQError):
    """More pages wait for a broker than are allowed."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The last answers of a broker.

    Attributes:
        at: Unix time of the answers.
        metrics: Answer of ``metrics``.
        queues: Answer of ``queues``.
        status: Answer of ``status``.
        history: Figures of the last minute and a half.
        missing: Why the broker does not answer, "" if it does.
    """

    at: float = 0.0
    metrics: Row = field(default_factory=dict)
    queues: Sequence[Row] = ()
    status: Row = field(default_factory=dict)
    history: History = field(default_factory=History)
    missing: str = "it was not asked yet"

    @property
    def standby(self) -> bool:
        """Whether the broker is a standby, which has no jobs of its own to show."""
        return self.status.get("role") == "standby"

    @property
    def state(self) -> str:
        """``missing`` or ``standby``, "" for a broker that answers and has jobs."""
        return "missing" if self.missing else "standby" if self.standby else ""


class Page(NamedTuple):
    """Rows of a listing.

    Attributes:
        rows: The jobs, or groups of failed jobs.
        cursor: Where the next page begins, "" at the end.
        searched_to: Unix time of the oldest job examined, 0.0 for none.
        full: Whether it has as many jobs as were asked for; of groups, whether there are more.
    """

    rows: list[dict[str, Any]]
    cursor: str
    searched_to: float
    full: bool = False


class Broker:
    """One broker, or a store with its brokers: makes calls, and keeps its snapshot.

    Its methods block and are thread-safe.

    Args:
        name: Name in links.
        app: Client of the broker.
    """

    def __init__(self, name: str, app: EventMQ) -> None:
        self.name, self.app = name, app
        self.snapshot = Snapshot()
        #: Held by the thread that refreshes the snapshot.
        self.lock = threading.Lock()
        self._tried = -1e9

    # Snapshots

    def refresh(self, older_than: float = EVERY) -> Snapshot:
        """Ask the broker again, unless the answers are fresh; return the snapshot.

        Args:
            older_than: Seconds for which answers are fresh.
        """
        with self.lock:
            age = time.monotonic() - self._tried
            if age < (max(older_than, AWAY) if self.snapshot.missing else older_than):
                return self.snapshot
            try:
                metrics, queues, status = map(self.app.ask, ("metrics", "queues", "status"))
                waiting = {row["name"]: row["waiting"] for row in queues}
                history = self.snapshot.history.added(sample_of(metrics, time.monotonic(), waiting))
                self.snapshot = Snapshot(time.time(), metrics, queues, status, history, "")
            except EventMQError as error:
                if not self.snapshot.missing:
                    logger.warning("broker %s is missing: %s", self.name, error)
                self.snapshot = replace(self.snapshot, missing=str(error) or type(error).__name__)
            self._tried = time.monotonic()
            return self.snapshot

    # Reads

    @property
    def client(self) -> EventMQ:
        """The client.

        Raises:
            BrokerUnavailable: The broker did not answer a moment ago.
        """
        if self.snapshot.missing and time.monotonic() - self._tried < AWAY:
            raise BrokerUnavailable(self.snapshot.missing)
        return self.app

    def ask(self, name: str, arguments: Row | None = None) -> Any:
        """Make a call of the broker that `client` returns."""
        return self.client.ask(name, arguments)

    def _search(self, call: str, rows: str, arguments: dict[str, Any]) -> Iterator[Page]:
        """Yield pages of a search until its end, or until it takes too long."""
        searched_to, end = 0.0, time.monotonic() + SEARCH
        while True:
            answer = self.ask(call, arguments)
            arguments["cursor"] = answer["cursor"]
            searched_to = answer["searched_to"] or searched_to
            yield Page(answer[rows], answer["cursor"], searched_to)
            if not answer["cursor"] or time.monotonic() > end:
                return

    def page(self, listing: str, filters: Row, cursor: str, limit: int) -> Page:
        """Return the next rows of a listing that match; fewer if that takes too long.

        Args:
            listing: ``jobs`` or ``failed``.
            filters: Arguments of the call.
            cursor: Where to begin, "" for the newest.
            limit: Maximum number of rows.
        """
        rows: list[dict[str, Any]] = []
        arguments = {**filters, "cursor": cursor, "limit": limit}
        for page in self._search(listing, listing, arguments):
            rows += page.rows
            arguments["limit"] = limit - len(rows)
            if len(rows) >= limit:
                break
        return page._replace(rows=rows, full=len(rows) >= limit)

    def failures(self, filters: Row) -> Page:
        """Return failed jobs by fingerprint, as far as there was time to count them.

        Args:
            filters: Arguments of the call.

        Returns:
            Groups with task, error, count, queues, first, last, sample and message; the one that
            failed last is the first.
        """
        groups: dict[tuple[str, str], dict[str, Any]] = {}
        for page in self._search("failures", "groups", {**filters}):
            for row in page.rows:
                group = groups.setdefault((row["task"], row["error"]), row)
                if group is row:
                    row["message"] = decode_error(row["result"]).message if row["result"] else ""
                    continue
                group["count"] += row["count"]
                group["first"] = min(group["first"], row["first"])
                group["queues"] = dict(Counter(group["queues"]) + Counter(row["queues"]))
        return page._replace(rows=[*groups.values()], full=bool(page.cursor))

    def job(self, job_id: str, *, args: bool) -> dict[str, Any]:
        """Return what the broker knows of a job, with its logs; its arguments only on request.

        Raises:
            JobNotFound: The broker does not know it.
        """
        return info_of(self.client, job_id, args=args, logs=True)

    def graph(self, job_id: str) -> tuple[list[dict[str, Any]], int]:
        """Return the first `MAX_GRAPH` jobs of the graph of a job, and their whole number."""
        answer = self.ask("graph", {"id": job_id, "limit": MAX_GRAPH})
        return list(answer["jobs"]), int(answer["size"])

    def tasks(self) -> list[str]:
        """Return names of tasks, for the completion of filters."""
        return sorted({row["task"] for row in self.snapshot.metrics.get("jobs", ()) if row["task"]})

    def schedules(self) -> list[dict[str, Any]]:
        """Return the schedules by name, with next fire time and the state of the last job."""
        stored = self.client.schedules.list()
        states = self._states([each.last_job for each in stored if each.last_job])
        return [
            {
                "schedule": each, "next": next(iter(self._fire_times(each, 1)), None),
                "state": states.get(each.last_job, ""),
            }
            for each in stored
        ]  # fmt: skip

    def schedule(self, name: str) -> dict[str, Any]:
        """Return a schedule, its next fire times with their zone, and jobs that it fired.

        Returns:
            The schedule, times (Unix times), zone (None for one that is not known here), and rows:
            the jobs, the latest first.

        Raises:
            ScheduleNotFound: There is none of this name.
        """
        schedule = self.client.schedules.get(name)
        ids, zone = [schedule.last_job] if schedule.last_job else [], None
        with _trigger_of(schedule):
            ids += [each for each in self.app.schedules.past_jobs(schedule) if each not in ids]
        states, jobs = self._states(ids), []
        for job_id in [each for each in ids if states[each]][:FIRED_JOBS]:
            with contextlib.suppress(JobNotFound):  # forgotten meanwhile
                jobs.append(self.client.job(job_id).info())
        with contextlib.suppress(SettingsError, ValueError, LookupError, TypeError):
            zone = find_zone(json.loads(schedule.trigger.partition(":")[2])["tz"])
        times = self._fire_times(schedule, NEXT_TIMES)
        return {"schedule": schedule, "times": times, "zone": zone, "rows": jobs}

    def _states(self, ids: Sequence[str]) -> dict[str, str]:
        """Return the states of jobs, "" for unknown ones."""
        states: dict[str, str] = {}
        for first in range(0, len(ids), 1000):
            states.update(self.ask("state", {"ids": ids[first : first + 1000]}))
        return states

    def _fire_times(self, schedule: Schedule, number: int) -> list[float]:
        """Return the next fire times, fewer if it ends earlier or its trigger is not known here."""
        schedules, times = self.app.schedules, list[float]()
        bare = replace(schedule, jitter=0.0)
        with _trigger_of(schedule):
            while len(times) < min(number, number if bare.remaining is None else bare.remaining):
                following = schedules.next_fire_time(bare)
                if following is None or following <= (bare.last_fire_time or 0.0):
                    break
                times.append(following + schedule.jitter_at(following, schedules.store.identity))
                bare = replace(bare, last_fire_time=following)
        return times


@contextlib.contextmanager
def _trigger_of(schedule: Schedule) -> Iterator[None]:
    """End the block if the trigger of a schedule, which may be a plugin's, fails in it."""
    try:
        yield
    except EventMQError:
        raise
    except Exception:
        logger.exception("the trigger of schedule %r failed", schedule.name)


def attention(snapshot: Snapshot) -> Iterator[str]:
    """Yield sentences about what needs attention at a broker."""
    status = snapshot.status
    if snapshot.missing:
        yield f"the broker does not answer: {snapshot.missing}"
        return
    if status.get("trouble"):
        yield f"the store cannot be used now: {status['trouble']}"
    if snapshot.standby:
        if not status.get("owner"):
            yield "no broker owns the store now"
        return
    if status.get("refusing"):
        yield f"new jobs are refused: {status['refusing']}"
    for row in snapshot.queues:
        for problem in problems_of(row):
            yield f"queue {row['name']} {_PROBLEMS[problem]}"
    if failed := sum(row["failed"] for row in snapshot.queues):
        yield f"{failed:,} failed job{'' if failed == 1 else 's'} to retry or drop"
    for name, value in status.get("clock", {}).items():
        if round(value):
            yield f"the clock: {name} {value:.0f} s"


#: What `problems_of` a queue mean.
_PROBLEMS = {"paused": "is paused", "no worker": "has jobs and no worker"}


class Brokers:
    """All brokers of a dashboard, the threads that ask them, and the poll.

    Args:
        apps: Name -> client.
    """

    def __init__(self, apps: Mapping[str, EventMQ]) -> None:
        self.brokers = {name: Broker(name, app) for name, app in apps.items()}
        self._pool = ThreadPoolExecutor(THREADS, "eventmq-dashboard")
        self._polls = ThreadPoolExecutor(len(apps), "eventmq-dashboard-polls")
        self._poller = threading.Thread(target=self._poll, name="eventmq-polls", daemon=True)
        self._closed = threading.Event()
        self._starting, self._looked_at, self._waiting = threading.Lock(), 0.0, 0
        #: Called in the polling thread after each poll.
        self.listeners: set[Callable[[], None]] = set()

    async def run(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Run a function that asks a broker in a thread.

        Raises:
            Busy: Too many pages wait already.
            BrokerUnavailable: No answer came within `TIMEOUT`.
        """
        if self._waiting >= MAX_WAITING:
            raise Busy(f"{MAX_WAITING} pages wait for the broker already; try again")
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            future = loop.run_in_executor(self._pool, lambda: function(*arguments, **named))
            return await asyncio.wait_for(future, TIMEOUT)
        except asyncio.TimeoutError:
            raise BrokerUnavailable(f"no answer within {TIMEOUT:g} s") from None
        finally:
            self._waiting -= 1

    async def snapshot(self, broker: Broker) -> Snapshot:
        """Return a snapshot that is at most a little older than `EVERY`."""
        self.look()
        if time.time() - broker.snapshot.at < 2 * EVERY:
            return broker.snapshot
        return await self.run(broker.refresh)

    def look(self) -> None:
        """Poll from now on, until no page is open."""
        self._looked_at = time.monotonic()
        with self._starting:
            if self._poller.ident is None and not self._closed.is_set():
                self._poller.start()

    def _poll(self) -> None:
        following = time.monotonic()
        while not self._closed.wait(following - time.monotonic()):
            if self.listeners or time.monotonic() - self._looked_at < IDLE:
                with contextlib.suppress(RuntimeError):  # the pool is shut down
                    brokers = (each for each in self.brokers.values() if not each.lock.locked())
                    polls = [self._polls.submit(each.refresh, EVERY / 2) for each in brokers]
                    wait(polls, EVERY / 2)  # one that is away holds up no other
            for listener in [*self.listeners]:
                listener()
            following = max(following + EVERY, time.monotonic() + EVERY / 10)

    def close(self) -> None:
        """End polling and threads. Idempotent."""
        self._closed.set()
        if self._poller.ident is not None:
            self._poller.join(TIMEOUT)
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._polls.shutdown(wait=False, cancel_futures=True)
