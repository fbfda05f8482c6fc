"""Gateway ``emp``: EMP 1 over TCP and TLS, and its client `EmpClient`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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

#: Names that are imported on first use: every program loads this module, few use them.
_WHERE = {
    "EmpClient": "client", "client_context": "client", "EmpError": "protocol",
    "EmpFailure": "protocol",
}  # fmt: skip


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
    from eventmq_contrib.gateways.emp.server import EmpGateway, EmpOperations, EmpOptions

    options = gateway_options(context, EmpOptions)
    tls = server_context(options.tls_cert, options.tls_key, options.tls_ca)
    return EmpGateway(options, tls, EmpOperations(context.app, options.timeout).run)


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
                help="Key of the certificate. Default: in the file of --tls-cert.",
            ),
            CommandOption(
                name="tls_ca",
                metavar="FILE",
                help="Require clients' certificates of this authority.",
            ),
        ]
    }


@hookimpl
def eventmq_add_commands(cli: click.Group) -> None:
    """Add ``eventmq emp``."""
    from eventmq_contrib.gateways.emp.command import emp

    cli.add_command(emp)
