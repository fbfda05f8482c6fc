"""Tasks: functions that can be called directly, or submitted to run in a worker.

`task` has the task itself and the classes of coroutine and generator tasks, `options` the options
of a declaration and of one call, `unique` unique keys, `values` the checks of all of these,
`shared` tasks that do not belong to an app.
"""

from __future__ import annotations

from eventmq.task.options import CallOptions, TaskOptions
from eventmq.task.shared import shared_task
from eventmq.task.task import AsyncTask, BoundTask, StreamTask, Task, TaskApp

__all__ = [
    "AsyncTask",
    "BoundTask",
    "CallOptions",
    "StreamTask",
    "Task",
    "TaskApp",
    "TaskOptions",
    "shared_task",
]
