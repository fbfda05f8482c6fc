"""Actions: each asks first, is made by a POST, says what it did, and names its user to the broker.

Whoever only reads is refused here, whatever the pages show. The guard has checked the origin and
the token of each form before.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote, urlencode

from starlette.routing import Route

from eventmq.cli import printable
from eventmq.errors import NotAllowed, ProtocolError
from eventmq_contrib.dashboard import words
from eventmq_contrib.dashboard.pages import FILTERS, filters_of
from eventmq_contrib.dashboard.web import dashboard_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from eventmq_contrib.dashboard.access import User
    from eventmq_contrib.dashboard.data import Broker

__all__ = ["ROUTES"]

logger = logging.getLogger("eventmq.dashboard")

#: The broker's limit of an actor, in characters.
MAX_ACTOR: Final = 200

#: Fields of pages that are none of an action.
_OF_PAGES = frozenset({"note", "form_token"})

#: Filters of operations on failed jobs.
_OF_FAILED = ("queue", "task", "error", "since", "until")

_DONE = {"cancel": "cancelled", "retry": "queued again", "drop": "dropped"}

_BULK_ID = re.compile(r"[0-9a-f]{32}")

Fields = Mapping[str, list[str]]

#: Broker, fields, actor -> what was done.
Perform = Callable[["Broker", Fields, str], str]


@dataclass(frozen=True, slots=True)
class Action:
    """Something that a user can do.

    Attributes:
        question: What is asked before; ``{queue}`` and others are fields.
        button: What the button says.
        fields: Fields that must be there.
        perform: Does it; returns what was done, for the user.
        back: The page to which the user returns.
        bulk: Action of the broker's bulk operation, "" if it is none.
        grave: Whether it cannot be undone.
    """

    question: str
    button: str
    fields: tuple[str, ...]
    perform: Perform
    back: Callable[[Fields], str]
    bulk: str = ""
    grave: bool = False


def operator_of(request: Request) -> User:
    """Return the user of a request, who may act.

    Raises:
        NotAllowed: The user only reads.
    """
    user: User = request.state.user
    if not user.is_operator:
        raise NotAllowed(f"{user.name} may only look; actions need the role operator")
    return user


def _queue_action(call: str, done: str) -> Perform:
    def perform(broker: Broker, fields: Fields, actor: str) -> str:
        queue = fields["queue"][0]
        broker.ask(call, {"queue": queue, "actor": actor})
        broker.refresh(0.0)
        return f"Queue {queue} is {done}."

    return perform


def _jobs_action(call: str, done: str) -> Perform:
    """Return an action on jobs by their ids."""

    def perform(broker: Broker, fields: Fields, actor: str) -> str:
        ids = fields["id"]
        arguments: dict[str, Any] = {"ids": ids, "actor": actor}
        if call == "cancel":
            arguments["reason"] = fields.get("reason", [""])[0] or f"cancelled by {actor}"
        if call == "retry" and len(fields.get("attempt", ())) == len(ids):
            # A form that is sent twice retries nothing twice.
            arguments["attempts"] = [int(each) for each in fields["attempt"] if each.isdecimal()]
        rows = broker.ask(call, arguments)
        others = [(job_id, state) for job_id, state, _ in rows if state != done]
        number = len(rows) - len(others)
        text = f"{number:,} job{'' if number == 1 else 's'} {_DONE[call]}."
        for job_id, state in others[:5]:
            text += f" Job {job_id} was left alone: it is {state or 'not known'}."
        return text + (f" {len(others) - 5:,} others were left alone." if len(others) > 5 else "")  # noqa: PLR2004

    return perform


def _cancel_graph(broker: Broker, fields: Fields, actor: str) -> str:
    reason = f"cancelled by {actor}"
    answer = broker.ask("cancel_graph", {"id": fields["id"][0], "reason": reason, "actor": actor})
    return f"{answer['count']:,} jobs of the graph were cancelled."


def _bulk_action(action: str, **more: Any) -> Perform:
    """Return an action on all jobs that match; the broker carries it out."""

    def perform(broker: Broker, fields: Fields, actor: str) -> str:
        arguments = _bulk_filters(action, fields)
        bulk_id = fields["bulk_id"][0]
        if not _BULK_ID.fullmatch(bulk_id):
            raise ProtocolError("the id of a bulk operation is made by the page", code="bad-id")
        if action == "cancel":
            arguments["reason"] = more.get("reason", f"cancelled by {actor}")
        # The id came with the question: a form that is sent twice starts one operation.
        broker.bulk(bulk_id, {**arguments, **more, "action": action, "actor": actor})
        return ""

    return perform


def _bulk_filters(action: str, fields: Fields) -> dict[str, Any]:
    first = {name: values[0] for name, values in fields.items()}
    unsupported = [name for name in ("key", "text", "cursor") if first.get(name)]
    if unsupported:
        raise ProtocolError(
            f"an operation on all jobs that match has no filter {', '.join(unsupported)}: choose "
            "jobs one by one, or leave it out",
            code="bad-filter",
        )
    names = ("queue", "task", "state") if action == "cancel" else _OF_FAILED
    return filters_of(first, names)


def _schedule_action(operation: str) -> Perform:
    def perform(broker: Broker, fields: Fields, actor: str) -> str:
        name = fields["name"][0]
        if operation == "run":
            return f"Schedule {name} was run: job {broker.run_schedule(name, actor=actor)}."
        broker.switch_schedule(name, on=operation == "enable", actor=actor)
        return f"Schedule {name} is {operation}d."

    return perform


def _to_queue(fields: Fields) -> str:
    return f"queues/{quote(fields['queue'][0], safe='')}"


def _to_job(fields: Fields) -> str:
    if len(fields["id"]) == 1 and "from" not in fields:
        return f"jobs/{quote(fields['id'][0], safe='')}"
    return _to_failed(fields)


def _to_failed(fields: Fields) -> str:
    chosen = {name: fields[name][0] for name in FILTERS if fields.get(name, [""])[0]}
    page = "jobs" if fields.get("from") == ["jobs"] else "failed"
    return f"{page}?{urlencode({**chosen, 'list': '1'})}"


#: Actions by name. Fields of a question are those of the form.
ACTIONS: dict[str, Action] = {
    "pause": Action(
        "Queue {queue}: its jobs wait until it is resumed; those that run go on.",
        "Pause the queue", ("queue",), _queue_action("pause", "paused"), _to_queue,
    ),
    "resume": Action(
        "Queue {queue}: its jobs are handed out again.",
        "Resume the queue", ("queue",), _queue_action("resume", "resumed"), _to_queue,
    ),
    "purge": Action(
        "Queue {queue}: its waiting and delayed jobs are cancelled; those that run go on.",
        "Purge the queue", ("queue",), _bulk_action("cancel", reason="purged", operation="purge"),
        _to_queue, bulk="cancel", grave=True,
    ),
    "cancel": Action(
        "{jobs}. A worker that runs one is told to stop.",
        "Cancel", ("id",), _jobs_action("cancel", "cancelled"), _to_job, grave=True,
    ),
    "cancel-graph": Action(
        "All unfinished jobs of the graph of job {id}.",
        "Cancel the graph", ("id",), _cancel_graph, _to_job, grave=True,
    ),
    "retry": Action(
        "{jobs}. Each keeps its id and its arguments, and runs as its next attempt.",
        "Retry", ("id",), _jobs_action("retry", "queued"), _to_job,
    ),
    "drop": Action(
        "{jobs}. Arguments, errors and logs are deleted.",
        "Drop", ("id",), _jobs_action("drop", "dropped"), _to_job, grave=True,
    ),
    "bulk-retry": Action(
        "All failed jobs that match run again.",
        "Retry all that match", (), _bulk_action("retry"), _to_failed, bulk="retry",
    ),
    "bulk-drop": Action(
        "All failed jobs that match are deleted, with their arguments, errors and logs.",
        "Drop all that match", (), _bulk_action("drop"), _to_failed, bulk="drop", grave=True,
    ),
    "bulk-cancel": Action(
        "All jobs that match and have not started are cancelled.",
        "Cancel all that match", (), _bulk_action("cancel"), _to_failed, bulk="cancel", grave=True,
    ),
    "run": Action(
        "Schedule {name}: its job is submitted now. Its fire times stay as they are.",
        "Run now", ("name",), _schedule_action("run"), lambda _: "schedules",
    ),
    "enable": Action(
        "Schedule {name}: it fires again from now on.",
        "Enable the schedule", ("name",), _schedule_action("enable"), lambda _: "schedules",
    ),
    "disable": Action(
        "Schedule {name}: it does not fire until it is enabled.",
        "Disable the schedule", ("name",), _schedule_action("disable"), lambda _: "schedules",
    ),
}  # fmt: skip


def _action(request: Request, fields: Fields) -> Action:
    name = request.path_params["action"]
    action = ACTIONS.get(name)
    if action is None:
        raise ProtocolError(f"there is no action {name[:40]!r}", code="no-action")
    missing = [field for field in action.fields if not fields.get(field, [""])[0]]
    if missing:
        raise ProtocolError(f"the action {name} lacks: {', '.join(missing)}", code="no-field")
    return action


async def confirm(request: Request) -> Response:
    """Ask whether to do something; for an operation by filters, say how many jobs match."""
    dashboard = dashboard_of(request)
    broker = dashboard.broker(request)
    operator_of(request)
    query = request.query_params
    fields = {name: query.getlist(name) for name in query if name not in _OF_PAGES}
    if "chosen" in fields:  # ID and ATTEMPT of the boxes of a listing
        pairs = [each.rpartition(" ")[::2] for each in fields.pop("chosen")]
        fields["id"] = [unquote(job_id) for job_id, _ in pairs]
        fields["attempt"] = [attempt for _, attempt in pairs]
    action = _action(request, fields)
    await dashboard.brokers.snapshot(broker)
    counted: dict[str, Any] | None = None
    shown: dict[str, Any] = {name: values[0] for name, values in fields.items()}
    if action.bulk:
        filters = _bulk_filters(action.bulk, fields)
        counting = {**filters, "action": action.bulk}
        # "2h ago" is meant from now, and not from when the answer comes.
        for name in {"since", "until"} & {*filters}:
            fields[name] = [words.clock(filters[name], "%Y-%m-%dT%H:%M:%S+00:00")]
        counted = answer = await dashboard.brokers.run(broker.ask, "count", counting)
        fields |= {"bulk_id": [uuid.uuid4().hex], "total": [str(answer["count"])]}
        fields |= {} if answer["complete"] else {"least": ["1"]}
    number = len(fields.get("id", ()))
    shown["jobs"] = f"Job {shown.get('id', '')}" if number == 1 else f"{number:,} chosen jobs"
    # In the address: a form would change line ends and other characters of names.
    target = dashboard.link(request, broker.name, f"act/{request.path_params['action']}", **fields)
    return dashboard.page(
        request, "confirm.html", broker, target=target, spec=action,
        question=action.question.format_map(shown), back=action.back(fields),
        counted=counted, filters={name: shown[name] for name in FILTERS if shown.get(name)},
    )  # fmt: skip


async def act(request: Request) -> Response:
    """Do something, and say what was done on the page to which the user returns."""
    dashboard = dashboard_of(request)
    broker = dashboard.broker(request)
    actor = printable(operator_of(request).name)[:MAX_ACTOR]
    query = request.query_params
    fields = {name: query.getlist(name) for name in query if name not in _OF_PAGES}
    action = _action(request, fields)
    if action.bulk and not fields.get("bulk_id"):
        raise ProtocolError("the form has no bulk_id: open the question first", code="no-field")
    note = await dashboard.brokers.run(action.perform, broker, fields, actor)
    logger.info("%s, by %s of the dashboard at broker %s", action.button, actor, broker.name)
    if not action.bulk:
        return dashboard.redirect(request, broker.name, action.back(fields), note)
    more = {"back": action.back(fields)}
    more |= {name: fields[name][0] for name in ("total", "least") if name in fields}
    page = urlencode(more)
    return dashboard.redirect(request, broker.name, f"bulk/{fields['bulk_id'][0]}?{page}")


ROUTES = [
    Route("/b/{broker}/confirm/{action}", confirm, methods=["GET"]),
    Route("/b/{broker}/act/{action}", act, methods=["POST"]),
]
