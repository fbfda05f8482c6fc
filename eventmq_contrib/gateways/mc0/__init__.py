"""Gateway ``mc0``: the Marionette Collective's protocol, version 0.3, bridged to topics.

Options: ``bind`` (``tcp://127.0.0.1:61616``), ``keys_dir`` (folder of its CURVE keys and those of
its clients), ``any_key`` (true: its clients need not be listed there), ``max_frame`` (bytes),
``max_unsent_bytes`` (bytes that wait for a client that does not read), ``max_peers`` (clients),
``max_topics`` (of one client).
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from eventmq.errors import PluginError
from eventmq.sdk import CommandOption, hookimpl

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from eventmq.sdk import Factory, Gateway, PluginContext

__all__ = ["eventmq_command_options", "eventmq_gateways"]

#: Default of the address.
BIND = "tcp://127.0.0.1:61616"

_DEFAULTS = {
    "bind": BIND,
    "keys_dir": "",
    "any_key": False,
    "max_frame": 16 * 1024 * 1024,
    "max_unsent_bytes": 64 * 1024 * 1024,
    "max_peers": 10_000,
    "max_topics": 1000,
}


def make_gateway(context: PluginContext) -> Gateway:
    """Return the gateway.

    Raises:
        KeyFileError: There is no key of its own in ``keys_dir``.
        PluginError: An option is wrong.
    """
    from eventmq.gateway import CLIENTS, gateway_options, make_authenticator, split_address
    from eventmq_contrib.gateways.mc0.bridge import Mc0Gateway, Mc0Options
    from eventmq_contrib.gateways.mc0.machine import Mc0Limits

    options = gateway_options(context, _DEFAULTS)
    for name in ("max_frame", "max_unsent_bytes", "max_peers", "max_topics"):
        if options[name] < 1:
            raise PluginError(f"option {name!r} of the gateway 'mc0' is at least 1")
    split_address(options["bind"])
    where = Mc0Options(
        bind=options["bind"],
        insecure=options["insecure"],
        max_frame=options["max_frame"],
        max_unsent_bytes=options["max_unsent_bytes"],
        authenticator=make_authenticator(
            options["keys_dir"], {"main": CLIENTS}, any_key=options["any_key"]
        ),
    )
    limits = Mc0Limits(clients=options["max_peers"], topics=options["max_topics"])
    gateway_id = uuid.uuid4().hex
    return Mc0Gateway(context.app, where, limits, clock=context.clock, gateway_id=gateway_id)


@hookimpl
def eventmq_gateways() -> Mapping[str, Factory[Gateway]]:
    """Provide ``mc0``."""
    return {"mc0": make_gateway}


@hookimpl
def eventmq_command_options() -> Mapping[str, Sequence[CommandOption]]:
    """Provide the folder of keys."""
    help_ = "Folder of its CURVE keys and of its peers'."
    return {"mc0": [CommandOption(name="keys_dir", metavar="DIR", help=help_)]}
