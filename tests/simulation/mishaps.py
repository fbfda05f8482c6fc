"""Draws what goes wrong in a scenario."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.simulation.scenario import Fault

if TYPE_CHECKING:
    from random import Random

__all__ = ["make_faults"]

#: Seconds by which the clock of the broker's machine is set: none counts within a run, but for the
#: smallest, which a time service might correct.
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
        draw: The generator.
        end: Seconds.
        workers: How many there are.
        clients: How many there are.
        beats: How many there are.
        legacy: Legacy workers.
        relaxed: The disk is not synced by every commit.
        back: A clock may be put back by an hour: nothing waits for it.
    """
    count = draw.choice((0, 1, 1, 2, 2, 3, 5))
    maker = _Faults(draw, workers, clients, beats, relaxed=relaxed, back=back)
    maker.peers += [f"plain{n}" for n in range(legacy)]
    found = [maker.one(round(draw.random() * end, 3)) for _ in range(count)]
    return tuple(sorted(found, key=lambda fault: fault.at))


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
            self._jump, self._commit, self._commit, self._sending, self._full, self._low,
            self._cut, self._cut, self._deafen, self._part, self._slow, self._clog,
        ]  # fmt: skip
        if relaxed:
            self.kinds += [self._power] * 6

    def one(self, at: float) -> Fault:
        name, arguments = self.draw.choice(self.kinds)()
        return Fault(at, name, arguments)

    def _after(self) -> float:
        return self.draw.choice((0.1, 0.5, 2.0, 8.0))

    def _kill(self) -> tuple[str, dict[str, Any]]:
        return "kill", {"who": self.draw.choice(self.peers), "after": self._after()}

    def _kill_broker(self) -> tuple[str, dict[str, Any]]:
        return "kill", {"who": "broker", "after": self._after()}

    def _stop(self) -> tuple[str, dict[str, Any]]:
        return "stop", {"who": self.draw.choice(self.workers), "after": self._after()}

    def _child(self) -> tuple[str, dict[str, Any]]:
        return "child", {"who": self.draw.choice(self.workers), "slot": self.draw.randint(0, 2)}

    def _pause(self) -> tuple[str, dict[str, Any]]:
        who = self.draw.choice([*self.peers, "broker"])
        return "pause", {"who": who, "seconds": self.draw.choice((0.3, 2.0, 7.0, 20.0))}

    def _jump(self) -> tuple[str, dict[str, Any]]:
        who = self.draw.choice([*self.peers, "broker", "broker"])
        if who == "broker":
            return "jump", {"who": who, "seconds": self.draw.choice(_STEPS)}
        far = (3600.0, -3600.0) if self.back else (3600.0 if self.far else 20.0, -15.0)
        return "jump", {"who": who, "seconds": self.draw.choice((*far, 2.0, -2.0))}

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
        who = self.draw.choice(self.peers)
        noticed = self.draw.choice((0.0, 0.0, 0.3, 3.0))
        return "cut", {"who": who, "arriving": self.draw.randint(0, 2), "noticed": noticed}

    def _deafen(self) -> tuple[str, dict[str, Any]]:
        return "deafen", {"who": self.draw.choice(self.peers)}

    def _part(self) -> tuple[str, dict[str, Any]]:
        return "part", {"seconds": self.draw.choice((0.2, 1.0, 3.0, 9.0))}

    def _slow(self) -> tuple[str, dict[str, Any]]:
        return "slow", {"latency": self.draw.choice((0.05, 0.5, 2.0)), "seconds": self._after()}

    def _clog(self) -> tuple[str, dict[str, Any]]:
        return "clog", {"seconds": self.draw.choice((0.1, 1.0))}
