"""Metrics for Prometheus: the command ``eventmq metrics``, and ``metrics_bind``.

The command requests the figures from the broker over eMQP when it is scraped, at most once a
second. It can run anywhere, and costs the broker nothing between scrapes. With ``metrics_bind`` a
broker or worker serves its own figures. The library ``prometheus_client`` comes with
``eventmq[prometheus]``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eventmq import hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import click

__all__ = ["eventmq_add_commands", "eventmq_serve_metrics"]


@hookimpl
def eventmq_add_commands(cli: click.Group) -> None:
    """Add ``eventmq metrics``."""
    from eventmq_contrib.prometheus.command import metrics

    cli.add_command(metrics)


@hookimpl
def eventmq_serve_metrics(
    read: Callable[[], Mapping[str, Any]], address: str
) -> Callable[[], None]:
    """Serve the figures of a broker or worker to Prometheus."""
    from eventmq_contrib.prometheus.command import serve_process

    return serve_process(read, address)
