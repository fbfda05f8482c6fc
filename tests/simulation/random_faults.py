"""Draws the faults of a scenario."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.simulation.scenario import Fault

if TYPE_CHECKING:
    from random import Random

__all__ = ["make_clock_faults", "make_faults", "make_shared_faults"]

#: Seconds by which the clock of the broker's machine is set. The broker ignores them during a run,
#: except for the smallest, which a time service might make.
_STEPS = (2.0, -2.0, 3600.0, -3600.0, 2 * 86_400.0, 400 * 86_400.0, -365 * 86_400.0)


def make_faults(
    draw: Random,
    end: float,
    *,
    workers: int,
    clients: int,
    beats: int,
    relaxed: bool,
    back: bool,
    legacy: int = 0,
) -> tuple[Fault, ...]:
    """Return up to five faults before a time.

    Args:
        draw: Random generator.
        end: Time of the last fault at most, in seconds.
        workers: Number of workers.
        clients: Number of clients.
        beats: Number of schedulers.
        legacy: Number of legacy workers.
        relaxed: Whether commits may be lost when the power is cut.
        back: Whether a clock may be put back by an hour, since no job waits for it.
    """
    count = draw.choice((0, 1, 1, 2, 2, 3, 5))
    maker = _Faults(draw, workers, clients, beats, relaxed=relaxed, back=back)
    maker.peers += [f"legacy{n}" for n in range(legacy)]
    faults = [maker.one(round(draw.random() * end, 3)) for _ in range(count)]
    return tuple(sorted(faults, key=lambda fault: fault.at))


def make_shared_faults(
    draw: Random, end: float, *, workers: int, clients: int, brokers: int
) -> tuple[Fault, ...]:
    """Return up to six faults before a time, most of them of brokers that share a store."""
    maker = _SharedFaults(draw, workers, clients, brokers)
    count = draw.choice((0, 1, 1, 2, 2, 3, 4, 6))
    faults = [maker.one(round(draw.random() * end, 3)) for _ in range(count)]
    return tuple(sorted(faults, key=lambda fault: fault.at))


def make_clock_faults(draw: Random, end: float, *, brokers: int) -> tuple[Fault, ...]:
    """Return up to four faults before a time: clocks of brokers that share a store are set."""
    faults = []
    for _ in range(draw.choice((0, 0, 1, 2, 4))):
        name, seconds = f"broker{draw.randrange(brokers)}", draw.choice(_STEPS)
        arguments = {"name": name, "seconds": seconds}
        faults.append(Fault(round(draw.random() * end, 3), "set_clock", arguments))
    return tuple(faults)


class _Faults:
    def __init__(
        self, draw: Random, workers: int, clients: int, beats: int, *, relaxed: bool, back: bool
    ) -> None:
        self.draw = draw
        self.workers = [f"worker{n}" for n in range(workers)]
        self.peers = [*self.workers, *(f"client{n}" for n in range(clients))]
        beating = [f"scheduler{n}" for n in range(beats)]
        self.peers += beating * 2
        self.back = back and not beating
        self.far = not beating
        self.kinds = [
            self._kill, self._kill, self._kill_broker, self._stop, self._child, self._pause,
            self._set_clock, self._commit, self._commit, self._sending, self._full, self._low,
            self._cut, self._cut, self._half_open, self._partition, self._slow, self._fill_pipes,
        ]  # fmt: skip
        if relaxed:
            self.kinds += [self._power] * 6

    def one(self, at: float) -> Fault:
        name, arguments = self.draw.choice(self.kinds)()
        return Fault(at, name, arguments)

    def _after(self) -> float:
        return self.draw.choice((0.1, 0.5, 2.0, 8.0))

    def _kill(self) -> tuple[str, dict[str, Any]]:
        return "kill", {"name": self.draw.choice(self.peers), "after": self._after()}

    def _kill_broker(self) -> tuple[str, dict[str, Any]]:
        return "kill", {"name": "broker", "after": self._after()}

    def _stop(self) -> tuple[str, dict[str, Any]]:
        return "stop", {"name": self.draw.choice(self.workers), "after": self._after()}

    def _child(self) -> tuple[str, dict[str, Any]]:
        return "child", {"name": self.draw.choice(self.workers), "slot": self.draw.randint(0, 2)}

    def _pause(self) -> tuple[str, dict[str, Any]]:
        name = self.draw.choice([*self.peers, "broker"])
        return "pause", {"name": name, "seconds": self.draw.choice((0.3, 2.0, 7.0, 20.0))}

    def _set_clock(self) -> tuple[str, dict[str, Any]]:
        name = self.draw.choice([*self.peers, "broker", "broker"])
        if name == "broker":
            return "set_clock", {"name": name, "seconds": self.draw.choice(_STEPS)}
        far = (3600.0, -3600.0) if self.back else (3600.0 if self.far else 20.0, -15.0)
        return "set_clock", {"name": name, "seconds": self.draw.choice((*far, 2.0, -2.0))}

    def _commit(self) -> tuple[str, dict[str, Any]]:
        when = self.draw.choice(("before", "after", "after", "error"))
        return "crash_commit", {"ahead": self.draw.randint(1, 6), "when": when}

    def _sending(self) -> tuple[str, dict[str, Any]]:
        return "crash_sending", {"messages": self.draw.randint(0, 3)}

    def _power(self) -> tuple[str, dict[str, Any]]:
        return "power", {"after": self._after()}

    def _full(self) -> tuple[str, dict[str, Any]]:
        return "full", {"seconds": self._after()}

    def _low(self) -> tuple[str, dict[str, Any]]:
        return "low", {"seconds": self._after()}

    def _cut(self) -> tuple[str, dict[str, Any]]:
        name = self.draw.choice(self.peers)
        noticed = self.draw.choice((0.0, 0.0, 0.3, 3.0))
        return "cut", {"name": name, "arriving": self.draw.randint(0, 2), "noticed": noticed}

    def _half_open(self) -> tuple[str, dict[str, Any]]:
        return "half_open", {"name": self.draw.choice(self.peers)}

    def _partition(self) -> tuple[str, dict[str, Any]]:
        return "partition", {"seconds": self.draw.choice((0.2, 1.0, 3.0, 9.0))}

    def _slow(self) -> tuple[str, dict[str, Any]]:
        return "slow", {"latency": self.draw.choice((0.05, 0.5, 2.0)), "seconds": self._after()}

    def _fill_pipes(self) -> tuple[str, dict[str, Any]]:
        return "fill_pipes", {"seconds": self.draw.choice((0.1, 1.0))}


class _SharedFaults(_Faults):
    """Faults of several brokers and of their database, and some of those of one."""

    def __init__(self, draw: Random, workers: int, clients: int, brokers: int) -> None:
        super().__init__(draw, workers, clients, 0, relaxed=False, back=False)
        self.brokers = [f"broker{n}" for n in range(brokers)]
        self.kinds = [
            self._kill_broker, self._kill_broker, self._pause_broker, self._freeze, self._freeze,
            self._freeze, self._lose, self._lose, self._backend, self._away, self._hand_over,
            self._commit, self._sending, self._kill, self._stop, self._child, self._cut,
            self._half_open, self._partition, self._slow,
        ]  # fmt: skip

    def _kill_broker(self) -> tuple[str, dict[str, Any]]:
        return "kill", {"name": self.draw.choice(self.brokers), "after": self._after()}

    def _pause_broker(self) -> tuple[str, dict[str, Any]]:
        seconds = self.draw.choice((0.3, 2.0, 7.0, 20.0))
        return "pause", {"name": self.draw.choice(self.brokers), "seconds": seconds}

    def _freeze(self) -> tuple[str, dict[str, Any]]:
        return "freeze", {
            "name": self.draw.choice(self.brokers),
            "commits": self.draw.randint(1, 6),
            "when": self.draw.choice(("before", "after")),
            "seconds": self.draw.choice((0.3, 4.5, 7.0, 20.0)),
        }

    def _lose(self) -> tuple[str, dict[str, Any]]:
        when = self.draw.choice(("before", "after"))
        return "lose", {"ahead": self.draw.randint(1, 6), "when": when}

    def _backend(self) -> tuple[str, dict[str, Any]]:
        return "backend", {}

    def _away(self) -> tuple[str, dict[str, Any]]:
        return "away", {"seconds": self._after()}

    def _hand_over(self) -> tuple[str, dict[str, Any]]:
        return "hand_over", {}
