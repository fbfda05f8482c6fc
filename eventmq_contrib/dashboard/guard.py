"""The guard before every page: hosts, users, origins and forms, and the headers of answers.

It wraps the whole application, files included, so that no handler can be reached around it. A POST
reaches its handler only with an origin of this host and with the token of the user's forms.
"""

from __future__ import annotations

import hmac
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from eventmq_contrib.dashboard.access import READ_ONLY, SESSION, Access, TokenAccess, User, sign

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["LOOPBACK", "POLICY", "Guard", "form_token", "root_of"]

#: Content-Security-Policy of every answer.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

#: Names of this machine; a page of another name may be one that was pointed at it (DNS rebinding).
LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")

#: Maximum bytes of a form, and of its fields.
MAX_FORM: Final = 256 * 1024
MAX_FIELDS: Final = 1100

_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}


def root_of(scope: Scope) -> str:
    """Return the mount point, without a slash at its end."""
    return str(scope.get("root_path", "")).rstrip("/")


def _local_path(scope: Scope) -> str:
    """Return the path below the mount point."""
    root, path = root_of(scope), str(scope["path"])
    return path[len(root) :] if path.startswith(f"{root}/") else path


def form_token(access: Access, user: User) -> str:
    """Return the token that the forms of a user have."""
    return sign(access.secret, f"form\0{user.name}\0{user.session}")


def _host_name(text: str) -> str:
    """Return the name in a Host header or origin, "" if it is malformed."""
    try:
        return (urlsplit(f"//{text}").hostname or "").rstrip(".")
    except ValueError:
        return ""


class Guard:
    """ASGI application: answers what may be answered with another application.

    Args:
        app: The application inside.
        access: Finds the user.
        hosts: Names that the Host header may have, without ports; ``*`` for any.
        read_only: Whether all users only read.
        refuse: Makes the page of a request that no handler may see.
    """

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        *,
        hosts: Iterable[str],
        read_only: bool,
        refuse: Callable[[Request, Exception], Awaitable[Response]],
    ) -> None:
        self._app, self._access, self._refuse = app, access, refuse
        self._read_only = read_only
        self._hosts = frozenset(host.lower().strip("[]") for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":  # there is no handler of websockets
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if _local_path(scope).startswith("/static/"):
                    headers["Cache-Control"] = "max-age=60"  # seconds
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        request = Request(scope, receive)
        scope.setdefault("state", {})
        try:
            answer = await self._checked(request)
        except HTTPException as refusal:
            answer = await self._refuse(request, refusal)
        await (answer or self._app)(scope, receive, guarded)

    async def _checked(self, request: Request) -> Response | None:
        """Return the redirect that ends a sign-in, or None to pass the request on.

        Raises:
            HTTPException: No handler may see the request.
        """
        host = _host_name(request.headers.get("host", ""))
        if "*" not in self._hosts and host.lower() not in self._hosts:
            raise HTTPException(
                421,
                f"This dashboard is not served as {host[:80]!r}. Open it by one of its names, "
                f"{', '.join(sorted(self._hosts))}, or allow this one with --host.",
            )
        path, form = _local_path(request.scope), None
        if request.method == "POST":
            _check_origin(request)
            form = await _read_form(request)
        elif request.method not in {"GET", "HEAD"}:
            raise HTTPException(405, "Pages are read with GET; actions are a POST.")
        if path.startswith("/static/"):
            return None
        if isinstance(self._access, TokenAccess):
            if form is not None and path == "/session":
                return self._sign_in(request, self._access, form.get("token", ""), "/")
            if form is None and "token" in request.query_params:
                return self._sign_in(request, self._access, request.query_params["token"], path)
        user = await self._access.user(request)
        if user is None:
            challenge = self._access.challenge
            raise HTTPException(401, "", {"WWW-Authenticate": challenge} if challenge else None)
        expected, given = form_token(self._access, user), (form or {}).get("form_token", "")
        if form is not None and not hmac.compare_digest(expected.encode(), given.encode()):
            raise HTTPException(
                403,
                "This form is not one of yours, or is from before a restart of the dashboard. "
                "Nothing was done; load the page again.",
            )
        request.scope["state"]["user"] = replace(user, role=READ_ONLY) if self._read_only else user
        return None

    def _sign_in(self, request: Request, access: TokenAccess, token: str, target: str) -> Response:
        """Exchange a token for a cookie."""
        cookie = access.exchange(token.strip())
        if cookie is None:
            raise HTTPException(403, "This token is not valid.")
        root = root_of(request.scope)
        # Any proxy is believed here: the flag protects only the client that sends it.
        schemes = {request.scope["scheme"], request.headers.get("x-forwarded-proto", "")}
        # One slash: a path that begins with two would be another host.
        response = RedirectResponse(f"{root}/{target.lstrip('/')}", 303)
        response.set_cookie(
            access.cookie, cookie, max_age=SESSION, path=root or "/", httponly=True,
            samesite="strict", secure="https" in schemes,
        )  # fmt: skip
        return response


def _check_origin(request: Request) -> None:
    """Raise an error if a form may come from another site."""
    origin, site = (request.headers.get(name, "") for name in ("origin", "sec-fetch-site"))
    host, unsaid = request.headers.get("host", ""), origin in {"", "null"}
    ours = origin in {f"http://{host}", f"https://{host}"}
    if site not in {"", "same-origin"} or not (ours or unsaid):
        raise HTTPException(403, "This form was sent by another site. Nothing was done.")
    # With no-referrer a browser sends "null" for a form, and says in Sec-Fetch-Site whose it is; no
    # script can set that header.
    if unsaid and not site:
        raise HTTPException(
            403,
            "The request does not say which site sent it, by Origin or Sec-Fetch-Site. Nothing was "
            "done; use HTTPS or a loopback address, where browsers send both.",
        )


async def _read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form; raise an error if it is too large or malformed."""
    body = b""
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_FORM:
                raise ValueError
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS))
    except ValueError:
        text = f"A form has at most {MAX_FIELDS} fields and {MAX_FORM // 1024} KiB."
        raise HTTPException(413, text) from None
