"""The dashboard: ``eventmq dashboard``, and `application` for any ASGI application.

It is an ordinary client of one or more brokers: it reads with calls of the protocol, and every
action is one, made with the name of the user as its actor. Starlette, uvicorn and Jinja2 come with
``eventmq[dashboard]``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from eventmq import hookimpl
from eventmq_contrib.extras import need

if TYPE_CHECKING:
    import click

    from eventmq_contrib.dashboard.access import OPERATOR, READ_ONLY, User, header_user
    from eventmq_contrib.dashboard.mounting import application

__all__ = ["OPERATOR", "READ_ONLY", "User", "application", "eventmq_add_commands", "header_user"]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for library in ("starlette", "jinja2"):
        need(library, user=__name__, extra="dashboard")
    module = "mounting" if name == "application" else "access"
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)


@hookimpl
def eventmq_add_commands(cli: click.Group) -> None:
    """Add ``eventmq dashboard``."""
    from eventmq_contrib.dashboard.command import dashboard

    cli.add_command(dashboard)
