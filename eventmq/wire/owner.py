"""Extension ``owner``: which of the brokers of a shared store is its owner, and since which epoch.

A broker whose store other brokers may own too says an `OwnerInfo` in ACK (to INFORM) and HEARTBEAT.
Its REQUESTs to workers carry the epoch in a header, and what only an owner may answer is refused
with ERROR ``no-owner``. A broker that has its store for itself says nothing of the kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple
from urllib.parse import quote, unquote

from eventmq.errors import ProtocolError
from eventmq.headers import split_headers
from eventmq.wire.commands import Error

if TYPE_CHECKING:
    from eventmq.wire.curve import ClientKeys

__all__ = [
    "ACTIVE",
    "EPOCH",
    "STANDBY",
    "OwnerInfo",
    "Owners",
    "no_owner",
    "parse_epoch",
    "untrusted",
]

#: Roles of a broker: it owns the store, or it watches who does.
ACTIVE: Literal["active"] = "active"
STANDBY: Literal["standby"] = "standby"

#: Header of a chunk from the owner of a shared store: the epoch in which it was leased.
EPOCH = "epoch"

#: Characters of the longest address and store id.
_MAX_TEXT = 255

#: Characters of a public CURVE key, in Z85.
_KEY = 40

#: Digits of the largest epoch.
_DIGITS = 15

_FIELDS = 5

#: Stores whose owners a peer remembers. Its brokers have one, or one each.
_MAX_STORES = 1000


class OwnerInfo(NamedTuple):
    """What a broker of a shared store says about the owner and itself.

    Attributes:
        epoch: Of the owner that it knows, or is; it grows whenever the store gets another owner.
            0 while none is known.
        role: Of the broker that says it: ``active``, then it is the owner, or ``standby``.
        address: Where peers reach the owner; "" while that is not known.
        key: The owner's public CURVE key in Z85, "" without.
        store_id: Id of the store.
    """

    epoch: int
    role: Literal["active", "standby"]
    address: str = ""
    key: str = ""
    store_id: str = ""

    def address_beside(self, broker: str) -> str:
        """Return where the owner is, "" if it is said to be a broker that is known to be none."""
        return "" if self.address == broker else self.address

    def format(self) -> str:
        """Return the pair ``owner:...`` of FEATURES and of HEARTBEAT."""
        texts = (str(self.epoch), *self[1:])
        return "owner:" + "+".join(quote(text, safe="_.-~*/") for text in texts)

    @classmethod
    def parse(cls, value: str) -> OwnerInfo | None:
        """Read the value of the pair, None for an empty one: a peer then only names the extension.

        What follows the fifth part is passed over.

        Raises:
            ProtocolError: It is not as ``format`` writes it; the code is ``bad-features``.
        """
        if not value:
            return None
        parts = [unquote(part) for part in value.split("+")]
        if len(parts) < _FIELDS:
            raise ProtocolError(
                f"owner is {value[:80]!r}; allowed is EPOCH+ROLE+ADDRESS+KEY+STORE",
                code="bad-features",
            )
        number, role, address, key, store_id = parts[:_FIELDS]
        if role not in {ACTIVE, STANDBY}:
            raise ProtocolError(
                f"the role of a broker is {ACTIVE} or {STANDBY}, not {role[:40]!r}",
                code="bad-features",
            )
        if max(len(address), len(store_id)) > _MAX_TEXT:
            raise ProtocolError(
                f"address and store of an owner have at most {_MAX_TEXT} characters",
                code="bad-features",
            )
        if key and (len(key) != _KEY or not key.isascii()):
            raise ProtocolError(
                f"the key of an owner has {_KEY} characters of Z85, or none", code="bad-features"
            )
        return cls(parse_epoch(number), role, address, key, store_id)

    @classmethod
    def of_heartbeat(cls, status: str) -> OwnerInfo | None:
        """Read it from frame 5 of a broker's HEARTBEAT, None if the broker does not say it.

        Raises:
            ProtocolError: It is malformed; the code is ``bad-features``.
        """
        return cls.parse(dict(split_headers(status)).get("owner", ""))


class Owners:
    """The owners of stores as a peer of several brokers has heard of them.

    Epochs only grow: a broker that says a lower one than was heard owned the store once, and does
    not know yet that it has lost it.
    """

    __slots__ = ("_latest",)

    def __init__(self) -> None:
        #: Store id -> what was said about its owner with the highest epoch.
        self._latest: dict[str, OwnerInfo] = {}

    def learn(self, said: OwnerInfo) -> OwnerInfo:
        """Take in what a broker says; return what is known now of the owner of its store."""
        latest = self.of(said)
        if said.epoch > latest.epoch or (said.epoch == latest.epoch and not latest.address):
            latest = said
        if said.store_id not in self._latest and len(self._latest) >= _MAX_STORES:
            del self._latest[next(iter(self._latest))]
        self._latest[said.store_id] = latest
        return latest

    def of(self, said: OwnerInfo) -> OwnerInfo:
        """Return what is known of the owner of a broker's store, which may be more than it said."""
        return self._latest.get(said.store_id, said)

    def owns(self, said: OwnerInfo | None) -> bool:
        """Return whether the broker that says this owns its store, as far as is known.

        Args:
            said: None of a broker that has its store for itself.
        """
        if said is None:
            return True
        return said.role == ACTIVE and said.epoch >= self.of(said).epoch


def untrusted(keys: ClientKeys | None, key: str) -> str:
    """Return why a peer does not connect to an owner that another broker names, "" if it does.

    Args:
        keys: Of the peer, None where it has none.
        key: The owner's public key as that broker says it, "" for none.
    """
    if keys is None:
        return key and "it has a CURVE key and this peer has none: set key_file and broker_key_file"
    if not key:
        return "it has no CURVE key, and this peer connects with keys only"
    if key.encode() in {keys.broker, *keys.others}:
        return ""
    return (
        f"its public key {key} is not in broker_key_file: add its address to broker, and the file "
        "with this key to broker_key_file"
    )


def parse_epoch(text: str) -> int:
    """Read an epoch, as in the header of a chunk.

    Args:
        text: Its value; "" is that of a broker which has its store for itself, and is 0.

    Raises:
        ProtocolError: It is no whole number from 0, or has more than 15 digits.
    """
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS):
        raise ProtocolError(
            f"epoch is {text[:80]!r}; allowed is a whole number from 0", code="bad-features"
        )
    return int(text)


def no_owner(msg_id: str, request: str, owner: OwnerInfo, trouble: str = "") -> Error:
    """Return the ERROR for a message that only the owner of the store may answer.

    Args:
        msg_id: Of the ERROR.
        request: Id of that message.
        owner: What the broker knows of the owner.
        trouble: Why the store cannot be used now, "" where it can.
    """
    where = f"the owner is {owner.address}" if owner.address else "no owner is known now"
    if trouble:
        where += f", and the store cannot be used ({trouble})"
    text = f"this broker does not own its store; {where}: send it there, or again later"
    return Error(msg_id, request, "no-owner", text)
