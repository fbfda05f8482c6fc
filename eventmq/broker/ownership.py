"""Ownership of a store that several brokers share, as one of them sees it.

`Watch` decides when this broker may claim the store: it is given what was seen of the lease, and
when. `Candidate` asks the store (`eventmq.interfaces.Ownership`) for what is due, and says what
peers are told. `stand_by` and `tell_peers` do to a `BrokerCore` what its role asks for.
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

#: Seconds between two looks of a standby.
LOOK_EVERY = 1.0

#: Seconds between two looks over which a standby has missed nothing.
LOOK_GAP = 2.0

#: Seconds without another beat after which the owner may be gone: it renews each second.
BEAT_TIMEOUT = 3.0

#: Seconds that a standby's own commit may take; while it takes longer, no one's beat means much.
COMMIT_LIMIT = 0.5

#: Seconds that an owner whose connection has ended has to come back.
COMEBACK = 0.5

#: Seconds that a standby has to take over what was handed over; then it is claimed back.
HANDOVER = 5.0

#: Seconds for which an owner may commit after the beat that is seen last, and for which it may
#: not store its clocks before that beat; the latter with the time that a claim takes.
AFTER_BEAT, BEFORE_BEAT = 2.0, 30.0

#: Seconds until the next try where the store cannot be reached, at first and at most.
RETRY, MAX_RETRY = 0.1, 2.0

#: Reasons that are logged, each once, while the store cannot be used.
MAX_REASONS = 20

#: Commands that a standby takes as an owner does.
_TAKEN = (Inform, Heartbeat, Kbai, Hello, Ack, Error, Disconnect)

#: Commands that a standby passes on to the owner; what it cannot is refused, or answered here.
_PASSED = (Call, Publish, Credit, Admin)

#: Commands that a standby else refuses. The others answer an owner that it is not, and are passed
#: over.
_REFUSED = (Request, Schedule, Publish, Call)

#: Calls that are about the broker itself.
_OF_BROKER = frozenset({"metrics", "ping", "status"})


class Watch:
    """Decides from the lease as it was seen when this broker may claim the store.

    All times are the boot times of this broker's machine, which count its sleep.

    Args:
        me: Id of this broker, which no other has, nor this one in another run.
    """

    def __init__(self, me: str) -> None:
        self._me = me
        #: The lease as it was seen last, or made.
        self.row: LeaseRow | None = None
        #: When the next step is due: a claim if `claiming`, else a look, or for an owner nothing.
        self.next_at = 0.0
        self.claiming = False
        #: The epoch in which this broker owns the store, 0 while it does not.
        self.owns = 0
        #: Why the store cannot be used now, "" while it can.
        self.trouble = ""
        #: The reasons that were logged since the store could be used last.
        self._logged: set[str] = set()
        #: Since when the beat has been the same while others could commit.
        self._since = 0.0
        #: When the lease was seen last without a failure since.
        self._seen_at = float("-inf")
        #: When the last look began, whatever has failed since.
        self._looked_at = float("-inf")
        #: Between when the lease has got what was seen last.
        self._renewed = (float("-inf"), float("inf"))
        #: Since when the owner's connection is gone, None while it is there.
        self._gone_since: float | None = None
        self._failures = 0
        #: Whether a claim has failed since: then only a new beat shows that an owner can commit.
        self._claim_failed = False
        #: Until when others may take what this broker has handed over.
        self._yields_until = float("-inf")
        #: Since when no owner is known, None while one is, and for how long that was so before.
        self._unowned_since: float | None = None
        self._unowned = 0.0

    def looked(self, row: LeaseRow, began: float, ended: float) -> None:
        """Take what a look has found, and when it began and ended."""
        old, self.row = self.row, row
        missed = began - self._seen_at > LOOK_GAP or ended - began > COMMIT_LIMIT
        self._seen_at = ended
        other = old is None or (old.epoch, old.owner) != (row.epoch, row.owner)
        renewed = other or (old is not None and old.beat != row.beat)
        if renewed or missed:
            self._since = ended
        if renewed:
            self._renewed = self._looked_at, ended
        self._looked_at = began
        if row.connected:
            self._gone_since = None
        elif other or missed or self._gone_since is None:
            self._gone_since = ended
        if row.owner:
            self._yields_until = float("-inf")
        gone = not (row.owner and row.connected) or ended - self._since >= BEAT_TIMEOUT
        self._note_owner(self._since if gone else None, ended)
        self.claiming = self._may_claim(row, began)
        if not (gone or self.claiming) and (renewed or not self._claim_failed):
            self._recovered()
        self.next_at = ended if self.claiming else self._next_look(row, ended)

    def _recovered(self) -> None:
        """Take that the store can be used: an owner is at work. A look alone does not show it."""
        if self.trouble:
            logger.info("the shared store can be used again")
        self.trouble, self._failures, self._claim_failed = "", 0, False
        self._logged.clear()

    def _note_owner(self, unowned_since: float | None, now: float) -> None:
        """Take since when the store has no owner that is at work, None where it has one."""
        if unowned_since is None and self._unowned_since is not None:
            self._unowned += now - self._unowned_since
            self._unowned_since = None
        elif unowned_since is not None and self._unowned_since is None:
            self._unowned_since = unowned_since

    def without_owner(self, now: float) -> float:
        """Return for how many seconds in all this broker has known of no owner at work.

        From the last beat of one that went away until this broker sees the next one; also while
        this broker cannot look.
        """
        since = now if self._unowned_since is None else self._unowned_since
        return self._unowned + now - since

    def passed(self, now: float) -> Passed:
        """Return what this broker knows of the time since the owner stored its clocks."""
        earliest, latest = self._renewed
        return Passed(max(0.0, now - latest - AFTER_BEAT), now - earliest + BEFORE_BEAT)

    def _may_claim(self, row: LeaseRow, began: float) -> bool:
        if row.owner == self._me:  # it has lost its connection, or the answer to its claim
            return True
        if not row.owner:
            return began >= self._yields_until
        gone = self._gone_since is not None and began - self._gone_since >= COMEBACK
        return gone or began - self._since >= BEAT_TIMEOUT

    def _next_look(self, row: LeaseRow, now: float) -> float:
        if not row.owner:
            return now + RETRY
        moments = [now + LOOK_EVERY, self._since + BEAT_TIMEOUT]
        if self._gone_since is not None:
            moments.append(self._gone_since + COMEBACK)
        return max(now, min(moments))

    def freed(self, now: float) -> None:
        """Take a sign that the owner's connection has ended: look at once whether that is so."""
        if not self.owns:
            self.next_at = min(self.next_at, now)

    def failed(self, error: Exception, now: float) -> None:
        """Take that the store cannot be reached or used: it is tried again, ever more rarely."""
        self.trouble = str(error)[:500]
        if self.trouble not in self._logged and len(self._logged) < MAX_REASONS:
            logger.warning("the shared store cannot be used now: %s", error)
            self._logged.add(self.trouble)
        self._note_owner(now, now)
        self.next_at = now + min(MAX_RETRY, RETRY * 2.0 ** min(self._failures, 10))
        self._failures += 1
        self._claim_failed |= self.claiming
        self.claiming, self._seen_at = False, float("-inf")

    def claimed(self, epoch: int, now: float) -> None:
        """Take what a claim has returned."""
        assert self.row is not None  # noqa: S101 - it was seen before
        self.claiming = False
        if epoch:
            self._recovered()
            self._note_owner(None, now)
            self.owns, self.next_at = epoch, float("inf")
            self.row = LeaseRow(self.row.store_id, epoch, self._me)
        else:
            self.next_at = now

    def lost(self, now: float) -> None:
        """Take that this broker does not own the store any more, or does not know it."""
        self._note_owner(now, now)
        self.owns, self.claiming, self.next_at = 0, False, now
        self._seen_at = float("-inf")

    def released(self, now: float) -> None:
        """Take that this broker has given the store up."""
        self.lost(now)
        self._yields_until = now + HANDOVER


class Candidate:
    """A broker that may own a shared store: does what `Watch` says is due.

    Args:
        ownership: Of the store.
        me: This broker.
        boottime: Reads the time for `Watch`.
    """

    def __init__(self, ownership: Ownership, me: Claimant, boottime: Callable[[], float]) -> None:
        self._ownership = ownership
        self._me = me
        self._boottime = boottime
        self.watch = Watch(me.id)

    def begin(self) -> LeaseRow:
        """Look for the first time.

        Raises:
            StoreError: The store cannot be reached, or not be used.
        """
        began = self._boottime()
        row = self._ownership.look()
        self.watch.looked(row, began, self._boottime())
        return row

    def step(self) -> int:
        """Do what is due: look, and claim; return the epoch of a claim that succeeded, else 0."""
        watch = self.watch
        if self._boottime() < watch.next_at:
            return 0
        try:
            if not watch.claiming:
                self.begin()
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
        """Take that a batch or a renewal ended with `Fenced` or `Unknown`."""
        logger.warning("this broker owns the store no more, or does not know it: %s", error)
        self.watch.lost(self._boottime())

    def release(self) -> None:
        """Give the store up, for another broker to own."""
        self._ownership.release()
        self.watch.released(self._boottime())

    def fileno(self) -> int | None:
        """Return a descriptor that is readable when `check_freed` has something to find."""
        return self._ownership.fileno()

    def check_freed(self) -> None:
        """Ask the store whether the owner's connection has ended."""
        if self._ownership.freed():
            self.watch.freed(self._boottime())

    def without_owner(self) -> float:
        """Return what `Watch.without_owner` does now."""
        return self.watch.without_owner(self._boottime())

    @property
    def info(self) -> OwnerInfo:
        """What peers are told."""
        row, me = self.watch.row or LeaseRow(""), self._me
        if self.watch.owns:
            return OwnerInfo(row.epoch, ACTIVE, me.address, me.key, row.store_id)
        if row.owner in {"", me.id}:
            return OwnerInfo(row.epoch, STANDBY, store_id=row.store_id)
        return OwnerInfo(row.epoch, STANDBY, row.address, row.key, row.store_id)


def stand_by(
    core: BrokerCore, trouble: Callable[[], str], forward: Callable[[Peer, Any], bool]
) -> None:
    """Make a new core one of a standby: it registers peers, and says who the owner is.

    Args:
        core: It has decided nothing yet; ``state.owner`` is set from now on.
        trouble: Returns why the store cannot be used, for people; "" where it can.
        forward: Passes the message of a peer on to the owner; returns whether it could.
    """
    core.standby, state = True, core.state
    state.trouble = trouble

    def wrap(kind: type, handler: Callable[[Peer, Any], None]) -> Callable[[Peer, Any], None]:
        if kind in _TAKEN:
            return handler

        def refuse(peer: Peer, message: Any) -> None:
            if kind is Call and message.name in _OF_BROKER:
                handler(peer, message)
            elif kind in _PASSED and forward(peer, message):
                state.counters["passed"] += 1
            elif kind is Admin:
                handler(peer, message)
            elif kind in _REFUSED and state.owner is not None:
                state.counters["errors.no-owner"] += 1
                if peer.reads_errors:
                    error = no_owner(state.message_id(), message.id, state.owner, trouble())
                    state.send(peer, error.frames())

        return refuse

    core.guard(wrap)


def tell_peers(core: BrokerCore, info: OwnerInfo, old: BrokerCore | None = None) -> None:
    """Tell peers who owns the store from now on.

    Args:
        core: Takes its place in what it tells from now on.
        info: The owner.
        old: The core before this one, whose peers are asked to inform again.
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
            continue  # legacy peers find out as after a restart
        status = format_waiting(None, info if "owner" in peer.features.extensions else None)
        beat = Heartbeat(state.message_id(), f"{state.wall:.2f}", status)
        text = "this broker began anew: say INFORM again"
        again = Error(state.message_id(), "", "inform-again", text)
        state.deferred_sends += [DeferredSend(key, each.frames()) for each in (beat, again)]
