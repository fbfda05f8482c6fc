"""How many bytes wait in ZeroMQ for peers that do not read, and what each may have waiting.

libzmq bounds what waits for a peer by messages alone and does not say how much it is. But what it
sends to one peer keeps its order, and it says when it needs a frame no more: so a frame now and
then is lent as a *mark*, and with that all before it has left. Bytes that the kernel has are not
counted, nor are those behind the last mark more than `STEP`.

Pure accounting; `eventmq.wire.socket.RouterLink` makes the marks.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["MOST", "Account", "Mark", "Unread"]

#: Bytes that may wait for one peer, unless told otherwise.
MOST = 64 * 1024 * 1024

#: Bytes between two marks: one costs some 30 us.
STEP = 256 * 1024

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


@dataclass(slots=True, eq=False)
class Account:
    """What one peer was sent, in bytes since its account was opened.

    Attributes:
        sent: Handed to libzmq.
        taken: Of these, what is known to have left it.
        mark_at: A message that comes to so many gets a mark.
        marks: That are not done as far as is known: the mark, and what was sent with it.
        warned: Its bound was logged.
    """

    sent: int = 0
    taken: int = 0
    mark_at: int = STEP
    marks: deque[tuple[Mark, int]] = field(default_factory=deque)
    warned: bool = False

    def settle(self) -> int:
        """Take note of marks that are done; return how many bytes wait, at most."""
        marks = self.marks
        while marks and marks[0][0].done:
            self.taken = marks.popleft()[1]
        return self.sent - self.taken

    def mark(self, mark: Mark) -> None:
        """Note that the message that was sent last has a mark."""
        self.marks.append((mark, self.sent))
        self.mark_at = self.sent + STEP


class Unread:
    """The accounts of the peers of one socket.

    Args:
        most: Bytes that may wait for one peer. A message that is longer is sent by itself.
    """

    __slots__ = ("_accounts", "_few", "_first", "most")

    def __init__(self, most: int = MOST) -> None:
        self.most = most
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
            account = self._accounts[peer] = Account(mark_at=self._first)
        return account

    def forget(self, peer: bytes) -> None:
        """Close the account of a peer that is not connected any more."""
        self._accounts.pop(peer, None)

    def waiting(self, peer: bytes) -> int:
        """Return how many bytes wait for a peer, at most."""
        account = self._accounts.get(peer)
        return 0 if account is None else account.settle()

    def admits(self, account: Account, size: int) -> bool:
        """Say whether a message of ``size`` bytes may be sent."""
        waiting = account.settle()
        most = self.most + RESERVE if size <= SHORT else self.most
        return waiting + size <= most or waiting <= STEP

    def _sweep(self) -> None:
        """Close the accounts of which no mark is open: of peers that have gone, above all.

        What such a peer has waiting is less than a step, and forgotten once: from now on the first
        message of an account has a mark, and keeps it open.
        """
        self._first = 1
        for account in self._accounts.values():
            account.settle()
        self._accounts = {peer: known for peer, known in self._accounts.items() if known.marks}
        self._few = max(FEW, 2 * len(self._accounts))
