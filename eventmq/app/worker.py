"""Workers of an app and the executors of its jobs: what ``eventmq worker`` runs."""

from __future__ import annotations

import inspect
import logging
import os
import threading
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from eventmq.app.broker import version
from eventmq.app.wiring import keys_of
from eventmq.errors import EventMQError, NotAllowed, PluginError, SettingsError
from eventmq.execution.executor import Executor
from eventmq.registry.names import RESULT_BACKEND, WORKER_POOL, scheme
from eventmq.wire.results import ResultLocation
from eventmq.worker.inputs import SpoolDirectory, new_spool, read_spool
from eventmq.worker.session import SessionInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import zmq

    from eventmq.clock import Clock
    from eventmq.execution.spec import TaskSpec
    from eventmq.interfaces import WorkerPool
    from eventmq.registry.manager import PluginManager
    from eventmq.settings import Settings
    from eventmq.task.task import Task
    from eventmq.worker.runner import WorkerRunner

__all__ = ["Callbacks", "LiveSpecs", "WorkerFactory", "WorkerOptions"]

_log = logging.getLogger(__name__)

#: Maximum number of bytes of a REPLY besides its result.
_FRAME_SLACK = 64 * 1024

#: Function that loads the executor in another process.
_LOADER = "eventmq.app:load_executor"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Options of one worker; None stands for the value of the settings.

    Attributes:
        path: ``module:attribute`` of the app, for pools whose processes load it again.
        brokers: Addresses of brokers.
        queues: (weight, name) pairs.
        pool: Name of the pool.
        concurrency: Number of slots.
        pool_options: More options of the pool.
        live: Also serve tasks that are declared later: for a worker in the app's own process.
        context: ZeroMQ context to use.
        on_ready: Called once, in the worker's thread, when a broker has registered the worker.
    """

    path: str = ""
    brokers: Sequence[str] | None = None
    queues: Sequence[tuple[int, str]] | None = None
    pool: str | None = None
    concurrency: int | None = None
    pool_options: Mapping[str, Any] | None = None
    live: bool = False
    context: zmq.Context[Any] | None = None
    on_ready: Callable[[], None] | None = None


class LiveSpecs(Mapping[str, "TaskSpec"]):
    """Tasks of a worker in the app's own process, including those declared later."""

    def __init__(self, tasks: Mapping[str, Task[Any, Any]]) -> None:
        self._tasks = tasks

    def __getitem__(self, name: str) -> TaskSpec:
        return (self._tasks.get(name) or _by_wire_name(self._tasks)[name]).spec()

    def __iter__(self) -> Iterator[str]:
        return iter(_by_wire_name(self._tasks))

    def __len__(self) -> int:
        return len(_by_wire_name(self._tasks))


def _by_wire_name(tasks: Mapping[str, Task[Any, Any]]) -> dict[str, Task[Any, Any]]:
    """Return tasks by their names in messages, including the names that their roles serve.

    Raises:
        SettingsError: Two tasks serve the same name.
    """
    by_name = dict(tasks)
    for name, task in tasks.items():
        for role in task.declared.roles:
            if role.serves and by_name.setdefault(role.serves, task) is not task:
                owner = by_name[role.serves].name
                raise SettingsError(f"two tasks serve {role.what}: {owner} and {name}")
    return by_name


class Callbacks:
    """Callbacks of workers: functions without arguments, in the order of registration."""

    def __init__(self) -> None:
        self.worker_start: list[Callable[[], Any]] = []
        self.worker_stop: list[Callable[[], Any]] = []
        self.child_start: list[Callable[[], Any]] = []
        self.child_stop: list[Callable[[], Any]] = []
        self._lock = threading.Lock()
        self._workers = 0
        self._child = 0

    @contextmanager
    def worker(self) -> Iterator[None]:
        """Run the start and stop callbacks around one worker, or all workers of one process.

        Raises:
            EventMQError: A start callback failed: the worker must not run.
        """
        with self._lock:
            if not self._workers:
                _run("on_worker_start", self.worker_start)
            self._workers += 1
        try:
            yield
        finally:
            with self._lock:
                self._workers -= 1
                if not self._workers:
                    self._stop()

    def _stop(self) -> None:
        self.end_child()  # if the pool has no processes of its own
        _run_all("on_worker_stop", self.worker_stop)

    def any_child(self) -> bool:
        """Return whether there are callbacks for processes that run jobs."""
        return bool(self.child_start or self.child_stop)

    def child(self) -> None:
        """Run the start callbacks of a process that runs jobs, once per process.

        Raises:
            EventMQError: A callback failed: no job may run in this process.
        """
        if self._child != os.getpid():
            _run("on_child_start", self.child_start)
            self._child = os.getpid()

    def end_child(self) -> None:
        """Run the stop callbacks of a process that runs jobs, if `child` ran in it."""
        if self._child == os.getpid():
            self._child = 0
            _run_all("on_child_stop", self.child_stop)


def _run(hook: str, functions: list[Callable[[], Any]]) -> None:
    for function in functions:
        try:
            function()
        except Exception as error:
            raise EventMQError(
                f"{_name(function)} of {hook} failed: {type(error).__name__}: {error}"
            ) from error


def _run_all(hook: str, functions: list[Callable[[], Any]]) -> None:
    for function in functions:
        try:
            function()
        except Exception:  # noqa: BLE001 - any of the user's
            _log.exception("%s of %s failed", _name(function), hook)


def _name(function: Callable[[], Any]) -> str:
    return getattr(function, "__qualname__", repr(function))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFactory:
    """Makes the workers of an app, and the executors that run its jobs.

    Attributes:
        settings: Settings of the app.
        plugins: Plugins of the app.
        clock: Reads time.
        tasks: Tasks of the app, by name.
        callbacks: Callbacks of workers and their child processes.
        overrides: Settings for processes that load the app again.
    """

    settings: Settings
    plugins: PluginManager
    clock: Clock
    tasks: Mapping[str, Task[Any, Any]]
    callbacks: Callbacks
    overrides: Mapping[str, Any]

    def executor(self, tasks: Mapping[str, TaskSpec] | None = None, spool: str = "") -> Executor:
        """Return an executor for the given tasks, or the app's; see `EventMQ.make_executor`."""
        settings, plugins, calls = self.settings, self.plugins, self.callbacks
        for name in settings.accept_content:
            plugins.serializer(name)  # report a missing library or wrong option now
        if tasks is None:
            tasks = {name: task.spec() for name, task in _by_wire_name(self.tasks).items()}
            for spec in tasks.values():
                self._check(spec)
        return Executor(
            tasks,
            serializer=plugins.serializer,
            retry_policy=plugins.retry_policy,
            clock=self.clock,
            accept_content=settings.accept_content,
            middleware=plugins.middleware(),
            allow_callables=settings.allow_callables,
            location=ResultLocation(
                plugins.get(RESULT_BACKEND, settings.result_backend),
                scheme(settings.result_backend),
                max_result=max(settings.max_frame - _FRAME_SLACK, 1),
                ttl=settings.result_ttl,
            ),
            **({"fetched": partial(read_spool, spool)} if spool else {}),
            on_start=calls.child if calls.any_child() else None,
            on_stop=calls.end_child if calls.any_child() else None,
            max_log=settings.max_job_log_bytes,
        )

    def _check(self, spec: TaskSpec) -> None:
        """Raise `SettingsError` for a task whose retry policy or serializer does not exist."""
        try:
            self.plugins.retry_policy(spec.retry_policy, spec.retry_options)
            if spec.serializer is not None:
                self.plugins.serializer(spec.serializer)
        except PluginError as error:
            raise SettingsError(f"task {spec.name!r}: {error}") from error

    def worker(self, options: WorkerOptions) -> WorkerRunner:
        """Return a worker of the app; see `EventMQ.make_worker`."""
        from eventmq.client.io_loop import has_greenlets
        from eventmq.worker.runner import WorkerRunner

        settings = self.settings
        if has_greenlets():
            raise NotAllowed(
                "gevent has replaced the threads of this process by greenlets, and a worker "
                "needs threads: call gevent.monkey.patch_all() where the web server starts, in no "
                "module that workers import; for many waiting jobs use --pool asyncio"
            )
        if options.path:
            self._check_backend()
        spool = new_spool()
        executor = self.executor(LiveSpecs(self.tasks) if options.live else None, spool)
        pool = self._make_pool(options, executor, spool)
        info = self._info(options, executor, pool.slots)
        if not options.live and not pool.interrupts:
            self._check_soft_limits({name for _, name in info.queues})
        runner = WorkerRunner(
            pool,
            brokers=settings.broker if options.brokers is None else options.brokers,
            info=info,
            max_frame=settings.max_frame,
            context=options.context,
            clock=self.clock,
            on_ready=options.on_ready,
            timeout_policy=executor.for_slot().timed_out,
        )
        runner.spool = SpoolDirectory(spool)
        runner.run_context = self.callbacks.worker
        if options.context is None:
            runner.keys = keys_of(settings)
        return runner

    def _check_backend(self) -> None:
        """Raise `SettingsError` if no other process can read the results of the backend."""
        name = self.settings.result_backend
        if self.plugins.get(RESULT_BACKEND, name).local:
            raise SettingsError(
                f"the result backend {name!r} keeps results in the process that ran the job, and "
                "this worker is a process of its own: no other process could read them; use the "
                "result backend 'broker', 'sqlite' for workers and clients of one machine, or "
                "'postgresql'"
            )

    def _info(self, options: WorkerOptions, executor: Executor, slots: int) -> SessionInfo:
        """Return the worker's announcement to the broker, and its intervals."""
        settings = self.settings
        return SessionInfo(
            session="",
            queues=tuple(settings.queues if options.queues is None else options.queues),
            tasks=() if options.live else tuple(executor.tasks),
            callables=settings.allow_callables,
            heartbeat=settings.heartbeat_interval,
            heartbeat_timeout=settings.heartbeat_timeout,
            shutdown_grace=settings.shutdown_grace,
            cancel_grace=settings.cancel_grace,
            max_abandoned_threads=settings.max_abandoned_threads or slots,
            slots=self._min_slots(options, slots),
            pool=options.pool or self.settings.pool,
            max_slots=slots,
            version=version(),
        )

    def _check_soft_limits(self, served: set[str]) -> None:
        """Raise `SettingsError` for a task whose ``soft_timeout`` the pool cannot enforce."""
        for name, task in sorted(self.tasks.items()):
            declared = task.declared
            blocking = not inspect.iscoroutinefunction(inspect.unwrap(task.function))
            queue = declared.queue or self.settings.queue_of(name)
            if declared.soft_timeout is not None and blocking and queue in served:
                raise SettingsError(
                    f"task {name!r} has a soft_timeout and is not async: the pool's threads "
                    "cannot be interrupted in blocking code; use a pool of processes, such as the "
                    "default, make the task 'async def', or leave soft_timeout out"
                )

    def _min_slots(self, options: WorkerOptions, max_slots: int) -> int:
        """Return the minimum number of slots, 0 if the number is fixed."""
        min_slots = self.settings.min_concurrency
        if options.concurrency is not None or min_slots == max_slots:
            return 0
        if min_slots > max_slots:
            raise SettingsError(
                f"setting 'min_concurrency' is {min_slots}, more than the {max_slots} slots of "
                "the worker; allowed is: at most concurrency"
            )
        return min_slots

    def _make_pool(self, options: WorkerOptions, executor: Executor, spool: str) -> WorkerPool:
        max_slots = options.concurrency or self.settings.concurrency
        min_slots = 0 if options.concurrency is not None else self.settings.min_concurrency
        if max_slots:  # `_info` checks the pool's default
            min_slots = self._min_slots(options, max_slots)
        merged = {
            **({"concurrency": max_slots} if max_slots else {}),
            **({"initial": min_slots} if min_slots else {}),
            "executor": executor,
            "loader": _LOADER,
            "arguments": {"path": options.path, "overrides": self.overrides, "spool": spool},
            **(options.pool_options or {}),
        }
        return self.plugins.make(WORKER_POOL, options.pool or self.settings.pool, options=merged)
