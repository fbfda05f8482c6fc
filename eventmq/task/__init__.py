"""Tasks: functions that can be called here and now, or submitted to run elsewhere and later.

`task` has the task itself, `options` what a declaration may say, `calls` what one call may say,
`shared` tasks that belong to no app until one uses them.
"""

from __future__ import annotations

from eventmq.task.kinds import AsyncTask, StreamTask
from eventmq.task.options import CallOptions, TaskOptions
from eventmq.task.shared import shared_task
from eventmq.task.task import BoundTask, Task, TaskApp

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
