"""Gateway ``majordomo``: clients and workers of the Majordomo draft 0.1.

Options: ``bind`` (clients, ``tcp://127.0.0.1:47281``), ``worker_bind`` (workers,
``tcp://127.0.0.1:47280``), ``keys_dir`` (folder of its CURVE keys and those of its clients and
workers), ``any_key`` (true: they need not be listed there), ``client_name`` and ``worker_name``
(NAME on either port), ``name`` (of this gateway among others of one broker), ``dead`` (seconds of
silence of a worker), ``max_frame`` (bytes), ``max_unsent_bytes`` (bytes that wait for a peer that
does not read), ``max_workers``, ``max_requests``.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from eventmq.errors import PluginError, SettingsError
from eventmq.sdk import CommandOption, TaskRole, hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from eventmq.sdk import Factory, Gateway, PluginContext
    from eventmq_contrib.gateways.majordomo.machine import MajordomoLimits

__all__ = ["eventmq_command_options", "eventmq_gateways", "eventmq_task_options"]

#: Characters of the longest name of a service, which is a queue.
MAX_SERVICE = 255

#: Defaults of the addresses.
FRONT, BACK = "tcp://127.0.0.1:47281", "tcp://127.0.0.1:47280"

_DEFAULTS = {
    "bind": FRONT,
    "worker_bind": "",
    "keys_dir": "",
    "any_key": False,
    "client_name": "MDPC02",
    "worker_name": "MDPW02",
    "name": "majordomo",
    "dead": 10.0,
    "max_frame": 16 * 1024 * 1024,
    "max_unsent_bytes": 64 * 1024 * 1024,
    "max_workers": 256,
    "max_requests": 10_000,
}

#: Options that are more than 0.
_POSITIVE = ("dead", "max_frame", "max_unsent_bytes", "max_workers", "max_requests")


def make_gateway(context: PluginContext) -> Gateway:
    """Return the gateway.

    Raises:
        KeyFileError: There is no key of its own in ``keys_dir``.
        PluginError: An option is wrong.
    """
    from eventmq.gateway import (
        CLIENTS,
        WORKERS,
        gateway_options,
        make_authenticator,
        split_address,
    )
    from eventmq_contrib.gateways.majordomo.gateway import MajordomoGateway, MajordomoOptions

    options = gateway_options(context, _DEFAULTS)
    for name in _POSITIVE:
        if not options[name] > 0:
            raise PluginError(f"option {name!r} of the gateway 'majordomo' is more than 0")
    for name in ("client_name", "worker_name", "name"):
        if not options[name]:
            raise PluginError(f"option {name!r} of the gateway 'majordomo' is not empty")
    back = options["worker_bind"] or _back_of(options["bind"])
    for address in (options["bind"], back):
        split_address(address)
    where = MajordomoOptions(
        front=options["bind"],
        back=back,
        insecure=options["insecure"],
        max_frame=options["max_frame"],
        max_unsent_bytes=options["max_unsent_bytes"],
        name=options["name"],
        run=uuid.uuid4().hex,
        authenticator=make_authenticator(
            options["keys_dir"], {"front": CLIENTS, "back": WORKERS}, any_key=options["any_key"]
        ),
    )
    return MajordomoGateway(context.app, where, _limits(options), context.clock)


def _limits(options: Mapping[str, Any]) -> MajordomoLimits:
    from eventmq_contrib.gateways.majordomo.machine import MajordomoLimits

    return MajordomoLimits(
        client_name=options["client_name"].encode(),
        worker_name=options["worker_name"].encode(),
        dead=options["dead"],
        workers=options["max_workers"],
        requests=options["max_requests"],
    )


def _back_of(front: str) -> str:
    """Return the address for workers where only that for clients was given.

    Port 0 takes a free one there too; any other has the usual port for workers beside it.
    """
    return front if front.endswith(":0") else BACK


@hookimpl
def eventmq_gateways() -> Mapping[str, Factory[Gateway]]:
    """Provide ``majordomo``."""
    return {"majordomo": make_gateway}


@hookimpl
def eventmq_command_options() -> Mapping[str, Sequence[CommandOption]]:
    """Provide the port for workers, and the folder of keys."""
    keys = "Folder of its CURVE keys and of its peers'."
    return {
        "majordomo": [
            CommandOption(name="worker_bind", metavar="URL", help="Its port for workers."),
            CommandOption(name="keys_dir", metavar="DIR", help=keys),
        ]
    }


def _serve(service: Any) -> TaskRole:
    """Return the role of a task that answers the requests of a service."""
    from eventmq.gateway import frames_task

    if not isinstance(service, str) or not 0 < len(service) <= MAX_SERVICE:
        msg = f"majordomo is {service!r}; allowed is: text of 1 to {MAX_SERVICE} characters"
        raise SettingsError(msg)
    what = f"the majordomo service {service!r}"
    return TaskRole(what=what, queue=service, serves=frames_task(service))


@hookimpl
def eventmq_task_options() -> Mapping[str, Callable[[Any], TaskRole]]:
    """Provide ``majordomo``: name of the service whose requests a task answers.

    The task gets the list of their frames and returns bytes or frames. The service is its queue.
    """
    return {"majordomo": _serve}
