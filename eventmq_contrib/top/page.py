"""The page itself: polls the brokers in threads, shows a view, and acts on what is selected.

Every text of a broker is escaped (`eventmq.cli.printable`) and shown as `rich.text.Text`, in which
nothing is markup.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.coordinate import Coordinate
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static

from eventmq.cli import printable
from eventmq.errors import BrokerUnavailable, EventMQError, NotAllowed, SettingsError
from eventmq_contrib.figures import History, sample_of
from eventmq_contrib.top.views import (
    FAILED,
    JOBS,
    OVERVIEW,
    QUEUES,
    ROWS,
    RUNNING,
    VIEWS,
    Filter,
    View,
    cell,
    clock,
    details,
    fitting,
    overview,
)

if TYPE_CHECKING:
    from eventmq import EventMQ

    #: A view, its filter, and the number of pages of its listing.
    Request = tuple[View, Filter, int]

__all__ = ["INTERVAL", "Broker", "Top"]

#: Seconds between two polls.
INTERVAL = 1.0

#: Pages of a listing that are asked for at each poll at most: the broker examines up to 5,000 jobs
#: for each.
MAX_PAGES = 5

#: Rows that are shown at most: a terminal of thousands of rows would be slow.
MAX_SHOWN = 1000

#: Call that acts -> views that have it, and the state of a job to which it was applied.
_ACTIONS: Mapping[str, tuple[Sequence[View], str]] = {
    "pause": ((QUEUES,), ""),
    "retry": ((FAILED,), "queued"),
    "drop": ((FAILED,), "dropped"),
    "cancel": ((RUNNING, JOBS), "cancelled"),
}

#: Colour of a state of a job; the word says the same.
_COLOURS = {"failed": "red", "running": "blue", "delayed": "yellow"}


@dataclass(eq=False, slots=True)
class Broker:
    """A broker of the page. Only the thread of the page writes here.

    Attributes:
        name: Name on the page.
        app: Client of the broker.
        history: Its last minute.
        metrics: Its last answer to ``metrics``, None before the first.
        answer: Its last answer to the request of the view that is shown, and that request.
        state: What is known about it.
        problem: Why the last call was not answered, "" if it was.
        is_asked: Whether a poll is under way.
    """

    name: str
    app: EventMQ
    history: History = field(default_factory=History)
    metrics: Mapping[str, Any] | None = None
    answer: tuple[Request, Any] | None = None
    state: str = "connecting"
    problem: str = ""
    is_asked: bool = False


class Box(ModalScreen[bool]):
    """A text above the page: a question, or everything about a job."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", "yes"),
        Binding("n,escape,q", "dismiss(False)", "no"),
    ]

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def compose(self) -> ComposeResult:
        """Make the widgets."""
        yield VerticalScroll(Static(Text(self.text)), id="box")


class Table(DataTable[Text]):
    """A table whose cursor stays on its row when the rows change."""

    _shown: tuple[Mapping[str, int], Sequence[str]] = ({}, ())

    def show(self, columns: Mapping[str, int], rows: Mapping[str, Sequence[Text]]) -> None:
        """Show rows.

        Args:
            columns: Name -> width in characters.
            rows: Key of a row -> its cells.
        """
        shown = (dict(columns), [*rows])
        if shown == self._shown:
            for number, cells in enumerate(rows.values()):
                for place, text in enumerate(cells):
                    at = Coordinate(number, place)
                    if self.get_cell_at(at) != text:
                        self.update_cell_at(at, text)
            return
        key, line, scrolled = self.selected, self.cursor_row, self.scroll_y
        with self.app.batch_update():
            self.clear(columns=True)
            for name, width in columns.items():
                self.add_column(Text(printable(name)), width=width, key=name)
            for row_key, cells in rows.items():
                self.add_row(*cells, key=row_key)
            keys = shown[1]
            line = keys.index(key) if key in rows else min(line, len(keys) - 1)
            self.scroll_to(y=scrolled, animate=False)
            self.move_cursor(row=max(line, 0), animate=False)
        self._shown = shown

    @property
    def selected(self) -> str:
        """Key of the row under the cursor, "" if there is none."""
        keys = self._shown[1]
        return keys[self.cursor_row] if 0 <= self.cursor_row < len(keys) else ""


class Top(App[None]):
    """The page.

    Args:
        brokers: At least one.
        read_only: Whether it offers nothing that changes something.
    """

    ENABLE_COMMAND_PALETTE = False
    TITLE = "eventmq top"
    CSS = """
    #head, #said { height: auto; max-height: 4; }
    Table { height: 1fr; }
    Table > .datatable--cursor { text-style: bold reverse; }
    Input { display: none; }
    Input.open { display: block; }
    Box { align: center middle; }
    #box { width: 90%; height: auto; max-height: 90%; border: round $foreground; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(str(number), f"view({number - 1})", view.name, show=False)
            for number, view in enumerate(VIEWS, 1)
        ),
        Binding("p", "act('pause')", "pause/resume"),
        Binding("r", "act('retry')", "retry"),
        Binding("d", "act('drop')", "drop"),
        Binding("c", "act('cancel')", "cancel"),
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("escape", "unfilter", "no filter", show=False),
        Binding("m", "more", "more", show=False),
        Binding("s", "sort", "sort"),
        Binding("S", "flip", "reverse", show=False),
        Binding("b", "broker", "broker"),
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "quit", "quit", show=False, priority=True),
    ]

    def __init__(self, brokers: Sequence[Broker], *, read_only: bool = False) -> None:
        super().__init__()
        self.brokers = brokers
        self.read_only = read_only
        self.broker = brokers[0]
        self.view: View = OVERVIEW
        self.filter = Filter("")
        self.pages = 1
        #: Column by which rows are sorted, "" for the order of the broker.
        self.sorted_by = ""
        self.is_flipped = False
        #: Key -> the row as it came, of the rows that are shown.
        self.rows: dict[str, Mapping[str, Any]] = {}
        # Not looked up: a query finds nothing of the page below a question.
        self.head, self.said = Static(id="head"), Static(id="said")
        self.table = Table(cursor_type="row")
        self.box = Input(placeholder="words, queue=NAME, task=NAME, state=STATE or error=TYPE")

    def compose(self) -> ComposeResult:
        """Make the widgets."""
        yield self.head
        yield self.table
        yield self.said
        yield self.box
        yield Footer()

    def on_mount(self) -> None:
        """Begin to poll."""
        self.table.focus()
        self.set_interval(INTERVAL, self.poll)
        self.poll()
        self.show()

    def on_resize(self) -> None:
        """Fit the columns to the terminal."""
        self.show()

    # Polls

    def poll(self) -> None:
        """Ask each broker that owes no answer one call: that of the view, or whether it is there.

        A broker that does not answer holds up no other, nor the page.
        """
        for broker in self.brokers:
            if not broker.is_asked:
                broker.is_asked = True
                self._in_thread(self._ask, broker, self.request, self._call(broker))

    @property
    def request(self) -> Request:
        """What is asked for now."""
        return self.view, self.filter, self.pages

    def _in_thread(self, function: Callable[..., None], *arguments: Any) -> None:
        self.run_worker(partial(function, *arguments), thread=True, exit_on_error=True)

    def _call(self, broker: Broker) -> tuple[str, dict[str, Any]]:
        """Return the call for a broker, and its arguments."""
        view = self.view
        if view is not OVERVIEW and broker is not self.broker:
            return "ping", {}
        limit = {"limit": ROWS} if view.filters else {}
        return view.call, {**view.arguments, **limit, **dict(self.filter.arguments)}

    def _ask(self, broker: Broker, request: Request, call: tuple[str, dict[str, Any]]) -> None:
        """Ask a broker, in a thread."""
        name, arguments = call
        try:
            answer = broker.app.ask(name, arguments)
            for _ in range(request[2] - 1):
                if not answer.get("cursor"):
                    break
                page = broker.app.ask(name, {**arguments, "cursor": answer["cursor"]})
                answer = {**page, name: answer[name] + page[name]}
        except EventMQError as error:
            answer = error
        else:
            answer = None if name == "ping" else answer
        self.call_later(self._take, broker, request, answer)

    def _take(self, broker: Broker, request: Request, answer: Any) -> None:
        """Take an answer over, or an error, and show it."""
        broker.is_asked = False
        broker.problem = ""
        if isinstance(answer, BrokerUnavailable):
            broker.problem = str(answer)
            if not broker.state.startswith("missing"):
                broker.state = f"missing since {clock(time.time())}"
        elif isinstance(answer, EventMQError):
            broker.state, broker.problem = "up", str(answer)
        else:
            broker.state = "up"
            if request[0] is OVERVIEW:
                broker.metrics = answer
                broker.history = broker.history.added(sample_of(answer, time.monotonic(), {}))
            elif answer is not None:
                broker.answer = (request, answer)
        if request != self.request:
            self.poll()
        self.show()

    # What is shown

    def show(self) -> None:
        """Show the answers that are there."""
        if not self.table.is_attached:
            return
        now = time.time()
        columns = [*self.view.columns]
        if self.view is OVERVIEW:
            columns += [broker.name for broker in self.brokers]
            about = {b.name: (b.metrics, b.history, b.state) for b in self.brokers}
            rows, complete = overview(about), ""
        else:
            rows, complete = self._listing(now)
        cells = [{name: cell(name, row.get(name), now) for name in columns} for row in rows]
        gives_way = self.view.gives_way
        widths = fitting(columns, cells, self.size.width - 2, gives_way)
        self.rows = {str(row[self.view.key]): row for row in rows}
        self.table.show(
            widths,
            {
                key: [_text(name, texts[name]) for name in widths]
                for key, texts in zip(self.rows, cells, strict=True)
            },
        )
        self.head.update(self._head(complete))

    def _listing(self, now: float) -> tuple[list[Mapping[str, Any]], str]:
        """Return the rows of the view, filtered and sorted, and a note about their extent."""
        if self.broker.answer is None or self.broker.answer[0][:2] != self.request[:2]:
            return [], ""
        answer = self.broker.answer[1]
        # A listing of jobs has its rows under its own name.
        all_rows = [*self.view.rows(answer[self.view.call] if self.view.filters else answer)]
        rows = [row for row in all_rows if self.filter.has(row, self.view.columns, now)]
        if by := self.sorted_by:
            known = [row for row in rows if row.get(by) not in {None, ""}]
            largest_first = any(isinstance(row[by], (int, float)) for row in known)
            known.sort(key=lambda row: row[by], reverse=largest_first != self.is_flipped)
            rows = known + [row for row in rows if row.get(by) in {None, ""}]
        extent = _extent(self.view, answer, len(all_rows))
        if len(rows) > MAX_SHOWN:
            extent = f"the first {MAX_SHOWN:,} of {len(rows):,}: filter them with /"
        return rows[:MAX_SHOWN], extent

    def _head(self, extent: str) -> Text:
        """Return the lines above the table."""
        text = Text()
        for broker in self.brokers:
            label = f"{printable(broker.name)}: {broker.state}"
            _add(text, label, is_chosen=broker is self.broker and len(self.brokers) > 1)
        text.append("read-only\n" if self.read_only else "\n")
        for number, view in enumerate(VIEWS, 1):
            _add(text, f"{number} {view.name}", is_chosen=view is self.view)
        about = [f"filter: {printable(self.filter.text)}"] if self.filter.text else []
        about += [f"sorted by {self.sorted_by}"] if self.sorted_by else []
        about += [extent] if extent else []
        about += [printable(self.broker.problem)] if self.broker.problem else []
        return text.append("\n" + "; ".join(about))

    def say(self, text: str) -> None:
        """Show a line below the table, with the time."""
        self.said.update(Text(f"{clock(time.time())}  {printable(text)}"))

    # Keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Return whether a key has its action now: an action belongs to a view."""
        if action == "act":
            return not self.read_only and self.view in _ACTIONS[str(parameters[0])][0]
        if action == "more":
            return bool(self.view.filters)
        return action != "broker" or len(self.brokers) > 1

    def action_view(self, number: int) -> None:
        """Show another view."""
        self.view, self.filter, self.pages, self.sorted_by = VIEWS[number], Filter(""), 1, ""
        self.refresh_bindings()
        self.poll()
        self.show()

    def action_broker(self) -> None:
        """Show the next broker."""
        place = self.brokers.index(self.broker) + 1
        self.broker = self.brokers[place % len(self.brokers)]
        self.poll()
        self.show()

    def action_more(self) -> None:
        """Search one page further back."""
        self.pages = min(self.pages + 1, MAX_PAGES)
        self.poll()

    def action_sort(self) -> None:
        """Sort by the next column."""
        columns = ["", *self.view.columns]
        self.sorted_by = columns[(columns.index(self.sorted_by) + 1) % len(columns)]
        self.show()

    def action_flip(self) -> None:
        """Reverse the order."""
        self.is_flipped = not self.is_flipped
        self.show()

    def action_filter(self) -> None:
        """Ask for a filter."""
        self.box.value = self.filter.text
        self.box.add_class("open").focus()

    def action_unfilter(self) -> None:
        """Remove the filter, or close its line."""
        self._set_filter("")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Use a filter."""
        self._set_filter(event.value.strip())

    def _set_filter(self, text: str) -> None:
        try:
            self.filter, self.pages = Filter.read(text, self.view), 1
        except SettingsError as error:
            self.say(str(error))
            return
        self.box.remove_class("open")
        self.table.focus()
        self.poll()
        self.show()

    # Actions

    def action_act(self, call: str) -> None:
        """Pause or resume the queue, or retry, drop or cancel the job under the cursor."""
        row = self.selected
        if row is None:
            return
        if self.view is QUEUES:
            name = row["name"]
            verb = "resume" if row["paused"] else call
            self._act(verb, f"queue {name}", {"queue": name}, lambda _: f"{verb}d queue {name}")
            return
        what = f"job {row['id']} ({row['task'] or 'legacy'})"
        wanted = _ACTIONS[call][1]

        def said(answer: Sequence[Sequence[str]]) -> str:
            [(_, state, before)] = answer
            if state == wanted != before:
                return f"{state}: {what}, which was {before}"
            return f"not done: {what} is {state or 'not known any more'}"

        # A job that was retried meanwhile is not retried again.
        more = {"attempts": [row["attempt"]]} if call == "retry" else {}
        self._act(call, what, {"ids": [row["id"]], **more}, said)

    @property
    def selected(self) -> Mapping[str, Any] | None:
        """The row under the cursor, None if there is none."""
        return self.rows.get(self.table.selected)

    def _act(
        self, verb: str, what: str, arguments: Mapping[str, Any], said: Callable[[Any], str]
    ) -> None:
        """Ask, and if the answer is yes make a call of the same name as the verb."""
        broker = self.broker
        actor = broker.app.settings.actor
        at = f" of broker {broker.name}" if len(self.brokers) > 1 else ""

        def answered(yes: bool | None) -> None:  # noqa: FBT001 - textual hands it over
            if yes:
                self._in_thread(self._make, broker, verb, arguments, said)
            else:
                self.say(f"nothing done: {verb} {what}")

        question = f"{verb.capitalize()} {what}{at}, as {actor or 'nobody'}?"
        self.push_screen(Box(f"{printable(question)}\n\ny  yes    n  no"), answered)

    def _make(
        self, broker: Broker, call: str, arguments: Mapping[str, Any], said: Callable[[Any], str]
    ) -> None:
        """Make a call that acts, in a thread."""
        try:
            text = f"{said(broker.app.ask(call, arguments))}; by {broker.app.settings.actor}"
        except BrokerUnavailable as error:
            text = f"no answer, so it may or may not be done: {error}"
        except EventMQError as error:
            text = f"not done: {error}"
        self.call_later(self.say, text)
        self.call_later(self.poll)

    def on_data_table_row_selected(self) -> None:
        """Show the job under the cursor."""
        if self.view in {RUNNING, JOBS, FAILED} and (row := self.selected):
            self._in_thread(self._find, self.broker, row["id"])

    def _find(self, broker: Broker, job_id: str) -> None:
        """Ask about a job, in a thread."""
        try:
            job = broker.app.job(job_id)
            try:
                info = job.info(args=True)
            except NotAllowed:
                info = job.info()
        except EventMQError as error:
            self.call_later(self.say, str(error))
        else:
            text = "\n".join(("escape  back", "", *details(info, time.time())))
            self.call_later(self.push_screen, Box(text))


def _text(column: str, text: str) -> Text:
    style = _COLOURS.get(text, "") if column == "state" else ""
    return Text(text, style, no_wrap=True, overflow="ellipsis", end="")


def _add(text: Text, label: str, *, is_chosen: bool) -> None:
    """Append a label; brackets mark the chosen one where there are no colours."""
    text.append(f"[{label}]" if is_chosen else f" {label} ", "bold" if is_chosen else "")


def _extent(view: View, answer: Any, rows: int) -> str:
    """Return how far a listing reaches, "" if it is whole."""
    if not view.filters or answer["complete"]:
        return "" if rows else f"no {view.name}"
    reached = f", searched back to {clock(answer['searched_to'])}" if answer["searched_to"] else ""
    return f"the newest {rows:,}{reached}: m for more"
