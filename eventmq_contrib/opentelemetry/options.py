"""Options of the plugin, and the factory of the middleware.

The hooks import this module: neither the package nor this module needs the library.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eventmq.sdk import option, read_options
from eventmq_contrib.extras import need
from eventmq_contrib.opentelemetry.repeats import LOG_INTERVAL, limit_repeats

if TYPE_CHECKING:
    from eventmq.sdk import Middleware, PluginContext

__all__ = ["Options", "flush", "make_tracing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of the plugin.

    Attributes:
        wait_spans: Whether the time from the creation of a job to its first start is a span;
            otherwise it is an attribute of the span of the run.
        log_interval: Seconds within which a process logs a line of the exporter or the SDK once;
            0 to log all lines.
    """

    wait_spans: bool = option(True)  # noqa: FBT003 - the default of a field
    log_interval: float = option(LOG_INTERVAL, unit="s", ge=0.0)


def make_tracing(context: PluginContext) -> Middleware:
    """Return the middleware.

    Raises:
        PluginError: An option is wrong, or the library is missing.
    """
    options = read_options(context, Options)
    need("opentelemetry.trace", user="the middleware 'opentelemetry'", extra="opentelemetry")
    from eventmq_contrib.opentelemetry.tracing import Tracing

    if options.log_interval:
        limit_repeats(options.log_interval)
    return Tracing(context.clock.now, wait_spans=options.wait_spans)


def flush() -> None:
    """Send the spans that are still in memory, at the end of a process."""
    from eventmq_contrib.opentelemetry import tracing

    tracing.flush()
