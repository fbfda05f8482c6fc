"""The pages that are read: figures, queues, workers, jobs, failed jobs and schedules."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from starlette.exceptions import HTTPException
from starlette.responses import (
    FileResponse,
    JSONResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from eventmq.cli import history_of, read_length
from eventmq.errors import BrokerUnavailable, EventMQError, ProtocolError, QueueNotFound
from eventmq.sdk import JobState
from eventmq_contrib.dashboard.live import MAX_STREAMS
from eventmq_contrib.dashboard.shapes import draw, waterfall
from eventmq_contrib.dashboard.web import of_broker
from eventmq_contrib.figures import arguments_of

if TYPE_CHECKING:
    from starlette.requests import Request

    from eventmq_contrib.dashboard.web import Visit

__all__ = ["FILTERS", "ROUTES", "filters_of", "read_time"]

#: Rows of a listing.
ROWS: Final = 50

#: Filters of listings and of operations on all jobs that match.
FILTERS: Final = ("queue", "task", "key", "state", "error", "text", "since", "until")

ENDED = frozenset({"succeeded", "failed", "cancelled", "expired"})

#: Content-Security-Policy of a Spark report, which has its styles inside and no scripts.
REPORT_POLICY: Final = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def filters_of(values: Any, names: tuple[str, ...] = FILTERS) -> dict[str, Any]:
    """Return the filters in a query or a form, as arguments of calls.

    Args:
        values: Mapping of texts.
        names: Filters that the call has.

    Raises:
        ProtocolError: A time is malformed, or a text is longer than any name.
    """
    filters: dict[str, Any] = {}
    for name in names:
        text = values.get(name, "").strip()
        if len(text) > 500:  # noqa: PLR2004 - no name is as long
            raise ProtocolError(f"the filter {name} is longer than 500 characters", code="too-long")
        if text:
            filters[name] = read_time(text) if name in {"since", "until"} else text
    return filters


def read_time(text: str) -> float:
    """Return the Unix time that a person wrote.

    Args:
        text: ``2h`` for two hours ago, or a date and time such as ``2026-01-31 12:00``, in UTC
            unless it has an offset.

    Raises:
        ProtocolError: It is neither.
    """
    ago = read_length(text.removesuffix(" ago"))
    if ago is not None:
        return max(1.0, time.time() - ago)
    try:
        moment = datetime.fromisoformat(text.removesuffix(" UTC").replace("Z", "+00:00"))
        return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, OverflowError):
        msg = f"{text[:40]!r} is no time; write 2h for two hours ago, or 2026-01-31 12:00 (UTC)"
        raise ProtocolError(msg, code="bad-time") from None


async def home(request: Request) -> Response:
    """Redirect to the first broker that answers, or to the first."""
    dashboard = request.app
    brokers = [*dashboard.brokers.brokers.values()]
    dashboard.brokers.look()
    first = next((each for each in brokers if not each.snapshot.missing), brokers[0])
    return RedirectResponse(dashboard.link(request, first.name), 302)


async def overview(visit: Visit) -> Response:
    """Show the figures of a broker, and what needs attention."""
    order = itemgetter("waiting", "running", "failed")
    return visit.page(
        "overview.html", rows=sorted(visit.broker.snapshot.queues, key=order, reverse=True)[:20]
    )


async def queues(visit: Visit) -> Response:
    """List the queues."""
    return visit.page("queues.html", rows=visit.broker.snapshot.queues)


async def queue(visit: Visit) -> Response:
    """Show one queue."""
    name, draining, snapshot = visit.names["name"], "drain" in visit.query, visit.broker.snapshot
    if draining or name not in {row["name"] for row in snapshot.queues}:  # it may be newer
        snapshot = await visit.run(visit.broker.refresh, 0.0)
    row = next((row for row in snapshot.queues if row["name"] == name), None)
    if row is None:
        unknown = QueueNotFound(f"broker {visit.broker.name} has no queue {name[:80]!r}")
        raise BrokerUnavailable(snapshot.missing) if snapshot.missing else unknown
    return visit.page("queue.html", queue=row, draining=draining)


async def workers(visit: Visit) -> Response:
    """List the workers."""
    rows = await visit.run(visit.broker.ask, "workers")
    return visit.page("workers.html", rows=sorted(rows, key=itemgetter("name")))


# Jobs


async def jobs(visit: Visit) -> Response:
    """List jobs, the newest first, page by page."""
    names = ("state", "queue", "task", "key", "since", "until")
    return await _listing(visit, "jobs", names)


async def failed(visit: Visit) -> Response:
    """List failed jobs by fingerprint, or those that match, the newest failure first."""
    if not {"list", "cursor", "error", "text"} & {*visit.query}:
        return await _listing(visit, "failures", ("queue", "task", "since"))
    return await _listing(visit, "failed", ("queue", "task", "error", "text", "since", "until"))


async def _listing(visit: Visit, listing: str, names: tuple[str, ...]) -> Response:
    filters, cursor = filters_of(visit.query, names), visit.query.get("cursor", "")[:500]
    if listing == "failures":
        answer = await visit.run(visit.broker.failures, filters)
    else:
        answer = await visit.run(visit.broker.page, listing, filters, cursor, ROWS)
    texts = {name: visit.query.get(name, "").strip() for name in names}
    return visit.page(
        "failures.html" if listing == "failures" else "jobs.html", rows=answer.rows,
        first=not cursor, found=answer, filters=texts,
        chosen={name: text for name, text in texts.items() if text},
        tasks=visit.broker.tasks(), states=[state.value for state in JobState],
        page="jobs" if listing == "jobs" else "failed",
    )  # fmt: skip


async def job(visit: Visit) -> Response:
    """Show one job: its history, errors, arguments, logs, graph and waterfall."""
    broker, job_id = visit.broker, visit.names["id"]
    may_see = visit.user.is_operator or visit.dashboard.show_arguments
    info = await visit.run(broker.job, job_id, args=may_see)
    rows, size, problem = [info], 1, ""
    if info["root"]:
        try:
            rows, size = await visit.run(broker.graph, job_id)
        except EventMQError as error:
            problem = str(error)
    bars, whole = waterfall(rows, time.time())
    unfinished = size > len(rows) or any(row["state"] not in ENDED for row in rows)
    return visit.page(
        "job.html", job=info, steps=history_of(info), arguments=arguments_of(info),
        may_see=may_see, bars=bars, whole=whole, problem=problem,
        drawing=draw(rows, size) if size > 1 else None, ended=info["state"] in ENDED,
        graph_is_open=bool(info["root"]) and unfinished,
    )  # fmt: skip


# Schedules


async def schedules(visit: Visit) -> Response:
    """List the schedules."""
    return visit.page("schedules.html", rows=await visit.run(visit.broker.schedules))


async def schedule(visit: Visit) -> Response:
    """Show one schedule: its next fire times, and the jobs that it fired."""
    return visit.page(
        "schedule.html", **await visit.run(visit.broker.schedule, visit.names["name"])
    )


# Bulk operations


async def bulk(visit: Visit) -> Response:
    """Show the progress of a bulk operation; nothing starts here."""
    bulk_id, total = visit.names["id"], visit.query.get("total", "")
    try:
        progress = await visit.run(visit.broker.ask, "bulk", {"id": bulk_id})
    except ProtocolError:
        raise ProtocolError(
            f"the broker does not know a bulk operation {bulk_id[:40]!r}, or has forgotten it: it "
            "keeps the last hundred that ended",
            code="no-bulk",
        ) from None
    number = int(total) if total.isascii() and total.isdigit() and len(total) < 10 else 0  # noqa: PLR2004
    return visit.page(
        "bulk.html", progress=progress, total=number, at_least="least" in visit.query,
        back=visit.query.get("back", ""),
    )  # fmt: skip


# Live


async def live(request: Request) -> Response:
    """Answer with a stream of events; 503 if there are as many as are allowed."""
    streams = request.app.streams
    if streams.open >= MAX_STREAMS:
        text = f"{MAX_STREAMS} streams are open already; ask /live.json instead"
        return JSONResponse({"error": text}, 503, {"Retry-After": "30"})
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(streams.events(), media_type="text/event-stream", headers=headers)


async def live_cells(request: Request) -> Response:
    """Answer with all cells, for a browser that polls."""
    request.app.brokers.look()
    return JSONResponse(request.app.streams.all_cells())


async def report(request: Request) -> Response:
    """Answer with the page of a Spark report, which may neither run scripts nor act."""
    path = request.app.report
    if path is None or not path.is_file():
        raise HTTPException(404)
    headers = {"Content-Security-Policy": REPORT_POLICY}
    return FileResponse(path, headers=headers, media_type="text/html")


ROUTES = [
    Route("/", home),
    Route("/live", live),
    Route("/live.json", live_cells),
    Route("/report", report),
    of_broker("", overview),
    of_broker("queues", queues),
    of_broker("queues/{name:path}", queue),
    of_broker("workers", workers),
    of_broker("jobs", jobs),
    of_broker("jobs/{id:path}", job),
    of_broker("failed", failed),
    of_broker("schedules", schedules),
    of_broker("schedules/{name:path}", schedule),
    of_broker("bulk/{id}", bulk),
]
