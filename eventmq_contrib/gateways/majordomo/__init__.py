"""Gateway ``majordomo``: clients and workers of the Majordomo draft 0.1."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from eventmq.errors import SettingsError
from eventmq.sdk import CommandOption, TaskRole, hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from eventmq.sdk import Factory, Gateway, PluginContext

__all__ = ["eventmq_command_options", "eventmq_gateways", "eventmq_task_options"]

#: Maximum characters of the name of a service, which is a queue.
MAX_SERVICE = 255


def make_gateway(context: PluginContext) -> Gateway:
    """Return the gateway.

    Raises:
        KeyFileError: ``keys_dir`` has no key of the gateway.
        PluginError: An option is wrong.
    """
    from eventmq.gateway import CLIENTS, WORKERS, gateway_options, make_authenticator
    from eventmq_contrib.gateways.majordomo.gateway import MajordomoGateway, MajordomoOptions

    options = gateway_options(context, MajordomoOptions)
    roles = {"front": CLIENTS, "back": WORKERS}
    keys = make_authenticator(options.keys_dir, roles, any_key=options.any_key)
    return MajordomoGateway(
        context.app, options,
        authenticator=keys, clock=context.clock, run=uuid.uuid4().hex,
    )  # fmt: skip


@hookimpl
def eventmq_gateways() -> Mapping[str, Factory[Gateway]]:
    """Provide ``majordomo``."""
    return {"majordomo": make_gateway}


@hookimpl
def eventmq_command_options() -> Mapping[str, Sequence[CommandOption]]:
    """Provide the port for workers, and the folder of keys."""
    keys = "Folder of the CURVE keys of the gateway and its peers."
    return {
        "majordomo": [
            CommandOption(name="worker_bind", metavar="URL", help="Address for workers."),
            CommandOption(name="keys_dir", metavar="DIR", help=keys),
        ]
    }


def _serve(service: Any) -> TaskRole:
    """Return the role of a task that answers the requests of a service."""
    from eventmq.sdk import frames_task

    if not isinstance(service, str) or not 0 < len(service) <= MAX_SERVICE:
        raise SettingsError(
            f"majordomo is {service!r}; allowed is: text of 1 to {MAX_SERVICE} characters"
        )
    what = f"the majordomo service {service!r}"
    return TaskRole(what=what, queue=service, serves=frames_task(service))


@hookimpl
def eventmq_task_options() -> Mapping[str, Callable[[Any], TaskRole]]:
    """Provide ``majordomo``: name of the service whose requests a task answers.

    The task receives the frames of a request as a list, and returns bytes or frames. The service is
    the queue of the task.
    """
    return {"majordomo": _serve}
