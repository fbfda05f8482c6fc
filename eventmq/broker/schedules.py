"""Schedule messages and calls: SCHEDULE, UNSCHEDULE and ``schedules.*``, stored, then answered.

Our own scheduler fires the schedules that SCHEDULE brought. While a legacy scheduler, one without
FEATURES, is connected, it gets the same messages and fires them instead; the answer to
``schedules.lease`` tells our own schedulers so.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from eventmq.broker.acts import act_of, by
from eventmq.broker.state import fields_of
from eventmq.errors import EventMQError, ProtocolError
from eventmq.headers import parse_headers
from eventmq.schedule import Progress, Schedule
from eventmq.store.reads import FindJobs, LoadSchedules
from eventmq.store.writes import (
    AdvanceSchedules,
    PutSchedule,
    RecordOperation,
    RemoveSchedule,
    SaveSchedules,
    ScheduleRow,
)
from eventmq.text import log_about
from eventmq.wire.batches import has_nul, is_text, unpack
from eventmq.wire.commands import MAX_ROWS, read_limit, read_number, read_text
from eventmq.wire.commands import Schedule as Message
from eventmq.wire.schedules import identity, read_schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from eventmq.broker.peers import Peer
    from eventmq.broker.state import State
    from eventmq.store.reads import JobRow, ScheduleRows


__all__ = ["ScheduleCalls"]

logger = logging.getLogger("eventmq.broker")

#: Operation of a save -> what it did, for the log.
_DONE = {"schedule": "saved", "enable": "enabled", "disable": "disabled"}

#: Number of schedules that are read at a time for a legacy scheduler.
_PAGE = 500


def _nothing() -> None:
    """Send no ACK: none was requested."""


class ScheduleCalls:
    """Keeps schedules in the broker's store and passes them on to legacy schedulers.

    Args:
        state: The memory of the broker.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        #: Raises `SettingsError` for the text of an invalid trigger.
        self.check: Callable[[str], object] = str
        self._revision: int | None = None
        self._holder = ""
        self._until = self._length = 0.0
        #: The legacy scheduler that fires the schedules.
        self._legacy: Peer | None = None
        state.calls |= {
            "schedules.list": self._list,
            "schedules.save": self._save,
            "schedules.advance": self._advance,
            "schedules.remove": self._remove,
            "schedules.ran": self._ran,
            "schedules.lease": self._lease,
        }

    # SCHEDULE and UNSCHEDULE

    def schedule(self, peer: Peer, message: Message) -> None:
        """Store or remove a schedule, then acknowledge it if the peer has requested that."""
        headers = parse_headers(message.headers)
        wants = headers.ack_requested or headers.reply_requested or bool(headers.guarantee)
        done = partial(self.state.ack, peer, message.id) if wants else _nothing
        if message.remove:
            self._unschedule(peer, message, identity(message.body, headers.task), done)
        else:
            self._store(peer, message, self._read(message), done)

    def _store(
        self, peer: Peer, message: Message, schedule: Schedule, done: Callable[[], None]
    ) -> None:
        state = self.state

        def settle(write_result: tuple[str, int]) -> None:
            code, self._revision = write_result
            if code == "full":
                state.error(peer, message.id, "store-full", "the broker stores no more schedules")
                return
            if schedule.legacy and (chosen := self._choose()) is not None:
                self._send_schedule(chosen, schedule, message.id, repeated=False)
            done()

        state.write(
            PutSchedule(schedule, state.wall), settle, self.state.report_undone(peer, message.id)
        )

    def _unschedule(
        self, peer: Peer, message: Message, name: str, done: Callable[[], None]
    ) -> None:
        def settle(write_result: tuple[bool, int]) -> None:
            _, self._revision = write_result
            text = is_text(message.body)
            for other in self.state.peers.values():
                if other.role == "scheduler" and (text or other.features is not None):
                    other.sent_schedules.pop(name, None)
                    self.state.send(other, message.frames())
            done()

        self.state.write(
            RemoveSchedule(name, None), settle, self.state.report_undone(peer, message.id)
        )

    def _read(self, message: Message) -> Schedule:
        """Return the schedule of a message; raise `ProtocolError` for an invalid one."""
        limits = self.state.limits
        if max(len(message.body) - limits.max_schedule, len(message.queue) - limits.max_id) > 0:
            text = f"a schedule has at most {limits.max_schedule} bytes in its body and "
            raise ProtocolError(f"{text}{limits.max_id} characters in its queue", code="too-large")
        schedule = read_schedule(message)
        try:
            self.check(schedule.trigger)
        except EventMQError as error:
            raise ProtocolError(str(error), code="bad-trigger") from error
        return schedule

    # Legacy schedulers

    def _choose(self) -> Peer | None:
        """Return the legacy scheduler that fires: the chosen one, or another if it is lost."""
        peers = self.state.peers.values()
        legacy = [peer for peer in peers if peer.role == "scheduler" and peer.features is None]
        if self._legacy is None or self._legacy not in legacy:
            self._legacy = legacy[0] if legacy else None
            if self._legacy is not None:
                self._send_all(self._legacy)
        return self._legacy

    def informed(self, peer: Peer) -> None:
        """Send all schedules to a legacy scheduler that has informed, if it is the chosen one."""
        if peer.role == "scheduler" and peer.features is None:
            peer.sent_schedules.clear()
            if self._choose() is peer:
                self._send_all(peer)

    def tick(self) -> None:
        """Choose another legacy scheduler if the chosen one is lost."""
        if self._legacy is not None:
            self._choose()

    def _send_all(self, peer: Peer, after: int = 0) -> None:
        def read(page: ScheduleRows) -> None:
            for row in page.rows:
                try:
                    schedule = Schedule.read(row.name, unpack(row.definition, "a schedule"))
                except (EventMQError, TypeError):
                    continue  # from a newer version; our schedulers log it
                if schedule.legacy and schedule.enabled:
                    self._send_schedule(peer, schedule, self.state.message_id(), repeated=True)
            if page.more:
                self._send_all(peer, page.revision)

        self.state.write(LoadSchedules(after, _PAGE, source="wire", scan=True), read)

    def _send_schedule(
        self, peer: Peer, schedule: Schedule, message_id: str, *, repeated: bool
    ) -> None:
        """Send a SCHEDULE, unless this session has it; a repeated one does not fire at once."""
        content = (schedule.queue, *schedule.sent)
        if peer.sent_schedules.get(schedule.name) == content:
            return
        peer.sent_schedules[schedule.name] = content
        headers, *more = schedule.sent
        if repeated and not schedule.nohaste:
            headers = f"{headers},nohaste" if headers else "nohaste"
        interval, cron = more or (None, None)
        message = Message(message_id, schedule.queue, headers, schedule.body, interval, cron)
        self.state.send(peer, message.frames())

    # Calls

    def _list(self, peer: Peer, call: str, arguments: Mapping[str, Any]) -> None:
        limit = read_limit(arguments)
        name = arguments.get("name")
        if not isinstance(name, str | None):
            raise ProtocolError("argument 'name' is a str", code="bad-arguments")
        after, scan = read_number(arguments, "after"), bool(arguments.get("scan"))
        write = LoadSchedules(after, limit, name, scan=scan)
        self.state.write(write, lambda page: self.state.answer(peer, call, page._asdict()))

    def _save(self, peer: Peer, call: str, arguments: Mapping[str, Any]) -> None:
        rows = [self._row(row) for row in _rows(arguments)]
        act = act_of(self.state, peer, arguments, "schedule")

        def settle(write_result: tuple[list[str], int]) -> None:
            codes, self._revision = write_result
            for (row, _), code in zip(rows, codes, strict=True):
                if code == "done":
                    logger.info("schedule %r was %s%s", row.name, _DONE[act.operation], by(act))
            if "full" in codes:
                self.state.error(peer, call, "store-full", "the broker stores no more schedules")
                return
            done = [code == "done" for code in codes]
            self.state.answer(peer, call, {"done": done, "revision": self._revision})

        self.state.write(SaveSchedules(rows, act), settle, self.state.report_undone(peer, call))

    def _row(self, row: Any) -> tuple[ScheduleRow, int | None]:
        """Return a checked row of ``schedules.save``."""
        match row:
            case [
                [str(name), int(), float() | int() | None, int() | None, str(), bytes()],
                int() | None as expected,
            ]:
                stored_row = ScheduleRow(*row[0])
            case _:
                text = "a row is [name, version, last_fire_time, remaining, last_job, definition]"
                raise ProtocolError(f"{text} and the expected version", code="bad-arguments")
        try:
            definition = unpack(stored_row.definition, "the definition")
            if has_nul(definition):
                raise ProtocolError("the definition has a NUL character", code="bad-arguments")
            self.check(Schedule.read(name, definition).trigger)
        except (EventMQError, TypeError) as error:
            raise ProtocolError(str(error), code="bad-arguments") from error
        return stored_row, expected

    def _advance(self, peer: Peer, call: str, arguments: Mapping[str, Any]) -> None:
        rows = []
        for row in _rows(arguments):
            match row:
                case [str(), int(), float() | int() | None, int() | None, str()]:
                    rows.append(Progress(*row))
                case _:
                    raise ProtocolError(
                        "a row is [name, expected version, last_fire_time, remaining, last_job]",
                        code="bad-arguments",
                    )

        def settle(write_result: tuple[list[bool], int]) -> None:
            done, self._revision = write_result
            self.state.answer(peer, call, {"done": done, "revision": self._revision})

        self.state.write(AdvanceSchedules(rows), settle, self.state.report_undone(peer, call))

    def _remove(self, peer: Peer, call: str, arguments: Mapping[str, Any]) -> None:
        name = arguments.get("name")
        version = arguments.get("version")
        if not isinstance(name, str) or not isinstance(version, int | None):
            raise ProtocolError(
                "schedules.remove takes a name and optionally a version", code="bad-arguments"
            )

        act = act_of(self.state, peer, arguments, "unschedule")

        def settle(write_result: tuple[bool, int]) -> None:
            done, self._revision = write_result
            if done:
                logger.info("schedule %r was removed%s", name, by(act))
            self.state.answer(peer, call, done)

        write = RemoveSchedule(name, version, act)
        self.state.write(write, settle, self.state.report_undone(peer, call))

    def _ran(self, peer: Peer, call: str, arguments: Mapping[str, Any]) -> None:
        name, job_id = read_text(arguments, "name"), read_text(arguments, "id")
        act = act_of(self.state, peer, arguments, "run")

        def settle(rows: Mapping[str, JobRow]) -> None:
            rows = rows or self.state.transient.find([job_id], self.state.now)
            if not rows:
                self.state.error(peer, call, "job-not-found", f"no job with id {job_id!r}")
                return
            job = rows[job_id].job
            text = "schedule %r: job %s was submitted by hand%s"
            log_about(logger, logging.INFO, fields_of(job), text, name, job_id, by(act))
            task = parse_headers(job.headers).task
            write = RecordOperation(act, job.queue, task, name, job_id)
            done = partial(self.state.answer, peer, call)
            self.state.write(write, done, self.state.report_undone(peer, call))

        self.state.write(FindJobs([job_id], 0), settle)

    def shift(self, seconds: float) -> None:
        """Extend the lease of the scheduler, since store time has jumped."""
        self._until += seconds

    def _lease(self, peer: Peer, call: str, arguments: Mapping[str, Any]) -> None:
        holder, seconds = arguments.get("holder"), arguments.get("seconds")
        good = isinstance(holder, str) and 0 < len(holder) <= self.state.limits.max_id
        if not good or not isinstance(seconds, int | float) or not 0 <= seconds <= 3600:  # noqa: PLR2004
            raise ProtocolError(
                "schedules.lease takes a holder and seconds from 0 to 3600", code="bad-arguments"
            )
        now = self.state.now
        # A time further ahead than the length of a lease is from before the clock was set back.
        held = holder == self._holder or not now < self._until <= now + self._length
        if held:
            self._holder, self._until, self._length = str(holder), now + seconds, seconds

        def answer(page: ScheduleRows | None) -> None:
            self._revision = page.head if page is not None else self._revision
            value = {
                "held": held and seconds > 0,
                "revision": self._revision,
                "foreign": self._choose() is not None,
            }
            self.state.answer(peer, call, value)

        if self._revision is None:
            self.state.write(LoadSchedules(0, 1, name=""), answer)
        else:
            answer(None)


def _rows(arguments: Mapping[str, Any]) -> list[Any]:
    rows = arguments.get("rows")
    if not isinstance(rows, list) or len(rows) > MAX_ROWS:
        raise ProtocolError(
            f"argument 'rows' is a list of at most {MAX_ROWS}", code="bad-arguments"
        )
    return rows
