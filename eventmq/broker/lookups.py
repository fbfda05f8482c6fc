"""Results that were asked for, read from the store a few MiB at a time, and for who reads them.

A ``get`` may name a thousand jobs with results of many MiB, and come a thousand times in one turn.
So what is asked for waits here, as ids; each turn reads some of it, in one entry for all peers, and
nothing for a peer for which much waits already (`eventmq.wire.unread`).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from eventmq.entries import Find

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from eventmq.broker.peers import Key, Peer
    from eventmq.broker.state import State
    from eventmq.entries import Found

    Wanted = Callable[[Peer, str, Sequence[str]], list[str]]
    Answer = Callable[[Peer, str, Sequence[str], Mapping[str, Found]], None]

__all__ = ["Lookups"]

#: Bytes of results that one turn reads.
AT_ONCE = 8 * 1024 * 1024

#: Ids that one turn looks up.
MOST = 2000

#: Part of its bound that may wait for a peer for which more is read, and that one turn reads.
FULL, PART = 0.5, 0.25

#: Bytes of results that one turn reads at least, however little may be sent.
LEAST = 1024 * 1024

#: Bytes of an answer beside its result, and of answers that are sent without a look.
_ROW, _SMALL = 256, 64 * 1024

#: Seconds until a peer for which much waits is looked at again.
AGAIN = 0.02


class _Asked(NamedTuple):
    peer: Peer
    call: str
    ids: list[str]


class Lookups:
    """What is still to be read.

    Args:
        state: Of the broker.
        wanted: Called with a peer, a call and ids; returns those that it still waits for.
        answer: Called with a peer, a call, ids, and what is known of them: unread results none.

    Attributes:
        unread: Returns how many bytes wait for a peer; the runner sets it.
        allowance: Returns how many may wait for a peer now; the runner sets it.
        admits: Returns whether a peer can be sent a message of so many bytes, after so many others
            to itself and so many in all; the runner sets it.
    """

    def __init__(self, state: State, wanted: Wanted, answer: Answer) -> None:
        self.unread: Callable[[Key], int] = lambda _: 0
        self.allowance: Callable[[], int] = lambda: state.limits.max_unsent_bytes
        self.admits: Callable[[Key, int, int, int], bool] = lambda *_: True
        self._state = state
        self._wanted = wanted
        self._answer = answer
        #: Peer -> call -> ids, in order.
        self._asked: dict[Peer, OrderedDict[str, list[str]]] = {}
        self._reading = False
        #: Bytes of the result that is next for a peer which could not be sent that.
        self._needs: dict[Peer, int] = {}

    def ask(self, peer: Peer, call: str, ids: Sequence[str]) -> None:
        """Look jobs up, and answer the call."""
        self._asked.setdefault(peer, OrderedDict()).setdefault(call, []).extend(ids)

    def forget(self, peer: Peer, call: str) -> None:
        """Look up nothing more for a call."""
        calls = self._asked.get(peer)
        if calls is not None:
            calls.pop(call, None)
            if not calls:
                del self._asked[peer]
                self._needs.pop(peer, None)

    def full(self, peer: Peer) -> bool:
        """Return whether so much waits for a peer, or for all, that it had better wait."""
        need = self._needs.get(peer)
        if need is not None:
            return not self.admits(peer.key, need, 0, 0)
        return self.unread(peer.key) > FULL * self._state.limits.max_unsent_bytes

    @property
    def patience(self) -> float:
        """In how many seconds `run` has something to do."""
        return AGAIN if self._asked else float("inf")

    def run(self) -> None:
        """Read some of what is asked for."""
        if not self._asked or self._reading:
            return
        chosen = self._choose()
        if chosen:
            ids = list(dict.fromkeys(job_id for asked in chosen for job_id in asked.ids))
            self._reading = True
            self._state.write(Find(ids, self._room), lambda found: self._found(chosen, found))

    @property
    def _room(self) -> int:
        return min(AT_ONCE, max(LEAST, int(PART * self.allowance())))

    def _choose(self) -> list[_Asked]:
        """Take from what waits, peer by peer in turn, and pass over who does not read."""
        chosen: list[_Asked] = []
        left = MOST
        for peer in list(self._asked):
            if self.full(peer):
                continue
            calls = self._asked.pop(peer)
            self._needs.pop(peer, None)
            while calls and left > 0:
                call, asked = calls.popitem(last=False)
                ids = self._wanted(peer, call, asked)
                left -= len(ids)
                if ids:
                    chosen.append(_Asked(peer, call, ids))
            if calls:
                self._asked[peer] = calls
            if left <= 0:
                break
        return chosen

    def _found(self, chosen: list[_Asked], found: Mapping[str, Found]) -> None:
        """Answer what was read, each call in the order of the ends, and ask for the rest."""
        self._reading = False
        state, room = self._state, self._room
        rest: list[_Asked] = []
        coming: Counter[Peer] = Counter()
        for peer, call, wanted in chosen:
            if peer in self._needs:  # what it asked for before comes first, and does not fit
                rest.append(_Asked(peer, call, list(wanted)))
                continue
            known = {**found, **state.volatile.find(wanted, state.now)}
            ids = _by_end(wanted, known)
            ready, left = _fitting(ids, known, room)
            sent = self._admitted(peer, ids[:ready], known, coming)
            ready, room = (sent, room) if sent < ready else (ready, left)
            self._answer(peer, call, ids[:ready], known)
            if ids[ready:]:
                rest.append(_Asked(peer, call, ids[ready:]))
        for peer, call, others in reversed(rest):
            calls = self._asked.setdefault(peer, OrderedDict())
            calls[call] = [*others, *calls.get(call, ())]  # behind it what has ended meanwhile
            calls.move_to_end(call, last=False)

    def _fits(self, peer: Peer, size: int, coming: Counter[Peer]) -> bool:
        return self.admits(peer.key, size, coming[peer], coming.total())

    def _admitted(
        self,
        peer: Peer,
        ids: Sequence[str],
        known: Mapping[str, Found],
        coming: Counter[Peer],
    ) -> int:
        """Return how many of the results can be sent now; note what the next one needs.

        Args:
            peer: To whom.
            ids: Of the jobs.
            known: What was found of them.
            coming: Bytes that will be sent in this turn; grows.
        """
        for place, job_id in enumerate(ids):
            row = known.get(job_id)
            size = _ROW + (0 if row is None or row.result is None else len(row.result))
            if size > _SMALL and not self._fits(peer, size, coming):
                self._needs[peer] = size
                return place
            coming[peer] += size
        return len(ids)


def _by_end(ids: Sequence[str], known: Mapping[str, Found]) -> list[str]:
    return sorted(ids, key=lambda job_id: known[job_id].at if job_id in known else 0.0)


def _fitting(ids: Sequence[str], known: Mapping[str, Found], room: int) -> tuple[int, int]:
    """Return how many of the ids can be answered now, and the bytes that are left for others."""
    for place, job_id in enumerate(ids):
        row = known.get(job_id)
        size = 0 if row is None or row.result is None else len(row.result)
        if row is not None and (row.unread or (size and room <= 0)):
            return place, room
        room -= size
    return len(ids), room
