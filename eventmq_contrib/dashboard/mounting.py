"""The whole dashboard: `application` puts the pages and the actions together."""

from __future__ import annotations

from functools import partial

from eventmq_contrib.dashboard.actions import ROUTES as ACTIONS
from eventmq_contrib.dashboard.pages import ROUTES as PAGES
from eventmq_contrib.dashboard.web import Dashboard

__all__ = ["application"]

#: Makes a `Dashboard` of all pages and actions; the other arguments are those of `Dashboard`.
application = partial(Dashboard, handlers=(*PAGES, *ACTIONS))
