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

from eventmq.cli import printable
from eventmq.errors import NotAllowed, ProtocolError
from eventmq_contrib.dashboard import words
from eventmq_contrib.dashboard.pages import FILTERS, filters_of
from eventmq_contrib.dashboard.web import of_broker

if TYPE_CHECKING:
    from starlette.responses import Response

    from eventmq_contrib.dashboard.data import Broker
    from eventmq_contrib.dashboard.web import Visit

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

Fields = dict[str, list[str]]

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


def _first(fields: Fields) -> dict[str, str]:
    return {name: values[0] for name, values in fields.items()}


def _bulk_filters(action: str, fields: Fields) -> dict[str, Any]:
    first = _first(fields)
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
    chosen = {name: text for name, text in _first(fields).items() if name in FILTERS and text}
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


def _asked(visit: Visit) -> tuple[Action, Fields]:
    """Return the action of a visit by an operator, and its fields.

    Raises:
        NotAllowed: The user only reads.
        ProtocolError: There is no such action, or it lacks a field.
    """
    if not visit.user.is_operator:
        raise NotAllowed(f"{visit.user.name} may only look; actions need the role operator")
    query, name = visit.query, visit.path("action")
    fields = {each: query.getlist(each) for each in query if each not in _OF_PAGES}
    if "chosen" in fields:  # ID and ATTEMPT of the boxes of a listing
        pairs = [each.rpartition(" ")[::2] for each in fields.pop("chosen")]
        fields["id"] = [unquote(job_id) for job_id, _ in pairs]
        fields["attempt"] = [attempt for _, attempt in pairs]
    if name not in ACTIONS:
        raise ProtocolError(f"there is no action {name[:40]!r}", code="no-action")
    action = ACTIONS[name]
    missing = [field for field in action.fields if not fields.get(field, [""])[0]]
    if missing:
        raise ProtocolError(f"the action {name} lacks: {', '.join(missing)}", code="no-field")
    return action, fields


async def confirm(visit: Visit) -> Response:
    """Ask whether to do something; for an operation by filters, say how many jobs match."""
    action, fields = _asked(visit)
    counted: Mapping[str, Any] | None = None
    shown = _first(fields)
    if action.bulk:
        filters = _bulk_filters(action.bulk, fields)
        # "2h ago" is meant from now, and not from when the answer comes.
        for name in {"since", "until"} & {*filters}:
            fields[name] = [words.clock(filters[name], "%Y-%m-%dT%H:%M:%S+00:00")]
        counted = answer = await visit.run(
            visit.broker.ask, "count", {**filters, "action": action.bulk}
        )
        fields |= {"bulk_id": [uuid.uuid4().hex], "total": [str(answer["count"])]}
        if not answer["complete"]:
            fields["least"] = ["1"]
    number = len(fields.get("id", ()))
    jobs = f"Job {shown.get('id', '')}" if number == 1 else f"{number:,} chosen jobs"
    return visit.page(
        "confirm.html", spec=action, question=action.question.format_map({**shown, "jobs": jobs}),
        # In the address: a form would change line ends and other characters of names.
        target=visit.link(f"act/{visit.path('action')}", **fields), back=action.back(fields),
        counted=counted, filters={name: shown[name] for name in FILTERS if shown.get(name)},
    )  # fmt: skip


async def act(visit: Visit) -> Response:
    """Do something, and say what was done on the page to which the user returns."""
    action, fields = _asked(visit)
    actor = printable(visit.user.name)[:MAX_ACTOR]
    if action.bulk and not fields.get("bulk_id"):
        raise ProtocolError("the form has no bulk_id: open the question first", code="no-field")
    note = await visit.run(action.perform, visit.broker, fields, actor)
    logger.info("%s, by %s of the dashboard at broker %s", action.button, actor, visit.broker.name)
    page = action.back(fields)
    if action.bulk:
        more = {name: text for name, text in _first(fields).items() if name in {"total", "least"}}
        page = f"bulk/{fields['bulk_id'][0]}?{urlencode(more | {'back': page})}"
    return visit.redirect(page, note)


ROUTES = [
    of_broker("confirm/{action}", confirm),
    of_broker("act/{action}", act, "POST"),
]
