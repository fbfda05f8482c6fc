"""Traces of jobs with OpenTelemetry: the middleware ``opentelemetry``.

It uses only the API of OpenTelemetry; the app sets up the SDK, or ``opentelemetry-instrument``
does. The API comes with ``eventmq[opentelemetry]``. The module is imported only if the setting
``middleware`` names it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq import hookimpl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq import EventMQ
    from eventmq.sdk import Factory, Middleware, PluginContext

__all__ = ["eventmq_configure", "eventmq_middleware"]

_NAME = "opentelemetry"


@hookimpl
def eventmq_middleware() -> Mapping[str, Factory[Middleware]]:
    """Provide ``opentelemetry``."""
    return {_NAME: _make_tracing}


def _make_tracing(context: PluginContext) -> Middleware:
    from eventmq_contrib.opentelemetry.options import make_tracing

    return make_tracing(context)


@hookimpl
def eventmq_configure(app: EventMQ) -> None:
    """Let processes that run jobs send their last spans before they end."""
    if _NAME in app.settings.middleware:
        app.on_child_stop(_flush)


def _flush() -> None:
    from eventmq_contrib.opentelemetry.options import flush

    flush()
