"""The real store under failing system calls: what the broker on it promises, and what it does.

`Injected` is a broker that runs a script on a store above a `Shim`, and sees that nothing leaves
while the log has something that is not synced. `Strike` fails one call of a run and looks at what
came of it: everything that had a receipt is there, and only a full disk is something that a broker
lives with.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

from eventmq.errors import StoreError
from eventmq.plugins.queue_stores.sqlite import checkpoint
from eventmq.plugins.queue_stores.sqlite.store import SqliteStore
from tests.faults.crashes import FINAL, Lost, states
from tests.faults.script import Script, finish, run_script
from tests.faults.shim import Shim, can_fail
from tests.support.broker_harness import FakeClock
from tests.support.store_rules import audit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tests.faults.shim import Call

__all__ = ["Early", "Injected", "Outcome", "calls_of", "once", "shimmed", "strike"]

#: Frames after which the committing thread moves the log: some times in a run.
RESTART = 40


class Early(AssertionError):
    """Something left before what it says was on disk."""


class Injected(Script):
    """A script on a store above a shim.

    Args:
        path: The data directory.
        shim: The layer under the store.
        store: Its class.
        clock: Another one than that of a new run.
    """

    def __init__(
        self,
        path: Path,
        shim: Shim,
        store: type[SqliteStore] = SqliteStore,
        clock: FakeClock | None = None,
    ) -> None:
        self.shim = shim
        self._store = store
        #: Messages that left.
        self.left = 0
        super().__init__(path, clock, shim.name)
        self.ended = self._look

    def make_store(self) -> Any:
        return self._store(self.path, self.clock, reserve=0, vfs=self.vfs)

    def start(self) -> None:
        super().start()
        take = self.core.take_deferred_sends

        def taken() -> Sequence[Any]:
            messages = take()
            if messages and self.shim.unsynced:
                raise Early(f"{len(messages)} messages left before the log was synced")
            self.left += len(messages)
            return messages

        self.core.take_deferred_sends = taken  # type: ignore[method-assign]

    def _look(self) -> None:
        """See how a commit ended: what was undone needs no sync."""
        if isinstance(self.store._write_results[-1], Exception):
            self.shim.forget_writes()


class Outcome(NamedTuple):
    """What came of a run with a failing call."""

    #: The calls that failed.
    failed: Sequence[Call]
    #: What the store said so that the broker ended; "" where it went on.
    ended: str
    #: Jobs with a receipt when that was said, or at the end.
    confirmed: int


@contextlib.contextmanager
def shimmed() -> Iterator[Shim]:
    """Give a shim for a while in which the log is moved often, by the committing thread alone."""
    shim = Shim()
    with (
        patch.object(checkpoint, "NOTIFY_FRAMES", 1 << 30),
        patch.object(checkpoint, "RESTART_FRAMES", RESTART),
    ):
        try:
            yield shim
        finally:
            shim.unregister()


def calls_of(folder: Path, jobs: int) -> tuple[Sequence[Call], int]:
    """Return the calls of a run in which none fails, and how many of them are those of opening."""
    with shimmed() as shim, contextlib.closing(Injected(folder, shim)) as script:
        opening = len(shim.calls)
        run_script(script, jobs)
        finish(script)
        return shim.calls[:], opening


def strike(
    folder: Path,
    jobs: int,
    fault: Callable[[int, Call], str],
    store: type[SqliteStore] = SqliteStore,
) -> Outcome:
    """Run the script with failing calls, then start a broker on what is left and finish.

    Args:
        folder: A new one.
        jobs: Of the script.
        fault: What happens to each call, by its number; see `Shim.fault`.
        store: The class of the store of the first broker.

    Raises:
        Early: A message left before a sync.
        Lost: A job with a receipt is gone, or does not end; or the store is not sound.
    """
    ended, script = "", None
    with shimmed() as shim:
        shim.fault = fault
        try:
            script = Injected(folder, shim, store)
            run_script(script, jobs)
            _ask_again(script)
            finish(script)
        except StoreError as error:
            ended = f"{error}"
        finally:
            shim.fault = lambda _, __: ""
            if script is not None:
                script.close()
        confirmed = dict(script.promises.confirmed) if script is not None else {}
        clock = FakeClock(script.clock.time) if script is not None else FakeClock()
        with contextlib.closing(Injected(folder, shim, clock=clock)) as second:
            _must_all_end(second, confirmed, script)
    if findings := audit(folder):
        raise Lost(f"the store is not sound: {findings}")
    return Outcome(shim.failed, ended, len(confirmed))


def once(place: int, fault: str) -> Callable[[int, Call], str]:
    """Return what fails one call: the first from a number on that the fault can happen to."""
    left = [fault]

    def fails(number: int, call: Call) -> str:
        if left and number >= place and can_fail(call, fault):
            return left.pop()
        return ""

    return fails


def _ask_again(script: Script, of: Script | None = None) -> None:
    """Send again what was not acknowledged, as clients do."""
    for _, ids, message in (of or script).requests:
        if not set(ids) <= set(script.promises.confirmed):
            script.ask(ids, message)


def _must_all_end(second: Script, confirmed: dict[str, int], first: Script | None) -> None:
    lost = [i for i, state in states(second, list(confirmed)).items() if not state]
    if lost:
        raise Lost(f"{len(lost)} jobs with a receipt are gone: {lost[:5]}")
    if first is None:
        return
    second._ids = 1_000_000
    second.promises.confirmed |= confirmed
    _ask_again(second, first)
    second.join("second")
    finish(second)
    ids = sorted({*confirmed, *second.promises.confirmed})
    if open_ := {i: s for i, s in states(second, ids).items() if s not in FINAL}:
        raise Lost(f"not all ends: {open_}")
    if second.promises.altered or first.promises.altered:
        raise Lost(f"altered: {second.promises.altered or first.promises.altered}")
