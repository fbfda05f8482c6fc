"""The whole dashboard: `application` puts the pages and the actions together."""

from __future__ import annotations

from eventmq_contrib.dashboard.actions import ROUTES as ACTIONS
from eventmq_contrib.dashboard.pages import ROUTES as PAGES
from eventmq_contrib.dashboard.web import Dashboard

__all__ = ["application"]


class application(Dashboard):  # noqa: N801 - called as a function is
    """The dashboard with all its pages and actions; the arguments are those of `Dashboard`."""

    handlers = (*PAGES, *ACTIONS)
