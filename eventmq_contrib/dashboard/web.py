"""The ASGI application without its routes: visits, pages from templates, links, notes, and errors.

Handlers are in `eventmq_contrib.dashboard.pages` and `eventmq_contrib.dashboard.actions`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from hmac import compare_digest
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import escape
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles

from eventmq import EventMQ, errors
from eventmq.cli import age, describe_trigger
from eventmq.errors import EventMQError, SettingsError
from eventmq_contrib import figures
from eventmq_contrib.dashboard import access
from eventmq_contrib.dashboard.data import Broker, Brokers, Busy, attention
from eventmq_contrib.dashboard.guard import LOOPBACK, Guard, form_token, root_of
from eventmq_contrib.dashboard.live import Streams

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from starlette.requests import Request
    from starlette.types import ASGIApp

__all__ = ["Dashboard", "Visit", "of_broker"]

logger = logging.getLogger("eventmq.dashboard")

#: Cookie with what an action did, for the page that follows it, and its maximum characters.
NOTE, MAX_NOTE = "eventmq_note", 900

_FOLDER = Path(__file__).parent

#: Titles of errors that are plainer than those of HTTP.
_TITLES = {401: "Who are you?", 503: "The broker does not answer"}


class Dashboard(Starlette):
    """The dashboard as an ASGI application, to be mounted under any path.

    Args:
        app: Client of the broker, or clients by name. They remain open when the dashboard ends.
        handlers: Routes of the pages and actions.
        user: Function of the application around it that returns the user of a request, or None.
        token_file: File of tokens: ``TOKEN [ROLE [NAME]]`` a line.
        basic_auth: File of passwords: ``NAME HASH [ROLE]`` a line.
        name: Without any of these three a token is made for this process: name of its user.
        secret: With ``user``: a key that all processes of your application share, so that a form
            of one is accepted by the others.
        hosts: Names that the Host header may have; ``*`` for any.
        read_only: Whether all users only read.
        show_arguments: Show arguments of jobs to users who only read, too.
        report: Page that ``eventmq spark report`` has written.

    Attributes:
        brokers: The brokers.
        access: Finds the user of a request.
        streams: The live streams.
        token: The token that was made for this process, "" if another access is configured.

    Raises:
        SettingsError: More than one access is given, or a file is malformed.
    """

    def __init__(
        self,
        app: EventMQ | Mapping[str, EventMQ],
        *,
        handlers: Iterable[Route],
        user: access.UserFunction | None = None,
        token_file: str | Path | None = None,
        basic_auth: str | Path | None = None,
        name: str = "dashboard",
        secret: str = "",
        hosts: Iterable[str] = LOOPBACK,
        read_only: bool = False,
        show_arguments: bool = False,
        report: str | Path | None = None,
    ) -> None:
        if sum(each is not None for each in (user, token_file, basic_auth)) > 1:
            raise SettingsError("only one access is allowed: user, token_file or basic_auth")
        apps = {"broker": app} if isinstance(app, EventMQ) else dict(app)
        if not apps or not all(apps):
            raise SettingsError("a dashboard needs a broker; each of several needs a name")
        self.access: access.Access
        if user is not None:
            self.access = access.FunctionAccess(user, secret)
        elif basic_auth is not None:
            self.access = access.BasicAccess(Path(basic_auth))
        else:
            self.access = access.TokenAccess(Path(token_file) if token_file else None, name)
        self.token = self.access.token
        self.brokers = Brokers(apps)
        self.streams = Streams(self.brokers)
        self.show_arguments = show_arguments
        self.report = Path(report) if report is not None else None
        self._guard = partial(
            Guard, access=self.access, hosts=hosts, read_only=read_only, refuse=self._failed
        )
        self._environment = Environment(
            loader=PackageLoader(__package__ or "", "templates"), autoescape=True,
            undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
            finalize=figures.shown,
        )  # fmt: skip
        self._environment.filters |= {
            "age": age, "attention": attention, "clock": figures.clock,
            "duration": figures.length_text, "error_text": figures.error_text,
            "figure": figures.number_text, "problems": figures.problems_of, "raw": escape,
            "segment": partial(quote, safe=""), "trigger": describe_trigger,
        }  # fmt: skip
        super().__init__(
            routes=[Route("/static/{name}", StaticFiles(directory=_FOLDER)), *handlers],
            exception_handlers={EventMQError: self._failed, HTTPException: self._failed},
        )

    def build_middleware_stack(self) -> ASGIApp:
        """Return what answers requests: the guard, and all inside."""
        return self._guard(super().build_middleware_stack())

    def close(self) -> None:
        """End streams, polling and threads. Idempotent; the clients remain open."""
        self.streams.close()
        self.brokers.close()

    # For handlers

    def link(self, request: Request, broker: str, page: str = "", **query: object) -> str:
        """Return a link below the mount point; names of jobs and queues are parts of ``page``."""
        path = f"{root_of(request.scope)}/b/{quote(broker, safe='')}/{page}"
        chosen = {name: value for name, value in query.items() if value not in (None, "")}
        sign = "&" if "?" in page else "?"
        return f"{path}{sign}{urlencode(chosen, doseq=True)}" if chosen else path

    def page(
        self, request: Request, template: str, *, broker: Broker | None, status: int = 200,
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
        user: access.User | None = getattr(request.state, "user", None)
        name, root = broker.name if broker is not None else "", root_of(request.scope)
        signed, _, signature = request.cookies.get(NOTE, "").rpartition(".")
        is_ours = compare_digest(
            signature.encode(), access.sign(self.access.secret, signed).encode()
        )
        note = unquote(signed) if is_ours else ""
        text = self._environment.get_template(template).render(
            user=user, broker=name, root=root, report=self.report is not None, note=note,
            form_token=form_token(self.access, user) if user is not None else "",
            brokers=self.brokers.brokers if user is not None else {},
            snapshot=broker.snapshot if broker is not None else None,
            cells=self.streams.cells(name) if broker is not None else {},
            static=lambda file: f"{root}/static/{file}",
            link=lambda page="", **query: self.link(request, name, page, **query),
            link_to=lambda other: self.link(request, other),
            here=f"{quote(request.scope['path'])}?{request.scope['query_string'].decode('latin-1')}",
            **values,
        )  # fmt: skip
        answer = HTMLResponse(text, status)
        if note:
            answer.delete_cookie(NOTE, root or "/")
        return answer

    async def _failed(self, request: Request, error: Exception) -> Response:
        """Return the page of an error."""
        if isinstance(error, HTTPException):
            status, text = error.status_code, error.detail
            text = "There is no such page here." if text == HTTPStatus.NOT_FOUND.phrase else text
        else:
            status = next((code for kind, code in _STATUSES if isinstance(error, kind)), 502)
            text = str(error) or type(error).__name__
            text = f"{text[:1].upper()}{text[1:]}."
        known = getattr(request.state, "user", None) is not None
        takes_token = (
            status in {401, 403} and isinstance(self.access, access.TokenAccess) and not known
        )
        name = request.path_params.get("broker", "") if known else ""
        answer = self.page(
            request, "error.html", broker=self.brokers.brokers.get(name), status=status,
            error=_TITLES.get(status) or HTTPStatus(status).phrase,
            text=text, takes_token=takes_token,
        )  # fmt: skip
        answer.headers.update(getattr(error, "headers", None) or {})
        return answer


#: Errors -> status of the answer; the first match decides.
_STATUSES: tuple[tuple[type[EventMQError], int], ...] = (
    (Busy, 503), (errors.BrokerUnavailable, 503), (errors.JobNotFound, 404),
    (errors.QueueNotFound, 404), (errors.ScheduleNotFound, 404),
    (errors.NotAllowed, 403), (errors.SettingsError, 400), (errors.ProtocolError, 400),
)  # fmt: skip


class Visit:
    """A request about one broker, for the handler of its page or action.

    Attributes:
        request: The request.
        dashboard: The dashboard.
        broker: The broker that the path names.
        user: Who makes the request.
        query: The query of the address.
        names: Parts of its path, by name.

    Raises:
        HTTPException: The dashboard has no such broker.
    """

    def __init__(self, request: Request) -> None:
        self.request, self.query, self.names = request, request.query_params, request.path_params
        self.dashboard: Dashboard = request.app
        self.user: access.User = request.state.user
        name, brokers = self.names["broker"], self.dashboard.brokers.brokers
        if name not in brokers:
            msg = f"This dashboard has no broker {name[:80]!r}; it has: {', '.join(brokers)}."
            raise HTTPException(404, msg)
        self.broker = brokers[name]
        #: Runs a function that asks the broker; see `Brokers.run`.
        self.run = self.dashboard.brokers.run
        #: Returns a page of a template and its values.
        self.page: Callable[..., Response] = partial(
            self.dashboard.page, request, broker=self.broker
        )
        #: Returns a link to a page of the broker.
        self.link = partial(self.dashboard.link, request, name)

    def redirect(self, page: str, note: str) -> Response:
        """Return a redirect to a page, which shows a note."""
        answer, text = RedirectResponse(self.link(page), 303), quote(note[:MAX_NOTE], safe="")
        answer.set_cookie(
            NOTE, f"{text}.{access.sign(self.dashboard.access.secret, text)}", max_age=300,
            path=root_of(self.request.scope) or "/", httponly=True, samesite="strict",
        )  # fmt: skip
        return answer


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
