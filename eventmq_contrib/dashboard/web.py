"""The ASGI application without its routes: visits, pages from templates, links, notes, and errors.

Handlers are in `eventmq_contrib.dashboard.pages` and `eventmq_contrib.dashboard.actions`.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import escape
from starlette.applications import Starlette
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles

from eventmq import errors
from eventmq.errors import EventMQError
from eventmq_contrib.dashboard import words
from eventmq_contrib.dashboard.access import Access, TokenAccess, User
from eventmq_contrib.dashboard.data import Broker, Brokers, Busy
from eventmq_contrib.dashboard.guard import Guard, form_token
from eventmq_contrib.dashboard.live import Streams
from eventmq_contrib.figures import duration, error_text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from eventmq import EventMQ
    from eventmq_contrib.dashboard.data import Snapshot

__all__ = ["Dashboard", "Visit", "dashboard_of", "of_broker"]

logger = logging.getLogger("eventmq.dashboard")

#: Notes that wait for their page, and seconds for which they do.
MAX_NOTES, NOTE_SECONDS = 1000, 300.0

_FOLDER = Path(__file__).parent

T = TypeVar("T")

_TITLES = {
    400: "This cannot be done", 401: "Who are you?", 403: "Not allowed", 404: "Not found",
    405: "Not allowed", 413: "Too large", 421: "Another name", 502: "The broker refuses",
    503: "The broker does not answer",
}  # fmt: skip


@lru_cache
def _version(name: str) -> str:
    """Return what changes in links with the content of a file."""
    return sha256((_FOLDER / "static" / name).read_bytes()).hexdigest()[:12]


class Dashboard:
    """What the handlers share. It is an ASGI application itself: the guard and all inside.

    Attributes:
        brokers: The brokers.
        access: Finds the user of a request.
        streams: The live streams.
        show_arguments: Whether users who only read see the arguments of jobs.
        report: Page of a Spark report, or None.
        token: The token that was made for this process, "" if another access is configured.
    """

    def __init__(
        self,
        apps: Mapping[str, EventMQ],
        access: Access,
        routes: Sequence[Route],
        *,
        hosts: Iterable[str],
        read_only: bool,
        show_arguments: bool,
        report: Path | None,
        token: str = "",
    ) -> None:
        self.brokers = Brokers(apps)
        self.access = access
        self.streams = Streams(self.brokers)
        self.show_arguments = show_arguments
        self.report = report
        self.token = token
        self._notes: OrderedDict[str, tuple[float, str]] = OrderedDict()
        self._environment = Environment(
            loader=PackageLoader(__package__ or "", "templates"), autoescape=True,
            undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
            finalize=words.shown,
        )  # fmt: skip
        self._environment.filters |= {
            "age": words.age, "clock": words.clock, "figure": words.figure,
            "raw": escape, "duration": duration, "one_line": words.one_line,
            "error_text": error_text,
        }  # fmt: skip
        inside = Starlette(
            routes=[Route("/static/{name}", StaticFiles(directory=_FOLDER)), *routes],
            exception_handlers={EventMQError: self._failed, 404: self._no_page, 405: self._no_page},
            lifespan=self._lifespan,
        )
        inside.state.dashboard = self
        self._guard = Guard(
            inside, access, hosts=hosts, read_only=read_only, error_page=self.error_page
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        await self._guard(scope, receive, send)

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        yield
        self.close()

    def close(self) -> None:
        """End streams, polling and threads. Idempotent; the clients remain open."""
        self.streams.close()
        self.brokers.close()

    # For handlers

    def note(self, text: str) -> str:
        """Keep a text that the next page shows once; return its key."""
        key = secrets.token_urlsafe(9)
        self._notes[key] = (time.monotonic() + NOTE_SECONDS, text)
        while len(self._notes) > MAX_NOTES:
            self._notes.popitem(last=False)
        return key

    def link(self, request: Request, broker: str, page: str = "", **query: object) -> str:
        """Return a link below the mount point; names of jobs and queues are parts of ``page``."""
        path = f"{_root_of(request)}/b/{quote(broker, safe='')}/{page}"
        sign = "&" if "?" in page else "?"
        chosen = {name: value for name, value in query.items() if value not in (None, "")}
        return f"{path}{sign}{urlencode(chosen, doseq=True)}" if chosen else path

    def page(
        self, request: Request, template: str, broker: Broker | None, *, status: int = 200,
        **values: Any,
    ) -> Response:  # fmt: skip
        """Return a page.

        Args:
            request: The request.
            template: Name of the template.
            broker: The broker that it is about, or None.
            status: Status of the answer.
            **values: Values of the template.
        """
        user: User | None = getattr(request.state, "user", None)
        name = broker.name if broker is not None else ""
        until, note = self._notes.pop(request.query_params.get("note", ""), (0.0, ""))
        text = self._environment.get_template(template).render(
            user=user, broker=name, root=_root_of(request), report=self.report is not None,
            note=note if time.monotonic() < until else "",
            form_token=form_token(self.access, user) if user is not None else "",
            brokers=self.brokers.brokers if user is not None else {},
            snapshot=broker.snapshot if broker is not None else None,
            cells=self.streams.cells(name) if broker is not None else {},
            static=lambda file: f"{_root_of(request)}/static/{file}?{_version(file)}",
            link=lambda page="", **query: self.link(request, name, page, **query),
            link_to=lambda other: self.link(request, other),
            quote=lambda each: quote(each, safe=""),
            here=f"{quote(request.scope['path'])}?{request.scope['query_string'].decode('latin-1')}",
            **values,
        )  # fmt: skip
        return HTMLResponse(text, status)

    def error_page(self, request: Request, status: int, text: str) -> Response:
        """Return the page of an error."""
        takes_token = status in {401, 403} and isinstance(self.access, TokenAccess)
        known = getattr(request.state, "user", None) is not None
        name = request.path_params.get("broker", "") if known else ""
        return self.page(
            request, "error.html", self.brokers.brokers.get(name), status=status,
            title=_TITLES.get(status, "Error"), text=text, takes_token=takes_token and not known,
        )  # fmt: skip

    async def _failed(self, request: Request, error: Exception) -> Response:
        status = next((code for kind, code in _STATUSES if isinstance(error, kind)), 502)
        text = str(error) or type(error).__name__
        return self.error_page(request, status, f"{text[:1].upper()}{text[1:]}.")

    async def _no_page(self, request: Request, error: Exception) -> Response:
        status = getattr(error, "status_code", 404)
        return self.error_page(request, status, "There is no such page here.")


class _Unknown(EventMQError):
    """A broker that the dashboard does not have."""


#: Errors -> status of the answer; the first match decides.
_STATUSES: tuple[tuple[type[EventMQError], int], ...] = (
    (Busy, 503), (errors.BrokerUnavailable, 503), (errors.JobNotFound, 404),
    (errors.QueueNotFound, 404), (errors.ScheduleNotFound, 404), (_Unknown, 404),
    (errors.NotAllowed, 403), (errors.SettingsError, 400), (errors.ProtocolError, 400),
)  # fmt: skip


def _root_of(request: Request) -> str:
    """Return the mount point, without a slash at its end."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def dashboard_of(request: Request) -> Dashboard:
    """Return the dashboard of a request."""
    found: Dashboard = request.app.state.dashboard
    return found


class Visit:
    """A request about one broker, for the handler of its page or action.

    Attributes:
        request: The request.
        dashboard: The dashboard.
        broker: The broker that the path names.
        user: Who makes the request.
        query: The query of the address.

    Raises:
        EventMQError: The dashboard has no such broker.
    """

    def __init__(self, request: Request) -> None:
        self.request, self.query = request, request.query_params
        self.dashboard = dashboard_of(request)
        self.user: User = request.state.user
        name, brokers = request.path_params["broker"], self.dashboard.brokers.brokers
        if name not in brokers:
            known = ", ".join(brokers)
            raise _Unknown(f"this dashboard has no broker {name[:80]!r}; it has: {known}")
        self.broker = brokers[name]

    @property
    def snapshot(self) -> Snapshot:
        """The last answers of the broker."""
        return self.broker.snapshot

    def path(self, name: str) -> str:
        """Return a part of the path."""
        return str(self.request.path_params[name])

    async def run(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Run a function that asks the broker; see `Brokers.run`."""
        return await self.dashboard.brokers.run(function, *arguments, **named)

    def page(self, template: str, **values: Any) -> Response:
        """Return a page of a template and its values."""
        return self.dashboard.page(self.request, template, self.broker, **values)

    def link(self, page: str, **query: object) -> str:
        """Return a link to a page of the broker."""
        return self.dashboard.link(self.request, self.broker.name, page, **query)

    def redirect(self, page: str, note: str) -> Response:
        """Return a redirect to a page, which shows a note."""
        return RedirectResponse(self.link(page, note=note and self.dashboard.note(note)), 303)


def of_broker(
    path: str, handler: Callable[[Visit], Awaitable[Response]], method: str = "GET"
) -> Route:
    """Return the route of a handler whose path begins with the name of a broker.

    It is called when there is a snapshot of the broker, or it is known to be missing.
    """

    async def endpoint(request: Request) -> Response:
        visit = Visit(request)
        await visit.dashboard.brokers.snapshot(visit.broker)
        return await handler(visit)

    return Route(f"/b/{{broker}}/{path}", endpoint, methods=[method])
