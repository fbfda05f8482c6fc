"""The hooks of EventMQ: markers and specifications, and nothing else.

A plugin is a module or an object whose functions carry `hookimpl` and the name of a hook. All
hooks are called in the thread that builds the app, once per app, unless a hook says otherwise.
Registration hooks return factories by name (`eventmq.sdk.Factory`); a name that two
plugins provide is an error, and a factory is called only when its name is used.
"""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import click

    from eventmq.interfaces import (
        CommandOption,
        Factory,
        Gateway,
        Middleware,
        QueueOrder,
        QueueStore,
        ResultBackend,
        RetryPolicy,
        RoutingStrategy,
        ScheduleStore,
        Serializer,
        TaskRole,
        Trigger,
        WorkerPool,
    )

__all__ = ["PROJECT", "hookimpl", "hookspec"]

#: The project name in pluggy, and the group of the entry points.
PROJECT = "eventmq"

hookspec = pluggy.HookspecMarker(PROJECT)

#: Marks a function of a plugin as the implementation of the hook of the same name.
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def eventmq_serializers() -> Mapping[str, Factory[Serializer]]:
    """Provide serializers: how arguments and results become bytes.

    The name is the content type of a job and is chosen by the setting ``serializer``, by
    ``@app.task(serializer=...)`` and, to decode, by ``accept_content``. The object is used from any
    thread of the client and of the worker's processes.

    Example::

        @hookimpl
        def eventmq_serializers():
            return {"json-zlib": lambda context: ZlibJson()}

    Returns:
        Name -> factory of `eventmq.sdk.Serializer`.

    .. versionadded:: 1.0
    """


@hookspec
def eventmq_routing_strategies() -> Mapping[str, Factory[RoutingStrategy]]:
    """Provide routing strategies: which worker gets the next jobs of a queue.

    Chosen by the setting ``routing_strategy``, and for single queues by
    ``queue_routing_strategies``. The object is used from the broker's thread only. One that looks
    at the keys of jobs is a `eventmq.sdk.KeyedRouting`. If it raises, or returns a worker that it
    was not offered, the broker logs that once and uses ``least-recently-used`` until its restart.

    Example::

        @hookimpl
        def eventmq_routing_strategies():
            return {"random": lambda context: Random()}

    Returns:
        Name -> factory of `eventmq.sdk.RoutingStrategy`.

    .. versionadded:: 1.0
    """


@hookspec
def eventmq_queue_orders() -> Mapping[str, Factory[QueueOrder]]:
    """Provide queue orders: from which of its queues a worker is served next.

    Chosen by the setting ``queue_order``. The factory is called at the start of the broker, which
    checks the options, and once per worker session; the object is used from the broker's thread
    only. If it raises, or returns a queue that it was not offered, the broker logs that once and
    uses ``weighted-fair`` until its restart.

    Example::

        @hookimpl
        def eventmq_queue_orders():
            return {"alphabetical": lambda context: Alphabetical()}

    Returns:
        Name -> factory of `eventmq.sdk.QueueOrder`.

    .. versionadded:: 1.0
    """


@hookspec
def eventmq_retry_policies() -> Mapping[str, Factory[RetryPolicy]]:
    """Provide retry policies: how long a failed job waits for its next attempt.

    Chosen by ``@app.task(retry_policy=...)``. The factory gets the options that the task names
    and is called once per set of options, in the client's process to check them and in the
    worker's to use them; the object is used from any thread.

    Example::

        @hookimpl
        def eventmq_retry_policies():
            return {"linear": lambda context: Linear(**context.options)}

    Returns:
        Name -> factory of `eventmq.sdk.RetryPolicy`.

    .. versionadded:: 1.0
    """


@hookspec
def eventmq_triggers() -> Mapping[str, Factory[Trigger]]:
    """Provide triggers: when a schedule fires.

    Chosen by the schedule. The object is used from the scheduler's thread and in the client.

    Example::

        @hookimpl
        def eventmq_triggers():
            return {"sunrise": lambda context: Sunrise(**context.options)}

    Returns:
        Name -> factory of `eventmq.sdk.Trigger`.

    .. versionadded:: 1.0
    """


@hookspec
def eventmq_schedule_stores() -> Mapping[str, Factory[ScheduleStore]]:
    """Provide schedule stores: where a scheduler keeps its schedules.

    Chosen by name or by the scheme of a URL. The object is used from the scheduler's thread.

    Example::

        @hookimpl
        def eventmq_schedule_stores():
            return {"postgresql": lambda context: PostgresSchedules(context.options["url"])}

    Returns:
        Name or URL scheme -> factory of `eventmq.sdk.ScheduleStore`.

    .. versionadded:: 1.0
    """


@hookspec
def eventmq_result_backends() -> Mapping[str, Factory[ResultBackend]]:
    """Provide result backends: where the bytes of results are kept.

    Chosen by the setting ``result_backend``: a name, or a URL by its scheme; the factory gets the
    whole URL in ``context.options["url"]``. The object is used from any thread. A worker makes one
    before it forks processes, a client at its first call; the broker makes none.

    Example::

        @hookimpl
        def eventmq_result_backends():
            return {"redis": lambda context: RedisResults(context.options["url"])}

    Returns:
        Name or URL scheme -> factory of `eventmq.sdk.ResultBackend`.

    .. versionadded:: 1.0
    """


@hookspec
def eventmq_queue_stores() -> Mapping[str, Factory[QueueStore]]:
    """Provide queue stores: where a broker keeps jobs, leases and outcomes.

    Chosen by the setting ``store``: a name, or a URL by its scheme; the factory gets the whole URL
    in ``context.options["url"]``. Other options have the values of the settings ``durability``,
    ``dedupe_window`` and ``expect_store``, and ``events_values``: the maximum number of bytes of
    arguments and results in a row of events. The object is used from the broker's thread only.

    Example::

        @hookimpl
        def eventmq_queue_stores():
            return {"postgresql": lambda context: PostgresStore(context.options["url"])}

    Returns:
        Name or URL scheme -> factory of `eventmq.sdk.QueueStore`.

    .. versionadded:: 1.0
    """


@hookspec
def eventmq_worker_pools() -> Mapping[str, Factory[WorkerPool]]:
    """Provide worker pools: what runs the jobs of a worker.

    Chosen by the setting ``pool``. The object is used from the job manager's thread only.

    Example::

        @hookimpl
        def eventmq_worker_pools():
            return {"inline": lambda context: InlinePool()}

    Returns:
        Name -> factory of `eventmq.sdk.WorkerPool`.

    .. versionadded:: 1.0
    """


@hookspec
def eventmq_gateways() -> Mapping[str, Factory[Gateway]]:
    """Provide gateways: servers of other protocols.

    Chosen by ``eventmq gateway NAME``. The object is used from the main thread of that process.

    Example::

        @hookimpl
        def eventmq_gateways():
            return {"stomp": lambda context: StompGateway(context.app)}

    Returns:
        Name -> factory of `eventmq.sdk.Gateway`.

    .. versionadded:: 1.0
    """


@hookspec
def eventmq_middleware() -> Mapping[str, Factory[Middleware]]:
    """Provide middleware: code around the submission and the execution of jobs.

    Chosen, in order, by the setting ``middleware``. The object is used from any thread of the
    client and of the worker's processes.

    Example::

        @hookimpl
        def eventmq_middleware():
            return {"timing": lambda context: Timing(context.clock)}

    Returns:
        Name -> factory of `eventmq.sdk.Middleware`.

    .. versionadded:: 1.0
    """


@hookspec
def eventmq_command_options() -> Mapping[str, Sequence[CommandOption]]:
    """Provide options of ``eventmq gateway`` or ``eventmq worker`` for gateways or pools.

    Called in the main thread when the command line has an option that the command itself does not
    have, and for its help. A name that the command already has is an error of the plugin; two
    gateways, or two pools, may declare the same option.

    Example::

        @hookimpl
        def eventmq_command_options():
            return {"stomp": [CommandOption(name="vhost", metavar="NAME", help="Virtual host.")]}

    Returns:
        Name of a gateway or pool of this plugin -> its options.

    .. versionadded:: 1.0
    """


@hookspec
def eventmq_task_options() -> Mapping[str, Callable[[Any], TaskRole]]:
    """Provide options of tasks for a gateway or pool.

    Called in the thread that declares a task, at the first option of ``@app.task`` that EventMQ
    itself does not have. The returned function gets the value where the task is declared, unless
    that is None, and raises `SettingsError` for a value that is not allowed.

    Example::

        @hookimpl
        def eventmq_task_options():
            return {"stomp": lambda queue: TaskRole(what=f"the STOMP queue {queue}", queue=queue)}

    Returns:
        Name of the option -> function that returns the role of the task.

    .. versionadded:: 1.0
    """


@hookspec
def eventmq_configure(app: Any) -> None:
    """Configure an app after it is wired, for instance register tasks.

    Called once when settings and plugins of the app are loaded, in the thread that builds it. An
    exception ends the building of the app.

    Example::

        @hookimpl
        def eventmq_configure(app):
            app.task(name="health.check")(check)

    Args:
        app: The `eventmq.app.EventMQ`.

    .. versionadded:: 1.0
    """


@hookspec
def eventmq_add_commands(cli: click.Group) -> None:
    """Add commands to the program ``eventmq``.

    Called in the main thread, at most once in a run of the program: for a command that is not
    built in, and for the list of all commands, as in ``eventmq --help``. A name that the group
    already has is an error of the plugin.

    Example::

        @hookimpl
        def eventmq_add_commands(cli):
            cli.add_command(hello)

    Args:
        cli: The group of all commands.

    .. versionadded:: 1.0
    """


@hookspec
def eventmq_serve_metrics(
    read: Callable[[], Mapping[str, Any]], address: str
) -> Callable[[], None]:
    """Serve the metrics of this process to a monitoring system.

    Called in the main thread of a broker or worker at its start if ``metrics_bind`` names an
    address. It returns at once and serves from its own threads, whose errors must not affect jobs.
    If the address is in use, it logs that once and tries again.

    Example::

        @hookimpl
        def eventmq_serve_metrics(read, address):
            return StatsPage(read, address).close

    Args:
        read: Returns the current figures, from any thread: in a broker the answer of the CALL
            ``metrics``, in a worker a map whose key ``worker`` has the worker's figures. Raises
            `EventMQError` if there are none within a few seconds.
        address: ``host:port``, which this process is allowed to use.

    Returns:
        A function that stops serving; called once.

    .. versionadded:: 1.0
    """


@hookspec
def eventmq_job_event(event: Mapping[str, Any]) -> None:
    """Observe the events of jobs.

    Called in the broker's process for each event after its commit, in order, on its own thread
    outside the hot loop. An exception is logged and does not reach other observers. If no plugin
    implements this hook, the broker does not make events for it. The hook gets neither arguments
    nor results: the setting ``redactor`` applies to a journal only.

    Example::

        @hookimpl
        def eventmq_job_event(event):
            print(event["kind"], event["job_id"])

    Args:
        event: The fields of one event: at least ``kind``, ``job_id``, ``queue``, ``ts_us``.

    .. versionadded:: 1.0
    """
