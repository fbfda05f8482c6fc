"""Metrics of a broker for Prometheus: the command ``eventmq metrics``.

It asks the broker over eMQP each time that it is scraped, so it can run anywhere and costs the
broker nothing in between. The library ``prometheus_client`` comes with ``eventmq[prometheus]``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq import hookimpl

if TYPE_CHECKING:
    import click

__all__ = ["eventmq_add_commands"]


@hookimpl
def eventmq_add_commands(cli: click.Group) -> None:
    """Add ``eventmq metrics``."""
    from eventmq_contrib.prometheus.command import metrics

    cli.add_command(metrics)
