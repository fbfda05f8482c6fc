"""How many bytes wait in ZeroMQ for peers that do not read: what each may have, and all together.

libzmq bounds what waits for a peer by messages alone and does not say how much it is. But what it
sends to one peer keeps its order, and it says when it needs a frame no more: so a frame now and
then is lent as a *mark*, and with that all before it has left. Bytes that the kernel has are not
counted, nor are those behind the last mark more than `STEP`.

What all peers may have together is in two halves. Of the first one a peer may have half of what is
still free. When that half is taken, who has much gets no more; the second half is for those with
little: 1/256 of the whole for each, less when nearly nothing is left. So a few that do not read
cannot keep out one that does, nor can a hundred.

Pure accounting; `eventmq.wire.socket.RouterLink` makes the marks.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["MOST", "Account", "Mark", "Total", "Unread"]

#: Bytes that may wait for one peer, unless told otherwise.
MOST = 64 * 1024 * 1024

#: Bytes between two marks: one costs some 30 us. With very many peers fewer, but so many at least.
STEP, LEAST_STEP = 256 * 1024, 8 * 1024

#: What all accounts may have behind their last marks, as a part of what may wait in sum.
UNMARKED = 0.25

#: What a peer may have of the second half: such a part of the sum, or of what is still free.
LITTLE, LAST = 256, 16

#: What may wait in sum where messages are sent by themselves that are longer than a peer's part.
SINGLES = 0.75

#: Accounts that are looked at before a message is refused because of the sum.
LOOKED_AT = 64

#: Bytes where the sum has no bound.
_ANY = 1 << 62

#: A message of so many bytes may still be sent to who is over its bound, up to this reserve: it
#: says what is wrong, or that a job is cancelled.
SHORT, RESERVE = 1024, 1024 * 1024

#: Peers that have an account before those are looked for that need none.
FEW = 1024


class Mark(Protocol):
    """A frame that was lent to libzmq, as `zmq.MessageTracker` is."""

    @property
    def done(self) -> bool:
        """Whether libzmq has sent it, or dropped it with the connection."""


class Total:
    """What waits for all peers of some sockets together, up to the last mark of each.

    Args:
        most: Bytes that may wait.

    Attributes:
        used: Bytes that wait, at most: the marks of some may have been done since.
        accounts: How many there are.
        warned: The bound was logged, and has been met ever since.
    """

    __slots__ = ("_open", "accounts", "most", "used", "warned")

    def __init__(self, most: int = _ANY) -> None:
        self.most = most
        self.used = 0
        self.accounts = 0
        self.warned = False
        self._open: deque[Account] = deque()

    def share(self, coming: int = 0) -> int:
        """Return how many bytes one peer may have now, or when so many others have been sent."""
        free = max(0, self.most - self.used - coming)
        return max((free - self.most // 2) // 2, min(self.most // LITTLE, free // LAST))

    @property
    def step(self) -> int:
        """Bytes from one mark of a peer to the next."""
        return max(LEAST_STEP, min(STEP, int(UNMARKED * self.most) // max(1, self.accounts)))

    def opened(self, account: Account) -> None:
        """Note that an account has a mark that is not done.

        Of those before it two are looked at, so that what peers leave that come and go does not add
        up where nothing else calls `refresh`.
        """
        self._look_at(2)
        self._open.append(account)

    def refresh(self) -> None:
        """Look whether marks of some accounts are done meanwhile."""
        self._look_at(LOOKED_AT)
        if self.used < self.most // 2:
            self.warned = False

    def _look_at(self, count: int) -> None:
        """Drop those of the oldest accounts whose marks are all done."""
        waiting = self._open
        for _ in range(min(count, len(waiting))):
            account = waiting.popleft()
            account.settle()
            if account.marks:
                waiting.append(account)
            else:
                account.listed = False


@dataclass(slots=True, eq=False)
class Account:
    """What one peer was sent, in bytes since its account was opened.

    Attributes:
        total: Of all peers.
        sent: Handed to libzmq.
        taken: Of these, what is known to have left it.
        mark_at: A message that comes to so many gets a mark.
        marks: That are not done as far as is known: the mark, and what was sent with it.
        marked: What was sent with the last mark.
        long_at: What was sent with the last one whose message was not short.
        noted: Bytes that `Unread.may_come` has said may be sent.
        listed: The total looks at it from time to time.
        warned: Its bound was logged.
    """

    total: Total
    sent: int = 0
    taken: int = 0
    mark_at: int = STEP
    marks: deque[tuple[Mark, int]] = field(default_factory=deque)
    marked: int = 0
    long_at: int = 0
    noted: int = 0
    listed: bool = False
    warned: bool = False

    def settle(self) -> int:
        """Take note of marks that are done; return how many bytes wait, at most."""
        marks = self.marks
        before = self.taken
        while marks and marks[0][0].done:
            self.taken = marks.popleft()[1]
        self.total.used -= self.taken - before
        return self.sent - self.taken

    def mark(self, mark: Mark, size: int = SHORT + 1) -> None:
        """Note that the message that was sent last, of so many bytes, has a mark."""
        self.marks.append((mark, self.sent))
        self.total.used += self.sent - self.marked
        self.marked = self.sent
        if size > SHORT:
            self.long_at = self.sent
        self.mark_at = self.sent + self.total.step
        if not self.listed:
            self.listed = True
            self.total.opened(self)

    def close(self) -> None:
        """Forget what waits: the connection is gone, and what waited with it."""
        self.total.used -= self.marked - self.taken
        self.taken = self.marked
        self.marks.clear()


class Unread:
    """The accounts of the peers of one socket.

    Args:
        most: Bytes that may wait for one peer. A message that is longer is sent by itself.
        total: What may wait for all of them, with those of other sockets; None for any number.
    """

    __slots__ = ("_accounts", "_few", "_first", "most", "total")

    def __init__(self, most: int = MOST, total: Total | None = None) -> None:
        self.most = most
        self.total = total or Total()
        self._accounts: dict[bytes, Account] = {}
        self._few = FEW
        self._first = STEP

    def __len__(self) -> int:
        """Return the number of accounts."""
        return len(self._accounts)

    def account(self, peer: bytes) -> Account:
        """Return the account of a peer, a new one where it has none."""
        account = self._accounts.get(peer)
        if account is None:
            if len(self._accounts) >= self._few:
                self._sweep()
            self.total.accounts += 1
            first = min(self._first, self.total.step)
            account = self._accounts[peer] = Account(self.total, mark_at=first)
        return account

    def forget(self, peer: bytes) -> None:
        """Close the account of a peer that is not connected any more."""
        account = self._accounts.pop(peer, None)
        if account is not None:
            self.total.accounts -= 1
            account.close()

    def waiting(self, peer: bytes) -> int:
        """Return how many bytes wait for a peer, at most."""
        account = self._accounts.get(peer)
        return 0 if account is None else account.settle()

    def may_come(self, account: Account, size: int, before: int, coming: int) -> bool:
        """Return whether `admits` will let a message pass in the same turn, and note it if so.

        Until then others may get marks: for what was noted that does not count.

        Args:
            account: Of the peer.
            size: Bytes of the message.
            before: Bytes that the peer will have been sent before it.
            coming: Bytes that all peers will.
        """
        if not self._admits(account, size, before, coming):
            return False
        account.noted = max(account.noted, size + before)
        return True

    def admits(self, account: Account, size: int) -> bool:
        """Return whether a message of ``size`` bytes may be sent now."""
        noted = SHORT < size <= account.noted and self.total.used + size <= self.total.most
        if noted:
            account.noted -= size
        return self._admits(account, size, spare=2 * self.total.step if noted else 0)

    def _admits(
        self, account: Account, size: int, before: int = 0, coming: int = 0, *, spare: int = 0
    ) -> bool:
        waiting, total = account.settle() + before, self.total
        # What is behind the last mark is not counted here: without another mark it would wait for
        # ever, as far as is known.
        known = account.marked - account.taken + before
        if known + size > total.share(coming):
            total.refresh()
        share = total.share(coming)
        most, part = self.most, share + spare
        if size <= SHORT:
            reserve = min(RESERVE, max(2 * total.step, share))
            if account.sent + size - account.long_at <= reserve:  # it had its part before
                part = max(part, known + size)
            part += reserve
            most += reserve
        if waiting + size <= most and known + size <= part:
            return True
        single = waiting <= STEP + spare
        return single and total.used + coming + size <= SINGLES * total.most + spare

    def _sweep(self) -> None:
        """Close the accounts of which no mark is open: of peers that have gone, above all.

        What such a peer has waiting is less than a step, and forgotten once: from now on the first
        message of an account has a mark, and keeps it open.
        """
        self._first = 1
        for account in self._accounts.values():
            account.settle()
        before = len(self._accounts)
        self._accounts = {peer: known for peer, known in self._accounts.items() if known.marks}
        self.total.accounts -= before - len(self._accounts)
        self._few = max(FEW, 2 * len(self._accounts))
