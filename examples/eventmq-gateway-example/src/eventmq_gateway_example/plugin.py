"""The hooks of this plugin: the gateway ``lines``, and its option on the command line.

The module imports only EventMQ and the standard library at its top: every program that finds this
plugin imports it. What the gateway needs is imported when it is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq import hookimpl
from eventmq.errors import PluginError
from eventmq.sdk import CommandOption

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from eventmq.sdk import Factory, Gateway, PluginContext


def make_gateway(context: PluginContext) -> Gateway:
    """Return the gateway for the options ``bind``, ``max_line`` and ``insecure``."""
    from eventmq.gateway import gateway_options

    from eventmq_gateway_example.server import LineGateway

    options = gateway_options(context, {"bind": "tcp://127.0.0.1:7000", "max_line": 1000})
    if options["max_line"] < 1:
        raise PluginError("option 'max_line' of the gateway 'lines' is at least 1")
    return LineGateway(
        context.app,
        options["bind"],
        insecure=options["insecure"],
        max_line=options["max_line"],
    )


@hookimpl
def eventmq_gateways() -> Mapping[str, Factory[Gateway]]:
    """Provide ``lines``."""
    return {"lines": make_gateway}


@hookimpl
def eventmq_command_options() -> Mapping[str, Sequence[CommandOption]]:
    """Provide ``eventmq gateway lines --max-line``."""
    longest = CommandOption(
        name="max_line", metavar="BYTES", minimum=1, help="The longest line that is read."
    )
    return {"lines": [longest]}
