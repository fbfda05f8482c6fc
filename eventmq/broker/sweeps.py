"""The call ``bulk``: one operation on many jobs, slice by slice, behind a durable mark.

A turn does one slice, so that no commit is long. The mark is in the store: a broker that is
restarted goes on, and a caller that asks again under the same id hears how far it is.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from eventmq.broker.arguments import flag, text
from eventmq.broker.operations import failed_filter
from eventmq.errors import ProtocolError
from eventmq.job import JobState
from eventmq.operations import BeginSweep, Operation, Sweep, SweepSlice
from eventmq.wire.bulk import pack

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from eventmq.broker.operations import Operations
    from eventmq.broker.peers import Peer
    from eventmq.broker.state import State
    from eventmq.operations import Acted

__all__ = ["SLICE", "Sweeps"]

logger = logging.getLogger("eventmq.broker")

#: Jobs that one turn looks at, so that it takes some 30 ms.
SLICE = 2000

#: Sweeps that are not done; more are refused.
MOST = 100

#: Marks of done ones that are known.
_DONE_KEPT = 100

_STATES = {state.value: state for state in (JobState.QUEUED, JobState.DELAYED, JobState.BLOCKED)}


class Sweeps:
    """Begins sweeps and does their slices."""

    def __init__(self, state: State, operations: Operations) -> None:
        self.state = state
        self.operations = operations
        self._sweeps: dict[str, Sweep] = {}
        self._open: list[str] = []
        self._busy = False
        operations.calls.add({"bulk": self._call})

    def recover(self, sweeps: Iterable[Sweep]) -> None:
        """Go on with what an earlier broker began."""
        for sweep in sweeps:
            self._note(sweep)

    def _note(self, sweep: Sweep) -> None:
        if sweep.id not in self._sweeps and not sweep.done:
            self._open.append(sweep.id)
        self._sweeps[sweep.id] = sweep
        done = [each.id for each in self._sweeps.values() if each.done]
        for sweep_id in done[:-_DONE_KEPT]:
            del self._sweeps[sweep_id]

    # Asking

    def _call(self, peer: Peer, call: str, arguments: Mapping[str, Any]) -> None:
        sweep_id = text(arguments, "id")
        if sweep_id in self._sweeps:
            self._answer(peer, call, self._sweeps[sweep_id])
            return
        operation = self._operation(arguments)
        if not 0 < len(sweep_id) <= self.state.limits.max_id:
            msg = f"a bulk operation has an id of 1 to {self.state.limits.max_id} characters"
            raise ProtocolError(msg, code="bad-arguments")
        if len(self._open) >= MOST:
            raise ProtocolError(f"{MOST} bulk operations are at work already", code="too-many")
        mark = Sweep(sweep_id, operation, self.state.now, self.state.next_seq - 1)

        def settle(sweep: Sweep) -> None:
            self._note(sweep)
            self._answer(peer, call, sweep)
            logger.info("bulk operation %s begins: %s", sweep.id, _said(sweep.operation))

        def undo() -> None:
            self.state.error(peer, call, "store-full", "the disk is full; nothing was done")

        self.state.write(BeginSweep(mark), settle, undo)

    def _operation(self, arguments: Mapping[str, Any]) -> Operation:
        action = text(arguments, "action")
        filters = failed_filter(arguments, self.state.keeper.ahead)
        if action not in {"cancel", "retry", "drop"}:
            msg = f"action is cancel, retry or drop, not {action[:40]!r}"
            raise ProtocolError(msg, code="bad-arguments")
        if filters.queue:
            self.operations.known_queue(filters.queue)
        if action != "cancel":
            return filters._replace(action=action)
        if filters.error or filters.since or filters.until:
            msg = "error, since and until choose among failed jobs; cancel is about unfinished ones"
            raise ProtocolError(msg, code="bad-arguments")
        name = text(arguments, "state")
        if name and name not in _STATES:
            msg = f"state is one of {', '.join(_STATES)}, not {name[:40]!r}"
            raise ProtocolError(msg, code="bad-arguments")
        if not (filters.queue or filters.task):
            msg = "name a queue or a task, whose jobs are to be cancelled"
            raise ProtocolError(msg, code="bad-arguments")
        return filters._replace(
            action=action,
            state=_STATES.get(name),
            running=flag(arguments, "running"),
            reason=text(arguments, "reason")[:500] or "cancelled with others",
        )

    def _answer(self, peer: Peer, call: str, sweep: Sweep) -> None:
        answer = {
            "id": sweep.id, "action": sweep.operation.action, "done": sweep.done,
            "count": sweep.touched,
        }  # fmt: skip
        self.state.reply(peer, pack(answer), call)

    # Working

    def run(self) -> None:
        """Begin the next slice of the sweep whose turn it is, unless one is being written."""
        if not self._open or self._busy or self.state.now < self.state.hold_until:
            return
        sweep_id = self._open.pop(0)
        self._open.append(sweep_id)
        operation = self._sweeps[sweep_id].operation
        retry = operation.action == "retry"  # which takes three times as long
        limit = max(1, SLICE // 3) if retry else SLICE
        stamp = self.operations.stamp(reason=operation.reason, seqs=limit if retry else 0)
        keep = frozenset() if operation.running else self.state.leased_numbers()
        self._busy = True

        def settle(verdict: tuple[Acted, Sweep | None]) -> None:
            self._busy = False
            acted, sweep = verdict
            if operation.action == "cancel":
                self.operations.cancelled(acted.jobs, stamp, operation.reason)
            else:
                self.operations.acted(operation.action, acted.jobs)
            self._went_on(sweep_id, sweep)

        self.state.write(
            SweepSlice(sweep_id, stamp, keep, limit),
            settle,
            lambda: setattr(self, "_busy", False),
        )

    def _went_on(self, sweep_id: str, sweep: Sweep | None) -> None:
        if sweep is None:  # its mark is not there
            sweep = self._sweeps[sweep_id]._replace(done=True)
        self._note(sweep)
        if sweep.done:
            self._open.remove(sweep_id)
            logger.info("bulk operation %s is done: %d jobs", sweep_id, sweep.touched)


def _said(operation: Operation) -> str:
    """Return an operation as people read it: its action, and what it is limited to."""
    filters = zip(operation._fields[1:], operation[1:], strict=True)
    return ", ".join(
        [operation.action, *(f"{name} {str(value)!r}" for name, value in filters if value)]
    )
