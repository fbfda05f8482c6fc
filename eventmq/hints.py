"""Hints for users of Celery: names of its API and their counterparts in EventMQ, shown in errors.

Each table belongs to one kind of object: Celery's name -> hint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "APP", "CALLED", "CALL_OPTIONS", "EXPRESSION", "GROUP", "JOB", "MIXED", "NO_CALLBACK",
    "SETTINGS", "TASK", "TASK_OPTIONS", "find_attribute",
]  # fmt: skip

_RETRY = "raise Retry(countdown=5) retries the job"
_BACKOFF = "write retry_policy=exponential(base=2, cap=300)"
_ALWAYS = "it is always so: leave it out"
_EXCHANGE = "there are no exchanges: use queue=..."
_TIMEOUT, _SOFT = "it is called timeout", "it is called soft_timeout"
_ROUTES = 'it is called routes, as in routes={"shop.mail.*": "mail"}'
_DEFAULTS = 'write task_defaults={"timeout": 60} for all tasks, or options of each task'
_SETTINGS = "settings are arguments of EventMQ(...) or stand in eventmq.toml; app.settings has them"
_RESULT = "app.job(job_id) is the handle of a job"
_GRAPH = (
    "the handle that delay() of a chain, group or chord returned has graph(); "
    "eventmq job ID --tree shows the jobs of a graph"
)
_CELERYS = (
    "the calls in a chain, group or chord are all EventMQ's or all Celery's; in Celery's, a task "
    "that has moved is app.signature(name, args=(1, 2)) of Celery's app"
)
_OPTIONS = "write task.options(countdown=5).s(1, 2)"
_ON_ERROR = "write .on_error(handler.s(...))"
_SUBMIT = "write .delay()"
_INFO = "job.info() has it"
_EAGER = "use eventmq.testing in tests, or call the function itself"
_RECONNECT = "clients and workers reconnect automatically: leave it out"

#: Arguments of ``@app.task``.
TASK_OPTIONS: Mapping[str, str] = {
    "acks_late": _ALWAYS,
    "autoretry_for": "it is called retry_on, and needs retries=...",
    "base": "a task is a function; there are no task classes",
    "bind": f"a task has no self: current_job() has its id, attempt and queue, and {_RETRY}",
    "default_retry_delay": "write retry_policy=fixed(30)",
    "dont_autoretry_for": "it is called no_retry_on",
    "max_retries": "it is called retries",
    "reject_on_worker_lost": _ALWAYS,
    "result_expires": "it is called result_ttl",
    "retry_backoff": _BACKOFF,
    "retry_backoff_max": _BACKOFF,
    "retry_jitter": "exponential() always has full jitter, fixed() none: leave it out",
    "retry_kwargs": "write retries=... and retry_policy=...",
    "soft_time_limit": _SOFT,
    "time_limit": _TIMEOUT,
    "track_started": _ALWAYS,
}

#: Options of a call.
CALL_OPTIONS: Mapping[str, str] = {
    "exchange": _EXCHANGE,
    "link": "write chain(first.s(...), second.s(...))",
    "link_error": "write task.s(...).on_error(handler.s(...)).delay()",
    "retry": "the client resends automatically until submit_timeout: leave it out",
    "routing_key": _EXCHANGE,
    "soft_time_limit": _SOFT,
    "task_id": "it is called job_id",
    "time_limit": _TIMEOUT,
}

#: Attributes of an app.
APP: Mapping[str, str] = {
    "AsyncResult": _RESULT,
    "GroupResult": "group(...).delay() returns a JobGroup",
    "add_periodic_task": 'write app.schedule("name", task.s(...), every(minutes=5))',
    "autodiscover_tasks": 'write app.autodiscover("shop", "billing")',
    "conf": _SETTINGS,
    "config_from_envvar": _SETTINGS,
    "config_from_object": _SETTINGS,
    "control": "app.cancel(job_id) cancels; eventmq pause, resume and workers do the rest",
    "current_task": "current_job() is the job that runs",
    "on_after_configure": "call app.schedule(...) in the module of the app",
    "send_task": "write app.send(name, args, kwargs)",
    "start": "run eventmq worker -A MODULE",
    "worker_main": "run eventmq worker -A MODULE",
}

#: Attributes of a task.
TASK: Mapping[str, str] = {
    "AsyncResult": _RESULT,
    "apply": f"write task(...): {_EAGER}",
    "chunks": "write task.map([(1,), (2,)])",
    "replace": "submit the other task, or write a chain",
    "request": "current_job() has id, task, queue, attempt and delivery",
    "retry": f"{_RETRY}: from eventmq import Retry",
    "run": "write task(...)",
    "starmap": "write task.map([(1, 2), (3, 4)])",
    "subtask": "write task.s(...)",
    "update_state": "write current_job().progress(done, total)",
}

#: Attributes of the handle of a job.
JOB: Mapping[str, str] = {
    "args": "job.info(args=True) has it",
    "children": _GRAPH,
    "date_done": "write job.info()['finished']",
    "failed": 'write job.state == "failed"',
    "forget": "results are removed when result_ttl has passed",
    "graph": _GRAPH,
    "kwargs": "job.info(args=True) has it",
    "name": "write job.info()['task']",
    "parent": _GRAPH,
    "queue": _INFO,
    "result": "write job.get()",
    "retries": "write job.info()['attempt'] - 1",
    "revoke": "write job.cancel()",
    "status": "write job.state",
    "task_id": "write job.id",
    "traceback": "JobFailed, which job.get() raises, has remote_traceback",
    "wait": "write job.get()",
    "worker": _INFO,
}

#: Attributes of a signature, chain, group or chord.
EXPRESSION: Mapping[str, str] = {
    "app": _CELERYS,
    "apply": f"{_SUBMIT}; {_EAGER}",
    "apply_async": f"{_SUBMIT}; for options of a call, {_OPTIONS}",
    "clone": _CELERYS,
    "freeze": _CELERYS,
    "id": "delay() returns the handle, which has the id",
    "link": "write chain(first.s(...), second.s(...))",
    "link_error": _ON_ERROR,
    "on_failure": _ON_ERROR,
    "set": _OPTIONS,
    "skew": _OPTIONS,
    "stamp": "write task.options(headers={...}).s(1, 2)",
    "type": _CELERYS,
}

#: Attributes of the handle of a group.
GROUP: Mapping[str, str] = {
    "children": "write group.jobs",
    "completed_count": "write sum(job.ready() for job in group)",
    "failed": 'write any(job.state == "failed" for job in group)',
    "forget": "results are removed when result_ttl has passed",
    "iterate": "write app.as_completed(group.jobs)",
    "join": "write group.get()",
    "join_native": "write group.get()",
    "parent": "write group.graph()",
    "restore": "make handles of the ids that you kept: app.job(job_id)",
    "results": "write group.jobs",
    "revoke": "write group.cancel()",
    "save": "keep the ids of group.jobs",
    "waiting": "write not group.ready()",
}

#: A call of one of these.
CALLED = "a signature, chain, group or chord cannot be called: write .delay()"

#: ``|`` and the like between a call of Celery and one of EventMQ.
MIXED = _CELERYS

#: A chord without a callback.
NO_CALLBACK = "a chord has a callback: write chord(members, callback).delay()"

#: Settings, and arguments of an app.
SETTINGS: Mapping[str, str] = {
    "backend": "the broker keeps results; result_backend names another place",
    "beat_schedule": 'write app.schedule("name", task.s(...), every(minutes=5))',
    "broker_connection_retry": _RECONNECT,
    "broker_connection_retry_on_startup": _RECONNECT,
    "broker_heartbeat": "it is called heartbeat_interval",
    "broker_url": "it is called broker, as in tcp://host:47291",
    "enable_utc": "datetimes have their zone: leave it out",
    "include": "it is called imports",
    "result_expires": "it is called result_ttl",
    "result_serializer": "it is called serializer",
    "task_acks_late": _ALWAYS,
    "task_always_eager": _EAGER,
    "task_annotations": _DEFAULTS,
    "task_create_missing_queues": "queues come into being when they are used: leave it out",
    "task_default_queue": "it is called default_queue",
    "task_eager_propagates": _EAGER,
    "task_ignore_result": _DEFAULTS,
    "task_queues": "queues come into being when they are used: leave it out",
    "task_reject_on_worker_lost": _ALWAYS,
    "task_routes": _ROUTES,
    "task_serializer": "it is called serializer",
    "task_soft_time_limit": _DEFAULTS,
    "task_time_limit": _DEFAULTS,
    "task_track_started": _ALWAYS,
    "timezone": 'datetimes have their zone, and schedules cron("0 3 * * *", tz="Europe/Paris")',
    "worker_concurrency": "it is called concurrency",
    "worker_max_tasks_per_child": "run eventmq worker --max-jobs-per-child 100",
    "worker_pool": "it is called pool",
    "worker_prefetch_multiplier": "a worker looks ahead by measured time: leave it out",
}


def find_attribute(owner: object, name: str, words: Mapping[str, str]) -> Any:
    """Raise the error for an attribute that an object does not have, from its ``__getattr__``.

    Args:
        owner: The object.
        name: Name of the attribute.
        words: One of the tables.

    Returns:
        The value of a property whose first evaluation raised `AttributeError` and whose second one
        does not. If the second one raises too, its error is raised, which Python had dropped.
    """
    if hasattr(type(owner), name):
        return object.__getattribute__(owner, name)
    text = f"{type(owner).__name__!r} object has no attribute {name!r}"
    text += f"; {words[name]}" if name in words else ""
    raise AttributeError(text, name=name, obj=owner)
