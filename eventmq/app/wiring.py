"""Wiring: makes the components of an app from its settings and plugins, each when first used."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq.client.handle import ResultClient
from eventmq.client.submit import Submitter
from eventmq.client.topics import TopicClient
from eventmq.errors import NotAllowed, PluginError, SettingsError
from eventmq.job import IdFactory
from eventmq.policies import Timing
from eventmq.registry.manager import PluginManager
from eventmq.registry.names import RESULT_BACKEND, TRIGGER, scheme
from eventmq.task.options import TaskOptions
from eventmq.wire.calls import CALLS, METHODS
from eventmq.wire.outcomes import OutcomeReader
from eventmq.wire.results import ResultLocation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from eventmq.app.embedded import Embedded
    from eventmq.client.client import ClientRunner, Pending, Transport
    from eventmq.clock import Clock
    from eventmq.interfaces import Serializer, Trigger
    from eventmq.policies import Backoff
    from eventmq.settings import Settings
    from eventmq.task.options import RoleReaders
    from eventmq.wire.curve import ClientKeys

__all__ = [
    "MEMORY",
    "Client",
    "Components",
    "CurrentClock",
    "Triggers",
    "keys_of",
    "make_trigger",
]

#: Value of the setting ``broker`` with which broker and worker run in the app's process.
MEMORY = "memory://"

_live: weakref.WeakSet[Components] = weakref.WeakSet()

#: Objects that a forked child inherited: kept so that they are never finalised there.
_inherited: list[object] = []


def keys_of(settings: Settings) -> ClientKeys | None:
    """Return the keys for the connection to the broker, None if the settings name none.

    Raises:
        SettingsError: Only one of the two settings is set.
        KeyFileError: A file is missing or malformed, or others can read the secret one.
    """
    if not settings.key_file and not settings.broker_key_file:
        return None
    if not settings.key_file or not settings.broker_key_file:
        names = ("key_file", "broker_key_file")
        named, missing = names if settings.key_file else reversed(names)
        raise SettingsError(
            f"setting {named!r} from {settings.source(named)} goes with {missing!r}: set both, "
            "or neither if the broker has no keys"
        )
    from eventmq.wire.curve import client_keys

    return client_keys(settings.broker_key_file, settings.key_file)


#: Largest number of triggers in the cache; it is cleared when full.
_MAX_CACHED = 10_000


def make_trigger(plugins: PluginManager, text: str) -> Trigger:
    """Return the trigger of a text such as ``every:{"seconds":30.0}``.

    Raises:
        SettingsError: There is no such trigger, or its options are not allowed.
    SettingsError: The trigger does not exist, or its options are not allowed.
    """
    timing = Timing.parse(text)
    try:
        return plugins.make(TRIGGER, timing.name, options=timing.options)
    except PluginError as error:
        raise SettingsError(str(error)) from error


class Triggers:
    """Trigger cache of a scheduler: many schedules share few triggers.

    Args:
        plugins: Plugins of the app.
    """

    def __init__(self, plugins: PluginManager) -> None:
        self._plugins = plugins
        self._cache: dict[str, Trigger] = {}

    def __call__(self, text: str) -> Trigger:
        """Return the trigger for a text; raises `SettingsError`."""
        trigger = self._cache.get(text)
        if trigger is None:
            if len(self._cache) >= _MAX_CACHED:
                self._cache.clear()
            trigger = self._cache[text] = make_trigger(self._plugins, text)
        return trigger


class Client(NamedTuple):
    """The client of an app: its runner, and what submits and asks through it."""

    runner: ClientRunner
    results: ResultClient
    submitter: Submitter
    topics: TopicClient


class CurrentClock:
    """Reads time from a clock that can be replaced: plugins keep theirs, and a test replaces it.

    Args:
        clock: The clock that it reads.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def now(self) -> float:
        """Return Unix time in seconds."""
        return self.clock.now()

    def monotonic(self) -> float:
        """Return seconds since an arbitrary fixed point."""
        return self.clock.monotonic()

    def boottime(self) -> float:
        """Return seconds since the machine was started."""
        return self.clock.boottime()

    def boot_id(self) -> str:
        """Return the id of the current boot of the machine."""
        return self.clock.boot_id()


class Components:
    """Components of an app, each made once when first used. Thread-safe.

    It is also the app of its tasks (`eventmq.task.shared.SharedTaskApp`).

    Args:
        app: The app, which plugins get.
        name: Name of the app.
        settings: Settings of the app; may be replaced until a component is made.
        plugins: The argument ``plugins`` of the app.
        task_defaults: Options of all tasks that do not set them.
        clock: Reads time.
        embed: Method of the app that makes broker and worker of this process, for ``memory://``.
    """

    def __init__(
        self,
        app: object,
        *,
        name: str,
        settings: Settings,
        plugins: Iterable[object],
        task_defaults: Mapping[str, Any],
        clock: Clock,
        embed: Callable[[], Embedded],
    ) -> None:
        self.name = name
        self.settings = settings
        self.clock = clock
        self._plugin_clock = CurrentClock(clock)
        self.task_defaults = task_defaults
        self.closed = False
        self.ids = IdFactory(clock)
        #: Role of this process in the client's INFORM.
        self.role = "client"
        self._app = weakref.ref(app)
        self._embed = weakref.WeakMethod(embed)
        self._arguments = tuple(plugins)
        self._lock = threading.RLock()
        self._plugins: PluginManager | None = None
        #: Options of tasks from plugins, and the settings with which those were loaded.
        self._task_options: tuple[Settings | None, RoleReaders] = (None, {})
        self._client: Client | None = None
        self._make_runner: Callable[[], ClientRunner] | None = None
        self._embedded: Embedded | None = None
        self._queues: set[str] = set()
        #: Modules that `EventMQ.autodiscover` has imported.
        self.discovered: set[str] = set()
        self._policies: set[Backoff] = set()
        _live.add(self)

    @property
    def started(self) -> bool:
        """Whether a component was made, so that the settings are fixed."""
        return self._plugins is not None

    @property
    def plugins(self) -> PluginManager:
        """The plugins, loaded when first used."""
        if self._plugins is None:
            with self._lock:
                if self._plugins is None:
                    self._load_plugins()
        assert self._plugins is not None  # noqa: S101 - loaded above
        return self._plugins

    def task_options(self) -> RoleReaders:
        """Return the options of tasks that plugins declare.

        Their plugins are loaded separately from the app's own: a task is declared before the app is
        used, when its settings may still change.
        """
        if self._plugins is not None:
            return self._plugins.task_options()
        settings, options = self._task_options
        if settings is not self.settings:
            manager = PluginManager(self.settings, clock=self._plugin_clock, app=self._app)
            manager.load(self._arguments)
            options = manager.task_options()
            self._task_options = self.settings, options
        return options

    def with_defaults(self, explicit: Mapping[str, Any]) -> TaskOptions | None:
        """Return a task's options with the app's defaults filled in; None if the app has none.

        Raises:
            SettingsError: Options and defaults conflict.
        """
        if not self.task_defaults:
            return None
        return TaskOptions.read({**self.task_defaults, **explicit}, self.task_options)

    def _load_plugins(self) -> None:
        manager = PluginManager(self.settings, clock=self._plugin_clock, app=self._app)
        manager.load(self._arguments)
        self._plugins = manager
        try:
            manager.configure()
        except BaseException:
            self._plugins = None
            raise

    # The client

    @property
    def client(self) -> Client:
        """The client; it connects when first used."""
        if self._client is None:
            with self._lock:
                if self.closed:
                    raise NotAllowed(f"app {self.name!r} is closed")
                if self._client is None:
                    self._client = self._make_client()
        return self._client

    def _make_client(self) -> Client:
        settings, plugins = self.settings, self.plugins
        backend = plugins.get(RESULT_BACKEND, settings.result_backend)
        location = ResultLocation(backend, scheme(settings.result_backend))
        reader = OutcomeReader(plugins.serializer, settings.accept_content, location)
        runner = (self._make_runner or self._connected_runner)()
        runner.actor = settings.actor
        timeout = settings.submit_timeout
        results = ResultClient(
            runner, reader, answer_timeout=timeout, result_timeout=settings.result_timeout
        )
        submitter = Submitter(
            runner, results, ids=self.ids, timeout=timeout, middleware=plugins.middleware()
        )
        topics = TopicClient(
            runner, reader, lambda: self.content(None), new_id=self.ids.new, timeout=timeout
        )
        return Client(runner, results, submitter, topics)

    def _connected_runner(self) -> ClientRunner:
        from eventmq.client.client import ClientRunner  # imports zmq

        return ClientRunner(
            self._transport,
            clock=self.clock,
            name=f"{self.name}:{os.getpid()}",
            heartbeat=self.settings.heartbeat_interval,
            heartbeat_timeout=self.settings.heartbeat_timeout,
            role=self.role,
            legacy=self.settings.legacy_broker,
        )

    def _transport(self) -> Transport:
        from eventmq.client.client import Transport

        if MEMORY not in self.settings.broker:
            return Transport(self.settings.broker, keys=keys_of(self.settings))
        if len(self.settings.broker) > 1:
            raise SettingsError(f"broker {MEMORY} stands alone: it is a broker in this process")
        embed = self._embed()
        if embed is None:
            raise NotAllowed(f"app {self.name!r} no longer exists")
        with self._lock:
            self._embedded = embed()
            return self._embedded.start(self._queues)

    @contextmanager
    def replaced_client(
        self, clock: Clock, make_runner: Callable[[], ClientRunner]
    ) -> Iterator[None]:
        """Replace client and clock during a ``with`` block, for tests.

        Args:
            clock: The clock to use.
            make_runner: Makes the client's runner when first used. Its broker keeps results.

        Raises:
            NotAllowed: Another test uses the app.
        """
        with self._lock:
            if self._make_runner is not None:
                raise NotAllowed(f"app {self.name!r} is used by another test")
            before = self._client, self.clock, self.ids, self.settings
            self._make_runner = make_runner
            self._client, self.clock, self.ids = None, clock, IdFactory(clock)
            self._plugin_clock.clock = clock
            self.settings = replace(self.settings, result_backend="broker")
        try:
            yield
        finally:
            with self._lock:
                replaced, self._make_runner = self._client, None
                self._client, self.clock, self.ids, self.settings = before
                self._plugin_clock.clock = self.clock
            if replaced is not None:
                replaced.runner.close()

    def ask(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, begin: bool = False
    ) -> Pending[Any]:
        """Make a call of the broker, see `eventmq.app.EventMQ.ask`; ``begin`` sends it at once."""
        if name in METHODS:
            raise NotAllowed(
                f"the call {name!r} is made by {METHODS[name]}: it has no single answer"
            )
        if arguments is not None and not isinstance(arguments, Mapping):
            raise TypeError(
                f"the arguments of the call {name!r} are a mapping of names to values, "
                f"not {type(arguments).__name__}"
            )
        named = dict(arguments or {})
        spec = CALLS.get(name)
        for argument, kind in spec.arguments.items() if spec is not None else ():
            if argument not in named and "?" not in kind:
                raise TypeError(f"the call {name!r} has no argument {argument!r}, which is: {kind}")
        runner = self.client.runner
        call = runner.new_call(name, named, timeout=self.settings.submit_timeout)
        call.subject = str(named.get("id", ""))
        if begin:
            runner.begin(call)
        return runner.ask(call)

    # For tasks

    def now(self) -> float:
        """Return Unix time."""
        return self.clock.now()

    @property
    def submitter(self) -> Submitter:
        """Submits jobs."""
        return self.client.submitter

    def queue_of(self, task: str) -> str:
        """Return the default queue of a task."""
        return self.settings.queue_of(task)

    @property
    def release(self) -> str:
        """The release of the code, a header of its jobs; empty for none."""
        return self.settings.release

    def content(self, name: str | None) -> tuple[str, Serializer]:
        """Return content type and serializer for a name, None for the app's default.

        Raises:
            SettingsError: The name is not in the setting ``accept_content``.
            PluginNotFound: No plugin provides it.
        """
        name = name or self.settings.serializer
        serializer = self.plugins.serializer(name)
        if name not in self.settings.accept_content:
            accepted = ", ".join(self.settings.accept_content)
            raise SettingsError(
                f"serializer {name!r} is not in accept_content ({accepted}); add it there"
            )
        return name, serializer

    def uses_policy(self, policy: Backoff) -> None:
        """Check that a retry policy exists, before jobs that need it are sent.

        Raises:
            PluginNotFound: No plugin provides it.
            PluginError: It does not accept the options.
        """
        if policy not in self._policies:
            self.plugins.retry_policy(policy.name, policy.options)
            self._policies.add(policy)

    def uses_queue(self, queue: str) -> None:
        """Make the worker of this process, if there is one, serve a queue."""
        if queue not in self._queues:
            with self._lock:
                self._queues.add(queue)
                if self._embedded is not None:
                    self._embedded.serve(queue)

    def needs_beat(self) -> None:
        """Start the scheduler of this process if the broker runs in this process too."""
        if MEMORY not in self.settings.broker:
            return
        assert self.client.runner.brokers  # noqa: S101 - starts what runs in this process
        with self._lock:
            if self._embedded is not None:
                self._embedded.beat()

    def names_module(self, module: str) -> bool:
        """Return whether the app imports a module for its tasks."""
        return module in self.settings.imports or module in self.discovered

    # The end

    def close(self) -> None:
        """Stop client, worker and broker of this process, then the plugins. Idempotent."""
        with self._lock:
            self.closed = True
            client, embedded, plugins = self._client, self._embedded, self._plugins
            self._embedded = None
        if embedded is not None:
            embedded.stop_beat()
        if client is not None:
            client.runner.close()
        if embedded is not None:
            embedded.stop()
        if plugins is not None:
            plugins.close()

    def drop_inherited(self) -> None:
        """Drop the parent's threads; called in a forked child."""
        _inherited.append(self._embedded)
        self._lock = threading.RLock()
        self._embedded = None


def _in_child() -> None:
    for components in list(_live):
        components.drop_inherited()


def _at_exit() -> None:
    for components in list(_live):
        components.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
atexit.register(_at_exit)
