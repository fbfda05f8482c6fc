"""The whole dashboard: `application` puts access, pages and actions together."""

from __future__ import annotations

import logging
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from eventmq import EventMQ
from eventmq.errors import SettingsError
from eventmq_contrib.dashboard.access import (
    OPERATOR,
    Access,
    BasicAccess,
    FunctionAccess,
    TokenAccess,
    User,
    UserFunction,
    read_tokens,
)
from eventmq_contrib.dashboard.actions import ROUTES as ACTIONS
from eventmq_contrib.dashboard.guard import LOOPBACK
from eventmq_contrib.dashboard.pages import ROUTES as PAGES
from eventmq_contrib.dashboard.web import Dashboard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["application"]

logger = logging.getLogger("eventmq.dashboard")


def application(
    app: EventMQ | Mapping[str, EventMQ],
    *,
    user: UserFunction | None = None,
    token_file: str | Path | None = None,
    basic_auth: str | Path | None = None,
    tokens: Callable[[], Mapping[str, User]] | None = None,
    secret: str = "",
    hosts: Iterable[str] = LOOPBACK,
    read_only: bool = False,
    show_arguments: bool = False,
    report: str | Path | None = None,
) -> Dashboard:
    """Return the dashboard as an ASGI application, to be mounted under any path.

    Args:
        app: Client of the broker, or clients by name. They remain open when the dashboard ends.
        user: Function of the application around it that returns the user of a request, or None.
        token_file: File of tokens: ``TOKEN [ROLE [NAME]]`` a line.
        basic_auth: File of passwords: ``NAME HASH`` a line.
        tokens: Returns token -> user, instead of a file.
        secret: With ``user``: a key that all processes of your application share, so that a form
            of one is accepted by the others.
        hosts: Names that the Host header may have; ``*`` for any.
        read_only: Whether all users only read.
        show_arguments: Show arguments of jobs to users who only read, too.
        report: Page that ``eventmq spark report`` has written.

    Returns:
        The application. Without ``user``, ``token_file``, ``basic_auth`` and ``tokens`` a token is
        made for this process: its attribute ``token``.

    Raises:
        SettingsError: More than one access is given, or a file is malformed.
        PluginError: A library is missing.
    """
    given = [each for each in (user, token_file, basic_auth, tokens) if each is not None]
    if len(given) > 1:
        raise SettingsError("give one of user, token_file, basic_auth and tokens")
    apps = {"broker": app} if isinstance(app, EventMQ) else dict(app)
    if not apps or not all(apps):
        raise SettingsError("a dashboard needs a broker, and each of several a name")
    own = ""
    access: Access
    if user is not None:
        access = FunctionAccess(user, secret)
    elif basic_auth is not None:
        access = BasicAccess(Path(basic_auth))
    elif token_file is not None:
        path = Path(token_file)
        access = TokenAccess(lambda: read_tokens(path))
    elif tokens is not None:
        access = TokenAccess(tokens)
    else:
        own = secrets.token_urlsafe(32)
        access = TokenAccess(lambda: {own: User("dashboard", OPERATOR)})
        logger.warning("the dashboard has no access configured: a token was made for this process")
    return Dashboard(
        apps, access, [*PAGES, *ACTIONS], hosts=hosts, read_only=read_only,
        show_arguments=show_arguments,
        report=Path(report) if report is not None else None, token=own,
    )  # fmt: skip
