"""`EventMQ`, the class that users instantiate: ``app = EventMQ("shop")``."""

from __future__ import annotations

import importlib
import importlib.util
from functools import cached_property
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from eventmq import hints
from eventmq.app.broker import check_metrics_address, make_broker, make_store
from eventmq.app.schedules import Declared, Schedules, importing
from eventmq.app.wiring import Components
from eventmq.app.worker import Callbacks, WorkerFactory, WorkerOptions
from eventmq.client.handle import DEFAULT
from eventmq.client.submit import SubmitBatch
from eventmq.client.templates import EncodedJob
from eventmq.client.waiting import Completed, Waited, wait
from eventmq.clock import SystemClock
from eventmq.errors import NotAllowed, SettingsError, StoreError
from eventmq.graph import Signature
from eventmq.settings import load_settings
from eventmq.task import shared, values
from eventmq.task.options import CallOptions, TaskOptions, check_defaults
from eventmq.task.task import NamedTask, header_text, named_arguments, named_template, write_raw

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping, Sequence

    from typing_extensions import Self, Unpack

    from eventmq.app.embedded import Embedded
    from eventmq.broker.runner import BrokerRunner
    from eventmq.client.handle import Default, Job
    from eventmq.client.topics import Subscription
    from eventmq.clock import Clock
    from eventmq.execution.executor import Executor
    from eventmq.interfaces import EventLogReader, StoreTools, Upkeep
    from eventmq.policies import Timing
    from eventmq.registry.manager import PluginManager
    from eventmq.scheduler.runner import BeatRunner
    from eventmq.settings import Settings
    from eventmq.task.options import CallKeywords, TaskKeywords
    from eventmq.task.shared import AsyncStream, Decorator
    from eventmq.task.task import AsyncStreamTask, AsyncTask, StreamTask, Task
    from eventmq.worker.runner import WorkerRunner

__all__ = ["EventMQ"]

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound="Callable[[], Any]")


class EventMQ:
    """An app: tasks, settings, and the connection to a broker.

    The constructor only reads the settings; plugins load and connections open when they are first
    used. Thread-safe, and safe after a fork: the child process opens its own connection.

    Args:
        name: Name in logs and listings.
        broker: URL of the broker, or several; ``memory://`` runs broker and worker in this process.
        serializer: Name of the serializer of arguments.
        result_backend: Name or URL of the result backend.
        imports: Modules with tasks, imported by workers.
        plugins: Plugins of this app: modules, their names, or objects.
        task_defaults: Options of all tasks that do not set them, such as ``{"timeout": 60}``; also
            of shared tasks that use this app.
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
        task_defaults: Mapping[str, Any] | None = None,
        clock: Clock | None = None,
        **settings: Any,
    ) -> None:
        settings |= {"broker": broker, "serializer": serializer}
        settings |= {"result_backend": result_backend, "imports": imports}
        self.name = name or "eventmq"
        #: Arguments of `override`, for processes that load the app again.
        self.overrides: dict[str, Any] = {}
        self.callbacks = Callbacks()
        self._arguments = settings
        self._tasks: dict[str, Task[Any, Any]] = {}
        #: Plugins, client, and what runs in this process.
        self.components = Components(
            self,
            name=self.name,
            settings=load_settings(settings),
            plugins=plugins,
            task_defaults=task_defaults or {},
            clock=clock or SystemClock(),
            embed=self._embed,
        )
        check_defaults(self.components.task_defaults, self.components.task_options)
        shared.register_app(self.components)

    def __repr__(self) -> str:
        return f"<EventMQ {self.name}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise `AttributeError`, with a hint for a name of Celery's API."""
            return hints.find_attribute(self, name, hints.APP)

    @property
    def settings(self) -> Settings:
        """The settings."""
        return self.components.settings

    @property
    def clock(self) -> Clock:
        """The clock."""
        return self.components.clock

    @property
    def plugins(self) -> PluginManager:
        """The plugins, loaded when first used."""
        return self.components.plugins

    def override(self, **settings: Any) -> None:
        """Set settings that take precedence over all others, before the app is used.

        Raises:
            SettingsError: A setting is unknown, or its value is not allowed.
            NotAllowed: The app is in use.
        """
        if not settings:
            return
        if self.components.started:
            raise NotAllowed(f"app {self.name!r} is in use; override settings before")
        overrides = {**self.overrides, **settings}
        self.components.settings = load_settings({**self._arguments, **overrides})
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
            function: The function, if there are no options.
            **options: See `eventmq.task.TaskOptions`; plugins declare others.

        Raises:
            SettingsError: A value is not allowed, or another task has the name.
        """
        components = self.components
        declared = components.with_defaults(options) or TaskOptions.read(
            options, components.task_options
        )

        def decorate(function: Callable[..., Any]) -> Task[Any, Any]:
            task = shared.declare(function, declared, lambda: self.components)
            shared.add_task(self._tasks, task)
            return task

        return decorate if function is None else decorate(function)

    @property
    def tasks(self) -> Mapping[str, Task[Any, Any]]:
        """The tasks of the app, and shared tasks of other names."""
        return shared.TaskTable(self._tasks, self.components)

    def load_tasks(self) -> None:
        """Import the modules of the setting ``imports``.

        Raises:
            SettingsError: A module cannot be imported.
        """
        for name in self.settings.imports:
            try:
                importlib.import_module(name)
            except ImportError as error:
                raise SettingsError(
                    f"module {name!r} of the setting imports cannot be imported: {error}"
                ) from error

    def autodiscover(self, *packages: str, module: str = "tasks") -> list[str]:
        """Import the modules with tasks of packages: ``shop.tasks`` and ``billing.tasks``.

        Call it in the module of the app, below the line that makes the app, since these modules
        import the app. A package without such a module is skipped.

        Args:
            *packages: Names of packages.
            module: Name of the module in each package.

        Returns:
            The modules that were imported.

        Raises:
            SettingsError: A package does not exist, or no package has such a module.
        """
        imported = []
        for package in packages:
            values.text("a package of autodiscover", package)
            name = f"{package}.{module}"
            try:
                exists = importlib.util.find_spec(name) is not None
            except ModuleNotFoundError as error:
                raise SettingsError(
                    f"autodiscover({package!r}): it cannot be imported as a package: {error}"
                ) from error
            if exists:
                importlib.import_module(name)
                imported.append(name)
        if not imported:
            raise SettingsError(
                f"autodiscover found no module {module!r} in {', '.join(packages) or 'no package'}"
                '; name packages that have one, as in app.autodiscover("shop", "billing")'
            )
        self.components.discovered.update(imported)
        return imported

    # Jobs

    def job(self, job_id: str) -> Job[Any]:
        """Return the handle of a job.

        Raises:
            JobNotFound: No broker has it.
            TypeError: The id is not text.
            BrokerUnavailable: A broker that may have it did not answer.
        """
        return self.components.client.results.find(job_id).wait()

    async def ajob(self, job_id: str) -> Job[Any]:
        """Do the same as `job`, in a coroutine."""
        return await self.components.client.results.find(job_id)

    def cancel(self, job_id: str, reason: str = "") -> bool:
        """Cancel a job by its id; see `Job.cancel`.

        Raises:
            JobNotFound: No broker has it.
            BrokerUnavailable: A broker that may have it did not answer.
        """
        return self.job(job_id).cancel(reason)

    async def acancel(self, job_id: str, reason: str = "") -> bool:
        """Do the same as `cancel`, in a coroutine."""
        return await (await self.ajob(job_id)).acancel(reason)

    def send(
        self,
        name: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[CallKeywords],
    ) -> Job[Any]:
        """Submit a job for a task by its name, without access to its code.

        Args:
            name: Name of the task.
            args: Positional arguments: a list or tuple.
            kwargs: Keyword arguments: a mapping.
            **options: ``queue`` and others; see `eventmq.task.CallOptions`.

        Raises:
            SettingsError: A value is not allowed.
            BrokerUnavailable: There was no receipt within ``submit_timeout``.
            SubmitError: The broker refused the job.
        """
        template, job_id = named_template(self.components, name, options)
        arguments = named_arguments(name, args, kwargs)
        return self.components.submitter.submit(template, *arguments, job_id)

    async def asend(
        self,
        name: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[CallKeywords],
    ) -> Job[Any]:
        """Do the same as `send`, in a coroutine."""
        template, job_id = named_template(self.components, name, options)
        arguments = named_arguments(name, args, kwargs)
        return await self.components.submitter.asubmit(template, *arguments, job_id)

    def send_many(
        self,
        name: str,
        calls: Iterable[tuple[Sequence[Any], Mapping[str, Any]]],
        *,
        job_ids: Sequence[str] | None = None,
        **options: Unpack[CallKeywords],
    ) -> list[Job[Any]]:
        """Submit one job per call of a task by its name, and return after all receipts.

        They travel in parts of up to 1,000 jobs, each stored completely or not at all. Inside
        `EventMQ.batch` they are sent with the batch.

        Args:
            name: Name of the task.
            calls: Pairs of positional and keyword arguments.
            job_ids: An id for each job; made here if None. A job whose id the broker already has is
                not stored a second time, and counts as confirmed.
            **options: Options of all jobs, as in `EventMQ.send`, except ``job_id``.

        Returns:
            The handles, in order.

        Raises:
            SettingsError: A value is not allowed, or there is not one id per call.
            SerializationError: Arguments cannot be encoded; nothing was sent.
            BatchError: Some jobs were not confirmed; its ``jobs`` has the status of each.
        """
        pairs = list(calls)
        template, job_id = named_template(self.components, name, options)
        if job_id is not None:
            raise SettingsError("job_id is the id of one job; for many there is job_ids")
        ids = _check_ids(job_ids, len(pairs))
        submitter = self.components.submitter
        with SubmitBatch(submitter):
            return [
                submitter.submit(template, *named_arguments(name, *pair), each)
                for pair, each in zip(pairs, ids, strict=True)
            ]

    def batch(self) -> SubmitBatch:
        """Return a context manager; jobs submitted inside it are sent together at its exit."""
        return SubmitBatch(self.components.submitter)

    def send_raw(
        self,
        queue: str,
        body: bytes | Sequence[bytes],
        headers: Mapping[str, Any] | None = None,
        *,
        job_id: str | None = None,
    ) -> Job[Any]:
        """Submit a job with a given body, to workers of any kind.

        Args:
            queue: Name of the queue.
            body: The body, sent unchanged; or frames, for a task that serves frames in this queue.
            headers: Names as on the wire; True stands for a header without a value.
            job_id: Its id; made here if None.

        Raises:
            SettingsError: A value is not allowed.
            BrokerUnavailable: There was no receipt within ``submit_timeout``.
            SubmitError: The broker refused the job.
        """
        components = self.components
        encoded = write_raw(queue, body, headers, job_id or components.ids.new())
        return components.submitter.submit_raw(encoded).wait()

    def send_encoded(self, job_id: str, queue: str, headers: str, body: bytes) -> Job[Any]:
        """Submit a job, or a graph, that `eventmq.graph.Expression.encode` made in some process.

        Middlewares do not run again. Inside `EventMQ.batch` a job is sent with the batch.

        Args:
            job_id: Its id. If the broker has it already, it is not stored a second time.
            queue: Name of the queue.
            headers: The header text.
            body: The body.

        Raises:
            NotAllowed: It is a graph, and a batch is open.
            BrokerUnavailable: There was no receipt within ``submit_timeout``.
            SubmitError: The broker refused the job.
        """
        encoded = EncodedJob(job_id, queue, headers, body)
        return self.components.submitter.submit_raw(encoded).wait()

    async def asend_raw(
        self,
        queue: str,
        body: bytes | Sequence[bytes],
        headers: Mapping[str, Any] | None = None,
        *,
        job_id: str | None = None,
    ) -> Job[Any]:
        """Do the same as `send_raw`, in a coroutine."""
        components = self.components
        encoded = write_raw(queue, body, headers, job_id or components.ids.new())
        return await components.submitter.submit_raw(encoded)

    def follow_raw(
        self,
        queue: str,
        body: bytes | Sequence[bytes],
        headers: Mapping[str, Any] | None = None,
        *,
        job_id: str,
        on_end: Callable[[Job[Any], Exception | None], None],
    ) -> Job[Any]:
        """Submit like `send_raw`, without waiting, and call back when the job has ended.

        Args:
            queue: Name of the queue.
            body: The body, or frames.
            headers: Names as on the wire.
            job_id: Its id.
            on_end: Called once in the client's thread, where it must not block: with the job, whose
                ``get()`` then returns at once, and None; or with None and the error if the job was
                not submitted, or its end is not known.

        Raises:
            SettingsError: A value is not allowed.
            BrokerUnavailable: The app was closed.
        """
        return self.components.submitter.track(write_raw(queue, body, headers, job_id), on_end)

    # Graphs

    def signature(
        self,
        name: str,
        *args: Any,
        immutable: bool = False,
        options: CallKeywords | None = None,
        **kwargs: Any,
    ) -> Signature:
        """Return a call of a task by its name as data, without access to its code.

        Args:
            name: Name of the task.
            *args: Positional arguments.
            immutable: It does not get the result of the jobs before it, like ``task.si(...)``.
            options: ``queue`` and others; see `eventmq.task.CallOptions`.
            **kwargs: Keyword arguments.

        Raises:
            SettingsError: An option is not allowed.
        """
        chosen = CallOptions.read(options or {}).explicit()
        origin = NamedTask(self.components, name, chosen)
        return Signature(name, args, kwargs, chosen, immutable=immutable, origin=origin)

    # Waiting

    def wait(self, jobs: Iterable[Job[Any]], timeout: float | Default | None = DEFAULT) -> Waited:
        """Wait until all jobs have ended or the timeout has passed.

        Returns:
            ``(done, pending)``, each in the order of ``jobs``.
        """
        return wait(list(jobs), self.components.client.results, timeout).wait()

    async def await_(
        self, jobs: Iterable[Job[Any]], timeout: float | Default | None = DEFAULT
    ) -> Waited:
        """Do the same as `wait`, in a coroutine."""
        return await wait(list(jobs), self.components.client.results, timeout)

    def as_completed(
        self, jobs: Iterable[Job[Any]], timeout: float | Default | None = DEFAULT
    ) -> Completed:
        """Return an iterable, for ``for`` and ``async for``, of jobs in the order of their ends.

        Iteration raises `ResultTimeout` when the timeout has passed.
        """
        return Completed(jobs, self.components.client.results, timeout)

    # Topics and calls of the broker

    def publish(self, topic: str, value: object) -> None:
        """Publish a value to the current subscribers of the topic.

        Raises:
            BrokerUnavailable: No broker could be reached within ``submit_timeout``.
        """
        self.components.client.topics.publish(topic, value).wait()

    async def apublish(self, topic: str, value: object) -> None:
        """Do the same as `publish`, in a coroutine."""
        await self.components.client.topics.publish(topic, value)

    def publish_raw(
        self, topic: str, body: bytes, headers: Mapping[str, Any] | None = None
    ) -> None:
        """Publish bytes unchanged, with headers as in `send_raw`; otherwise like `publish`."""
        self.components.client.topics.publish_raw(topic, header_text(headers or {}), body).wait()

    def subscribe(self, *topics: str) -> Subscription:
        """Return a subscription to topics, for ``for`` and ``async for`` over its messages.

        Args:
            *topics: Prefixes, as in ZeroMQ; "" is every topic.
        """
        return self.components.client.topics.subscribe(topics)

    def ask(self, name: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """Call the broker directly, as the command line and the gateways do.

        :ref:`calls` lists the calls, with arguments, results and an example.

        Args:
            name: Name of the call, such as ``"queues"``.
            arguments: Name -> value, as in the list.

        Returns:
            The answer as plain data: maps are dicts with text as keys, lists are lists.

        Raises:
            BrokerUnavailable: No answer within ``submit_timeout``. A change that the call requests
                may have been made.
            JobNotFound: The broker does not know the job in the arguments.
            QueueNotFound: The broker does not know the queue in the arguments.
            NotAllowed: It is for admin keys only, or has several answers, for which there are
                methods: ``job.get()``, ``job.stream()``, ``app.subscribe()``.
            ProtocolError: The broker does not know it, refuses the arguments, or is a legacy one.
            TypeError: The arguments are not a mapping, or one is missing.
        """
        return self.components.ask(name, arguments).wait()

    def begin_ask(self, name: str, arguments: Mapping[str, Any] | None = None) -> Callable[[], Any]:
        """Make a call like `ask`, without waiting for the answer.

        Args:
            name: Name of the call.
            arguments: Name -> value.

        Returns:
            A function that waits for the answer and returns it, or raises the errors of `ask`. Call
            it once.

        Raises:
            BrokerUnavailable: The app was closed.
            NotAllowed: The call has several answers.
            TypeError: The arguments are not a mapping, or one is missing.
        """
        return self.components.ask(name, arguments, begin=True).wait

    async def aask(self, name: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """Do the same as `ask`, in a coroutine."""
        return await self.components.ask(name, arguments)

    # Schedules

    @cached_property
    def schedules(self) -> Schedules:
        """The schedules of the app: lists, runs, enables, disables and removes them."""
        return Schedules(self.components, lambda: self.tasks)

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
        """Submit a job on a schedule.

        While a module is being imported this declares a schedule of the app's code, and sends
        nothing: every beat of the app stores these schedules when it starts. At any other time the
        schedule is stored when this returns.

        Args:
            name: Name of the schedule. An existing one of this name is replaced, and the new one
                continues where it was unless ``trigger`` differs.
            signature: ``task.s(...)``.
            trigger: ``every(...)``, ``cron(...)`` or ``at(...)``.
            misfire: What happens with fire times that were missed while no beat ran: ``skip`` them,
                fire ``one`` job for all of them, or ``all`` within ``window``.
            window: Seconds.
            overlap: What happens while the previous job has not ended: ``allow`` another one,
                ``skip`` the fire time, or ``queue`` one job until the previous one has ended.
            jitter: Maximum delay in seconds, always the same for one fire time.
            run_count: Total number of runs.
            nohaste: False also fires once immediately.
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
            self.components.needs_beat()

    def unschedule(self, name: str) -> bool:
        """Remove a schedule; return whether it existed.

        While a module is being imported it withdraws a declaration.
        """
        if importing():
            self.schedules.withdraw(name)
            return True
        return self.schedules.remove(name)

    # Processes

    def make_broker(self, **options: Any) -> BrokerRunner:
        """Return a broker with these settings, to be bound and run.

        Args:
            **options: ``binds``: port (``main worker admin publish subscribe``) to address;
                ``store``: name or URL; ``store_options``; ``context``: a ZeroMQ context.

        Raises:
            NotAllowed: Other machines can reach ``metrics_bind``, and ``insecure`` is not set. No
                store was opened or created.
        """
        return make_broker(self.settings, self.plugins, self.clock, **options)

    def make_worker(self, **options: Any) -> WorkerRunner:
        """Return a worker for the app's tasks, to be run. Call `load_tasks` first.

        Args:
            **options: See `eventmq.app.worker.WorkerOptions`.
        """
        return self._worker_factory().worker(WorkerOptions(**options))

    def make_executor(self, spool: str = "") -> Executor:
        """Return the executor of the app's tasks, for a pool.

        Args:
            spool: Folder of the worker for inputs that are too large for a REQUEST.

        Raises:
            SettingsError: A task names an unknown retry policy or serializer.
        """
        return self._worker_factory().executor(spool=spool)

    def serve_metrics(
        self, read: Callable[[], Mapping[str, Any]], address: str
    ) -> Callable[[], None]:
        """Serve the metrics of this process to a monitoring system; return a function to stop it.

        Args:
            read: Returns the figures, from any thread; see `eventmq.hookspecs`.
            address: ``host:port`` from ``metrics_bind``; if empty, nothing is served.

        Raises:
            NotAllowed: Other machines can reach the address, and ``insecure`` is not set.
            PluginError: No plugin can serve metrics.
        """
        if not address:
            return lambda: None
        check_metrics_address(address, insecure=self.settings.insecure)
        return self.plugins.serve_metrics(read, address)

    def inform_as(self, role: str) -> None:
        """Set the role of this process, ``client`` or ``scheduler``, before the client is used."""
        self.components.role = role

    def make_beat(self, *, on_ready: Callable[[], None] | None = None) -> BeatRunner:
        """Return a scheduler of the app, to be run. Call `load_tasks` first.

        Args:
            on_ready: Called once, in its thread, when it has read the schedules.
        """
        from eventmq.app.beat import make_beat

        return make_beat(self.components, self.schedules, on_ready=on_ready)

    def _worker_factory(self) -> WorkerFactory:
        return WorkerFactory(
            settings=self.settings,
            plugins=self.plugins,
            clock=self.clock,
            tasks=self.tasks,
            callbacks=self.callbacks,
            overrides=self.overrides,
        )

    def _embed(self) -> Embedded:
        from eventmq.app.embedded import Embedded  # imports broker and worker

        self.load_tasks()
        return Embedded(
            self.settings,
            self.tasks,
            make_broker=self.make_broker,
            make_worker=self.make_worker,
            make_beat=self.make_beat,
            scheduled=self.schedules.any_in_code,
        )

    def store_tools(self) -> StoreTools | None:
        """Return the tools of the store of these settings, None if it has none."""
        return make_store(self.settings, self.plugins).tools

    def store_upkeep(self) -> Upkeep | None:
        """Return the upkeep of the shared store of these settings, None if it is not shared."""
        return make_store(self.settings, self.plugins).upkeep

    def event_log(self, url: str | None = None) -> EventLogReader:
        """Return a reader of a store's event log in this process; no broker needs to run.

        Args:
            url: Name or URL of the store; None for the store of the settings, in their data
                directory.

        Raises:
            StoreError: The store does not exist, or only its broker can read the events.
        """
        reader = make_store(self.settings, self.plugins, url).event_log()
        if reader is None:
            raise StoreError(
                f"only its broker can read the events of the store {url or self.settings.store!r}"
            )
        return reader

    # Callbacks of workers

    def on_worker_start(self, function: F) -> F:
        """Run a function in the worker's main process before it takes jobs.

        Use it as a decorator, ``@app.on_worker_start``, like the others. If the pool has processes
        of its own, the main process runs no jobs. If the function raises, the worker ends with that
        error.
        """
        self.callbacks.worker_start.append(function)
        return function

    def on_worker_stop(self, function: F) -> F:
        """Run a function in the worker's main process after its last job.

        It does not run if the process is killed. An exception is logged.
        """
        self.callbacks.worker_stop.append(function)
        return function

    def on_child_start(self, function: F) -> F:
        """Run a function in each process that runs jobs, before its first job.

        Use it to open connections. It also runs in a child process that replaces another. If the
        pool has no processes of its own it runs once, in the worker's process. If it raises, the
        child ends.
        """
        self.callbacks.child_start.append(function)
        return function

    def on_child_stop(self, function: F) -> F:
        """Run a function in each process that runs jobs, after its last job.

        Use it to flush what is still in memory: a child process ends without Python's exit
        handlers. It does not run if the process is killed, and an exception is logged. If the pool
        has no processes of its own it runs once, in the worker's process, before the functions of
        `on_worker_stop`.
        """
        self.callbacks.child_stop.append(function)
        return function

    # The end

    def close(self) -> None:
        """Close connections, and stop what runs in this process. Idempotent and final."""
        self.components.close()
        self.schedules.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check_ids(job_ids: Sequence[str] | None, n: int) -> Sequence[str | None]:
    if job_ids is None:
        return [None] * n
    if len(job_ids) != n:
        raise SettingsError(f"there are {n} calls and {len(job_ids)} job_ids; allowed is one each")
    for job_id in job_ids:
        values.text("one of job_ids", job_id)
    return job_ids
