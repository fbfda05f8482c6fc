"""The dashboard behind Django's login: ``include("eventmq_contrib.django.dashboard")`` as URLs.

Users need the permission ``eventmq.view_dashboard``, and ``eventmq.operate_dashboard`` to act.
"""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpResponse
from django.urls import re_path
from django.utils.crypto import salted_hmac
from django.views.decorators.csrf import csrf_exempt

from eventmq_contrib.dashboard import OPERATOR, READ_ONLY, User, application
from eventmq_contrib.django.backend import EventMQBackend
from eventmq_contrib.django.framework import task_backends

if TYPE_CHECKING:
    from django.http import HttpRequest

    from eventmq import EventMQ

__all__ = ["dashboard", "urlpatterns"]


@lru_cache(maxsize=1)
def _application() -> Any:
    """Return the dashboard of all backends; one key signs the forms of all processes."""
    aliases: dict[EventMQ, str] = {}
    for backend in map(task_backends.__getitem__, task_backends.settings):
        if isinstance(backend, EventMQBackend):
            aliases.setdefault(backend.app, backend.alias)
    secret = salted_hmac("eventmq.dashboard", "forms", algorithm="sha256").hexdigest()
    return application(
        {alias: app for app, alias in aliases.items()}, user=lambda request: request.scope["user"],
        secret=secret, hosts=["*"],
    )  # fmt: skip


@csrf_exempt  # the dashboard checks origins, and its forms have tokens of their own
async def dashboard(request: HttpRequest, path: str) -> HttpResponse:
    """Answer with a page of the dashboard, or redirect to the login."""
    user = await request.auser()
    if not user.is_authenticated:
        return redirect_to_login(request.get_full_path())
    if not await user.ahas_perm("eventmq.view_dashboard"):
        raise PermissionDenied
    operates = await user.ahas_perm("eventmq.operate_dashboard")
    if path == "live":
        # A view has no streams; the page asks again. An error would be mailed to ADMINS.
        return HttpResponse(status=204)
    session = request.session.session_key or ""
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1",
        "method": request.method, "scheme": request.scheme, "path": request.path,
        "root_path": request.path[: len(request.path) - len(path)].rstrip("/"),
        "query_string": request.META.get("QUERY_STRING", "").encode("latin-1"),
        "headers": [
            (name.lower().encode("latin-1"), value.encode("latin-1"))
            for name, value in {**request.headers, "Host": request.get_host()}.items()
        ],
        "user": User(user.get_username(), OPERATOR if operates else READ_ONLY, session),
    }  # fmt: skip
    requests, messages = [{"type": "http.request", "body": request.body}], list[Any]()

    async def receive() -> Any:
        """Return the body of the request once; after that wait, since nothing tells of an end."""
        return requests.pop() if requests else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        messages.append(message)

    await _application()(scope, receive, send)
    head, *parts = messages
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head["headers"]}
    content = b"".join(part.get("body", b"") for part in parts)
    return HttpResponse(content, status=head["status"], headers=headers)


urlpatterns = [re_path(r"^(?P<path>.*)$", dashboard, name="eventmq-dashboard")]
