"""Grants: what the owner of a key may do, by roles, and whose results it may read.

Only the key of a connection gives rights. Nothing that a peer claims, its routing id included,
gives it any. `eventmq.broker.authenticator` checks each message here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, unquote, urlencode

from eventmq.errors import KeyFileError, ProtocolError
from eventmq.headers import parse_headers
from eventmq.wire.calls import CALLS
from eventmq.wire.commands import (
    Ack,
    Admin,
    Call,
    Cancel,
    Credit,
    Disconnect,
    Error,
    Heartbeat,
    Hello,
    Inform,
    Kbai,
    Publish,
    Ready,
    Reply,
    Request,
    Schedule,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["NAME", "OWN_JOBS", "REMOTE", "ROLES", "Grant", "call_roles", "set_owner"]

#: Allowed names of clients and groups; they appear in file names, headers and the log.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")

#: Role -> its purpose, for people.
ROLES: Mapping[str, str] = MappingProxyType({
    "client": "submits jobs, reads the results of its own, publishes and subscribes",
    "worker": "takes jobs of all queues and answers them; submits none",
    "scheduler": "fires schedules, and does what a client does",
    "gateway": "does what client and worker do, in the queues named with its key",
    "admin": "does what a client does, to jobs of all, and everything that acts on the broker",
    "viewer": "sees jobs of all, queues, workers and failures; acts on nothing",
    "broker": "passes on, as a standby of the same store, what its peers may do",
})  # fmt: skip

_ANY = frozenset(ROLES)
_SUBMITS = _ANY - {"worker", "broker", "viewer"}
_WORKS = frozenset({"worker", "gateway"})
_ACTS = frozenset({"admin"})
_SEES = frozenset({"viewer"})

#: Command -> roles that may send it.
_COMMANDS: Mapping[type, frozenset[str]] = {
    Inform: _ANY,
    Hello: _ANY,
    Heartbeat: _ANY,
    Kbai: _ANY,
    Ack: _ANY,
    Error: _ANY,
    Call: _ANY,  # see `call_roles`
    Cancel: _ANY,  # no peer may send it; its handler refuses it
    Credit: _SUBMITS,
    Request: _SUBMITS,
    Publish: _SUBMITS,
    Schedule: _SUBMITS,
    Ready: _WORKS,
    Reply: _WORKS,
    Admin: _ACTS,
    Disconnect: _ACTS,
}

#: Role in INFORM -> roles of the key that may inform with it.
_INFORMS: Mapping[str, frozenset[str]] = {
    "client": _ANY,
    "worker": _WORKS,
    "scheduler": frozenset({"scheduler"}),
}

#: Calls that show the jobs or connections of all owners.
_SHOW_ALL = frozenset({
    "count", "failed", "failures", "jobs", "metrics", "status", "workers",
})  # fmt: skip

#: Calls of a viewer, about jobs of all; of `_WITH_ARGUMENTS` only if it is shown arguments.
_VIEWED = frozenset({
    "count", "events.read", "failed", "failures", "graph", "info", "jobs", "metrics", "queues",
    "schedules.list", "state", "status", "workers",
})  # fmt: skip

#: Calls whose answers may have arguments: events have them with the setting ``redactor``.
_WITH_ARGUMENTS = frozenset({"events.read"})

#: Calls by which schedulers coordinate.
_SCHEDULERS = frozenset({"schedules.advance", "schedules.lease"})

#: Calls about single jobs -> the argument with their ids; a peer may make them for its own jobs.
OWN_JOBS: Mapping[str, str] = {
    "cancel": "ids", "cancel_graph": "id", "get": "ids", "graph": "id", "info": "id",
    "schedules.ran": "id", "state": "ids", "stream": "id",
}  # fmt: skip


def call_roles(name: str) -> frozenset[str]:
    """Return the roles that may make a call; an unknown one is refused by its handler."""
    if name == "ping":
        return _ANY
    if name in _SCHEDULERS:
        return frozenset({"scheduler"})
    spec = CALLS.get(name)
    if spec and spec.role == "worker":
        return _WORKS
    acts = name in _SHOW_ALL or (spec and spec.role == "admin")
    return (_ACTS if acts else _SUBMITS) | (_SEES if name in _VIEWED else frozenset())


@dataclass(frozen=True, slots=True)
class Grant:
    """The rights of a key.

    Attributes:
        key: Fingerprint of the key.
        name: Name of its owner, for people.
        roles: Keys of `ROLES`.
        group: Keys of one group may read each other's results; "" for no group.
        serves: Queues that the key may serve as a worker, None for all.
        submits: Queues that the key may submit to, None for all.
        show_arguments: A viewer may see arguments of jobs.
        keyless: The broker has no keys: the grant owns no jobs, and may see all.
    """

    key: str
    name: str
    roles: frozenset[str]
    group: str = ""
    serves: frozenset[str] | None = None
    submits: frozenset[str] | None = None
    show_arguments: bool = False
    keyless: bool = False

    def check(self) -> None:
        """Check the names and the combination of roles and queues.

        Raises:
            KeyFileError: They are not valid; the message names what is allowed.
        """
        for what, name in (("name", self.name), ("group", self.group or "none")):
            if not NAME.fullmatch(name):
                raise KeyFileError(
                    f"the {what} {name[:80]!r} must be letters, digits and _ . @ -, at most 64"
                )
        unknown = sorted(self.roles - _ANY)
        if unknown or not self.roles:
            what = f"unknown role {unknown[0][:40]!r}" if unknown else "no role"
            raise KeyFileError(f"{what}; known are {', '.join(ROLES)}")
        limited = self.serves is not None or self.submits is not None
        if "broker" in self.roles and len(self.roles) > 1:
            raise KeyFileError("a broker's key has no other role: it acts for its peers")
        if "gateway" in self.roles:
            if len(self.roles) > 1:
                raise KeyFileError("a gateway's key has no other role, which would have no limits")
        elif limited:
            raise KeyFileError("only a gateway's key names the queues that it serves or submits to")
        if self.show_arguments and "viewer" not in self.roles:
            raise KeyFileError("only a viewer's key says whether it is shown arguments")

    @classmethod
    def read(cls, key: str, metadata: Mapping[str, str]) -> Grant:
        """Return the grant in the metadata of an authorised certificate.

        Raises:
            KeyFileError: The metadata are not as `metadata` writes them.
        """
        roles = frozenset(filter(None, metadata.get("roles", "").split(",")))
        is_gateway = "gateway" in roles
        grant = cls(
            key, metadata.get("name", ""), roles, metadata.get("group", ""),
            _queues(metadata.get("serves"), is_gateway=is_gateway),
            _queues(metadata.get("submits"), is_gateway=is_gateway),
            metadata.get("show_arguments") == "yes",
        )  # fmt: skip
        grant.check()
        return grant

    def metadata(self) -> dict[str, str]:
        """Return the metadata that `read` reads."""
        fields = {"name": self.name, "roles": ",".join(sorted(self.roles)), "group": self.group}
        fields["show_arguments"] = "yes" if self.show_arguments else ""
        limits = {"serves": self.serves, "submits": self.submits}
        fields |= {
            name: ",".join(quote(queue, safe="") for queue in sorted(queues))
            for name, queues in limits.items()
            if queues is not None
        }
        return {name: value for name, value in fields.items() if value}

    def format(self) -> str:
        """Return key and metadata as one text, which `parse` reads."""
        return urlencode({"key": self.key, **self.metadata()})

    @classmethod
    def parse(cls, text: str) -> Grant:
        """Return the grant of a peer, which a standby sends when it relays messages of the peer.

        Raises:
            KeyFileError: The text is not as `format` writes it.
        """
        metadata = dict(parse_qsl(text))
        key = metadata.pop("key", "")
        if not NAME.fullmatch(f"k{key}"):
            raise KeyFileError(f"the key {key[:80]!r} of a grant is no fingerprint")
        return cls.read(key, metadata)

    @property
    def is_broker(self) -> bool:
        """Whether the key is that of another broker of the store, which acts for its peers."""
        return "broker" in self.roles

    # Checks

    def check_command(self, kind: type) -> None:
        """Raise `ProtocolError` if no role of the key may send the command."""
        self._check(_COMMANDS[kind], f"send {kind.__name__.upper()}")

    def check_call(self, name: str) -> None:
        """Raise `ProtocolError` if no role of the key may make the call."""
        if self.keyless and not (name in CALLS and CALLS[name].role == "admin"):
            return
        allowed = call_roles(name)
        if name in _WITH_ARGUMENTS and not self.show_arguments:
            allowed -= _SEES
        self._check(allowed, f"call {name[:40]!r}")

    def check_inform(self, role: str, queues: Iterable[str]) -> None:
        """Raise `ProtocolError` if the key may not inform as a role, or not serve a queue."""
        self._check(_INFORMS.get(role, _ANY), f"inform as {role[:40]!r}")
        if role == "worker" and self.serves is not None:
            self._check_queues(queues, self.serves, "serve")

    def check_submit(self, queue: str) -> None:
        """Raise `ProtocolError` if the key may not submit to a queue."""
        if self.submits is not None:
            self._check_queues([queue], self.submits, "submit to")

    def _check(self, allowed: frozenset[str], what: str) -> None:
        if self.roles.isdisjoint(allowed):
            needed = " or ".join(sorted(allowed))
            who = f"the key {self.name!r} ({', '.join(sorted(self.roles))})"
            if self.keyless:
                who, needed = "a peer of another machine without a key", "admin, and a key"
            raise ProtocolError(
                f"{who} may not {what}: that needs the role {needed}", code="not-allowed"
            )

    def _check_queues(self, queues: Iterable[str], known: frozenset[str], what: str) -> None:
        for queue in queues:
            if queue not in known:
                names = ", ".join(sorted(known)) or "none"
                msg = f"the key {self.name!r} may not {what} the queue {queue[:80]!r}; it is for"
                raise ProtocolError(f"{msg} {names}", code="not-allowed")

    # Jobs

    @property
    def owner(self) -> str:
        """Value of the header ``owner`` of jobs of the key: the key and its group."""
        return f"{self.key}/{self.group}" if self.group else self.key

    def sees(self, name: str, *, arguments: bool) -> bool:
        """Return whether the key may make a call about single jobs for jobs of all owners.

        Args:
            name: Name of the call.
            arguments: Whether the call asks for arguments of the job.
        """
        return "viewer" in self.roles and name in _VIEWED and (self.show_arguments or not arguments)

    def owns(self, headers: str) -> bool:
        """Return whether the key or its group submitted the job, or the key may see any job."""
        if self.keyless or "admin" in self.roles:
            return True
        key, _, group = parse_headers(headers).owner.partition("/")
        return key == self.key or bool(group and group == self.group)


#: Grant of peers on other machines if the broker has no keys: administration is for loopback.
REMOTE = Grant("", "no key", _ANY - _ACTS - _SEES - {"gateway", "broker"}, keyless=True)


def _queues(text: str | None, *, is_gateway: bool) -> frozenset[str] | None:
    """Return the queues of a key; those of a gateway that names none are empty, not None."""
    if text is None:
        return frozenset() if is_gateway else None
    return frozenset(unquote(name) for name in text.split(",") if name)


def set_owner(text: str, owner: str) -> str:
    """Return a header field with another ``owner``.

    Args:
        text: The header field, as a client sent it.
        owner: See `Grant.owner`; "" only removes the owner that the client sent.
    """
    items = [item for item in text.split(",") if item.strip().partition(":")[0] != "owner"]
    if owner:
        items.append(f"owner:{owner}")
    return ",".join(filter(None, items))
