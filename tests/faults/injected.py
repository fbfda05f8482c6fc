"""Failing system calls below the real store.

`Injected` is a broker that runs a script on a store above a `Shim`, and checks that no message
leaves before the log is synced. `run_with_fault` lets calls of a run fail and checks the result:
every job with a receipt is there, and the broker survives no error but a full disk.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

from eventmq.errors import StoreError
from eventmq.plugins.queue_stores.sqlite import wal
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

__all__ = ["Early", "Injected", "Outcome", "calls_of", "once", "run_with_fault", "shimmed"]

#: Frames after which the committing thread moves the log; it does so several times in a run.
RESTART = 40


class Early(AssertionError):
    """A message left before the log was synced."""


class Injected(Script):
    """Script on a store above a shim.

    Args:
        path: Data directory.
        shim: File layer below the store.
        store: Class of the store.
        clock: Clock, to continue an earlier run; None for a new one.
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
        #: Number of messages sent.
        self.sent_count = 0
        super().__init__(path, clock, shim.name)
        self.ended = self._commit_ended

    def make_store(self) -> Any:
        return self._store(self.path, self.clock, reserve=0, vfs=self.vfs)

    def start(self) -> None:
        super().start()
        take = self.core.take_deferred_sends

        def taken() -> Sequence[Any]:
            messages = take()
            if messages and self.shim.unsynced:
                raise Early(f"{len(messages)} messages left before the log was synced")
            self.sent_count += len(messages)
            return messages

        self.core.take_deferred_sends = taken  # type: ignore[method-assign]

    def _commit_ended(self) -> None:
        """Forget the writes of a commit that was undone: they need no sync."""
        if isinstance(self.store._write_results[-1], Exception):
            self.shim.forget_writes()


class Outcome(NamedTuple):
    """Result of a run with failing calls."""

    #: The calls that failed.
    failed: Sequence[Call]
    #: Error of the store with which the broker ended; "" if it ran on.
    ended: str
    #: Jobs with a receipt when the broker ended.
    confirmed: int


@contextlib.contextmanager
def shimmed() -> Iterator[Shim]:
    """Yield a shim, and let the committing thread alone move the log, often."""
    shim = Shim()
    with (
        patch.object(wal, "NOTIFY_FRAMES", 1 << 30),
        patch.object(wal, "RESTART_FRAMES", RESTART),
    ):
        try:
            yield shim
        finally:
            shim.unregister()


def calls_of(folder: Path, jobs: int) -> tuple[Sequence[Call], int]:
    """Return the calls of a run without a failure, and how many of them opened the store."""
    with shimmed() as shim, contextlib.closing(Injected(folder, shim)) as script:
        opening = len(shim.calls)
        run_script(script, jobs)
        finish(script)
        return shim.calls[:], opening


def run_with_fault(
    folder: Path,
    jobs: int,
    fault: Callable[[int, Call], str],
    store: type[SqliteStore] = SqliteStore,
) -> Outcome:
    """Run the script with failing calls, then start a second broker on its store and run all jobs.

    Args:
        folder: New folder.
        jobs: Number of jobs of the script.
        fault: Returns what happens to a call, by its number; see `Shim.fault`.
        store: Class of the store of the first broker.

    Raises:
        Early: A message left before a sync.
        Lost: A job with a receipt is missing or does not end, or fsck finds damage.
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


def once(first: int, fault: str) -> Callable[[int, Call], str]:
    """Return a `Shim.fault` that fails one call: the first possible one from a number on."""
    pending = [fault]

    def fails(number: int, call: Call) -> str:
        if pending and number >= first and can_fail(call, fault):
            return pending.pop()
        return ""

    return fails


def _ask_again(script: Script, of: Script | None = None) -> None:
    """Resend requests without a receipt, as clients do."""
    for _, ids, message in (of or script).requests:
        if not set(ids) <= set(script.promises.confirmed):
            script.ask(ids, message)


def _must_all_end(second: Script, confirmed: dict[str, int], first: Script | None) -> None:
    missing = [i for i, state in states(second, list(confirmed)).items() if not state]
    if missing:
        raise Lost(f"{len(missing)} jobs with a receipt are gone: {missing[:5]}")
    if first is None:
        return
    second._ids = 1_000_000
    second.promises.confirmed |= confirmed
    _ask_again(second, first)
    second.join("second")
    finish(second)
    ids = sorted({*confirmed, *second.promises.confirmed})
    if open_ := {i: s for i, s in states(second, ids).items() if s not in FINAL}:
        raise Lost(f"jobs that do not end: {open_}")
    if second.promises.altered or first.promises.altered:
        raise Lost(f"altered: {second.promises.altered or first.promises.altered}")
