"""The command ``eventmq dashboard``: serves the dashboard with uvicorn until a signal ends it."""

from __future__ import annotations

import logging
import signal
import socket
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import click

from eventmq.cli import FAILED, Command, at_hangup, takes_app, takes_log_format, user
from eventmq.errors import BindError, NotAllowed, SettingsError
from eventmq_contrib.brokers import takes_brokers, targets_of
from eventmq_contrib.extras import need

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.types import ASGIApp

    from eventmq import EventMQ
    from eventmq.cli import Target

__all__ = ["dashboard"]

logger = logging.getLogger("eventmq.dashboard")

DEFAULT_BIND: Final = "http://127.0.0.1:47270"

#: Seconds that a call waits for the broker.
TIMEOUT: Final = 3.0

#: Seconds that open requests have to end after a signal.
GRACE: Final = 3

#: Connections that are served at the same time; more get the status 503.
CONNECTIONS: Final = 500


def _address(context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, int]:
    """Read ``http://HOST:PORT`` or ``HOST:PORT``."""
    text = value if "://" in value else f"http://{value}"
    try:
        parts = urlsplit(text)
        if parts.scheme in {"http", "https"} and parts.hostname and parts.path in {"", "/"}:
            return parts.hostname, 47270 if parts.port is None else parts.port
    except ValueError:
        pass
    raise click.BadParameter(
        f"{value!r} is not an address such as {DEFAULT_BIND}", context, parameter
    )


@click.command(cls=Command, exits={FAILED: "the address cannot be used, or a library is missing"})
@click.option(
    "--bind", metavar="http://HOST:PORT", default=DEFAULT_BIND, callback=_address,
    show_default=True, help="Address of the page; port 0 takes a free one.",
)  # fmt: skip
@click.option("--token-file", metavar="FILE", help="Tokens: TOKEN [ROLE [NAME]] a line.")
@click.option("--basic-auth", metavar="FILE", help="Passwords: NAME HASH [ROLE] a line.")
@click.option(
    "--user-header",
    metavar="NAME",
    help="Header in which a proxy of --trusted-proxy names the user.",
)
@click.option(
    "--trusted-proxy", metavar="ADDRESS", multiple=True,
    help="Address or network of the proxy whose --user-header is believed. Repeatable.",
)  # fmt: skip
@click.option(
    "--operator", metavar="NAME", multiple=True,
    help="With --user-header: a user who may act. Others only read. Repeatable.",
)  # fmt: skip
@click.option("--read-only", is_flag=True, help="All users only read.")
@click.option(
    "--show-arguments", is_flag=True, help="Show arguments of jobs to users who only read, too."
)
@click.option(
    "--host", "hosts", metavar="NAME", multiple=True,
    help="Another name under which the page is opened. Repeatable.",
)  # fmt: skip
@click.option("--root-path", metavar="PATH", default="", help="Path of the page behind a proxy.")
@click.option("--report", metavar="FILE", help='Page that "eventmq spark report" has written.')
@click.option("--tls-cert", metavar="FILE", help="Certificate, for https.")
@click.option("--tls-key", metavar="FILE", help="Its private key.")
@click.option("--insecure", is_flag=True, help="Allow http on addresses that others can reach.")
@click.option("--hash-password", is_flag=True, help="Ask for a password, print its hash, and end.")
@takes_log_format
@takes_brokers
@takes_app()
def dashboard(
    target: Target, *, brokers: dict[str, str], hash_password: bool, **options: Any
) -> None:
    """Serve a web page that shows brokers and acts on their jobs, until SIGTERM or Ctrl-C.

    The command prints a line with "ready" and the address on stdout. Without --token-file,
    --basic-auth or --user-header it makes a token for this run, which is part of that address: open
    it once, and a cookie takes its place. An address that others can reach needs one of the three,
    and --tls-cert or --insecure. At SIGHUP the files of tokens and passwords are read again.
    """
    need("starlette", user="eventmq dashboard", extra="dashboard")
    need("uvicorn", user="eventmq dashboard", extra="dashboard")
    if hash_password:
        from eventmq_contrib.dashboard.access import hash_password as hashed

        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        click.echo(hashed(password))
        return
    with ExitStack() as stack:
        apps = {
            name or "broker": stack.enter_context(closing(each.serving(submit_timeout=TIMEOUT).app))
            for name, each in targets_of(target, brokers).items()
        }
        _serve(apps, **options)


def _serve(
    apps: Mapping[str, EventMQ],
    *,
    bind: tuple[str, int],
    hosts: tuple[str, ...],
    insecure: bool,
    operator: tuple[str, ...],
    root_path: str,
    tls_cert: str | None,
    tls_key: str | None,
    trusted_proxy: tuple[str, ...],
    user_header: str | None,
    **options: Any,
) -> None:
    """Serve the dashboard of some brokers."""
    from eventmq_contrib.dashboard.access import header_user
    from eventmq_contrib.dashboard.guard import LOOPBACK
    from eventmq_contrib.dashboard.mounting import application

    host, port = bind
    loopback = host in {"localhost", "::1"} or host.startswith("127.")
    has_access = options["token_file"] or options["basic_auth"] or user_header
    if bool(user_header) != bool(trusted_proxy):
        raise click.UsageError("--user-header and --trusted-proxy belong together")
    if not loopback and not has_access:
        raise NotAllowed(
            f"{host} can be reached from other machines: say who may look, with --token-file, "
            "--basic-auth or --user-header, or bind a loopback address"
        )
    if not loopback and not tls_cert and not insecure:
        raise NotAllowed(
            f"{host} can be reached from other machines and nothing would be encrypted: bind a "
            "loopback address behind a proxy, give --tls-cert and --tls-key, or say --insecure"
        )
    if host in {"0.0.0.0", "::"} and not hosts:  # noqa: S104 - compared, not bound
        raise SettingsError(f"{host} has no name that browsers open: name it with --host")
    served = application(
        apps, name=user(), hosts=(*hosts, *(LOOPBACK if loopback else (host,))), **options,
        user=header_user(user_header, proxies=trusted_proxy, operators=operator)
        if user_header else None,
    )  # fmt: skip

    def reload() -> None:
        try:
            served.access.reload()
            logger.info("SIGHUP: tokens and passwords were read again")
        except SettingsError as error:
            logger.error("SIGHUP: those from before remain in use: %s", error)  # noqa: TRY400 - expected

    at_hangup(reload, lambda: signal.raise_signal(signal.SIGTERM))
    root = root_path.strip("/") and f"/{root_path.strip('/')}"
    listener = _listen(host, port)
    address = f"[{host}]" if ":" in host else host
    address = f"http{'s' if tls_cert else ''}://{address}:{listener.getsockname()[1]}{root}/"
    address += f"?token={served.token}" if served.token else ""
    try:
        _run(
            _below(root, served) if root else served, listener,
            ready=lambda: click.echo(f"ready bind={address}"), closing=served.streams.close,
            ssl_certfile=tls_cert, ssl_keyfile=tls_key,
        )  # fmt: skip
    finally:
        served.close()
        listener.close()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (")[0]
        raise BindError(f"cannot bind {host}:{port}: {reason}; name another with --bind") from error


def _below(root: str, app: ASGIApp) -> ASGIApp:
    """Return an application below a path, whether a proxy strips that path or not."""

    async def served(scope: Any, receive: Any, send: Any) -> None:
        path = f"{root}{scope['path'].removeprefix(root) or '/'}"
        await app({**scope, "path": path, "root_path": root}, receive, send)

    return served


def _run(
    app: ASGIApp,
    listener: socket.socket,
    *,
    ready: Callable[[], None],
    closing: Callable[[], None],
    **tls: str | None,
) -> None:
    """Run uvicorn until SIGTERM or SIGINT."""
    import asyncio

    import uvicorn

    class Server(uvicorn.Server):
        """Says when it is ready, and ends the streams before it waits for requests to end."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            ready()

        def handle_exit(self, sig: int, frame: Any) -> None:
            closing()
            super().handle_exit(sig, frame)

    for signum in (signal.SIGTERM, signal.SIGINT):  # which uvicorn raises again at its end
        signal.signal(signum, lambda *_: None)
    config = uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, proxy_headers=False,
        lifespan="off", ws="none", timeout_graceful_shutdown=GRACE, limit_concurrency=CONNECTIONS,
        h11_max_incomplete_event_size=32 * 1024, **tls,  # type: ignore[arg-type]
    )  # fmt: skip
    asyncio.run(Server(config).serve(sockets=[listener]))
