"""The job manager's state machine with a pool that only records, and a stopped clock."""

from __future__ import annotations

from eventmq.interfaces import JobsEnded, Running
from eventmq.job import OutcomeKind
from eventmq.wire import commands
from eventmq.wire.batches import (
    OutcomeRow,
    decode_outcomes,
    encode_chunk,
    encode_outcomes,
)
from eventmq.wire.features import Features, Status
from eventmq.worker.manager import JobManager
from eventmq.worker.session import SessionInfo
from eventmq.worker.watchdog import always_fail

SUCCEEDED, BACK, DIED, CANCELLED, LOST, UNANSWERED = (
    OutcomeKind.SUCCEEDED,
    OutcomeKind.HANDED_BACK,
    OutcomeKind.DIED,
    OutcomeKind.CANCELLED,
    OutcomeKind.LOST,
    OutcomeKind.UNANSWERED,
)


class StillClock:
    wall = 1000.0

    def now(self):
        return self.wall

    def monotonic(self):
        return 0.0

    def boottime(self):
        return 0.0

    def boot_id(self):
        return "boot"


class NotingPool:
    """A pool whose jobs run only on request of the test."""

    shared = False

    def __init__(self, slots):
        self.slots = slots
        self.waiting = [0] * slots
        self.since = [None] * slots
        self.current = [(0, 0)] * slots
        self.assigned = []
        self.bodies = []
        self.interrupted = []
        self.killed = []
        self.scaled = []

    def assign(self, slot, chunk, body, count):
        self.assigned.append((slot, chunk, count))
        self.bodies.append(body)
        self.waiting[slot] += count

    def take_back(self, slot):
        count, self.waiting[slot] = self.waiting[slot], 0
        return count

    def running(self, slot):
        since = self.since[slot]
        return None if since is None else Running(*self.current[slot], since)

    def interrupt(self, slot, chunk, position):
        self.interrupted.append((slot, chunk, position))

    def kill(self, slot):
        self.killed.append(slot)

    def scale(self, slots):
        self.scaled.append(slots)

    def busy(self):
        return [slot for slot, since in enumerate(self.since) if since is not None]


class World:
    """A manager and its pool; the test plays the broker."""

    def __init__(self, slots=2, timeout_policy=always_fail, min_slots=0, **info):
        self.pool = self.make_pool(slots)
        info = {
            "slots": min_slots,
            "session": "s" * 32,
            "queues": ((10, "default"),),
            "tasks": ("t",),
            **info,
        }
        self.manager = JobManager(
            SessionInfo(**info), pool=self.pool, clock=StillClock(), timeout_policy=timeout_policy
        )
        self.clock = self.manager._clock
        self.now = 100.0
        self.sent = []

    def make_pool(self, slots):
        return NotingPool(slots)

    def out(self):
        """Return the messages sent since the last call."""
        out = [commands.decode(frames) for frames in self.manager.take_outbox()]
        self.sent += out
        return out

    def receive(self, message):
        self.manager.receive(message.frames(), self.now)
        return self.out()

    def tick(self, seconds=0.0):
        self.now += seconds
        self.manager.tick(self.now)
        return self.out()

    def connect(self, **features):
        self.manager.connected(self.now)
        return self.welcome(**features)

    def welcome(self, **features):
        self.out()
        inform = [m for m in self.sent if isinstance(m, commands.Inform)][-1]
        features = {"epoch": 1, "store": "x", "max_frame": 1 << 20, **features}
        return self.receive(commands.Ack("a", inform.id, Features(**features).format().encode()))

    def chunk(self, number, count, message=None):
        rows = [(f"j{number}.{n}", 1, 1, "task:t", 0.0, 0.0, b"x") for n in range(count)]
        body = encode_chunk("default", rows)
        return self.receive(
            commands.Request(message or f"m{number}", "default", f"chunk:{number}", body)
        )

    def start(self, slot):
        """Start the next job of a slot."""
        self.pool.waiting[slot] -= 1
        self.pool.since[slot] = self.now

    def answer(self, slot, chunk, first, count, run_time=0.001, size=1):
        """Let a slot answer jobs; return the sent messages."""
        self.pool.waiting[slot] = max(0, self.pool.waiting[slot] - count)
        rows = [
            OutcomeRow(first + n, int(SUCCEEDED), 1.0, run_time, "msgpack", b"x" * size)
            for n in range(count)
        ]
        event = JobsEnded(slot, chunk, count, run_time * count, encode_outcomes(rows))
        self.manager.pool_events([event], self.now)
        return self.out()

    def ack_all(self):
        for message in list(self.sent):
            if isinstance(message, commands.Reply):
                self.receive(commands.Ack("a", message.id))

    def status(self):
        """Return the last sent STATUS."""
        texts = [m.status for m in self.sent if isinstance(m, commands.Ready | commands.Heartbeat)]
        return Status.parse(texts[-1])


def rows_of(reply):
    return [OutcomeRow(*row) for row in decode_outcomes(reply.result)]


def kinds(reply):
    return [(row.position, OutcomeKind(row.kind)) for row in rows_of(reply)]


def replies(messages):
    return [message for message in messages if isinstance(message, commands.Reply)]
