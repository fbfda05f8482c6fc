"""Gateway ``emp``: EMP 1 over TCP and TLS, and its client `EmpClient`.

Options: ``bind`` (``tcp://127.0.0.1:5040``), ``tls_cert tls_key tls_ca`` (files in PEM),
``timeout`` (seconds that a request waits for its job), ``max_frame`` (bytes), ``max_peers``,
``max_pending`` (requests of one connection), ``ping_interval`` and ``ping_timeout`` (seconds).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from eventmq.errors import PluginError
from eventmq.sdk import CommandOption, hookimpl

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import click

    from eventmq.sdk import Factory, Gateway, PluginContext
    from eventmq_contrib.gateways.emp.client import EmpClient, client_context
    from eventmq_contrib.gateways.emp.protocol import EmpError, EmpFailure

__all__ = [
    "EmpClient",
    "EmpError",
    "EmpFailure",
    "client_context",
    "eventmq_add_commands",
    "eventmq_command_options",
    "eventmq_gateways",
]

#: What is imported when it is asked for: each program loads this module, few use it.
_WHERE = {
    "EmpClient": "client", "client_context": "client", "EmpError": "protocol",
    "EmpFailure": "protocol",
}  # fmt: skip

#: Default of the address.
BIND = "tcp://127.0.0.1:5040"

_DEFAULTS = {
    "bind": BIND,
    "tls_cert": "",
    "tls_key": "",
    "tls_ca": "",
    "timeout": 60.0,
    "max_frame": 16 * 1024 * 1024,
    "max_peers": 1000,
    "max_pending": 100,
    "ping_interval": 30.0,
    "ping_timeout": 10.0,
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)


def make_gateway(context: PluginContext) -> Gateway:
    """Return the gateway.

    Raises:
        PluginError: An option is wrong.
    """
    from eventmq.gateway import gateway_options
    from eventmq_contrib.gateways.emp.client import server_context
    from eventmq_contrib.gateways.emp.connection import EmpLimits
    from eventmq_contrib.gateways.emp.operations import EmpOperations
    from eventmq_contrib.gateways.emp.server import EmpGateway, ServerOptions

    options = gateway_options(context, _DEFAULTS)
    for name, default in _DEFAULTS.items():
        if isinstance(default, (int, float)) and not options[name] > 0:
            raise PluginError(f"option {name!r} of the gateway 'emp' is more than 0")
    limits = EmpLimits(
        max_frame=options["max_frame"],
        max_pending=options["max_pending"],
        ping_interval=options["ping_interval"],
        ping_timeout=options["ping_timeout"],
    )
    server = ServerOptions(
        address=options["bind"],
        insecure=options["insecure"],
        max_peers=options["max_peers"],
        tls=server_context(options["tls_cert"], options["tls_key"], options["tls_ca"]),
    )
    return EmpGateway(server, limits, EmpOperations(context.app, options["timeout"]).run)


@hookimpl
def eventmq_gateways() -> Mapping[str, Factory[Gateway]]:
    """Provide ``emp``."""
    return {"emp": make_gateway}


@hookimpl
def eventmq_command_options() -> Mapping[str, Sequence[CommandOption]]:
    """Provide the files of TLS."""
    return {
        "emp": [
            CommandOption(
                name="tls_cert", metavar="FILE", help="Certificate of the server, in PEM."
            ),
            CommandOption(
                name="tls_key",
                metavar="FILE",
                help="Its key; else it is in the file of --tls-cert.",
            ),
            CommandOption(
                name="tls_ca",
                metavar="FILE",
                help="Ask clients for certificates of this authority.",
            ),
        ]
    }


@hookimpl
def eventmq_add_commands(cli: click.Group) -> None:
    """Add ``eventmq emp``."""
    from eventmq_contrib.gateways.emp.command import emp

    cli.add_command(emp)
