"""Extension ``owner``: which of the brokers of a shared store owns it, and in which epoch.

A broker of a shared store sends an `OwnerInfo` in the ACK to INFORM and in HEARTBEAT. The owner
puts the epoch into a header of its REQUESTs to workers. A standby refuses messages that only the
owner may answer with ERROR ``no-owner``. A broker whose store is not shared does none of this.
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

#: Roles of a broker: it owns the store, or it stands by.
ACTIVE: Literal["active"] = "active"
STANDBY: Literal["standby"] = "standby"

#: Header of a chunk from the owner of a shared store: the epoch in which the chunk was leased.
EPOCH = "epoch"

#: Characters of the longest address, and of the longest store id.
_MAX_TEXT = 255

#: Characters of a public CURVE key, in Z85.
_KEY = 40

#: Digits of the largest epoch.
_DIGITS = 15

#: Number of parts of the text of an `OwnerInfo`.
_FIELDS = 5

#: Number of stores whose owners a peer remembers. Its brokers share one store, or have one each.
_MAX_STORES = 1000


class OwnerInfo(NamedTuple):
    """Report of a broker of a shared store about the owner and its own role.

    Attributes:
        epoch: Epoch of the last owner that the broker knows; it grows whenever the store gets
            another owner. 0 if the broker knows none.
        role: Role of the reporting broker: ``active`` if it is the owner, else ``standby``.
        address: Address of the owner for peers, "" if it is not known.
        key: Public CURVE key of the owner in Z85, "" if it has none.
        store_id: Id of the store.
    """

    epoch: int
    role: Literal["active", "standby"]
    address: str = ""
    key: str = ""
    store_id: str = ""

    def address_beside(self, broker: str) -> str:
        """Return the address of the owner; "" if it is ``broker``, the address of a standby."""
        return "" if self.address == broker else self.address

    def format(self) -> str:
        """Return the pair ``owner:...`` of FEATURES and of HEARTBEAT."""
        texts = (str(self.epoch), *self[1:])
        return "owner:" + "+".join(quote(text, safe="_.-~*/") for text in texts)

    @classmethod
    def parse(cls, value: str) -> OwnerInfo | None:
        """Read the value of the pair; return None if it is empty.

        An empty value only announces the extension. Parts after the fifth are ignored.

        Raises:
            ProtocolError: The value is not as ``format`` writes it; the code is ``bad-features``.
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
        """Read the report in frame 5 of a broker's HEARTBEAT; return None if there is none.

        Raises:
            ProtocolError: The report is malformed; the code is ``bad-features``.
        """
        return cls.parse(dict(split_headers(status)).get("owner", ""))


class Owners:
    """The owners of stores, from the reports of all brokers that a peer is connected to.

    Epochs only grow. A broker that reports a lower epoch than another one does not know yet that
    the store has a new owner, even if it reports to own the store itself.
    """

    __slots__ = ("_latest",)

    def __init__(self) -> None:
        #: Store id -> report with the highest epoch.
        self._latest: dict[str, OwnerInfo] = {}

    def register(self, report: OwnerInfo) -> OwnerInfo:
        """Record the report of a broker; return the latest known report about its store.

        A report without an address does not replace one with the same epoch.
        """
        latest = self.of(report)
        if report.epoch > latest.epoch or (report.epoch == latest.epoch and not latest.address):
            latest = report
        if report.store_id not in self._latest and len(self._latest) >= _MAX_STORES:
            del self._latest[next(iter(self._latest))]
        self._latest[report.store_id] = latest
        return latest

    def of(self, report: OwnerInfo) -> OwnerInfo:
        """Return the latest known report about the store of a report."""
        return self._latest.get(report.store_id, report)

    def owns(self, report: OwnerInfo | None) -> bool:
        """Return whether the broker that sent a report owns its store, as far as is known.

        Args:
            report: The report; None if the store of the broker is not shared.
        """
        if report is None:
            return True
        return report.role == ACTIVE and report.epoch >= self.of(report).epoch


def untrusted(keys: ClientKeys | None, key: str) -> str:
    """Return why a peer must not connect to an owner that another broker reports, "" if it may.

    Args:
        keys: Keys of the peer, None if it has none.
        key: Public key of the owner in the report, "" if it has none.
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
        text: The value; "" stands for a store that is not shared, and returns 0.

    Raises:
        ProtocolError: The value is not a whole number from 0, or has more than 15 digits.
    """
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS):
        raise ProtocolError(
            f"epoch is {text[:80]!r}; allowed is a whole number from 0", code="bad-features"
        )
    return int(text)


def no_owner(msg_id: str, request: str, owner: OwnerInfo, unavailable_reason: str = "") -> Error:
    """Return the ERROR for a message that only the owner of the store may answer.

    Args:
        msg_id: Message id of the ERROR.
        request: Id of the refused message.
        owner: The report of the broker.
        unavailable_reason: Why the broker cannot use the store now, "" if it can.
    """
    where = f"the owner is {owner.address}" if owner.address else "no owner is known now"
    if unavailable_reason:
        where += f", and the store cannot be used ({unavailable_reason})"
    text = f"this broker does not own its store; {where}: send it there, or again later"
    return Error(msg_id, request, "no-owner", text)
