"""The pages that are read: figures, queues, workers, jobs, failed jobs and schedules."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from eventmq.cli import to_json
from eventmq.errors import EventMQError, ProtocolError, QueueNotFound
from eventmq.sdk import decode_error
from eventmq_contrib.dashboard import words
from eventmq_contrib.dashboard.data import attention
from eventmq_contrib.dashboard.live import MAX_STREAMS
from eventmq_contrib.dashboard.shapes import draw, waterfall
from eventmq_contrib.dashboard.web import dashboard_of, static_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request


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
        if name in {"since", "until"} and text:
            try:
                filters[name] = words.read_time(text)
            except ValueError as error:
                raise ProtocolError(str(error), code="bad-time") from None
        elif text:
            filters[name] = text
    return filters


async def home(request: Request) -> Response:
    """Redirect to the first broker that answers, or to the first."""
    dashboard = dashboard_of(request)
    brokers = [*dashboard.brokers.brokers.values()]
    dashboard.brokers.look()
    found = next((each for each in brokers if not each.snapshot.missing), brokers[0])
    return RedirectResponse(dashboard.link(request, found.name), 302)


async def overview(request: Request) -> Response:
    """Show the figures of a broker, and what needs attention."""
    dashboard = dashboard_of(request)
    broker = dashboard.broker(request)
    snapshot = await dashboard.brokers.snapshot(broker)
    busiest = sorted(
        snapshot.queues,
        key=lambda row: (row["waiting"] + row["running"], row["failed"]),
        reverse=True,
    )
    return dashboard.page(
        request, "overview.html", broker, attention=attention(snapshot), queues=busiest[:20],
        status=200,
    )  # fmt: skip


async def queues(request: Request) -> Response:
    """List the queues."""
    dashboard = dashboard_of(request)
    broker = dashboard.broker(request)
    snapshot = await dashboard.brokers.snapshot(broker)
    rows = sorted(snapshot.queues, key=lambda row: row["name"])
    return dashboard.page(
        request, "queues.html", broker, queues=rows[:MAX_ROWS], more=len(rows) - MAX_ROWS
    )


async def queue(request: Request) -> Response:
    """Show one queue."""
    dashboard = dashboard_of(request)
    broker, name = dashboard.broker(request), request.path_params["name"]
    draining = "drain" in request.query_params
    snapshot = await dashboard.brokers.snapshot(broker)
    if draining:
        snapshot = await dashboard.brokers.run(broker.refresh, 0.0)
    broker.check()
    row = next((row for row in snapshot.queues if row["name"] == name), None)
    if row is None:
        raise QueueNotFound(f"broker {broker.name} has no queue {name[:80]!r}")
    of_tasks = (row for row in snapshot.metrics["jobs"] if row["queue"] == name)
    jobs = [row for row in of_tasks if row["task"] or row["submitted"]][:MAX_ROWS]
    return dashboard.page(request, "queue.html", broker, queue=row, jobs=jobs, draining=draining)


async def workers(request: Request) -> Response:
    """List the workers."""
    dashboard = dashboard_of(request)
    broker = dashboard.broker(request)
    await dashboard.brokers.snapshot(broker)
    rows = await dashboard.brokers.run(broker.ask, "workers")
    rows.sort(key=lambda row: row["name"])
    return dashboard.page(
        request, "workers.html", broker, workers=rows[:MAX_ROWS], more=len(rows) - MAX_ROWS
    )


# Jobs


def shown_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job of a listing with its error as text, and its length."""
    return {**row, "error": error_text(row.get("error")), "ran": row.get("ran") or None}


def error_text(error: Any) -> str:
    """Return an error of a job as text: type and message."""
    if isinstance(error, bytes):
        error = decode_error(error)
    if error is None:
        return ""
    return f"{error.type.rpartition('.')[2]}: {error.message}".removeprefix(": ")


async def jobs(request: Request) -> Response:
    """List jobs, the newest first, page by page."""
    return await _listing(request, "jobs", ("state", "queue", "task", "key", "since", "until"))


async def failed(request: Request) -> Response:
    """List failed jobs by fingerprint, or those that match, the newest failure first."""
    query = request.query_params
    if not {"list", "cursor", "error", "text"} & {*query}:
        return await _failures(request)
    names = ("queue", "task", "error", "text", "since", "until")
    return await _listing(request, "failed", names)


async def _listing(request: Request, listing: str, names: tuple[str, ...]) -> Response:
    dashboard = dashboard_of(request)
    broker = dashboard.broker(request)
    await dashboard.brokers.snapshot(broker)
    filters, query = filters_of(request.query_params, names), request.query_params
    cursor = query.get("cursor", "")[:500]
    found = await dashboard.brokers.run(broker.page, listing, filters, cursor, ROWS)
    given = {name: query.get(name, "").strip() for name in names}
    return dashboard.page(
        request, f"{listing}.html", broker, rows=[shown_row(row) for row in found.rows],
        found=found, filters=given, tasks=broker.tasks(), states=STATES, first=not cursor,
        chosen={name: value for name, value in given.items() if value},
    )  # fmt: skip


async def _failures(request: Request) -> Response:
    dashboard = dashboard_of(request)
    broker = dashboard.broker(request)
    await dashboard.brokers.snapshot(broker)
    names, query = ("queue", "task", "since"), request.query_params
    filters = filters_of(query, names)
    found = await dashboard.brokers.run(broker.failures, filters)
    given = {name: query.get(name, "").strip() for name in names}
    return dashboard.page(
        request, "failures.html", broker, groups=found.rows[:MAX_ROWS], found=found,
        filters=given, tasks=broker.tasks(),
        chosen={name: value for name, value in given.items() if value},
    )  # fmt: skip


async def job(request: Request) -> Response:
    """Show one job: its history, errors, arguments, logs, graph and waterfall."""
    dashboard = dashboard_of(request)
    broker, job_id = dashboard.broker(request), request.path_params["id"]
    await dashboard.brokers.snapshot(broker)
    may_see = request.state.user.is_operator or dashboard.show_arguments
    info = await dashboard.brokers.run(broker.job, job_id, args=may_see)
    rows, size, problem = [info], 1, ""
    if info["root"]:
        try:
            rows, size = await dashboard.brokers.run(broker.graph, job_id)
        except EventMQError as error:
            problem = str(error)
    bars, whole = waterfall(rows, time.time())
    unfinished = size > len(rows) or any(row["state"] not in ENDED for row in rows)
    return dashboard.page(
        request, "job.html", broker, job=shown_row(info), steps=steps_of(info), attempts=[
            {**each, "error": error_text(each["error"]), "traceback": traceback_of(each["error"])}
            for each in info["attempts"]
        ],
        error=info["error"] and traceback_of(info["error"]), arguments=_arguments(info),
        may_see=may_see, logs=info.get("logs") or [], bars=bars, whole=whole, problem=problem,
        drawing=draw(rows, size) if size > 1 else None, ended=info["state"] in ENDED,
        graph_is_open=bool(info["root"]) and unfinished,
    )  # fmt: skip


def traceback_of(error: Any) -> str:
    """Return the traceback of an error of a job, "" if it has none."""
    return (error and error.traceback) or ""


def _arguments(info: Mapping[str, Any]) -> tuple[list[str], dict[str, str], str]:
    """Return positional and keyword arguments as text, and why there are none."""
    args = [words.cut(to_json(value)) for value in info.get("args") or ()]
    named = {
        str(key): words.cut(to_json(value)) for key, value in (info.get("kwargs") or {}).items()
    }
    return args, named, info.get("args_note") or ""


def steps_of(info: Mapping[str, Any]) -> list[tuple[float, str, str]]:
    """Return the history of a job, the earliest step first: Unix time, state and sentence."""
    steps = [(info["created"], "queued", f"submitted to queue {info['queue']}")]
    for row in info["attempts"]:
        worker = f" on {row['worker']}" if row["worker"] else ""
        after = f" after {words.duration(row['ran'])}" if row["ran"] else ""
        text = f"attempt {row['attempt']} failed{worker}{after}: {error_text(row['error'])}"
        steps.append((row["at"], "failed", text))
    if info["state"] == "delayed" and info["due"]:
        steps.append((info["due"], "delayed", f"attempt {info['attempt']} is due"))
    if info["state"] == "running" and info.get("leased"):
        text = f"attempt {info['attempt']} was handed to {info['worker']}"
        steps.append((info["leased"], "running", text))
    if info["finished"] and info["state"] != "failed":
        worker = f" on {info['worker']}" if info["worker"] else ""
        after = f" after {words.duration(info['ran'])}" if info["ran"] else ""
        steps.append((info["finished"], info["state"], f"{info['state']}{worker}{after}"))
    return sorted((step for step in steps if step[0]), key=lambda step: step[0])


# Schedules


async def schedules(request: Request) -> Response:
    """List the schedules."""
    dashboard = dashboard_of(request)
    broker = dashboard.broker(request)
    await dashboard.brokers.snapshot(broker)
    rows = await dashboard.brokers.run(broker.schedules)
    for row in rows:
        row["trigger"] = trigger_text(row["trigger"])
    return dashboard.page(
        request, "schedules.html", broker, schedules=rows[:MAX_ROWS], more=len(rows) - MAX_ROWS
    )


def trigger_text(trigger: str) -> str:
    """Return a trigger for people: ``every 30 s``, ``cron 0 3 * * *, zone Europe/Paris``."""
    name, _, text = trigger.partition(":")
    try:
        options = json.loads(text or "{}")
        zone = f", zone {options['tz']}" if options.get("tz") else ""
        if name == "every":
            seconds = float(options["seconds"])
            return f"every {seconds:g} s" if seconds % 60 else f"every {words.duration(seconds)}"
        if name == "cron":
            return f"cron {options['expression']}{zone}"
        if name == "at":
            return f"at {words.clock(float(options['moment']))} UTC"
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    return f"{name} {text}".strip()


# Bulk operations


async def bulk(request: Request) -> Response:
    """Show the progress of a bulk operation; nothing starts here."""
    dashboard = dashboard_of(request)
    broker = dashboard.broker(request)
    await dashboard.brokers.snapshot(broker)
    bulk_id = request.path_params["id"]
    try:
        progress = await dashboard.brokers.run(broker.bulk, bulk_id)
    except ProtocolError:
        raise ProtocolError(
            f"the broker does not know a bulk operation {bulk_id[:40]!r}, or has forgotten it: it "
            "keeps the last hundred that ended",
            code="no-bulk",
        ) from None
    total = request.query_params.get("total", "")
    number = int(total) if total.isascii() and total.isdigit() and len(total) < 10 else 0  # noqa: PLR2004
    return dashboard.page(
        request, "bulk.html", broker, progress=progress, total=number,
        at_least="least" in request.query_params, back=request.query_params.get("back", ""),
    )  # fmt: skip


# Live


async def live(request: Request) -> Response:
    """Answer with a stream of events; 503 if there are as many as are allowed."""
    dashboard = dashboard_of(request)
    if dashboard.streams.open >= MAX_STREAMS:
        text = f"{MAX_STREAMS} streams are open already; ask /live.json instead"
        return JSONResponse({"error": text}, 503, {"Retry-After": "30"})
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(
        dashboard.streams.events(), media_type="text/event-stream", headers=headers
    )


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
    Route("/static/{name}", static_file),
    Route("/b/{broker}/", overview),
    Route("/b/{broker}/queues", queues),
    Route("/b/{broker}/queues/{name:path}", queue),
    Route("/b/{broker}/workers", workers),
    Route("/b/{broker}/jobs", jobs),
    Route("/b/{broker}/jobs/{id:path}", job),
    Route("/b/{broker}/failed", failed),
    Route("/b/{broker}/schedules", schedules),
    Route("/b/{broker}/bulk/{id}", bulk),
]
