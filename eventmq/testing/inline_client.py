"""The client of an app on a `Stage`: every call is over when it returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from eventmq.client.errands import NEVER, Question
from eventmq.client.runner import ClientRunner, Transport
from eventmq.client.runner_waits import Waiter
from eventmq.errors import BrokerUnavailable, NotAllowed, ResultTimeout

if TYPE_CHECKING:
    from eventmq.client.errands import Errand
    from eventmq.client.runner_loop import IoLoop
    from eventmq.testing.stage import Stage

__all__ = ["InlineRunner"]

#: Jobs that waiting for one may run.
LIMIT = 10_000

#: What to do about a job that nothing will end, by its state.
_HINTS = {
    "blocked": "it waits for other jobs",
    "queued": "its queue is paused, or it may not run now",
    "running": "it is the job that waits, or one below it",
}


class _Waiter(Waiter):
    """Never waits: what does not happen at once does not happen at all."""

    __slots__ = ("_woken",)

    def __init__(self) -> None:
        super().__init__()
        self._woken = False

    def wake(self) -> None:
        """Let `wait` return."""
        self._woken = True

    def wait(self, timeout: float | None) -> bool:
        """Return True if something happened since the last call.

        Raises:
            NotAllowed: Nothing did.
        """
        if not self._woken:
            raise NotAllowed("nothing more will come: in a test nothing happens by itself")
        self._woken = False
        return True


def _has_ended(question: Question) -> bool:
    """Whether the end of a stream has come, and not only parts."""
    answers = question.answers
    return question.over or (
        bool(answers) and isinstance(answers[-1], tuple) and isinstance(answers[-1][1], list)
    )


class _Loop:
    """Stands where `IoLoop` stands: hands errands to the client's machine and carries messages."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.machine = stage.machine
        self.ended = False

    def begin(self, errand: Errand) -> None:
        """Carry an errand as far as it goes: a question for results runs jobs."""
        stage = self._stage
        if self.ended:
            errand.over, errand.error = True, BrokerUnavailable("the test has ended")
            return
        self.machine.begin(errand, stage.clock.monotonic())
        stage.pump()
        if not isinstance(errand, Question) or errand.over:
            return
        if errand.name == "get":
            stage.run(LIMIT, lambda: errand.over)
            if not errand.over:
                self._give_up(errand, next(iter(errand.ids)))
        elif errand.name == "stream":
            stage.run(LIMIT, lambda: _has_ended(errand))
            if not _has_ended(errand):
                self._give_up(errand, errand.subject)

    def carry(self, errand: Errand) -> bool:
        """Do the same; it is over, or never will be."""
        self.begin(errand)
        return True

    def forget(self, question: Question) -> None:
        """End a question."""
        self.machine.forget(question)
        self._stage.pump()

    def stop(self, timeout: float) -> None:
        """End."""
        self.ended = True

    def credit(self, question: Question) -> None:
        """Tell the broker what was taken of a stream."""
        self.machine.credit(question)
        self._stage.pump()

    def _give_up(self, question: Question, job_id: str) -> None:
        state, reason = self._reason(job_id)
        self.machine.forget(question)
        question.error = ResultTimeout(reason, job_id=job_id, state=state)
        self._stage.pump()

    def _reason(self, job_id: str) -> tuple[str, str]:
        """Return the state of a job and what it waits for."""
        question = Question(
            [], id=self.machine.message_id(), deadline=NEVER, name="info", arguments={"id": job_id}
        )
        self.begin(question)
        if question.error is not None or not question.answers:
            return "unknown", f"the broker does not know job {job_id}"
        info: dict[str, Any] = question.answers.popleft()
        state = info["state"]
        what = f"nothing is left to run, and job {job_id} of task {info['task']!r} is {state}"
        if state == "delayed":
            wait = info["due"] - self._stage.clock.now()
            return state, f"{what}, due in {wait:.6g} s: travel there first"
        if state == "queued" and info["task"] not in self._stage.app.tasks:
            return state, f"{what}: no task of that name is registered in this app"
        return state, f"{what}: {_HINTS.get(state, 'it never will')}"


class InlineRunner(ClientRunner):
    """A `ClientRunner` without sockets and threads. Use it from one thread at a time.

    Args:
        stage: Where the broker is.
    """

    def __init__(self, stage: Stage) -> None:
        super().__init__(lambda: Transport(["memory://"]), clock=stage.clock)
        self._inline = _Loop(stage)

    def _start(self) -> IoLoop:
        return cast("IoLoop", self._inline)

    @staticmethod
    def waiter() -> Waiter:
        """Return what a thread waits with."""
        return _Waiter()
