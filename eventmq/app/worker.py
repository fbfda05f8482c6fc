"""Makes the worker of an app and what runs its jobs: what ``eventmq worker`` runs."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from eventmq.app.keys import keys_of
from eventmq.errors import PluginError, SettingsError
from eventmq.execution.executor import Executor
from eventmq.registry.names import RESULT_BACKEND, WORKER_POOL, scheme
from eventmq.wire.results import ResultLocation, is_service, service_task
from eventmq.worker.inputs import SpoolDirectory, new_spool, read_spool
from eventmq.worker.session import SessionInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import zmq

    from eventmq.app.app import EventMQ
    from eventmq.execution.spec import TaskSpec
    from eventmq.interfaces import WorkerPool
    from eventmq.task.task import Task
    from eventmq.worker.runner import WorkerRunner

__all__ = ["LiveSpecs", "WorkerOptions", "make_executor", "make_worker"]

#: What a REPLY has around a result at most.
_FRAME_SLACK = 64 * 1024

#: Jobs at once in the pool ``asyncio``, unless told.
COROUTINES = 1000

#: Loads the executor in another process.
_LOADER = "eventmq.app.loading:load_executor"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How a worker differs from what the settings say; None leaves it to them.

    Attributes:
        path: ``module:attribute`` of the app, for pools whose processes load it anew.
        brokers: Addresses.
        queues: (weight, name) pairs.
        pool: Name of the pool.
        concurrency: Number of slots.
        pool_options: More options of the pool.
        tasks: What the worker knows instead of the app's tasks; it then says that it knows all.
        context: A ZeroMQ context to use.
        on_ready: Called once, in the worker's thread, when a broker knows the worker.
    """

    path: str = ""
    brokers: Sequence[str] | None = None
    queues: Sequence[tuple[int, str]] | None = None
    pool: str | None = None
    concurrency: int | None = None
    pool_options: Mapping[str, Any] | None = None
    tasks: Mapping[str, TaskSpec] | None = None
    context: zmq.Context[Any] | None = None
    on_ready: Callable[[], None] | None = None


class LiveSpecs(Mapping[str, "TaskSpec"]):
    """What a worker in the app's own process knows: also tasks that are declared later."""

    def __init__(self, tasks: Mapping[str, Task[Any, Any]]) -> None:
        self._tasks = tasks

    def __getitem__(self, name: str) -> TaskSpec:
        if is_service(name):
            return _by_message(self._tasks)[name].spec()
        return self._tasks[name].spec()

    def __iter__(self) -> Iterator[str]:
        return iter(_by_message(self._tasks))

    def __len__(self) -> int:
        return len(_by_message(self._tasks))


def _by_message(tasks: Mapping[str, Task[Any, Any]]) -> dict[str, Task[Any, Any]]:
    """Return tasks by the names that messages call them: also that of their service.

    Raises:
        SettingsError: Two tasks serve one service.
    """
    found = dict(tasks)
    for name, task in tasks.items():
        service = task.declared.majordomo
        if service is not None and found.setdefault(service_task(service), task) is not task:
            other = found[service_task(service)].name
            msg = f"two tasks serve the majordomo service {service!r}: {other} and {name}"
            raise SettingsError(msg)
    return found


def make_executor(
    app: EventMQ, tasks: Mapping[str, TaskSpec] | None = None, spool: str = ""
) -> Executor:
    """Return what runs the jobs of the app's tasks; see `EventMQ.make_executor`."""
    settings, plugins = app.settings, app.plugins
    if tasks is None:
        tasks = {name: task.spec() for name, task in _by_message(app.tasks).items()}
        for spec in tasks.values():
            _check(app, spec)
    return Executor(
        tasks,
        serializer=plugins.serializer,
        retry_policy=plugins.retry_policy,
        clock=app.clock,
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
        on_start=app.callbacks.child if app.callbacks.child_start else None,
    )


def _check(app: EventMQ, spec: TaskSpec) -> None:
    """Raise `SettingsError` for a task that names what there is not."""
    try:
        app.plugins.retry_policy(spec.retry_policy, spec.retry_options)
        if spec.serializer is not None:
            app.plugins.serializer(spec.serializer)
    except PluginError as error:
        raise SettingsError(f"task {spec.name!r}: {error}") from error


def make_worker(app: EventMQ, options: WorkerOptions) -> WorkerRunner:
    """Return a worker of the app; see `EventMQ.make_worker`."""
    from eventmq.worker.runner import WorkerRunner

    settings = app.settings
    if options.path:
        _check_backend(app)
    spool = new_spool()
    executor = make_executor(app, options.tasks, spool)
    pool = _make_pool(app, options, executor, spool)
    info = _info(app, options, executor, pool.slots)
    if options.tasks is None and not pool.interrupts:
        _check_soft_limits(app, {name for _, name in info.queues})
    runner = WorkerRunner(
        pool,
        brokers=settings.broker if options.brokers is None else options.brokers,
        info=info,
        max_frame=settings.max_frame,
        context=options.context,
        clock=app.clock,
        on_ready=options.on_ready,
        timeout_policy=executor.for_slot().timed_out,
    )
    runner.spool = SpoolDirectory(spool)
    runner.around = app.callbacks.worker
    if options.context is None:
        runner.keys = keys_of(settings)
    return runner


def _check_backend(app: EventMQ) -> None:
    """Raise `SettingsError` for a backend whose results nobody outside of the worker could read."""
    name = app.settings.result_backend
    if getattr(app.plugins.get(RESULT_BACKEND, name), "local", False):
        msg = f"the result backend {name!r} keeps results in the process that ran the job, and "
        msg += "this worker is a process of its own: nobody could read them; use the result "
        raise SettingsError(msg + "backend 'broker', or 'sqlite' for workers and clients of a host")


def _info(app: EventMQ, options: WorkerOptions, executor: Executor, slots: int) -> SessionInfo:
    """Return what a worker says about itself, and how patient it is."""
    settings = app.settings
    return SessionInfo(
        session="",
        queues=tuple(settings.queues if options.queues is None else options.queues),
        tasks=() if options.tasks is not None else tuple(executor.tasks),
        callables=settings.allow_callables,
        heartbeat=settings.heartbeat_interval,
        heartbeat_timeout=settings.heartbeat_timeout,
        shutdown_grace=settings.shutdown_grace,
        cancel_grace=settings.cancel_grace,
        max_abandoned_threads=settings.max_abandoned_threads or slots,
        slots=_least(app, options, slots),
    )


def _check_soft_limits(app: EventMQ, served: set[str]) -> None:
    """Raise `SettingsError` for a task whose ``soft_timeout`` the pool cannot keep."""
    for name, task in sorted(app.tasks.items()):
        declared = task.declared
        blocking = not inspect.iscoroutinefunction(inspect.unwrap(task.function))
        queue = declared.queue or app.settings.default_queue
        if declared.soft_timeout is not None and blocking and queue in served:
            msg = f"task {name!r} has a soft_timeout and is not async: the pool's threads cannot be"
            raise SettingsError(
                f"{msg} interrupted in blocking code; use the pool 'prefork', make the task "
                "'async def', or leave soft_timeout out"
            )


def _least(app: EventMQ, options: WorkerOptions, most: int) -> int:
    """Return how many slots the worker has at least, 0 where the number is fixed."""
    least = app.settings.min_concurrency
    if options.concurrency is not None or least == most:
        return 0
    if least > most:
        msg = f"setting 'min_concurrency' is {least}, more than the {most} slots of the worker"
        raise SettingsError(f"{msg}; allowed is: at most concurrency")
    return least


def _make_pool(app: EventMQ, options: WorkerOptions, executor: Executor, spool: str) -> WorkerPool:
    name = options.pool or app.settings.pool
    if name == "prefork" and not options.path:
        msg = "the pool 'prefork' loads the app in processes of its own and must know where it is: "
        raise SettingsError(msg + "name it as path='module:attribute', or use the pool 'threads'")
    own = COROUTINES if name == "asyncio" else os.cpu_count() or 1
    most = options.concurrency or app.settings.concurrency or own
    least = _least(app, options, most)
    given = {
        "concurrency": most,
        **({"initial": least} if least else {}),
        "executor": executor,
        "loader": _LOADER,
        "arguments": {"path": options.path, "overrides": app.overrides, "spool": spool},
        **(options.pool_options or {}),
    }
    return app.plugins.make(WORKER_POOL, name, options=given, app=app)
