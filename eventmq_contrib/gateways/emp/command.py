"""The command ``eventmq emp``: sends requests to a server of EMP 1."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from eventmq.cli import FAILED, NO_BROKER, NOT_FOUND, Command, printable, to_json

if TYPE_CHECKING:
    import ssl

__all__ = ["COMMANDS"]

#: Failure codes of a missing operation or job.
_NOT_FOUND = frozenset({"unknown_op", "unknown_job"})


@click.group(
    epilog="Exit codes: 0 done, 1 the operation failed, 2 wrong usage, 3 server not reachable, "
    "4 no such operation or job."
)
def emp() -> None:
    """Talk to a server of EMP 1, such as "eventmq gateway emp"."""


@emp.command(
    cls=Command,
    exits={
        FAILED: "the operation failed",
        NO_BROKER: "the server is not reachable",
        NOT_FOUND: "no such operation or job",
    },
)
@click.argument("address", metavar="HOST:PORT")
@click.argument("op")
@click.argument("data", metavar="[JSON]", required=False)
@click.option(
    "--timeout", type=float, metavar="S", default=60.0, help="Timeout in seconds. Default: 60."
)
@click.option("--tls", is_flag=True, help="Use TLS, with the authorities of the system.")
@click.option("--tls-ca", metavar="FILE", help="Use TLS, with this authority, in PEM.")
@click.option("--tls-cert", metavar="FILE", help="Present this certificate.")
@click.option(
    "--tls-key", metavar="FILE", help="Key of the certificate. Default: in the file of --tls-cert."
)
def call(
    *, address: str, op: str, data: str | None, timeout: float, tls: bool, **files: str | None
) -> int | None:
    """Send one request and print the data of its response as JSON.

    JSON is an object, such as '{"job_id": "..."}'. The operation "$list_ops" lists all
    operations.
    """
    from eventmq.errors import BrokerUnavailable
    from eventmq.gateway import split_address
    from eventmq_contrib.gateways.emp.client import EmpClient
    from eventmq_contrib.gateways.emp.protocol import EmpFailure

    payload = _data(data)
    host, port = split_address(address)
    context = _tls(files, enabled=tls or address.startswith("tls://"))
    try:
        with EmpClient(host, port, tls=context, timeout=min(timeout, 10.0)) as client:
            click.echo(to_json(client.call(op, payload, timeout=timeout)))
    except EmpFailure as failure:
        about = f" {to_json(failure.data)}" if failure.data else ""
        text = printable(f"{failure.code}: {failure.description}{about}")
        click.echo(f"error: {text}", err=True)
        return NOT_FOUND if failure.code in _NOT_FOUND else FAILED
    except (
        BrokerUnavailable
    ) as error:  # the hint about starting a broker does not fit a server of EMP
        click.echo(f"error: {printable(str(error))}", err=True)
        return NO_BROKER
    return None


def _data(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise click.UsageError(
            f"the data is not a JSON object: {text}; write '{{\"name\": 1}}'",
            ctx=click.get_current_context(),
        )
    return value


def _tls(files: dict[str, str | None], *, enabled: bool) -> ssl.SSLContext | None:
    named = {name.removeprefix("tls_"): path for name, path in files.items() if path is not None}
    if not enabled and not named:
        return None
    from eventmq_contrib.gateways.emp.client import client_context

    return client_context(**named)


COMMANDS = (emp,)
