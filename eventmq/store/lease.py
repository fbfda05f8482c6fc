"""The lease of a store that several brokers share: its owner, and the broker that claims it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from eventmq.timekeeping import Passed

__all__ = ["Claimant", "LeaseRow"]


class LeaseRow(NamedTuple):
    """The row of a shared store that names the broker which owns it."""

    #: Id of the store.
    store_id: str
    #: Number of the last claim. It only grows; 0 before the first claim.
    epoch: int = 0
    #: Id of the broker that owns the store, "" before the first claim and after a release.
    owner: str = ""
    #: Address of the owner for peers, and its public CURVE key in Z85, "" if it has none.
    address: str = ""
    key: str = ""
    #: Grows with each `Ownership.renew`.
    beat: int = 0
    #: The owner's connection as the store knows it, such as a process and its start, for people.
    backend: str = ""
    #: Whether that connection still exists now; True if the store cannot tell.
    connected: bool = True
    #: Bounds of the time since the owner stored its clocks; set in the row that a broker passes to
    #: `Ownership.claim`, None in a row that was read.
    passed: Passed | None = None


class Claimant(NamedTuple):
    """The broker that claims a store: its id, address and public key, as in `LeaseRow`."""

    id: str
    address: str
    key: str = ""
