"""Ownership of a store that several brokers share, from the point of view of one of them.

`Watch` decides when this broker may claim the store, from readings of the lease and their times.
`Candidate` carries these decisions out on the store (`eventmq.interfaces.Ownership`) and describes
the owner for peers. `stand_by` and `tell_peers` change a `BrokerCore` for its role.
`eventmq.broker.runner` calls them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from eventmq.broker.state import DeferredSend
from eventmq.errors import StoreError
from eventmq.store.lease import LeaseRow
from eventmq.timekeeping import Passed
from eventmq.wire.commands import (
    Ack,
    Admin,
    Call,
    Credit,
    Disconnect,
    Error,
    Heartbeat,
    Hello,
    Inform,
    Kbai,
    Publish,
    Request,
    Schedule,
)
from eventmq.wire.features import format_waiting
from eventmq.wire.owner import ACTIVE, STANDBY, OwnerInfo, no_owner

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventmq.broker.core import BrokerCore
    from eventmq.broker.peers import Peer
    from eventmq.interfaces import Ownership
    from eventmq.store.lease import Claimant

__all__ = ["Candidate", "Watch", "stand_by", "tell_peers"]

logger = logging.getLogger("eventmq.broker")

#: Seconds between two reads of the lease by a standby.
READ_EVERY = 1.0

#: Seconds between two reads up to which a standby has seen every beat that matters.
READ_GAP = 2.0

#: Seconds without a new beat after which the owner counts as dead: it renews the lease each second.
BEAT_TIMEOUT = 3.0

#: Seconds that a standby's own commit may take. While it takes longer, the store is slow for the
#: owner too, and a missing beat does not show that the owner is dead.
COMMIT_LIMIT = 0.5

#: Seconds that an owner has to reconnect after its connection has ended.
COMEBACK = 0.5

#: Seconds that another broker has to claim a store that was handed over; then the broker that
#: handed it over claims it again.
HANDOVER = 5.0

#: Seconds for which an owner may still commit after the last beat that this broker has seen, and
#: seconds before that beat for which it may have stored no clocks, including the time of a claim.
AFTER_BEAT, BEFORE_BEAT = 2.0, 30.0

#: Seconds until the next try while the store cannot be reached: the first wait, and the longest.
RETRY, MAX_RETRY = 0.1, 2.0

#: Number of different reasons that are logged, each once, while the store cannot be used.
MAX_REASONS = 20

#: Commands that a standby handles as an owner does.
_HANDLED = (Inform, Heartbeat, Kbai, Hello, Ack, Error, Disconnect)

#: Commands that a standby relays to the owner. One that cannot be relayed is refused or, for ADMIN,
#: answered by the standby.
_RELAYED = (Call, Publish, Credit, Admin)

#: Commands that a standby refuses if it does not relay them. All other commands are answers to an
#: owner, and a standby ignores them.
_REFUSED = (Request, Schedule, Publish, Call)

#: Calls about the broker itself, which a standby answers.
_LOCAL_CALLS = frozenset({"metrics", "ping", "status"})


class Watch:
    """Decides from readings of the lease when this broker may claim the store.

    All times are the boot times of this broker's machine, which count its sleep.

    Args:
        me: Id of this run of this broker; no other broker or run has the same.
    """

    def __init__(self, me: str) -> None:
        self._me = me
        #: The lease as it was last read, or as this broker has written it by a claim.
        self.row: LeaseRow | None = None
        #: Time of the next step: a claim if `claiming`, else a read; infinite while this broker
        #: owns the store.
        self.next_at = 0.0
        self.claiming = False
        #: The epoch in which this broker owns the store, 0 while it does not.
        self.owns = 0
        #: Why the store cannot be used now, "" while it can.
        self.unavailable_reason = ""
        #: The reasons logged since the store was last usable.
        self._logged: set[str] = set()
        #: Time since which the beat has not changed although the owner could have committed.
        self._same_beat_since = 0.0
        #: End of the last read; minus infinity if the store has failed since.
        self._seen_at = float("-inf")
        #: Start of the last read, also if the store has failed since.
        self._read_at = float("-inf")
        #: Earliest and latest time of the beat that was last seen.
        self._renewed = (float("-inf"), float("inf"))
        #: Time since which the owner is seen to be disconnected, None while it is connected.
        self._disconnected_since: float | None = None
        self._failures = 0
        #: Whether a claim has failed since: then only a new beat shows that an owner can commit.
        self._claim_failed = False
        #: Time until which this broker leaves a store that it has handed over to other brokers.
        self._yields_until = float("-inf")
        #: Time since which no live owner is known, None while one is; and the total seconds of
        #: earlier periods without one.
        self._unowned_since: float | None = None
        self._unowned = 0.0

    def observe(self, row: LeaseRow, began: float, ended: float) -> None:
        """Handle the lease that was read, and decide whether to claim the store.

        Args:
            row: The lease.
            began: When the read began.
            ended: When it ended.
        """
        old, self.row = self.row, row
        missed = began - self._seen_at > READ_GAP or ended - began > COMMIT_LIMIT
        self._seen_at = ended
        new_owner = old is None or (old.epoch, old.owner) != (row.epoch, row.owner)
        renewed = new_owner or (old is not None and old.beat != row.beat)
        if renewed or missed:
            self._same_beat_since = ended
        if renewed:
            self._renewed = self._read_at, ended
        elif not row.connected and old is not None and old.connected and not missed:
            self._bound_beat(ended)
        self._read_at = began
        if row.connected:
            self._disconnected_since = None
        elif new_owner or missed or self._disconnected_since is None:
            self._disconnected_since = ended
        if row.owner:
            self._yields_until = float("-inf")
        beat_missing = ended - self._same_beat_since >= BEAT_TIMEOUT
        unowned = not (row.owner and row.connected) or beat_missing
        self._record_unowned(self._same_beat_since if unowned else None, ended)
        self.claiming = self._may_claim(row, began)
        if not (unowned or self.claiming) and (renewed or not self._claim_failed):
            self._recovered()
        self.next_at = ended if self.claiming else self._next_read(row, ended)

    def _bound_beat(self, now: float) -> None:
        """Bound the time of a beat that was there at the first read: the connection has ended.

        An owner whose connection ends before its beat is missing was alive until then.
        """
        earliest, latest = self._renewed
        if now - self._same_beat_since < BEAT_TIMEOUT:
            self._renewed = max(earliest, self._read_at - BEAT_TIMEOUT), latest

    def _recovered(self) -> None:
        """Record that the store can be used: an owner commits. A read alone does not show that."""
        if self.unavailable_reason:
            logger.info("the shared store can be used again")
        self.unavailable_reason, self._failures, self._claim_failed = "", 0, False
        self._logged.clear()

    def _record_unowned(self, unowned_since: float | None, now: float) -> None:
        """Record since when the store has no live owner, None where it has one."""
        if unowned_since is None and self._unowned_since is not None:
            self._unowned += now - self._unowned_since
            self._unowned_since = None
        elif unowned_since is not None and self._unowned_since is None:
            self._unowned_since = unowned_since

    def without_owner(self, now: float) -> float:
        """Return the total seconds for which this broker has known no live owner.

        Such a period lasts from the last beat of an owner until this broker sees the first beat of
        the next one. The time while this broker cannot read the lease counts as well.
        """
        since = now if self._unowned_since is None else self._unowned_since
        return self._unowned + now - since

    def passed(self, now: float) -> Passed:
        """Return the bounds of the time since the owner stored its clocks."""
        earliest, latest = self._renewed
        return Passed(max(0.0, now - latest - AFTER_BEAT), now - earliest + BEFORE_BEAT)

    def _may_claim(self, row: LeaseRow, began: float) -> bool:
        if row.owner == self._me:  # it lost its connection, or the answer to its claim
            return True
        if not row.owner:
            return began >= self._yields_until
        since = self._disconnected_since
        disconnected = since is not None and began - since >= COMEBACK
        return disconnected or began - self._same_beat_since >= BEAT_TIMEOUT

    def _next_read(self, row: LeaseRow, now: float) -> float:
        if not row.owner:
            return now + RETRY
        times = [now + READ_EVERY, self._same_beat_since + BEAT_TIMEOUT]
        if self._disconnected_since is not None:
            times.append(self._disconnected_since + COMEBACK)
        return max(now, min(times))

    def freed(self, now: float) -> None:
        """Read the lease next: there is a sign that the owner's connection has ended."""
        if not self.owns:
            self.next_at = min(self.next_at, now)

    def failed(self, error: Exception, now: float) -> None:
        """Record that the store cannot be reached or used; retry with growing delays."""
        self.unavailable_reason = reason = str(error)[:500]
        if reason not in self._logged and len(self._logged) < MAX_REASONS:
            logger.warning("the shared store cannot be used now: %s", error)
            self._logged.add(reason)
        self._record_unowned(now, now)
        self.next_at = now + min(MAX_RETRY, RETRY * 2.0 ** min(self._failures, 10))
        self._failures += 1
        self._claim_failed |= self.claiming
        self.claiming, self._seen_at = False, float("-inf")

    def claimed(self, epoch: int, now: float) -> None:
        """Handle the epoch that a claim has returned, 0 where another broker was faster."""
        assert self.row is not None  # noqa: S101 - the lease was read before
        self.claiming = False
        if epoch:
            self._recovered()
            self._record_unowned(None, now)
            self._read_at = now
            self.owns, self.next_at = epoch, float("inf")
            self.row = LeaseRow(self.row.store_id, epoch, self._me)
        else:
            self.next_at = now

    def lost(self, now: float) -> None:
        """Record that this broker has lost the store, or cannot know whether it still owns it."""
        self._record_unowned(now, now)
        self.owns, self.claiming, self.next_at = 0, False, now
        self._seen_at = float("-inf")

    def released(self, now: float) -> None:
        """Record that this broker has given the store up for another broker."""
        self.lost(now)
        self._yields_until = now + HANDOVER


class Candidate:
    """A broker that may own a shared store: carries out the decisions of `Watch`.

    Args:
        ownership: The ownership contract of the store.
        me: This broker.
        boottime: Returns the boot time for `Watch`.
    """

    def __init__(self, ownership: Ownership, me: Claimant, boottime: Callable[[], float]) -> None:
        self._ownership = ownership
        self._me = me
        self._boottime = boottime
        self.watch = Watch(me.id)

    def read_lease(self) -> LeaseRow:
        """Read the lease now; return it.

        Raises:
            StoreError: The store cannot be reached or used.
        """
        began = self._boottime()
        row = self._ownership.look()
        self.watch.observe(row, began, self._boottime())
        return row

    def step(self) -> int:
        """Read the lease or claim the store, if that is due; return the claimed epoch, else 0."""
        watch = self.watch
        if self._boottime() < watch.next_at:
            return 0
        try:
            if not watch.claiming:
                self.read_lease()
            if not watch.claiming or watch.row is None:
                return 0
            seen = watch.row._replace(passed=watch.passed(self._boottime()))
            epoch = self._ownership.claim(seen, self._me)
        except StoreError as error:
            watch.failed(error, self._boottime())
            return 0
        watch.claimed(epoch, self._boottime())
        if epoch:
            logger.info("this broker owns the store now, epoch %d", epoch)
        return epoch

    def lost(self, error: StoreError) -> None:
        """Record that a batch or a renewal ended with `Fenced` or `Unknown`."""
        logger.warning(
            "this broker has lost the store, or cannot know whether it owns it: %s", error
        )
        self.watch.lost(self._boottime())

    def release(self) -> None:
        """Give the store up, for another broker to own."""
        self._ownership.release()
        self.watch.released(self._boottime())

    def fileno(self) -> int | None:
        """Return a descriptor that becomes readable when `check_freed` should be called."""
        return self._ownership.fileno()

    def check_freed(self) -> None:
        """Read the lease soon if the store reports that the owner's connection may have ended."""
        if self._ownership.freed():
            self.watch.freed(self._boottime())

    def without_owner(self) -> float:
        """Return the total seconds without a live owner; see `Watch.without_owner`."""
        return self.watch.without_owner(self._boottime())

    @property
    def info(self) -> OwnerInfo:
        """The report of this broker to its peers: the owner, and its own role."""
        row, me = self.watch.row or LeaseRow(""), self._me
        if self.watch.owns:
            return OwnerInfo(row.epoch, ACTIVE, me.address, me.key, row.store_id)
        if row.owner in {"", me.id}:
            return OwnerInfo(row.epoch, STANDBY, store_id=row.store_id)
        return OwnerInfo(row.epoch, STANDBY, row.address, row.key, row.store_id)


def stand_by(
    core: BrokerCore,
    unavailable_reason: Callable[[], str],
    forward: Callable[[Peer, Any], bool],
) -> None:
    """Turn a new core into a standby: it registers peers and tells them who the owner is.

    Args:
        core: A core that has handled nothing yet; ``state.owner`` is set from now on.
        unavailable_reason: Returns why the store cannot be used, as a readable text; "" if it can.
        forward: Relays the message of a peer to the owner; returns whether it could.
    """
    core.standby, state = True, core.state
    state.unavailable_reason = unavailable_reason

    def wrap(kind: type, handler: Callable[[Peer, Any], None]) -> Callable[[Peer, Any], None]:
        if kind in _HANDLED:
            return handler

        def relay_or_refuse(peer: Peer, message: Any) -> None:
            if kind is Call and message.name in _LOCAL_CALLS:
                handler(peer, message)
            elif kind in _RELAYED and forward(peer, message):
                state.counters["passed"] += 1
            elif kind is Admin:
                handler(peer, message)
            elif kind in _REFUSED and state.owner is not None:
                state.counters["errors.no-owner"] += 1
                if peer.reads_errors:
                    reason = unavailable_reason()
                    error = no_owner(state.message_id(), message.id, state.owner, reason)
                    state.send(peer, error.frames())

        return relay_or_refuse

    core.guard(wrap)


def tell_peers(core: BrokerCore, info: OwnerInfo, old: BrokerCore | None = None) -> None:
    """Tell peers who owns the store from now on.

    Args:
        core: The core of this broker; its later ACKs and HEARTBEATs name the owner too.
        info: The owner.
        old: The core that ``core`` replaces, None if it replaces none; peers of the old core are
            asked to inform again.
    """
    state = core.state
    state.owner, state.epoch, state.store_id = info, info.epoch, info.store_id
    if old is None:
        for peer in state.peers.values():
            if peer.role:
                core.heartbeats.send(peer)
        return
    state.continue_ids(old.state)
    for key, peer in old.state.peers.items():
        if peer.features is None or not peer.reads_errors:
            continue  # a legacy peer notices the silence, as after a restart
        status = format_waiting(None, info if "owner" in peer.features.extensions else None)
        beat = Heartbeat(state.message_id(), f"{state.wall:.2f}", status)
        text = "this broker has dropped its sessions: send INFORM again"
        again = Error(state.message_id(), "", "inform-again", text)
        state.deferred_sends += [DeferredSend(key, each.frames()) for each in (beat, again)]
