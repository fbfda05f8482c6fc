"""What the options of all gateways have in common: addresses, and who may reach them.

Called by the factories of gateways, also those of other distributions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from eventmq.errors import NotAllowed, PluginError
from eventmq.sdk.options import read_options
from eventmq.wire.sockets import is_local

if TYPE_CHECKING:
    from eventmq.interfaces import PluginContext

__all__ = ["WITH_KEYS", "check_reach", "gateway_options", "split_address"]

T = TypeVar("T")

#: How a gateway over ZeroMQ does without ``insecure``.
WITH_KEYS = "give it keys with --keys-dir"

_HIGHEST_PORT = 65_535


def gateway_options(context: PluginContext, kind: type[T]) -> T:
    """Return the options of a gateway, as an object of a dataclass with a field for each.

    Its field ``insecure`` has the setting of the app where the option is not given.

    Args:
        context: As the factory got it.
        kind: As for `eventmq.sdk.read_options`.

    Raises:
        PluginError: There is no app, or an option is unknown, missing or not allowed.
    """
    if context.app is None:
        raise PluginError(f"the gateway {context.name!r} needs an app")
    options = {"insecure": bool(context.app.settings.insecure), **context.options}
    return read_options(replace(context, options=options), kind)


def check_reach(address: str, *, insecure: bool, protected: str = "") -> None:
    """Raise `NotAllowed` for an address that others can reach, unless that was allowed.

    Args:
        address: Of a port in the clear.
        insecure: It was spelled out that this is wanted.
        protected: How one would do without; for the message.
    """
    if insecure or is_local(address):
        return
    instead = f"{protected}, " if protected else ""
    msg = f"{address} can be reached from other machines and nothing would be encrypted or checked"
    raise NotAllowed(f"{msg}: bind a loopback address, {instead}or say --insecure")


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port``, with or without a scheme such as ``tcp://``.

    Raises:
        PluginError: It is no such address.
    """
    rest = address.rpartition("://")[2]
    host, colon, port = rest.rpartition(":")
    host = host.strip("[]")
    digits = port.isascii() and port.isdigit() and len(port) < 6  # noqa: PLR2004 - of 65535
    if not colon or not host or not digits or int(port) > _HIGHEST_PORT:
        raise PluginError(f"{address!r} is no address; write tcp://HOST:PORT")
    return ("0.0.0.0" if host == "*" else host), int(port)  # noqa: S104 - as ZeroMQ reads it
