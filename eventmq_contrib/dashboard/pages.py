"""The pages that are read: figures, queues, workers, jobs, failed jobs and schedules."""

from __future__ import annotations

import json
import time
from datetime import timezone
from typing import TYPE_CHECKING, Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from eventmq.cli import to_json
from eventmq.errors import EventMQError, ProtocolError, QueueNotFound, SettingsError
from eventmq.sdk import find_zone
from eventmq_contrib.dashboard import words
from eventmq_contrib.dashboard.data import attention
from eventmq_contrib.dashboard.live import MAX_STREAMS
from eventmq_contrib.dashboard.shapes import draw, waterfall
from eventmq_contrib.dashboard.web import dashboard_of, of_broker
from eventmq_contrib.figures import duration, error_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from eventmq_contrib.dashboard.web import Visit

__all__ = ["FILTERS", "ROUTES", "filters_of"]

#: Rows of a listing.
ROWS: Final = 50

#: States of jobs, in the order of their lives.
STATES: Final = (
    "blocked", "delayed", "queued", "running", "succeeded", "failed", "cancelled", "expired",
)  # fmt: skip

#: Filters of listings and of operations on all jobs that match.
FILTERS: Final = ("queue", "task", "key", "state", "error", "text", "since", "until")

ENDED = frozenset({"succeeded", "failed", "cancelled", "expired"})

#: Content-Security-Policy of a Spark report, which has its styles inside and no scripts.
REPORT_POLICY: Final = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"

#: Rows of tables that are not listings of jobs.
MAX_ROWS: Final = 500


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
        try:
            if text:
                filters[name] = words.read_time(text) if name in {"since", "until"} else text
        except ValueError as error:
            raise ProtocolError(str(error), code="bad-time") from None
    return filters


async def home(request: Request) -> Response:
    """Redirect to the first broker that answers, or to the first."""
    dashboard = dashboard_of(request)
    brokers = [*dashboard.brokers.brokers.values()]
    dashboard.brokers.look()
    found = next((each for each in brokers if not each.snapshot.missing), brokers[0])
    return RedirectResponse(dashboard.link(request, found.name), 302)


async def overview(visit: Visit) -> Response:
    """Show the figures of a broker, and what needs attention."""
    busiest = sorted(
        visit.snapshot.queues,
        key=lambda row: (row["waiting"] + row["running"], row["failed"]),
        reverse=True,
    )
    return visit.page("overview.html", attention=attention(visit.snapshot), rows=busiest[:20])


def _table(visit: Visit, template: str, rows: list[Any], **values: Any) -> Response:
    """Return a page whose table has the first `MAX_ROWS` rows."""
    return visit.page(template, rows=rows[:MAX_ROWS], more=len(rows) - MAX_ROWS, **values)


async def queues(visit: Visit) -> Response:
    """List the queues."""
    return _table(visit, "queues.html", sorted(visit.snapshot.queues, key=lambda row: row["name"]))


async def queue(visit: Visit) -> Response:
    """Show one queue."""
    name, draining = visit.path("name"), "drain" in visit.query
    snapshot = await visit.run(visit.broker.refresh, 0.0) if draining else visit.snapshot
    visit.broker.check()
    if all(row["name"] != name for row in snapshot.queues):  # it may be newer than the snapshot
        snapshot = await visit.run(visit.broker.refresh, 0.0)
    row = next((row for row in snapshot.queues if row["name"] == name), None)
    if row is None:
        raise QueueNotFound(f"broker {visit.broker.name} has no queue {name[:80]!r}")
    of_queue = [row for row in snapshot.metrics["jobs"] if row["queue"] == name]
    rows = [row for row in of_queue if row["task"] or row["submitted"]]
    return _table(visit, "queue.html", rows, queue=row, draining=draining)


async def workers(visit: Visit) -> Response:
    """List the workers."""
    rows = await visit.run(visit.broker.ask, "workers")
    return _table(visit, "workers.html", sorted(rows, key=lambda row: row["name"]))


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
    broker, filters = visit.broker, filters_of(visit.query, names)
    cursor = visit.query.get("cursor", "")[:500]
    if listing == "failures":
        found = await visit.run(broker.failures, filters)
    else:
        found = await visit.run(broker.page, listing, filters, cursor, ROWS)
    given = {name: visit.query.get(name, "").strip() for name in names}
    return visit.page(
        "failures.html" if listing == "failures" else "jobs.html", rows=found.rows[:MAX_ROWS],
        found=found, filters=given, tasks=broker.tasks(), states=STATES, first=not cursor,
        page="jobs" if listing == "jobs" else "failed",
        chosen={name: value for name, value in given.items() if value},
    )  # fmt: skip


async def job(visit: Visit) -> Response:
    """Show one job: its history, errors, arguments, logs, graph and waterfall."""
    broker, job_id = visit.broker, visit.path("id")
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
        "job.html", job=info, steps=steps_of(info), arguments=_arguments(info),
        may_see=may_see, logs=info.get("logs") or [], bars=bars, whole=whole, problem=problem,
        drawing=draw(rows, size) if size > 1 else None, ended=info["state"] in ENDED,
        graph_is_open=bool(info["root"]) and unfinished,
    )  # fmt: skip


def _arguments(info: Mapping[str, Any]) -> list[str]:
    """Return the arguments of a job as text, one each, or why there are none."""
    if info.get("args_note"):
        return [info["args_note"]]
    named = (info.get("kwargs") or {}).items()
    return [
        *(words.cut(to_json(value)) for value in info.get("args") or ()),
        *(f"{name} = {words.cut(to_json(value))}" for name, value in named),
    ]


def steps_of(info: Mapping[str, Any]) -> list[tuple[float, str, str]]:
    """Return the history of a job, the earliest step first: Unix time, state and sentence."""

    def where(row: Mapping[str, Any]) -> str:
        worker = f" on {row['worker']}" if row["worker"] else ""
        return worker + (f" after {duration(row['ran'])}" if row["ran"] else "")

    attempt = f"attempt {info['attempt']}"
    steps = [(info["created"], "queued", f"submitted to queue {info['queue']}")]
    for row in info["attempts"]:
        text = f"attempt {row['attempt']} failed{where(row)}: {error_text(row['error'])}"
        steps.append((row["at"], "failed", text))
    if info["state"] == "delayed":
        steps.append((info["due"], "delayed", f"{attempt} is due"))
    if info["state"] == "running":
        steps.append((info.get("leased"), "running", f"{attempt} was handed to {info['worker']}"))
    if info["finished"] and info["state"] != "failed":
        steps.append((info["finished"], info["state"], f"{info['state']}{where(info)}"))
    return sorted((step for step in steps if step[0]), key=lambda step: step[0])


# Schedules


async def schedules(visit: Visit) -> Response:
    """List the schedules."""
    rows = await visit.run(visit.broker.schedules)
    return _table(visit, "schedules.html", rows, when=trigger_text)


async def schedule(visit: Visit) -> Response:
    """Show one schedule: its next fire times, and the jobs that it fired."""
    found, times, fired = await visit.run(visit.broker.schedule, visit.path("name"))
    zone = _options(found.trigger).get("tz") or "UTC"
    try:
        local = find_zone(zone)
    except (SettingsError, TypeError):
        zone, local = "UTC", timezone.utc
    return visit.page(
        "schedule.html", schedule=found, when=trigger_text, times=times, zone=zone, local=local,
        rows=fired,
    )  # fmt: skip


def _options(trigger: str) -> dict[str, Any]:
    """Return the options in the text of a trigger, none if they are malformed."""
    try:
        value = json.loads(trigger.partition(":")[2] or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def trigger_text(trigger: str) -> str:
    """Return a trigger for people: ``every 30 s``, ``cron 0 3 * * *, zone Europe/Paris``."""
    name, _, text = trigger.partition(":")
    options = _options(trigger)
    try:
        if name == "every":
            seconds = float(options["seconds"])
            return f"every {seconds:g} s" if seconds % 60 else f"every {duration(seconds)}"
        if name == "cron":
            zone = f", zone {options['tz']}" if options.get("tz") else ""
            return f"cron {options['expression']}{zone}"
        if name == "at":
            return f"at {words.clock(float(options['moment']))} UTC"
    except (ValueError, KeyError, TypeError):
        pass
    return f"{name} {text}".strip()


# Bulk operations


async def bulk(visit: Visit) -> Response:
    """Show the progress of a bulk operation; nothing starts here."""
    bulk_id, total = visit.path("id"), visit.query.get("total", "")
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
    streams = dashboard_of(request).streams
    if streams.open >= MAX_STREAMS:
        text = f"{MAX_STREAMS} streams are open already; ask /live.json instead"
        return JSONResponse({"error": text}, 503, {"Retry-After": "30"})
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(streams.events(), media_type="text/event-stream", headers=headers)


async def live_cells(request: Request) -> Response:
    """Answer with all cells, for a browser that polls."""
    dashboard = dashboard_of(request)
    dashboard.brokers.look()
    return JSONResponse(dashboard.streams.all_cells())


async def report(request: Request) -> Response:
    """Answer with the page of a Spark report, which may neither run scripts nor act."""
    dashboard = dashboard_of(request)
    if dashboard.report is None:
        return dashboard.error_page(request, 404, "This dashboard was started without a report.")
    try:
        content = await run_in_threadpool(dashboard.report.read_bytes)
    except OSError as error:
        text = f"The report cannot be read: {error.strerror}."
        return dashboard.error_page(request, 404, text)
    return Response(
        content, media_type="text/html", headers={"Content-Security-Policy": REPORT_POLICY}
    )


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
