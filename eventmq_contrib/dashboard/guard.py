"""The guard before every page: hosts, users, origins and forms, and the headers of answers.

It wraps the whole application, files included, so that no handler can be reached around it. A POST
reaches its handler only with an origin of this host and with the token of the user's forms.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from eventmq_contrib.dashboard.access import READ_ONLY, SESSION, Access, TokenAccess, User

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["LOOPBACK", "POLICY", "Guard", "form_token", "local_path"]

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

#: For how long a browser may keep a file; its link changes with its content.
FILES_KEPT: Final = "public, max-age=86400"

_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}

#: Makes a page of an error: request, status, text.
ErrorPage = Callable[[Request, int, str], Response]


def local_path(scope: Scope) -> str:
    """Return the path below the mount point."""
    root, path = scope.get("root_path", "").rstrip("/"), str(scope["path"])
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


def form_token(access: Access, user: User) -> str:
    """Return the token that the forms of a user have."""
    text = f"form\0{user.name}\0{user.session}"
    return hmac.new(access.secret, text.encode(), hashlib.sha256).hexdigest()


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
        error_page: Makes the pages of errors.
    """

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        *,
        hosts: Iterable[str],
        read_only: bool,
        error_page: ErrorPage,
    ) -> None:
        self._app, self._access = app, access
        self._read_only = read_only
        self._hosts = frozenset(host.lower().strip("[]") for host in hosts)
        self._error_page = error_page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            elif scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if local_path(scope).startswith("/static/") and message["status"] == 200:  # noqa: PLR2004
                    headers["Cache-Control"] = FILES_KEPT
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        request = Request(scope, receive)
        scope.setdefault("state", {})
        refusal = await self._refusal(request)
        await (refusal or self._app)(scope, receive, guarded)

    async def _refusal(self, request: Request) -> Response | None:
        """Return the answer to a request that no handler may see; None to pass it on."""
        host = _host_name(request.headers.get("host", ""))
        if "*" not in self._hosts and host.lower() not in self._hosts:
            text = (
                f"This dashboard is not served as {host[:80]!r}. Open it by one of its names, "
                f"{', '.join(sorted(self._hosts))}, or allow this one with --host."
            )
            return self._error_page(request, 421, text)
        path = local_path(request.scope)
        if request.method not in {"GET", "HEAD", "POST"}:
            return self._error_page(request, 405, "Pages are read with GET; actions are a POST.")
        if request.method == "POST" and (reason := _foreign(request)):
            return self._error_page(request, 403, reason)
        if path.startswith("/static/"):
            return None
        login = await self._login(request, path)
        if login is not None:
            return login
        user = await self._access.user(request)
        if user is None:
            return self._unknown(request, 401, "")
        if self._read_only:
            user = replace(user, role=READ_ONLY)
        request.scope["state"]["user"] = user
        if request.method == "POST":
            return await self._checked_form(request, user)
        return None

    async def _login(self, request: Request, path: str) -> Response | None:
        """Exchange a token for a cookie; None if the request is about something else."""
        access = self._access
        if not isinstance(access, TokenAccess):
            return None
        if request.method == "POST" and path == "/session":
            form = await _read_form(request)
            token, target = (form or {}).get("token", [""])[0], "/"
        elif request.method in {"GET", "HEAD"} and "token" in request.query_params:
            token, target = request.query_params["token"], path
        else:
            return None
        cookie = access.exchange(token.strip())
        if cookie is None:
            return self._unknown(request, 403, "This token is not valid.")
        root = request.scope.get("root_path", "").rstrip("/")
        # Any proxy is believed here: the flag protects only the client that sends it.
        schemes = {request.scope["scheme"], request.headers.get("x-forwarded-proto", "")}
        # One slash: a path that begins with two would be another host.
        response = RedirectResponse(f"{root}/{target.lstrip('/')}", 303)
        response.set_cookie(
            access.cookie, cookie, max_age=SESSION, path=root or "/", httponly=True,
            samesite="strict", secure="https" in schemes,
        )  # fmt: skip
        return response

    def _unknown(self, request: Request, status: int, text: str) -> Response:
        response = self._error_page(request, status, text)
        if self._access.challenge and status == 401:  # noqa: PLR2004 - Unauthorized
            response.headers["WWW-Authenticate"] = self._access.challenge
        return response

    async def _checked_form(self, request: Request, user: User) -> Response | None:
        form = await _read_form(request)
        if form is None:
            text = f"A form has at most {MAX_FIELDS} fields and {MAX_FORM // 1024} KiB."
            return self._error_page(request, 413, text)
        token = form.get("form_token", [""])[0]
        if not hmac.compare_digest(form_token(self._access, user).encode(), token.encode()):
            text = (
                "This form is not one of yours, or is from before a restart of the dashboard. "
                "Nothing was done; load the page again."
            )
            return self._error_page(request, 403, text)
        request.scope["state"]["form"] = form
        return None


def _foreign(request: Request) -> str:
    """Return why a POST may come from another site, "" if it cannot."""
    origin = request.headers.get("origin", "")
    site = request.headers.get("sec-fetch-site", "")
    if site not in {"", "same-origin"}:
        return "This form was sent by another site. Nothing was done."
    if origin in {"", "null"}:
        # With no-referrer a browser sends "null" for a form, and says in Sec-Fetch-Site whose it
        # is; no script can set that header.
        if site:
            return ""
        return (
            "The request does not say which site sent it, by Origin or Sec-Fetch-Site. Nothing was "
            "done; use HTTPS or a loopback address, where browsers send both."
        )
    parts = urlsplit(origin)
    if parts.scheme not in {"http", "https"} or parts.netloc != request.headers.get("host", ""):
        return "This form was sent by another site. Nothing was done."
    return ""


async def _read_form(request: Request) -> dict[str, list[str]] | None:
    """Return the fields of a form; None if it is too large or malformed."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_FORM:
            return None
    form: dict[str, list[str]] = {}
    try:
        text = body.decode()
        for name, value in parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS):
            form.setdefault(name, []).append(value)
    except ValueError:
        return None
    return form
