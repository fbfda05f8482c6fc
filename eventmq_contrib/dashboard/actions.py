"""Actions: each asks first, is made by a POST, says what it did, and names its user to the broker.

Whoever only reads is refused here, whatever the pages show. The guard has checked the origin and
the token of each form before.
"""

from __future__ import annotations

import logging
import re
import uuid
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, unquote, urlencode

from eventmq.cli import printable
from eventmq.errors import NotAllowed, ProtocolError
from eventmq_contrib.dashboard import words
from eventmq_contrib.dashboard.pages import FILTERS, filters_of
from eventmq_contrib.dashboard.web import of_broker

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.responses import Response

    from eventmq_contrib.dashboard.data import Broker
    from eventmq_contrib.dashboard.web import Visit

__all__ = ["ROUTES"]

logger = logging.getLogger("eventmq.dashboard")

#: The broker's limit of an actor, in characters.
MAX_ACTOR: Final = 200

#: Fields of pages that are none of an action.
_OF_PAGES = frozenset({"note", "form_token"})

_DONE = {"cancel": "cancelled", "retry": "queued again", "drop": "dropped"}

_BULK_ID = re.compile(r"[0-9a-f]{32}")

Fields = dict[str, list[str]]


class Action(NamedTuple):
    """Something that a user can do.

    Attributes:
        button: What the button says.
        question: What is asked before; ``{queue}`` and others are fields.
        needs: Field that must be there, "" for none.
        bulk: Action of the broker's bulk operation, "" if it is none.
        grave: Whether it cannot be undone.
    """

    button: str
    question: str
    needs: str
    bulk: str = ""
    grave: bool = False


#: Actions by name. Fields of a question are those of the form.
ACTIONS: dict[str, Action] = {
    "pause": Action(
        "Pause the queue",
        "Queue {queue}: its jobs wait until it is resumed; those that run go on.", "queue",
    ),
    "resume": Action(
        "Resume the queue", "Queue {queue}: its jobs are handed out again.", "queue"
    ),
    "purge": Action(
        "Purge the queue",
        "Queue {queue}: its waiting and delayed jobs are cancelled; those that run go on.",
        "queue", "cancel", grave=True,
    ),
    "cancel": Action("Cancel", "{jobs}. A worker that runs one is told to stop.", "id", grave=True),
    "cancel-graph": Action(
        "Cancel the graph", "All unfinished jobs of the graph of job {id}.", "id", grave=True
    ),
    "retry": Action(
        "Retry",
        "{jobs}. Each keeps its id and its arguments, and runs as its next attempt.", "id",
    ),
    "drop": Action("Drop", "{jobs}. Arguments, errors and logs are deleted.", "id", grave=True),
    "bulk-retry": Action(
        "Retry all that match", "All failed jobs that match run again.", "", "retry"
    ),
    "bulk-drop": Action(
        "Drop all that match",
        "All failed jobs that match are deleted, with their arguments, errors and logs.",
        "", "drop", grave=True,
    ),
    "bulk-cancel": Action(
        "Cancel all that match",
        "All jobs that match and have not started are cancelled.", "", "cancel", grave=True,
    ),
    "run": Action(
        "Run now",
        "Schedule {name}: its job is submitted now. Its fire times stay as they are.", "name",
    ),
    "enable": Action(
        "Enable the schedule", "Schedule {name}: it fires again from now on.", "name"
    ),
    "disable": Action(
        "Disable the schedule", "Schedule {name}: it does not fire until it is enabled.", "name"
    ),
}  # fmt: skip


def _perform(name: str, broker: Broker, fields: Fields, actor: str) -> str:
    """Carry out an action, and return what was done."""
    first = _first(fields)
    if name in {"pause", "resume"}:
        broker.ask(name, {"queue": first["queue"], "actor": actor})
        broker.refresh(0.0)
        return f"Queue {first['queue']} is {name}d."
    if name == "run":
        job = broker.client.schedules.run(first["name"], actor=actor)
        return f"Schedule {first['name']} was run: job {job.id}."
    if name in {"enable", "disable"}:
        getattr(broker.client.schedules, name)(first["name"], actor=actor)
        return f"Schedule {first['name']} is {name}d."
    if name == "cancel-graph":
        arguments = {"id": first["id"], "reason": f"cancelled by {actor}", "actor": actor}
        answer = broker.ask("cancel_graph", arguments)
        return f"{answer['count']:,} jobs of the graph were cancelled."
    return _of_jobs(name, broker, fields, actor)


def _of_jobs(call: str, broker: Broker, fields: Fields, actor: str) -> str:
    """Cancel, retry or drop jobs by their ids."""
    ids, attempts = fields["id"], fields.get("attempt", [])
    arguments: dict[str, Any] = {"ids": ids, "actor": actor}
    if call == "cancel":
        arguments["reason"] = _first(fields).get("reason") or f"cancelled by {actor}"
    if call == "retry" and len(attempts) == len(ids):
        # A form that is sent twice retries nothing twice.
        arguments["attempts"] = [int(each) for each in attempts if each.isdecimal()]
    rows = broker.ask(call, arguments)
    done = "queued" if call == "retry" else _DONE[call]
    others = [(job_id, state) for job_id, state, _ in rows if state != done]
    number = len(rows) - len(others)
    text = f"{number:,} job{'' if number == 1 else 's'} {_DONE[call]}."
    for job_id, state in others[:5]:
        text += f" Job {job_id} was left alone: it is {state or 'not known'}."
    return text + (f" {len(others) - 5:,} others were left alone." if len(others) > 5 else "")  # noqa: PLR2004


def _begin(name: str, broker: Broker, fields: Fields, actor: str) -> None:
    """Begin an action on all jobs that match; the broker carries it out."""
    action, bulk_id = ACTIONS[name].bulk, _first(fields).get("bulk_id", "")
    arguments = {**_bulk_filters(action, fields), "action": action, "actor": actor}
    if not _BULK_ID.fullmatch(bulk_id):
        raise ProtocolError(
            "the form has no bulk_id, which the page makes: open the question first", code="bad-id"
        )
    if action == "cancel":
        arguments["reason"] = f"cancelled by {actor}"
    if name == "purge":
        arguments |= {"reason": "purged", "operation": "purge"}
    # The id came with the question: a form that is sent twice starts one operation.
    broker.ask("bulk", {"id": bulk_id, **arguments})


def _first(fields: Fields) -> dict[str, str]:
    return {name: values[0] for name, values in fields.items()}


def _bulk_filters(action: str, fields: Fields) -> dict[str, Any]:
    first = _first(fields)
    of_failed = ("queue", "task", "error", "since", "until")
    names = ("queue", "task", "state") if action == "cancel" else of_failed
    unsupported = [name for name in FILTERS if first.get(name) and name not in names]
    if unsupported:
        raise ProtocolError(
            f"an operation on all jobs that match has no filter {', '.join(unsupported)}: choose "
            "jobs one by one, or leave it out",
            code="bad-filter",
        )
    return filters_of(first, names)


def _back(name: str, fields: Fields, *, done: bool) -> str:
    """Return the page to which a user returns who did something, or did not."""
    needs, first = ACTIONS[name].needs, _first(fields)
    if needs == "name":
        return "schedules"
    if needs == "queue":
        return f"queues/{quote(first['queue'], safe='')}"
    if needs and len(fields["id"]) == 1 and "from" not in fields and not (done and name == "drop"):
        return f"jobs/{quote(first['id'], safe='')}"
    chosen = {name: first[name] for name in FILTERS if first.get(name)}
    page = "jobs" if first.get("from") == "jobs" else "failed"
    return f"{page}?{urlencode({**chosen, 'list': '1'})}"


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
    if action.needs and not fields.get(action.needs, [""])[0]:
        raise ProtocolError(f"the action {name} lacks: {action.needs}", code="no-field")
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
        target=visit.link(f"act/{visit.path('action')}", **fields), counted=counted,
        back=_back(visit.path("action"), fields, done=False),
        filters={name: shown[name] for name in FILTERS if shown.get(name)},
    )  # fmt: skip


async def act(visit: Visit) -> Response:
    """Do something, and say what was done on the page to which the user returns."""
    action, fields = _asked(visit)
    actor = printable(visit.user.name)[:MAX_ACTOR]
    perform = _begin if action.bulk else _perform
    note = await visit.run(perform, visit.path("action"), visit.broker, fields, actor)
    logger.info("%s, by %s of the dashboard at broker %s", action.button, actor, visit.broker.name)
    page = _back(visit.path("action"), fields, done=True)
    if action.bulk:
        more = {name: text for name, text in _first(fields).items() if name in {"total", "least"}}
        page = f"bulk/{fields['bulk_id'][0]}?{urlencode(more | {'back': page})}"
    return visit.redirect(page, note or "")


ROUTES = [
    of_broker("confirm/{action}", confirm),
    of_broker("act/{action}", act, "POST"),
]
