"""What an app does by the clock: ``app.schedule``, ``app.unschedule`` and the beat."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from eventmq.app.schedules import Declared, Schedules, importing

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Unpack

    from eventmq.app.app import EventMQ
    from eventmq.graph import Signature
    from eventmq.policies import Timing
    from eventmq.scheduler.runner import BeatRunner
    from eventmq.task.options import CallKeywords
    from eventmq.task.task import Task

__all__ = ["Scheduling"]


class Scheduling:
    """The part of `EventMQ` that is about schedules."""

    @cached_property
    def schedules(self) -> Schedules:
        """The schedules: to list, run, enable, disable and remove them."""
        return Schedules(cast("EventMQ", self))

    def schedule(
        self,
        name: str,
        signature: Signature | Task[Any, Any],
        trigger: Timing,
        *,
        misfire: str = "one",
        window: float = 3600.0,
        overlap: str = "allow",
        jitter: float = 0.0,
        run_count: int | None = None,
        nohaste: bool = True,
        **options: Unpack[CallKeywords],
    ) -> None:
        """Let schedulers submit a job again and again.

        While a module is being imported this declares a schedule of the app's code, and nothing is
        sent: every beat of the app brings the store up to what the code says when it starts. At any
        other time the schedule is in the store when this returns.

        Args:
            name: Of the schedule; one that is there of this name is replaced, and goes on where it
                was unless ``trigger`` is another one.
            signature: ``task.s(...)``.
            trigger: ``every(...)``, ``cron(...)`` or ``at(...)``.
            misfire: What happens with times that were missed while no beat ran: ``skip`` them, fire
                ``one`` job for them together, or ``all`` within ``window``.
            window: Seconds.
            overlap: What happens while the job before has not ended: ``allow`` another one,
                ``skip`` the fire time, or ``queue`` one job until it has.
            jitter: Seconds by which it may fire later, always the same for one fire time.
            run_count: How often it fires in all.
            nohaste: False fires once at once, too.
            **options: ``queue`` and others of its jobs; see `eventmq.task.CallOptions`.

        Raises:
            SettingsError: A value is not allowed.
            BrokerUnavailable: The broker did not answer in time.
        """
        more = {
            "misfire": misfire, "window": window, "overlap": overlap, "jitter": jitter,
            "run_count": run_count, "nohaste": nohaste,
        }  # fmt: skip
        declared = Declared.read(name, signature, trigger, dict(options), more)
        if importing():
            self.schedules.declare(declared)
        else:
            self.schedules.put(self.schedules.make(declared, "client"))
            cast("EventMQ", self).wiring.needs_beat()

    def unschedule(self, name: str) -> bool:
        """Remove a schedule; say whether there was one.

        While a module is being imported it takes back a declaration.
        """
        if importing():
            self.schedules.withdraw(name)
            return True
        return self.schedules.remove(name)

    def inform_as(self, role: str) -> None:
        """Say to brokers what this process is: ``client``, or ``scheduler``; before its use."""
        cast("EventMQ", self).wiring.role = role

    def make_beat(self, *, on_ready: Callable[[], None] | None = None) -> BeatRunner:
        """Return a scheduler of the app, to be run. `load_tasks` comes first.

        Args:
            on_ready: Called once, in its thread, when it has read the schedules.
        """
        from eventmq.app.beat import make_beat

        return make_beat(cast("EventMQ", self), on_ready=on_ready)
