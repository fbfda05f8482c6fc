"""Gateway ``mc0``: the Marionette Collective's protocol, version 0.3, bridged to topics."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from eventmq.sdk import CommandOption, hookimpl

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from eventmq.sdk import Factory, Gateway, PluginContext

__all__ = ["eventmq_command_options", "eventmq_gateways"]


def make_gateway(context: PluginContext) -> Gateway:
    """Return the gateway.

    Raises:
        KeyFileError: ``keys_dir`` has no key of the gateway.
        PluginError: An option is wrong.
    """
    from eventmq.gateway import CLIENTS, gateway_options, make_authenticator
    from eventmq_contrib.gateways.mc0.bridge import Mc0Gateway, Mc0Options

    options = gateway_options(context, Mc0Options)
    keys = make_authenticator(options.keys_dir, {"main": CLIENTS}, any_key=options.any_key)
    return Mc0Gateway(
        context.app, options,
        authenticator=keys, clock=context.clock, gateway_id=uuid.uuid4().hex,
    )  # fmt: skip


@hookimpl
def eventmq_gateways() -> Mapping[str, Factory[Gateway]]:
    """Provide ``mc0``."""
    return {"mc0": make_gateway}


@hookimpl
def eventmq_command_options() -> Mapping[str, Sequence[CommandOption]]:
    """Provide the folder of keys."""
    help_ = "Folder of the CURVE keys of the gateway and its peers."
    return {"mc0": [CommandOption(name="keys_dir", metavar="DIR", help=help_)]}
