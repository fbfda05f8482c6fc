"""CURVE keys: ``keys new|list|authorize|revoke``. Only files are touched; a broker rereads them."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eventmq.broker.grants import NAME, Grant
from eventmq.cli.command import DONE, NOT_FOUND, WRONG_USAGE, Command
from eventmq.cli.output import none_of, printable, show_rows
from eventmq.cli.target import takes_app, takes_json, takes_wide
from eventmq.errors import KeyFileError, did_you_mean
from eventmq.plugins.private_files import make_private_folder
from eventmq.wire.curve import (
    PUBLIC,
    SECRET,
    Certificate,
    decode_key,
    fingerprint,
    read_public,
    write_new,
    write_over,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventmq.cli.target import Target

__all__ = ["COMMANDS"]

_COLUMNS = ("name", "roles", "group", "serves", "submits", "fingerprint", "public_key")

_PUBLIC_NOTE = "EventMQ: a public CURVE key. It may be published."
_PRIVATE_NOTE = "EventMQ: a secret CURVE key. It gives access to the broker: keep it secret."
_GRANT_NOTE = "EventMQ: a client of this broker. Remove this file to revoke its key."


def _takes_keys(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for the folder of the broker's keys; pass it as ``directory``."""

    def packed(target: Target, keys_dir: str | None, data_dir: str | None, **more: Any) -> Any:
        from eventmq.app.broker import keys_dir_of

        settings = target.app(keys_dir=keys_dir, data_dir=data_dir).settings
        return function(directory=keys_dir_of(settings), **more)

    command: Callable[..., Any] = functools.update_wrapper(packed, function)
    for option in (
        click.option("--data-dir", metavar="DIR", help="Data directory; default: .eventmq."),
        click.option(
            "--keys-dir", metavar="DIR",
            help="Folder of the broker's keys; default: keys in the data directory.",
        ),
    ):  # fmt: skip
        command = option(command)
    return takes_app()(command)


@click.group(
    epilog="Exit codes: 0 done, 2 wrong usage, also a key file that is malformed or exists "
    "already, 4 no client has this name."
)
def keys() -> None:
    """Make CURVE keys, and authorise the keys of clients.

    A broker that has a key encrypts everything and serves only clients with authorised keys. It
    notices the changes of these commands at once.
    """


@keys.command(cls=Command, exits={WRONG_USAGE: "wrong usage; also a file that exists already"})
@click.argument("name", required=False)
@click.option(
    "--broker",
    "for_broker",
    is_flag=True,
    help="Make the key of a broker, or a gateway, in --keys-dir.",
)
@click.option(
    "--dir",
    "folder",
    metavar="DIR",
    help="Folder of the two files; default: the working directory.",
)
@_takes_keys
def new(directory: Path, name: str | None, for_broker: bool, folder: str | None) -> None:
    """Make a key pair: NAME.key, which is public, and NAME.key_secret.

    A pair belongs to one client, worker, scheduler or gateway and is made on its machine; only
    NAME.key goes to the broker, for "eventmq keys authorize".
    """
    from eventmq.wire.zap_thread import BROKER

    if for_broker:
        if name or folder:
            raise click.UsageError("--broker needs neither a name nor --dir; see --keys-dir")
        target_dir, name = directory, BROKER
        make_private_folder(target_dir.parent)  # usually the data directory
        make_private_folder(target_dir)
    elif not name:
        raise click.UsageError("name the pair, as in: eventmq keys new web; or use --broker")
    else:
        target_dir = Path(folder or ".")
    click.echo(_make_pair(target_dir, name))


def _make_pair(target_dir: Path, name: str) -> str:
    """Write both files, the secret one first; return the path of the public one."""
    from eventmq.wire.sockets import new_keys

    if not NAME.fullmatch(name):
        raise click.UsageError(
            f"{name!r} is not a name; allowed are letters, digits and _ . @ -, at most 64"
        )
    public, secret = (key.decode() for key in new_keys())
    path, metadata = target_dir / f"{name}{PUBLIC}", {"name": name}
    if path.exists():
        raise KeyFileError(f"{path} exists already; keys are never overwritten")
    write_new(target_dir / f"{name}{SECRET}", Certificate(public, secret, metadata), _PRIVATE_NOTE)
    write_new(path, Certificate(public, "", metadata), _PUBLIC_NOTE)
    return str(path)


@keys.command(cls=Command, exits={WRONG_USAGE: "the key, a role or a name is wrong"})
@click.argument("file")
@click.option("--name", metavar="NAME", help="Name of the client; default: that of the file.")
@click.option(
    "--role", "roles", metavar="ROLE", multiple=True, required=True,
    help="client, worker, scheduler, gateway, admin, viewer or broker. Repeatable.",
)  # fmt: skip
@click.option("--group", metavar="NAME", help="Group whose keys may read each other's results.")
@click.option(
    "--serves",
    metavar="QUEUE",
    multiple=True,
    help="Queue that a gateway serves as worker. Repeatable.",
)
@click.option(
    "--submits",
    metavar="QUEUE",
    multiple=True,
    help="Queue that a gateway submits to as client. Repeatable.",
)
@click.option(
    "--show-arguments",
    is_flag=True,
    help="A viewer may see the arguments of jobs, and events.",
)
@_takes_keys
def authorize(
    directory: Path, file: str, name: str | None, roles: tuple[str, ...], **more: Any
) -> None:
    """Authorise a public key to use this broker.

    A client submits jobs and reads their results; a worker takes jobs; a scheduler fires schedules;
    a gateway acts as worker and client in the queues named here; an admin may see and do
    everything; a viewer may see the jobs of all, without their arguments, and acts on nothing; a
    broker of the same store relays the messages of its own peers. Authorising a key again replaces
    its rights.
    """
    certificate = read_public(file)
    name = name or certificate.metadata.get("name") or Path(file).stem
    user = fingerprint(decode_key(certificate.public))
    is_gateway = "gateway" in roles
    serves, submits = (
        frozenset(more[direction]) if more[direction] or is_gateway else None
        for direction in ("serves", "submits")
    )
    grant = Grant(
        user, name, frozenset(roles), more["group"] or "", serves, submits, more["show_arguments"]
    )
    grant.check()
    _store(directory, grant, certificate.public)
    click.echo(f"{printable(name)} is authorised as {', '.join(sorted(roles))}")


def _store(directory: Path, grant: Grant, public: str) -> None:
    from eventmq.wire.zap_thread import CLIENTS, has_keys

    if not has_keys(directory):
        msg = f"{directory} has no key of a broker; make it with: eventmq keys new --broker"
        raise KeyFileError(msg)
    for other, key in _clients(directory):
        if (other.name == grant.name) != (key == public):
            conflict = f"the name {grant.name!r} has another key" if key != public else (
                f"this key is authorised already, as {other.name!r}"
            )  # fmt: skip
            raise KeyFileError(f"{conflict}; revoke that first: eventmq keys revoke {other.name}")
    clients = directory / CLIENTS
    clients.mkdir(mode=0o700, exist_ok=True)
    path = clients / f"{grant.name}{PUBLIC}"
    write_over(path, Certificate(public, "", grant.metadata()), _GRANT_NOTE)


def _clients(directory: Path) -> list[tuple[Grant, str]]:
    """Return the grants of a directory, each with its public key."""
    from eventmq.wire.zap_thread import CLIENTS

    clients = []
    for path in sorted((directory / CLIENTS).glob(f"[!.]*{PUBLIC}")):
        certificate = read_public(path)
        user = fingerprint(decode_key(certificate.public))
        try:
            clients.append((Grant.read(user, certificate.metadata), certificate.public))
        except KeyFileError as error:
            raise KeyFileError(f"{path}: {error}; rewrite it, or remove it") from error
    return clients


@keys.command("list", cls=Command)
@takes_json
@takes_wide
@_takes_keys
def list_(directory: Path, as_json: bool, wide: bool) -> None:
    """List the clients that a broker serves, with their rights."""
    rows = [
        {
            **dict.fromkeys(_COLUMNS, ""),
            **grant.metadata(),
            "fingerprint": grant.key,
            "public_key": key,
        }
        for grant, key in _clients(directory)
    ]
    show_rows(
        rows, _COLUMNS, as_json=as_json, wide=wide, empty=none_of("authorised keys"),
        brief=_COLUMNS[:-1], gives_way=("submits", "serves", "group"),
    )  # fmt: skip


@keys.command(cls=Command, exits={NOT_FOUND: "no client has this name"})
@click.argument("name")
@_takes_keys
def revoke(directory: Path, name: str) -> int:
    """Revoke the key of a client.

    A running broker disconnects the client within a second: jobs that it runs as a worker go to
    others, it gets no more messages, its messages are refused, and it cannot connect again. Jobs
    that it submitted remain.
    """
    from eventmq.wire.zap_thread import CLIENTS

    clients = directory / CLIENTS
    names = sorted(path.name.removesuffix(PUBLIC) for path in clients.glob(f"[!.]*{PUBLIC}"))
    if name not in names:
        hint = did_you_mean(name, names)
        click.echo(f"error: there is no client {printable(name)!r}; {hint}", err=True)
        return NOT_FOUND
    (clients / f"{name}{PUBLIC}").unlink(missing_ok=True)
    click.echo(f"{printable(name)} is revoked")
    return DONE


COMMANDS = (keys,)
