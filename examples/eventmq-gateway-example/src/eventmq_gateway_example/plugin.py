"""The hooks of this plugin: the gateway ``lines``, and its option on the command line.

The module imports only EventMQ and the standard library at its top: every program that finds this
plugin imports it. The modules of the gateway are imported when it is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.sdk import CommandOption, hookimpl

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from eventmq.sdk import Factory, Gateway, PluginContext


def make_gateway(context: PluginContext) -> Gateway:
    """Return the gateway for the options ``bind``, ``max_line`` and ``insecure``."""
    from eventmq.gateway import gateway_options

    from eventmq_gateway_example.server import LineGateway, LineOptions

    return LineGateway(context.app, gateway_options(context, LineOptions))


@hookimpl
def eventmq_gateways() -> Mapping[str, Factory[Gateway]]:
    """Provide ``lines``."""
    return {"lines": make_gateway}


@hookimpl
def eventmq_command_options() -> Mapping[str, Sequence[CommandOption]]:
    """Provide ``eventmq gateway lines --max-line``."""
    longest = CommandOption(
        name="max_line", metavar="BYTES", minimum=1, help="Maximum bytes of a line."
    )
    return {"lines": [longest]}
