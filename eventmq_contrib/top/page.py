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
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static

from eventmq.cli import column_widths, printable
from eventmq.errors import BrokerUnavailable, EventMQError, SettingsError
from eventmq_contrib.brokers import info_of
from eventmq_contrib.figures import History, sample_of
from eventmq_contrib.top import views

if TYPE_CHECKING:
    from eventmq import EventMQ
    from eventmq_contrib.top.views import View

    #: A view, the text of its filter, and the number of pages of its listing.
    Request = tuple[View, str, int]

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
    "pause": ((views.QUEUES,), ""),
    "retry": ((views.FAILED,), "queued"),
    "drop": ((views.FAILED,), "dropped"),
    "cancel": ((views.RUNNING, views.JOBS), "cancelled"),
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

    _shown: tuple[Mapping[str, int], Mapping[str, Sequence[Text]]] = ({}, {})

    def show(self, columns: Mapping[str, int], rows: Mapping[str, Sequence[Text]]) -> None:
        """Show rows.

        Args:
            columns: Name -> width in characters.
            rows: Key of a row -> its cells.
        """
        if (columns, rows) == self._shown:
            return
        keys, selected, line, scrolled = [*rows], self.selected, self.cursor_row, self.scroll_y
        with self.app.batch_update():
            self.clear(columns=True)
            for name, width in columns.items():
                self.add_column(Text(printable(name)), width=width, key=name)
            for key, cells in rows.items():
                self.add_row(*cells, key=key)
            line = keys.index(selected) if selected in rows else min(line, len(keys) - 1)
            self.scroll_to(y=scrolled, animate=False)
            self.move_cursor(row=max(line, 0), animate=False)
        self._shown = (columns, rows)

    @property
    def selected(self) -> str:
        """Key of the row under the cursor, "" if there is none."""
        keys = [*self._shown[1]]
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
            for number, view in enumerate(views.VIEWS, 1)
        ),
        Binding("p", "act('pause')", "pause/resume"),
        Binding("r", "act('retry')", "retry"),
        Binding("d", "act('drop')", "drop"),
        Binding("c", "act('cancel')", "cancel"),
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("escape", "set_filter('')", "no filter", show=False),
        Binding("m", "more", "more", show=False),
        Binding("b", "broker", "broker"),
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "quit", "quit", show=False, priority=True),
    ]

    def __init__(self, brokers: Sequence[Broker], *, read_only: bool = False) -> None:
        super().__init__()
        self.brokers, self.broker = brokers, brokers[0]
        self.read_only = read_only
        #: What is asked for now.
        self.request: Request = (views.OVERVIEW, "", 1)
        #: Key -> the row as it came, of the rows that are shown.
        self.rows: dict[str, Mapping[str, Any]] = {}
        # Not looked up: a query finds nothing of the page below a question.
        self.head, self.said = Static(id="head"), Static(id="said")
        self.table = Table(cursor_type="row")
        self.box = Input(placeholder="words, queue=NAME, task=NAME, state=STATE or error=TYPE")

    def compose(self) -> ComposeResult:
        """Make the widgets."""
        yield from (self.head, self.table, self.said, self.box, Footer())

    def on_mount(self) -> None:
        """Begin to poll."""
        self.table.focus()
        self.set_interval(INTERVAL, self.poll)
        self.poll()

    def on_resize(self) -> None:
        """Fit the columns to the terminal."""
        self.show()

    @property
    def view(self) -> View:
        """The view that is shown."""
        return self.request[0]

    # Polls

    def poll(self) -> None:
        """Ask each broker that owes no answer one call: that of the view, or whether it is there.

        A broker that does not answer holds up no other, nor the page.
        """
        for broker in self.brokers:
            if not broker.is_asked:
                broker.is_asked = True
                shown = broker is self.broker or self.view is views.OVERVIEW
                self._in_thread(self._ask, broker, self.request if shown else None)
        self.show()

    def _in_thread(self, function: Callable[..., None], *arguments: Any) -> None:
        self.run_worker(partial(function, *arguments), thread=True, exit_on_error=True)

    def _ask(self, broker: Broker, request: Request | None) -> None:
        """Ask a broker, in a thread."""
        try:
            answer = self._answer(broker.app, *request) if request else broker.app.ask("ping")
        except EventMQError as error:
            answer = error
        self.call_later(self._take, broker, request, answer)

    @staticmethod
    def _answer(app: EventMQ, view: View, text: str, pages: int) -> Any:
        arguments = {**view.arguments, **views.read_filter(text, view)[0]}
        if not view.filters:
            return app.ask(view.call, arguments)
        arguments["limit"] = views.ROWS
        rows: list[Any] = []
        for _ in range(pages):
            answer = app.ask(view.call, arguments)
            rows += answer[view.call]
            arguments["cursor"] = answer["cursor"]
            if not answer["cursor"]:
                break
        return {**answer, view.call: rows}

    def _take(self, broker: Broker, request: Request | None, answer: Any) -> None:
        """Take an answer over, or an error, and show it; the request is None for a ping."""
        broker.is_asked = False
        broker.problem = str(answer) if isinstance(answer, EventMQError) else ""
        if not isinstance(answer, BrokerUnavailable):
            broker.state = "up"
        elif not broker.state.startswith("missing"):
            broker.state = f"missing since {views.clock(time.time())}"
        if request and not broker.problem:
            broker.answer = (request, answer)
            if request[0] is views.OVERVIEW:
                broker.metrics = answer
                broker.history = broker.history.added(sample_of(answer, time.monotonic(), {}))
        if request and request != self.request:
            self.poll()
        self.show()

    # What is shown

    def show(self) -> None:
        """Show the answers that are there."""
        if not self.table.is_attached:
            return
        columns, extent = [*self.view.columns], ""
        if self.view is views.OVERVIEW:
            columns += [broker.name for broker in self.brokers]
            about = {each.name: (each.metrics, each.history, each.state) for each in self.brokers}
            rows = views.overview(about)
        else:
            rows, extent = self._listing()
        cells = {name: [views.cell(name, row.get(name)) for row in rows] for name in columns}
        widths = column_widths(cells, self.size.width - 4, self.view.gives_way)
        self.rows = {str(row[self.view.key]): row for row in rows}
        texts = [[_text(name, cells[name][n]) for name in widths] for n in range(len(rows))]
        self.table.show(widths, dict(zip(self.rows, texts, strict=True)))
        self.head.update(self._head(extent))

    def _listing(self) -> tuple[list[Mapping[str, Any]], str]:
        """Return the rows of the view, filtered, and a note about their extent."""
        view, text, _ = self.request
        if self.broker.answer is None or self.broker.answer[0][:2] != (view, text):
            return [], ""
        answer, (_, words) = self.broker.answer[1], views.read_filter(text, view)
        # A listing of jobs has its rows under its own name.
        every = [*view.rows(answer[view.call] if view.filters else answer)]
        rows = [row for row in every if views.has_words(row, view, words)]
        if len(rows) > MAX_SHOWN:
            extent = f"the first {MAX_SHOWN:,} of {len(rows):,}: filter them with /"
        elif not view.filters or answer["complete"]:
            extent = "" if every else f"no {view.name}"
        else:
            at = answer["searched_to"]
            reached = f", searched back to {views.clock(at)}" if at else ""
            extent = f"the newest {len(every):,}{reached}: m for more"
        return rows[:MAX_SHOWN], extent

    def _head(self, extent: str) -> Text:
        """Return the lines above the table; brackets mark what is chosen without colours, too."""
        text = Text()

        def add(label: str, *, chosen: bool) -> None:
            text.append(f"[{label}]" if chosen else f" {label} ", "bold" if chosen else "")

        for broker in self.brokers:
            chosen = broker is self.broker and len(self.brokers) > 1
            add(f"{printable(broker.name)}: {broker.state}", chosen=chosen)
        text.append("read-only\n" if self.read_only else "\n")
        for number, view in enumerate(views.VIEWS, 1):
            add(f"{number} {view.name}", chosen=view is self.view)
        typed = self.request[1]
        about = (f"filter: {typed}" if typed else "", extent, self.broker.problem)
        return text.append("\n" + printable("; ".join(filter(None, about))))

    def say(self, text: str) -> None:
        """Show a line below the table, with the time."""
        self.said.update(Text(f"{views.clock(time.time())}  {printable(text)}"))

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
        self.request = (views.VIEWS[number], "", 1)
        self.refresh_bindings()
        self.poll()

    def action_broker(self) -> None:
        """Show the next broker."""
        place = self.brokers.index(self.broker) + 1
        self.broker = self.brokers[place % len(self.brokers)]
        self.poll()

    def action_more(self) -> None:
        """Search one page further back."""
        view, text, pages = self.request
        self.request = (view, text, min(pages + 1, MAX_PAGES))
        self.poll()

    def action_filter(self) -> None:
        """Ask for a filter."""
        self.box.value = self.request[1]
        self.box.add_class("open").focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Use a filter."""
        self.action_set_filter(event.value.strip())

    def action_set_filter(self, text: str) -> None:
        """Use a filter, "" for none, and close its line."""
        try:
            views.read_filter(text, self.view)
        except SettingsError as error:
            self.say(str(error))
            return
        self.request = (self.view, text, 1)
        self.box.remove_class("open")
        self.table.focus()
        self.poll()

    # Actions

    def action_act(self, call: str) -> None:
        """Pause or resume the queue, or retry, drop or cancel the job under the cursor."""
        row = self.rows.get(self.table.selected)
        if row is None:
            return
        if self.view is views.QUEUES:
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

    def _act(
        self, verb: str, what: str, arguments: Mapping[str, Any], said: Callable[[Any], str]
    ) -> None:
        """Ask, and if the answer is yes make a call of the same name as the verb."""
        broker, actor = self.broker, self.broker.app.settings.actor

        def answered(yes: bool | None) -> None:  # noqa: FBT001 - textual hands it over
            if yes:
                self._in_thread(make)
            else:
                self.say(f"nothing done: {verb} {what}")

        def make() -> None:
            try:
                text = said(broker.app.ask(verb, arguments)) + (f"; by {actor}" if actor else "")
            except BrokerUnavailable as error:
                text = f"no answer, so it may or may not be done: {error}"
            except EventMQError as error:
                text = f"not done: {error}"
            self.call_later(self.say, text)
            self.call_later(self.poll)

        question = f"{verb.capitalize()} {what}"
        question += f" of broker {broker.name}" if len(self.brokers) > 1 else ""
        question += f", as {actor}?" if actor else "? Its event will name no user: none is set."
        self.push_screen(Box(f"{printable(question)}\n\ny  yes    n  no"), answered)

    def on_data_table_row_selected(self) -> None:
        """Show the job under the cursor."""
        row = self.rows.get(self.table.selected)
        if row is not None and self.view in {views.RUNNING, views.JOBS, views.FAILED}:
            self._in_thread(self._find, self.broker, row["id"])

    def _find(self, broker: Broker, job_id: str) -> None:
        """Ask about a job, in a thread."""
        try:
            info = info_of(broker.app, job_id)
        except EventMQError as error:
            self.call_later(self.say, str(error))
        else:
            text = "\n".join(("escape  back", "", *views.details(info)))
            self.call_later(self.push_screen, Box(text))


def _text(column: str, text: str) -> Text:
    style = _COLOURS.get(text, "") if column == "state" else ""
    return Text(text, style, no_wrap=True, overflow="ellipsis", end="")
