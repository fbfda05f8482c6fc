"""The lease of a store that several brokers share: which of them owns it, and who claims it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from eventmq.timekeeping import Passed

__all__ = ["Claimant", "LeaseRow"]


class LeaseRow(NamedTuple):
    """The row of a shared store that says which broker owns it."""

    #: Id of the store.
    store_id: str
    #: Number of the last claim. It only grows; 0 before the first.
    epoch: int = 0
    #: Id of the broker that owns the store, "" before the first claim and after a release.
    owner: str = ""
    #: Where peers reach the owner, and its public CURVE key in Z85, "" without.
    address: str = ""
    key: str = ""
    #: Grows with each `Ownership.renew`.
    beat: int = 0
    #: The owner's connection as the store knows it, such as a process and its start; for people.
    backend: str = ""
    #: Whether that connection is still there, as the store sees it now; True where it cannot tell.
    connected: bool = True
    #: Of what `Ownership.claim` is given: the time since the owner stored its clocks.
    passed: Passed | None = None


class Claimant(NamedTuple):
    """The broker that claims a store: its id, and what peers are told, as in `LeaseRow`."""

    id: str
    address: str
    key: str = ""
