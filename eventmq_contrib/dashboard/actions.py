"""Actions: each asks first, is made by a POST, says what it did, and names its user to the broker.

Whoever only reads is refused here, whatever the pages show. The guard has checked the origin and
the token of each form before.
"""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, unquote, urlencode

from eventmq.cli import printable
from eventmq.errors import NotAllowed, ProtocolError
from eventmq_contrib.dashboard.pages import FILTERS, filters_of
from eventmq_contrib.dashboard.web import of_broker
from eventmq_contrib.figures import clock

if TYPE_CHECKING:
    from starlette.responses import Response

    from eventmq_contrib.dashboard.web import Visit

__all__ = ["ROUTES"]

logger = logging.getLogger("eventmq.dashboard")

#: The broker's limit of an actor, in characters.
MAX_ACTOR: Final = 200

#: Action on jobs -> their state afterwards, and what was done.
_DONE = {
    "cancel": ("cancelled", "cancelled"), "retry": ("queued", "queued again"),
    "drop": ("dropped", "dropped"),
}  # fmt: skip


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


class Form:
    """What an operator is asked, or has agreed to: an action and its fields.

    Args:
        visit: The visit; its query has the fields, since a form would change line ends and other
            characters of names.

    Raises:
        NotAllowed: The user only reads.
        ProtocolError: There is no such action, or it lacks a field.
    """

    def __init__(self, visit: Visit) -> None:
        if not visit.user.is_operator:
            raise NotAllowed(f"{visit.user.name} may only look; actions need the role operator")
        self.broker, self.name = visit.broker, visit.names["action"]
        self.actor = printable(visit.user.name)[:MAX_ACTOR]
        fields = {each: visit.query.getlist(each) for each in visit.query}
        if "chosen" in fields:  # ID and ATTEMPT of the boxes of a listing
            pairs = [each.rpartition(" ")[::2] for each in fields.pop("chosen")]
            fields["id"] = [unquote(job_id) for job_id, _ in pairs]
            fields["attempt"] = [attempt for _, attempt in pairs]
        if self.name not in ACTIONS:
            raise ProtocolError(f"there is no action {self.name[:40]!r}", code="no-action")
        self.action, self.fields = ACTIONS[self.name], fields
        self.first = {name: values[0] for name, values in fields.items()}
        if self.action.needs and not self.first.get(self.action.needs):
            msg = f"the action {self.name} lacks: {self.action.needs}"
            raise ProtocolError(msg, code="no-field")
        self.chosen = {name: self.first[name] for name in FILTERS if self.first.get(name)}

    def filters(self) -> dict[str, Any]:
        """Return the filters of an operation on all jobs that match."""
        names: tuple[str, ...] = ("queue", "task", "error", "since", "until")
        if self.action.bulk == "cancel":
            names = ("queue", "task", "state")
        if unsupported := ", ".join(name for name in self.chosen if name not in names):
            raise ProtocolError(
                f"an operation on all jobs that match has no filter {unsupported}: choose jobs one "
                "by one, or leave it out",
                code="bad-filter",
            )
        return filters_of(self.first, names)

    def back(self, *, done: bool) -> str:
        """Return the page to which a user returns who did something, or did not."""
        needs = self.action.needs
        if needs == "name":
            return "schedules"
        if needs == "queue":
            return f"queues/{quote(self.first['queue'], safe='')}"
        is_one = needs and len(self.fields["id"]) == 1 and "from" not in self.fields
        if is_one and not (done and self.name == "drop"):
            return f"jobs/{quote(self.first['id'], safe='')}"
        page = "jobs" if self.first.get("from") == "jobs" else "failed"
        return f"{page}?{urlencode({**self.chosen, 'list': '1'})}"

    def perform(self) -> str:
        """Carry the action out, and return what was done."""
        name, first, actor = self.name, self.first, self.actor
        if self.action.bulk:
            return self._begin()
        if name in {"pause", "resume"}:
            self.broker.ask(name, {"queue": first["queue"], "actor": actor})
            self.broker.refresh(0.0)
            return f"Queue {first['queue']} is {name}d."
        if name == "run":
            job = self.broker.client.schedules.run(first["name"], actor=actor)
            return f"Schedule {first['name']} was run: job {job.id}."
        if name in {"enable", "disable"}:
            getattr(self.broker.client.schedules, name)(first["name"], actor=actor)
            return f"Schedule {first['name']} is {name}d."
        if name == "cancel-graph":
            arguments = {"id": first["id"], "reason": f"cancelled by {actor}", "actor": actor}
            answer = self.broker.ask("cancel_graph", arguments)
            return f"{answer['count']:,} jobs of the graph were cancelled."
        return self._act_on_jobs()

    def _act_on_jobs(self) -> str:
        """Cancel, retry or drop jobs by their ids."""
        ids, attempts = self.fields["id"], self.fields.get("attempt", [])
        arguments: dict[str, Any] = {"ids": ids, "actor": self.actor}
        if self.name == "cancel":
            arguments["reason"] = f"cancelled by {self.actor}"
        if self.name == "retry" and len(attempts) == len(ids):
            # A form that is sent twice retries nothing twice.
            arguments["attempts"] = [int(each) for each in attempts if each.isdecimal()]
        rows = self.broker.ask(self.name, arguments)
        state_after, text = _DONE[self.name]
        others = [(job_id, state) for job_id, state, _ in rows if state != state_after]
        number = len(rows) - len(others)
        note = f"{number:,} job{'' if number == 1 else 's'} {text}."
        for job_id, state in others[:1]:
            more = f" and {len(others) - 1:,} others were" if len(others) > 1 else " was"
            note += f" Job {job_id}{more} left alone: it is {state or 'not known'}."
        return note

    def _begin(self) -> str:
        """Begin an action on all jobs that match; the broker carries it out."""
        action = self.action.bulk
        arguments = {**self.filters(), "action": action, "actor": self.actor}
        if action == "cancel":
            arguments["reason"] = f"cancelled by {self.actor}"
        if self.name == "purge":
            arguments |= {"reason": "purged", "operation": "purge"}
        # The id came with the question: a form that is sent twice starts one operation.
        self.broker.ask("bulk", {"id": self.first.get("bulk_id", ""), **arguments})
        return ""


async def confirm(visit: Visit) -> Response:
    """Ask whether to do something; for an operation by filters, say how many jobs match."""
    form, counted = Form(visit), None
    action, fields = form.action, form.fields
    if action.bulk:
        filters = form.filters()
        # "2h ago" is meant from now, and not from when the answer comes.
        for name in {"since", "until"} & {*filters}:
            fields[name] = [clock(filters[name], "%Y-%m-%dT%H:%M:%S+00:00")]
        counted = await visit.run(visit.broker.ask, "count", {**filters, "action": action.bulk})
        fields |= {"bulk_id": [uuid.uuid4().hex], "total": [str(counted["count"])]}
        fields |= {} if counted["complete"] else {"least": ["1"]}
    number = len(fields.get("id", ()))
    jobs = f"Job {form.first['id']}" if number == 1 else f"{number:,} chosen jobs"
    return visit.page(
        "confirm.html", spec=action, counted=counted, filters=form.chosen,
        question=action.question.format_map({**form.first, "jobs": jobs}),
        target=visit.link(f"act/{form.name}", **fields), back=form.back(done=False),
    )  # fmt: skip


async def act(visit: Visit) -> Response:
    """Do something, and say what was done on the page to which the user returns."""
    form = Form(visit)
    note, page = await visit.run(form.perform), form.back(done=True)
    logger.info(
        "%s, by %s of the dashboard at broker %s", form.action.button, form.actor, visit.broker.name
    )
    if form.action.bulk:
        more = {name: form.first[name] for name in ("total", "least") if name in form.first}
        page = f"bulk/{form.first['bulk_id']}?{urlencode(more | {'back': page})}"
    return visit.redirect(page, note)


ROUTES = [of_broker("confirm/{action}", confirm), of_broker("act/{action}", act, "POST")]
