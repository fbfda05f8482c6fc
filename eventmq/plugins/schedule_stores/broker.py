"""Schedule store ``broker``, the default: schedules live in the broker's own store.

All beats and clients of a broker see the same ones, whatever host they are on.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from eventmq.errors import PluginError, ProtocolError
from eventmq.plugins.schedule_stores.sqlite import read_rows
from eventmq.plugins.schedule_stores.table import pack_row
from eventmq.schedule import Loaded, Saved, SchedulerLease
from eventmq.sdk import hookimpl, read_options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from eventmq.schedule import Progress, Schedule

    Ask = Callable[[str, Mapping[str, Any]], Any]
    BeginAsk = Callable[[str, Mapping[str, Any]], Callable[[], Any]]
    from eventmq.sdk import Factory, PluginContext, ScheduleStore

__all__ = ["BrokerSchedules", "eventmq_schedule_stores"]

#: Rows in one message.
PAGE = 1000

#: Bytes of definitions in one message, unless one alone has more.
PAGE_BYTES = 1024 * 1024


class BrokerSchedules:
    """A `ScheduleStore` that asks the broker.

    Args:
        ask: `EventMQ.ask`.
        begin_ask: `EventMQ.begin_ask`.
    """

    #: A broker keeps the schedules whose jobs it takes, so their ids are never another store's.
    identity = "broker"

    def __init__(self, ask: Ask, begin_ask: BeginAsk) -> None:
        self._put = ask
        self._begin = begin_ask

    def _ask(self, name: str, arguments: Mapping[str, Any]) -> Any:
        return self._answer(lambda: self._put(name, arguments))

    @staticmethod
    def _answer(wait: Callable[[], Any]) -> Any:
        try:
            return wait()
        except ProtocolError as error:
            if error.code not in {"no-extension", "unknown-call"}:
                raise
            msg = "this broker keeps no schedules: choose another schedule_store, such as sqlite"
            raise PluginError(f"{msg} ({error})") from error

    def load(self, after: int = 0) -> Loaded:
        """Return what changed after a revision."""
        found: dict[str, Schedule] = {}
        removed_names: dict[str, None] = {}
        whole = scan = after == 0
        while True:
            page = self._ask("schedules.list", {"after": after, "scan": scan, "limit": PAGE})
            if page["whole"]:
                whole = scan = True
                found.clear()
                removed_names.clear()
            for made in read_rows(page["rows"]):
                found[made.name] = made
                removed_names.pop(made.name, None)
            for name in page["gone"]:
                found.pop(name, None)
                removed_names[name] = None
            after = page["revision"]
            if not page["more"]:
                return Loaded(after, list(found.values()), list(removed_names), whole)

    def find(self, name: str) -> Schedule | None:
        """Return a schedule by its name."""
        rows = self._ask("schedules.list", {"name": name})["rows"]
        found = read_rows(rows)
        return found[0] if found else None

    def save(self, changes: Sequence[tuple[Schedule, int | None]]) -> Saved:
        """Store each if its version is the one beside it."""
        rows = [(pack_row(made.check()), expected) for made, expected in changes]
        done: list[bool] = []
        revision, first = 0, 0
        while first < len(rows):
            size, last = 0, first
            while last < min(len(rows), first + PAGE) and (last == first or size < PAGE_BYTES):
                size += len(rows[last][0].definition)
                last += 1
            answer = self._ask("schedules.save", {"rows": rows[first:last]})
            done += answer["done"]
            revision, first = answer["revision"], last
        return Saved(done, revision)

    def advance(self, rows: Sequence[Progress]) -> Saved:
        """Move schedules on."""
        return self.begin_advance(rows)()

    def begin_advance(self, rows: Sequence[Progress]) -> Callable[[], Saved]:
        """Begin to; what is returned waits until it is done."""
        pages = [
            self._begin("schedules.advance", {"rows": rows[first : first + PAGE]})
            for first in range(0, len(rows), PAGE)
        ]
        return partial(self._advanced, pages)

    def _advanced(self, pages: Sequence[Callable[[], Any]]) -> Saved:
        done: list[bool] = []
        revision = 0
        for page in pages:
            answer = self._answer(page)
            done += answer["done"]
            revision = answer["revision"]
        return Saved(done, revision)

    def remove(self, name: str, expected: int | None) -> bool:
        """Remove it if its version is ``expected``."""
        return bool(self._ask("schedules.remove", {"name": name, "version": expected}))

    def lease(self, holder: str, seconds: float) -> SchedulerLease:
        """Ask to be the one who fires."""
        return SchedulerLease(
            **self._ask("schedules.lease", {"holder": holder, "seconds": seconds})
        )

    def release(self, holder: str) -> None:
        """Give the lease back."""
        self._ask("schedules.lease", {"holder": holder, "seconds": 0.0})

    def close(self) -> None:
        """Do nothing: the connection is the app's."""


def make_store(context: PluginContext) -> ScheduleStore:
    """Return a store; it has no options, and needs an app."""
    read_options(context, object)
    if context.app is None:
        raise PluginError("it needs an app, to reach its broker")
    return BrokerSchedules(context.app.ask, context.app.begin_ask)


@hookimpl
def eventmq_schedule_stores() -> Mapping[str, Factory[ScheduleStore]]:
    """Provide ``broker``."""
    return {"broker": make_store}
