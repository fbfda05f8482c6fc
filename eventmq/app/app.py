"""What users type: ``app = EventMQ("shop")``."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from eventmq.app.broker import make_broker, store_tools
from eventmq.app.bulk import BulkJobs
from eventmq.app.callbacks import WorkerCallbacks
from eventmq.app.composing import Composing
from eventmq.app.raw import RawJobs
from eventmq.app.scheduling import Scheduling
from eventmq.app.wiring import Wiring
from eventmq.app.worker import WorkerOptions, make_executor, make_worker
from eventmq.client.handle import DEFAULT
from eventmq.client.submit import Batch
from eventmq.client.waiting import Completed, Waited, await_, wait
from eventmq.clock import SystemClock
from eventmq.errors import NotAllowed, SettingsError
from eventmq.settings import load_settings
from eventmq.task import shared
from eventmq.task.options import TaskOptions
from eventmq.task.task import header_text, named_arguments, named_template

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping, Sequence

    from typing_extensions import Self, Unpack

    from eventmq.broker.runner import BrokerRunner
    from eventmq.client.handle import Default, Job
    from eventmq.client.topics import Subscription
    from eventmq.clock import Clock
    from eventmq.execution.executor import Executor
    from eventmq.interfaces import StoreTools
    from eventmq.registry.manager import PluginManager
    from eventmq.settings import Settings
    from eventmq.task.kinds import AsyncStreamTask, AsyncTask, StreamTask
    from eventmq.task.options import CallKeywords, TaskKeywords
    from eventmq.task.shared import AsyncStream, Decorator
    from eventmq.task.task import Host, Task
    from eventmq.worker.runner import WorkerRunner

__all__ = ["EventMQ"]

P = ParamSpec("P")
R = TypeVar("R")


class EventMQ(BulkJobs, Composing, Scheduling, RawJobs, WorkerCallbacks):
    """An app: tasks, settings, and the connection to a broker.

    Making one reads the settings and nothing else; plugins load and connections open at the first
    use. It is thread-safe, and right after a fork: the child connects anew.

    Args:
        name: For people: in logs and listings.
        broker: URL of the broker, or several; ``memory://`` runs broker and worker in here.
        serializer: Name of the serializer of arguments.
        result_backend: Name or URL of the result backend.
        imports: Modules with tasks, imported by workers.
        plugins: Plugins of this app: modules, their names, or objects.
        clock: Reads time, for tests.
        **settings: Any other setting; see the page of settings.

    Raises:
        SettingsError: A setting is unknown, or its value is not allowed.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        broker: str | Sequence[str] | None = None,
        serializer: str | None = None,
        result_backend: str | None = None,
        imports: Sequence[str] | None = None,
        plugins: Iterable[object] = (),
        clock: Clock | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        settings |= {"broker": broker, "serializer": serializer}
        settings |= {"result_backend": result_backend, "imports": imports}
        self.name = name or "eventmq"
        self.clock: Clock = clock or SystemClock()
        #: Settings given by `override`, for processes that load the app anew.
        self.overrides: dict[str, Any] = {}
        self._arguments = settings
        self._tasks: dict[str, Task[Any, Any]] = {}
        self._wiring = Wiring(
            self,
            name=self.name,
            settings=load_settings(settings),
            plugins=plugins,
            clock=self.clock,
        )
        shared.offer_host(self._wiring)

    def __repr__(self) -> str:
        return f"<EventMQ {self.name}>"

    @property
    def settings(self) -> Settings:
        """The settings."""
        return self._wiring.settings

    @property
    def plugins(self) -> PluginManager:
        """The plugins; the first use loads them."""
        return self._wiring.plugins

    def override(self, **settings: Any) -> None:
        """Give settings that win over all others, before the app is used.

        Raises:
            SettingsError: A setting is unknown, or its value is not allowed.
            NotAllowed: The app is in use.
        """
        if not settings:
            return
        if self._wiring.started:
            raise NotAllowed(f"app {self.name!r} is in use; override settings before")
        overrides = {**self.overrides, **settings}
        self._wiring.settings = load_settings({**self._arguments, **overrides})
        self.overrides = overrides

    # Tasks

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...

    @overload
    def task(self, function: AsyncStream[P], /) -> AsyncStreamTask[P]: ...

    @overload
    def task(self, function: Callable[P, Generator[Any, Any, R]], /) -> StreamTask[P, R]: ...

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...

    @overload
    def task(self, /, **options: Unpack[TaskKeywords]) -> Decorator: ...

    def task(self, function: Any = None, /, **options: Any) -> Any:
        """Declare a task: ``@app.task``, or ``@app.task(queue="fast", retries=3)``.

        Args:
            function: The function, where there are no options.
            **options: See `eventmq.task.TaskOptions`.

        Raises:
            SettingsError: A value is not allowed, or the name is taken.
        """
        read = TaskOptions.read(options)

        def decorate(function: Callable[..., Any]) -> Task[Any, Any]:
            task = shared.declare(function, read, lambda: self.host)
            shared.add_task(self._tasks, task)
            return task

        return decorate if function is None else decorate(function)

    @property
    def host(self) -> Host:
        """What tasks know of the app; see `Task.bound_to`."""
        return self._wiring

    @property
    def wiring(self) -> Wiring:
        """The parts of the app, for what else is made of them."""
        return self._wiring

    @property
    def tasks(self) -> Mapping[str, Task[Any, Any]]:
        """Its tasks and, where it has none of their name, the shared ones."""
        return shared.TaskTable(self._tasks, self)

    def load_tasks(self) -> None:
        """Import the modules of the setting ``imports``.

        Raises:
            SettingsError: One cannot be imported.
        """
        for name in self.settings.imports:
            try:
                importlib.import_module(name)
            except ImportError as error:
                msg = f"module {name!r} of the setting imports cannot be imported: {error}"
                raise SettingsError(msg) from error

    # Jobs

    def job(self, job_id: str) -> Job[Any]:
        """Return the handle of a job.

        Raises:
            JobNotFound: No broker knows it.
            BrokerUnavailable: One that might know it did not answer.
        """
        return self._wiring.client.results.find(job_id)

    async def ajob(self, job_id: str) -> Job[Any]:
        """Do the same as `job` in a coroutine."""
        return await self._wiring.client.results.afind(job_id)

    def cancel(self, job_id: str, reason: str = "") -> bool:
        """Cancel a job by its id; see `Job.cancel`.

        Raises:
            JobNotFound: No broker knows it.
            BrokerUnavailable: One that might know it did not answer.
        """
        return self.job(job_id).cancel(reason)

    async def acancel(self, job_id: str, reason: str = "") -> bool:
        """Do the same as `cancel` in a coroutine."""
        return await (await self.ajob(job_id)).acancel(reason)

    def send(
        self,
        name: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[CallKeywords],
    ) -> Job[Any]:
        """Submit a job for a task by its name, without having its code.

        Args:
            name: Of the task.
            args: Positional arguments: a list or tuple.
            kwargs: Keyword arguments: a mapping.
            **options: ``queue`` and others; see `eventmq.task.CallOptions`.

        Raises:
            SettingsError: A value is not allowed.
            BrokerUnavailable: There was no receipt within ``submit_timeout``.
            SubmitError: The broker refused the job.
        """
        template, job_id = named_template(self._wiring, name, options)
        given = named_arguments(name, args, kwargs)
        return self._wiring.submitter.submit(template, *given, job_id)

    async def asend(
        self,
        name: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[CallKeywords],
    ) -> Job[Any]:
        """Do the same as `send` in a coroutine."""
        template, job_id = named_template(self._wiring, name, options)
        given = named_arguments(name, args, kwargs)
        return await self._wiring.submitter.asubmit(template, *given, job_id)

    def batch(self) -> Batch:
        """Return a context manager: what is submitted inside travels together at the exit."""
        return Batch(self._wiring.submitter)

    # Waiting

    def wait(self, jobs: Iterable[Job[Any]], timeout: float | Default | None = DEFAULT) -> Waited:
        """Wait until all jobs have ended or the time is up.

        Returns:
            ``(done, pending)``, each in the order of ``jobs``.
        """
        return wait(list(jobs), self._wiring.client.results, timeout)

    async def await_(
        self, jobs: Iterable[Job[Any]], timeout: float | Default | None = DEFAULT
    ) -> Waited:
        """Do the same as `wait` in a coroutine."""
        return await await_(list(jobs), self._wiring.client.results, timeout)

    def as_completed(
        self, jobs: Iterable[Job[Any]], timeout: float | Default | None = DEFAULT
    ) -> Completed:
        """Return an iterable, for ``for`` and ``async for``, of jobs in the order of their ends.

        Iterating raises `ResultTimeout` when the time is up.
        """
        return Completed(jobs, self._wiring.client.results, timeout)

    # Topics and questions

    def publish(self, topic: str, value: object) -> None:
        """Publish a value to whoever is subscribed to the topic now.

        Raises:
            BrokerUnavailable: No broker could be reached within ``submit_timeout``.
        """
        self._wiring.client.topics.publish(topic, value)

    async def apublish(self, topic: str, value: object) -> None:
        """Do the same as `publish` in a coroutine."""
        await self._wiring.client.topics.apublish(topic, value)

    def publish_raw(
        self, topic: str, body: bytes, headers: Mapping[str, Any] | None = None
    ) -> None:
        """Publish bytes as they are, with headers as in `send_raw`; else as `publish`."""
        self._wiring.client.topics.publish_raw(topic, header_text(headers or {}), body)

    def subscribe(self, *topics: str) -> Subscription:
        """Return what iterates, for ``for`` and ``async for``, over messages of these topics.

        Args:
            *topics: Prefixes, as in ZeroMQ; "" is every topic.
        """
        return self._wiring.client.topics.subscribe(topics)

    def ask(self, name: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """Ask the broker one of the operations of `eventmq.wire.calls`.

        Raises:
            BrokerUnavailable: No answer within ``submit_timeout``.
        """
        runner, timeout = self._wiring.client.runner, self.settings.submit_timeout
        return runner.ask(runner.new_call(name, dict(arguments or {}), timeout=timeout))

    def begin_ask(self, name: str, arguments: Mapping[str, Any] | None = None) -> Callable[[], Any]:
        """Ask without waiting for the answer.

        Returns:
            What waits for the answer and returns it, or raises what `ask` does. To be called once.

        Raises:
            BrokerUnavailable: The app was closed.
        """
        runner, timeout = self._wiring.client.runner, self.settings.submit_timeout
        return runner.begin_ask(runner.new_call(name, dict(arguments or {}), timeout=timeout))

    async def aask(self, name: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """Do the same as `ask` in a coroutine."""
        runner, timeout = self._wiring.client.runner, self.settings.submit_timeout
        return await runner.aask(runner.new_call(name, dict(arguments or {}), timeout=timeout))

    # Processes

    def make_broker(self, **options: Any) -> BrokerRunner:
        """Return a broker of these settings, to be bound and run.

        Args:
            **options: ``binds``: port (``main worker admin publish subscribe``) to address;
                ``store``: name or URL; ``store_options``; ``context``: of ZeroMQ.
        """
        return make_broker(self, **options)

    def make_worker(self, **options: Any) -> WorkerRunner:
        """Return a worker of the app's tasks, to be run. `load_tasks` comes first.

        Args:
            **options: See `eventmq.app.worker.WorkerOptions`.
        """
        return make_worker(self, WorkerOptions(**options))

    def make_executor(self, spool: str = "") -> Executor:
        """Return what runs jobs of the app's tasks, for a pool.

        Args:
            spool: Where the worker keeps what jobs take that no REQUEST can carry.

        Raises:
            SettingsError: A task names a retry policy or serializer that there is not.
        """
        return make_executor(self, spool=spool)

    def store_tools(self) -> StoreTools | None:
        """Return what looks after the files of the store of these settings, None without files."""
        return store_tools(self)

    # The end

    def close(self) -> None:
        """Close connections, and end what runs in this process. Idempotent; it is final."""
        self._wiring.close()
        self.schedules.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
