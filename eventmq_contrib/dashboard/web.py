"""The ASGI application without its routes: pages from templates, links, notes, and errors.

Handlers are in `eventmq_contrib.dashboard.pages` and `eventmq_contrib.dashboard.actions`.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections import OrderedDict
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import escape
from starlette.applications import Starlette
from starlette.responses import HTMLResponse, RedirectResponse, Response

from eventmq.errors import (
    BrokerUnavailable,
    EventMQError,
    JobNotFound,
    NotAllowed,
    ProtocolError,
    QueueNotFound,
    ScheduleNotFound,
    SettingsError,
)
from eventmq_contrib.dashboard import words
from eventmq_contrib.dashboard.access import (
    Access,
    TokenAccess,
    User,
)
from eventmq_contrib.dashboard.data import Broker, Brokers, Busy
from eventmq_contrib.dashboard.guard import Guard, form_token
from eventmq_contrib.dashboard.live import Streams

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

    from starlette.requests import Request
    from starlette.routing import Route
    from starlette.types import Receive, Scope, Send

    from eventmq import EventMQ

__all__ = ["Dashboard", "dashboard_of", "root_of", "static_file", "status_of"]

logger = logging.getLogger("eventmq.dashboard")

#: Notes that wait for their page, and seconds for which they do.
MAX_NOTES, NOTE_SECONDS = 1000, 300.0

#: Seconds for which a browser may keep a file; its link changes with its content.
FILES_KEPT: Final = 86_400

_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

_TITLES = {
    400: "This cannot be done", 401: "Who are you?", 403: "Not allowed", 404: "Not found",
    405: "Not allowed", 413: "Too large", 421: "Another name", 502: "The broker refuses",
    503: "The broker does not answer",
}  # fmt: skip


@lru_cache(maxsize=1)
def _files() -> dict[str, bytes]:
    folder = Path(__file__).parent / "static"
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in _TYPES}


def _version(name: str) -> str:
    return sha256(_files()[name]).hexdigest()[:12]


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
            "raw": escape, "duration": words.duration, "one_line": words.one_line,
            "size": words.size,
        }  # fmt: skip
        inside = Starlette(
            routes=routes,
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

    def broker(self, request: Request) -> Broker:
        """Return the broker that the path names.

        Raises:
            EventMQError: There is none of this name.
        """
        name = request.path_params["broker"]
        if name not in self.brokers.brokers:
            known = ", ".join(self.brokers.brokers)
            raise _Unknown(f"this dashboard has no broker {name[:80]!r}; it has: {known}")
        return self.brokers.brokers[name]

    def note(self, text: str) -> str:
        """Keep a text that the next page shows once; return its key."""
        key = secrets.token_urlsafe(9)
        self._notes[key] = (time.monotonic() + NOTE_SECONDS, text)
        while len(self._notes) > MAX_NOTES:
            self._notes.popitem(last=False)
        return key

    def link(self, request: Request, broker: str, page: str = "", **query: object) -> str:
        """Return a link below the mount point; names of jobs and queues are parts of ``page``."""
        path = f"{root_of(request)}/b/{quote(broker, safe='')}/{page}"
        sign = "&" if "?" in page else "?"
        chosen = {name: value for name, value in query.items() if value not in (None, "")}
        return f"{path}{sign}{urlencode(chosen, doseq=True)}" if chosen else path

    def redirect(self, request: Request, broker: str, page: str, note: str = "") -> Response:
        """Return a redirect to a page, which shows a note."""
        key = self.note(note) if note else ""
        return RedirectResponse(self.link(request, broker, page, note=key), 303)

    def page(
        self,
        request: Request,
        template: str,
        broker: Broker | None,
        status: int = 200,
        **values: Any,
    ) -> Response:
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
            user=user,
            note=note if time.monotonic() < until else "",
            form_token=form_token(self.access, user) if user is not None else "",
            broker=name,
            brokers=self.brokers.brokers if user is not None else {},
            snapshot=broker.snapshot if broker is not None else None,
            cells=self.streams.cells(name) if broker is not None else {},
            root=root_of(request),
            static=lambda file: f"{root_of(request)}/static/{file}?{_version(file)}",
            link=lambda page="", **query: self.link(request, name, page, **query),
            link_to=lambda other: self.link(request, other),
            quote=lambda each: quote(each, safe=""),
            here=f"{quote(request.scope['path'])}?{request.scope['query_string'].decode('latin-1')}",
            report=self.report is not None,
            now=time.time(),
            **values,
        )
        return HTMLResponse(text, status)

    def error_page(self, request: Request, status: int, text: str) -> Response:
        """Return the page of an error."""
        takes_token = status in {401, 403} and isinstance(self.access, TokenAccess)
        known = getattr(request.state, "user", None) is not None
        name = request.path_params.get("broker", "") if known else ""
        return self.page(
            request, "error.html", self.brokers.brokers.get(name), status,
            title=_TITLES.get(status, "Error"), text=text, takes_token=takes_token and not known,
        )  # fmt: skip

    async def _failed(self, request: Request, error: Exception) -> Response:
        return self.error_page(request, status_of(error), _sentence(error))

    async def _no_page(self, request: Request, error: Exception) -> Response:
        status = getattr(error, "status_code", 404)
        return self.error_page(request, status, "There is no such page here.")


class _Unknown(EventMQError):
    """A broker that the dashboard does not have."""


#: Errors -> status of the answer; the first match decides.
_STATUSES: tuple[tuple[type[EventMQError], int], ...] = (
    (Busy, 503), (BrokerUnavailable, 503), (JobNotFound, 404), (QueueNotFound, 404),
    (ScheduleNotFound, 404), (_Unknown, 404), (NotAllowed, 403), (SettingsError, 400),
    (ProtocolError, 400),
)  # fmt: skip


def status_of(error: Exception) -> int:
    """Return the HTTP status of an expected error."""
    return next((code for kind, code in _STATUSES if isinstance(error, kind)), 502)


def _sentence(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return f"{text[:1].upper()}{text[1:]}."


def root_of(request: Request) -> str:
    """Return the mount point, without a slash at its end."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def dashboard_of(request: Request) -> Dashboard:
    """Return the dashboard of a request."""
    found: Dashboard = request.app.state.dashboard
    return found


async def static_file(request: Request) -> Response:
    """Answer with a file of the package."""
    name = request.path_params["name"]
    content = _files().get(name)
    if content is None:
        return dashboard_of(request).error_page(request, 404, "There is no such file here.")
    headers = {"Cache-Control": f"public, max-age={FILES_KEPT}"}
    return Response(content, media_type=_TYPES[Path(name).suffix], headers=headers)
